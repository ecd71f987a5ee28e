/* Any bytes as tokenizer.json; what opens is put to use.
 *
 *     clang -fsanitize=fuzzer,address,undefined ... tests/fuzz/fuzz_tokenizer_json.c
 *     ./fuzz_tokenizer_json tests/fuzz/corpus/tokenizer_json
 */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use_tokenizer(const struct tokenizer *t) {
    static const char text[] = "The  mill's 12345 \xC3\xA9\xE2\x96\x81\n <s>\xFF<unk> a";
    struct token_ids ids = {0};
    struct strbuf whole = {0}, pieces = {0};
    struct token_stream s;
    if (tokenizer_encode(NULL, t, text, sizeof text, true, &ids) == QN_OK)
        tokenizer_decode(NULL, t, ids.items, ids.n, false, &whole);
    strbuf_clear(&whole);
    token_stream_init(&s, t, true);
    for (int32_t id = 0; id < tokenizer_n_vocab(t) && id < 300; id++) {
        int32_t odd = id * 7 % tokenizer_n_vocab(t);
        token_stream_push(NULL, &s, odd, &pieces);
        tokenizer_bytes(NULL, t, odd, &whole);
    }
    token_stream_flush(NULL, &s, &pieces);
    token_stream_fini(&s);
    strbuf_fini(&whole);
    strbuf_fini(&pieces);
    ARRAY_FINI(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct tokenizer *t;
    struct diag d = {0};
    if (tokenizer_parse(&d, "fuzz", (const char *)data, n, (const char *)data, n, &t) == QN_OK) {
        use_tokenizer(t);
        tokenizer_free(t);
    } else if (strlen(d.message) == 0) {
        abort(); /* a failure says why */
    }
    return 0;
}
