/* Any bytes as config.json and as generation_config.json. What is accepted must hold the bounds of
 * model_spec.h and give a graph that verifies.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Isrc \
 *         tests/fuzz/fuzz_config.c src/model/{hf_config,family,decoder,generation_config}.c \
 *         src/model/{llama,mistral,qwen2,qwen3}.c src/graph/<all>.c src/base/<all>.c \
 *         -ljansson -lm -o fuzz_config
 *     ./fuzz_config -dict=tests/fuzz/model.dict -max_total_time=300 <folder of its own>
 * tests/fuzz/corpus/config
 */
#include "graph/kernel_graph.h"
#include "model/generation_config.h"
#include "model/hf_config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void build(const struct hf_config *c) {
    struct diag d = {0};
    struct arena arena = {0};
    struct kgraph g;
    struct hf_config small = *c;
    if (small.spec.n_layers > 2) small.spec.n_layers = 2;
    kgraph_init(&g, &arena, &small.spec, 3, 2, 1000);
    if (c->family->build(&d, &g, c->family, c->spec.tied) != QN_OK ||
        kgraph_verify(&d, &g) != QN_OK)
        abort();
    kgraph_fini(&g);
    arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct diag d = {0};
    struct hf_config c;
    struct generation_config g;
    if (hf_config_parse(&d, "fuzz", (const char *)data, size, &c) == QN_OK) {
        if (model_spec_verify(&d, "fuzz", &c.spec) != QN_OK) abort();
        for (uint32_t i = 0; i < c.spec.n_eos; i++)
            if (c.spec.eos[i] < 0 || (uint32_t)c.spec.eos[i] >= c.spec.vocab) abort();
        if (c.spec.bos < -1 || c.spec.bos >= (int32_t)c.spec.vocab) abort();
        build(&c);
    } else if (d.code == QN_OK || d.message[0] == '\0') {
        abort();
    }
    diag_clear(&d);
    if (generation_config_parse(&d, "fuzz", (const char *)data, size, 1000, &g) == QN_OK) {
        for (int i = 0; i < N_SAMPLING_PARAMS; i++)
            if (sampling_table[i].model &&
                sampling_check_range(NULL, &sampling_table[i], g.sampling[i]) != QN_OK)
                abort();
    } else if (d.code == QN_OK || d.message[0] == '\0') {
        abort();
    }
    return 0;
}
