/* Program files: a correct program with bytes changed, or bytes that never were one. The input is a
 * list of 6-byte edits {offset, 4 bytes; value; how} of a program made from a fixed graph, so that
 * the fuzzer gets past the header; one of experts where an edit's bytes are over at the end. An
 * input that begins with the magic is taken as a file itself.
 */
#include "task/fixture.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct prog_header *make_program(bool experts) {
    struct model_spec spec = fixture_spec(1, 32, 2, 1, 16, 48, 192);
    if (experts)
        spec.experts = (struct experts_spec){
            .n = 6, .top_k = 2, .width = 40, .shared_width = 24, .shared_gate = 1};
    const struct task_options options = {.device.n_workers = 2, .tasks_per_worker = 1};
    struct fixture f;
    struct prog_header *p = NULL;
    if (fixture_compile(NULL, &f, &spec, 2, 256, true, &options) != QN_OK ||
        fixture_program(NULL, &f, 256, &p) != QN_OK)
        abort();
    fixture_fini(&f);
    return p;
}

static void try_program(const void *p, size_t bytes) {
    struct diag d = {0};
    if (program_check(&d, "fuzz", p, bytes) != QN_OK) return;
    struct strbuf text = {0};
    program_dump(p, &text);
    strbuf_fini(&text);
    task_verify(&d, p, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct prog_header *originals[2];
    const bool experts = size % 6 != 0;
    if (originals[experts] == NULL) originals[experts] = make_program(experts);
    const struct prog_header *original = originals[experts];
    if (size >= 8 && memcmp(data, PROGRAM_MAGIC, 8) == 0) {
        void *copy = aligned_alloc(64, (size + 63) / 64 * 64);
        memcpy(copy, data, size);
        try_program(copy, size);
        free(copy);
        return 0;
    }
    const size_t bytes = (size_t)original->total_bytes;
    uint8_t *p = malloc(bytes);
    memcpy(p, original, bytes);
    for (size_t i = 0; i + 6 <= size; i += 6) {
        uint32_t offset;
        memcpy(&offset, data + i, 4);
        uint8_t *byte = p + offset % bytes;
        *byte = data[i + 5] & 1 ? (uint8_t)(*byte + data[i + 4]) : data[i + 4];
    }
    try_program(p, bytes);
    free(p);
    return 0;
}
