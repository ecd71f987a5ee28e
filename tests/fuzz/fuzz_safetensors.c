/* Any bytes as a safetensors file: parsed from memory, every tensor's range read, and weights made
 * of what looks like a weight.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Isrc \
 *         tests/fuzz/fuzz_safetensors.c src/model/{safetensors,weights,convert}.c src/base/<all>.c
 * \ -ljansson -lpthread -o fuzz_safetensors
 *     ./fuzz_safetensors -dict=tests/fuzz/model.dict -max_total_time=300 <folder of its own>
 * tests/fuzz/corpus/safetensors
 */
#include "model/safetensors.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Loads a tensor as float32 and as float16, if it has a weight's shape. */
static void load(const struct safetensors *st, const struct safetensors_tensor *t) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16};
    if (t->n_dims < 1 || t->n_dims > 2) return;
    for (int i = 0; i < 2; i++) {
        struct diag d = {0};
        struct weights *w;
        struct weight_want want = {t->name, dtypes[i], t->n_dims, t->shape[0], t->shape[1]};
        struct weights_options options = {.n_threads = 1};
        if (weights_load(&d, st, &want, 1, &options, &w) == QN_OK) {
            uint64_t n = t->bytes > 0 ? t->shape[0] * (t->n_dims == 2 ? t->shape[1] : 1) : 0;
            const volatile unsigned char *p = weights_at(w, 0);
            for (uint64_t k = 0; k < n * dtype_bytes(dtypes[i]); k++) (void)p[k];
        } else if (d.message[0] == '\0') {
            abort(); /* an error without a message */
        }
        weights_free(w);
    }
}

static void parse(const unsigned char *bytes, size_t size) {
    struct diag d = {0};
    struct safetensors *st;
    if (safetensors_parse(&d, "fuzz", bytes, size, &st) != QN_OK) {
        if (st != NULL || d.code == QN_OK || d.message[0] == '\0') abort();
        return;
    }
    for (size_t i = 0; i < st->tensors.n; i++) {
        const struct safetensors_tensor *t = &st->tensors.items[i];
        const volatile unsigned char *p = t->data;
        for (uint64_t k = 0; k < t->bytes; k++) (void)p[k];
        char text[100];
        safetensors_shape_text(t, text, sizeof text);
        if (safetensors_find(st, t->name) != t) abort();
        if (i < 8) load(st, t);
    }
    safetensors_close(st);
}

/* As it is, and with a length that fits the header, which mutation would seldom hit. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* A copy of exactly this size, so that a read past the end is seen. */
    unsigned char *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL) return 0;
    memcpy(bytes, data, size);
    parse(bytes, size);
    const unsigned char *end = size > 8 ? memrchr(bytes + 8, '}', size - 8) : NULL;
    if (end != NULL) {
        uint64_t n = (uint64_t)(end + 1 - (bytes + 8));
        for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> (8 * i));
        parse(bytes, size);
    }
    free(bytes);
    return 0;
}
