/* pack.c - PACK and PACK_LOGITS: only graphs for CUDA have them. A CPU task packs for itself, and
 * for its own instructions (cpu_isa.pack). */
#include "kernels/cpu/tile.h"

size_t cpu_pack_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program, (void)op;
    return 0;
}

void cpu_pack(const struct cpu_task *t) {
    (void)t;
}

size_t cpu_pack_logits_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program, (void)op;
    return 0;
}

void cpu_pack_logits(const struct cpu_task *t) {
    (void)t;
}
