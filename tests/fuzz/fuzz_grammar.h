/* fuzz_grammar.h - any bytes as the text of a grammar of one kind; what it accepts is then walked
 * by chance. A failure says why, and no mask that was given leads nowhere. */
#ifndef QN_FUZZ_GRAMMAR_H
#define QN_FUZZ_GRAMMAR_H

#include "grammar/grammar.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Up to 64 tokens of a vocabulary of all bytes, each chosen by the mask and `seed`. */
static void walk(struct matcher *m, uint32_t seed) {
    for (int i = 0; i < 64; i++) {
        struct diag d = {0};
        const uint32_t *mask;
        const int rc = matcher_mask(&d, m, &mask);
        if ((rc != QN_OK) != (d.message[0] != '\0')) abort();
        if (rc != QN_OK) return;
        seed = seed * 1664525 + 1013904223;
        uint32_t id = (seed >> 16) % 257;
        while (!(mask[id / 32] >> id % 32 & 1)) id = (id + 1) % 257;
        if (id == 256 && !matcher_accepts(m)) abort();
        if (id == 256) return;
        if (matcher_token(&d, m, (int32_t)id) == QN_EINVAL) abort();
    }
}

static int fuzz_grammar(enum grammar_kind kind, const uint8_t *data, size_t n) {
    static char bytes[256];
    static uint32_t at[258];
    static struct vocab vocab;
    static const int32_t end = 256;
    struct diag d = {0};
    struct code code;
    struct matcher *m;
    if (vocab.n_tokens == 0) {
        for (uint32_t i = 0; i < 256; i++) bytes[i] = (char)i, at[i + 1] = i + 1;
        at[257] = 256;
        if (vocab_make(&d, bytes, at, 257, &vocab) != QN_OK) abort();
    }
    const int rc = grammar_compile(&d, kind, (const char *)data, n, &code);
    if ((rc != QN_OK) != (d.message[0] != '\0')) abort();
    if (rc == QN_OK && matcher_new(&d, &code, &vocab, &end, 1, &m) == QN_OK) {
        walk(m, (uint32_t)n * 2654435761u);
        matcher_free(m);
    }
    code_fini(&code);
    return 0;
}

#endif
