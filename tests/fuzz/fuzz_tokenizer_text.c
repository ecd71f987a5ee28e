/* Any bytes as text for the golden tokenizers, then as ids: nothing crashes, decoding in a stream
 * gives what decoding at once gives, and every piece is whole characters. Run from the repository's
 * root. */
#include "model/tokenizer.h"
#include "model/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { N_TOKENIZERS = 7 };
static struct tokenizer *tokenizers[N_TOKENIZERS];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const char *const paths[N_TOKENIZERS] = {
        "tests/golden/tokenizer/qwen",      "tests/golden/tokenizer/llama3",
        "tests/golden/tokenizer/llama2",    "tests/golden/tokenizer/mistral",
        "tests/golden/tokenizer/metaspace", "tests/golden/tokenizer/gpt2",
        "tests/golden/tokenizer/pieces"};
    (void)argc, (void)argv;
    for (int i = 0; i < N_TOKENIZERS; i++)
        if (tokenizer_open(NULL, paths[i], &tokenizers[i]) != QN_OK) abort();
    return 0;
}

static void check(bool holds) {
    if (!holds) abort();
}

static void check_stream(const struct tokenizer *t, const struct token_ids *ids, bool skip) {
    struct strbuf whole = {0}, pieces = {0};
    struct token_stream s;
    check(tokenizer_decode(NULL, t, ids->items, ids->n, skip, &whole) == QN_OK);
    token_stream_init(&s, t, skip);
    for (size_t i = 0; i <= ids->n; i++) {
        size_t before = pieces.n;
        check((i < ids->n ? token_stream_push(NULL, &s, ids->items[i], &pieces)
                          : token_stream_flush(NULL, &s, &pieces)) == QN_OK);
        check(tokenizer_text_valid(strbuf_text(&pieces) + before, pieces.n - before));
    }
    check(whole.n == pieces.n && memcmp(strbuf_text(&whole), strbuf_text(&pieces), whole.n) == 0);
    token_stream_fini(&s);
    strbuf_fini(&whole);
    strbuf_fini(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 1) return 0;
    const struct tokenizer *t = tokenizers[data[0] % N_TOKENIZERS];
    struct token_ids ids = {0}, odd = {0};
    check(tokenizer_encode(NULL, t, (const char *)data + 1, n - 1, (data[0] & 64) != 0, &ids) ==
          QN_OK);
    check_stream(t, &ids, (data[0] & 128) != 0);
    for (size_t i = 1; i + 1 < n; i += 2) {
        int32_t id = (data[i] | data[i + 1] << 8) % tokenizer_n_vocab(t);
        check(ARRAY_PUSH(NULL, &odd, id) == QN_OK);
    }
    check_stream(t, &odd, (data[0] & 128) != 0);
    ARRAY_FINI(&ids);
    ARRAY_FINI(&odd);
    return 0;
}
