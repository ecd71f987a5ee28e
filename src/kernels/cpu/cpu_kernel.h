/* cpu_kernel.h - the contract between the runtime and the CPU kernels.
 *
 * One kernel per row of op.def that is not CUDA's: src/kernels/cpu/<op>.c, entered through
 * cpu_task_run. A kernel computes exactly the tile of its task, reads and writes nothing else,
 * allocates nothing, and gives the same bits whatever the tile, the batch, the other rows and the
 * number of workers: every reduction has an order that depends on shapes and positions only.
 *
 * What differs between processors is in struct cpu_isa: a few primitives, each with a plain C
 * reference (isa_ref.c) and variants per instruction set, chosen once at start-up. Bits are the
 * same within one isa, not across them.
 */
#ifndef QN_KERNELS_CPU_KERNEL_H
#define QN_KERNELS_CPU_KERNEL_H

#include "graph/partials.h"
#include "runtime/rt_batch.h"
#include "task/program.h"

#include <stdbool.h>
#include <stddef.h>

/* All that a kernel needs to run one task. */
struct cpu_task {
    const struct prog_header *program;
    const struct prog_op *op;
    const struct prog_task *task;
    void *const *tensors; /* base address by program tensor index; state: the layer's cache */
    const struct rt_batch *batch; /* rows, slots, block tables */
    const struct cpu_isa *isa;
    const struct cpu_rope *rope;
    void *scratch; /* this worker's, 64-byte aligned, at least cpu_scratch_bytes(program) */
};

/* Scratch that any task of the program needs, on any isa. */
size_t cpu_scratch_bytes(const struct prog_header *program);

/* Runs one task; kind OP_NONE does nothing. */
void cpu_task_run(const struct cpu_task *t);

/* cos and sin of every position's rotation angles, made once per engine by cpu_rope_fill:
 * [spec_rope_rows][spec_rope_dim / 2] each. Angles as in transformers' ROPE_INIT_FUNCTIONS. */
struct cpu_rope {
    const float *cos, *sin;
};
/* Fills cos[] and sin[] (each spec_rope_rows(spec, n_positions) * spec_rope_dim / 2 floats). */
void cpu_rope_fill(const struct model_spec *spec, uint32_t n_positions, float *cos, float *sin);

/* How a dot product is added up: those of LINEAR, whose columns several devices may share, by the
 * halves of graph/partials.h; those of other operators in one go. */
enum cpu_sum { CPU_SUM_WHOLE, CPU_SUM_HALVES };

/* Matrix times a few vectors, the heart of every linear layer:
 *
 *   y[t * ldy + n] = sum_k w[n * k + ...] * x[t][k]        0 <= n < n_out, 0 <= t < n_tok
 *
 * w: n_out rows of k elements of the isa's weight dtype, row-major, as in the checkpoint, no
 * alignment promised, not even the element's. x: n_tok rows as one call of `pack` left them. The
 * order of the sum over k depends on k and `sum` alone. Nothing outside of w's rows is read. */
typedef void cpu_gemm_fn(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k, const void *x,
                         uint32_t n_tok, float *y, size_t ldy);

/* The partial sums of dot products of k columns: the ends of those that have columns, and how many
 * make the first half (partial_half). CPU_SUM_WHOLE has a single one. */
struct cpu_partials {
    uint32_t n, half;
    uint32_t end[PARTIALS];
};
static inline struct cpu_partials cpu_partials_of(enum cpu_sum sum, uint32_t k) {
    const uint32_t tiles = partial_tiles(k);
    if (sum == CPU_SUM_WHOLE) return (struct cpu_partials){1, 1, {k}};
    struct cpu_partials p = {partial_count(tiles), partial_half(tiles), {0}};
    for (uint32_t i = 0; i < p.n; i++) {
        const uint32_t end = partial_first(tiles, partial_nth(tiles, i) + 1) * PARTIAL_TILE;
        p.end[i] = end < k ? end : k;
    }
    return p;
}

/* How many times the two latest sums become one when partial sum i, the latest, is complete. At
 * most three sums are held at a time. */
static inline uint32_t cpu_partials_merges(const struct cpu_partials *p, uint32_t i) {
    return (i != 0 && i != p->half) + (i + 1 == p->n && p->half < p->n);
}

/* Upper bound, over all isas and weight dtypes, of pack_bytes. */
static inline size_t cpu_pack_bound(uint32_t n_tok, uint32_t k) {
    return (size_t)((n_tok + 15) & ~15u) * ((((size_t)k + 31) & ~(size_t)31) * 4 + 64);
}

/* The primitives that differ between processors. NaN in, no crash: see each. */
struct cpu_isa {
    const char *name; /* "ref", "avx2", "avx512bf16", "amx" */
    /* Bytes of n_tok packed rows of k activations, for a weight dtype. A multiple of 64. */
    size_t (*pack_bytes)(enum dtype weight, uint32_t n_tok, uint32_t k);
    /* Packs n_tok rows of k floats for gemm with that weight dtype: for BF16 weights rounds to
     * nearest-even bf16, otherwise keeps floats. x[t] points at row t; where `scale` is not NULL
     * x[t][i] * scale[i] is packed. dst is 64-byte aligned. */
    void (*pack)(enum dtype weight, const float *const *x, const float *scale, uint32_t n_tok,
                 uint32_t k, void *dst);
    cpu_gemm_fn *gemm[3]; /* by enum dtype of the weight: F32, BF16, F16 */
    /* One attention piece for `n_q` query heads that share one KV head and one token row:
     * positions [0, n) of k rows (row->k_width elements, one right after the other) and v rows
     * (row->v_width elements, kv_value_pitch apart), n <= ATTENTION_PIECE, continuing the running
     * state: for each head h: state[h] = {max, sum, out[v_width]}, one right after the other. q:
     * n_q rows of k_width floats already scaled by 1/sqrt(k_width). A fresh state is {-inf, 0,
     * 0...}. What a head gets does not depend on the heads beside it. */
    void (*attend)(const struct kv_row *row, const float *q, uint32_t n_q, const void *k,
                   const void *v, uint32_t n, float *state);
    float (*sum_squares)(const float *x, uint32_t n); /* the order of the sum depends on n alone */
    void (*silu_mul)(float *gate, const float *up, uint32_t n); /* gate = silu(gate) * up */
    /* out = {max of x, sum of exp(x - max)}; NaN counts as -inf; no finite value gives a sum of 0
     */
    void (*max_sumexp)(const float *x, uint32_t n, float out[2]);
    void (*exp_of)(float *y, const float *x, uint32_t n); /* y = exp(x), 0 for NaN; y may be x */
};

/* The best isa that this processor has; `want` (may be NULL) asks for one by name, NULL is
 * returned when that one is unknown or not supported here. Asks the kernel for permission to use
 * AMX tiles where it is needed, for the whole process: call it before starting workers. */
const struct cpu_isa *cpu_isa_select(const char *want);

/* All isas, best last, supported here or not. */
extern const struct cpu_isa cpu_isa_ref, cpu_isa_avx2, cpu_isa_avx512, cpu_isa_amx;

/* The kernels, one per row of op.def whose target is ANY or CPU; reach them through cpu_task_run.
 * With each, the scratch that the largest task of its operator needs. */
#define CPU_FORM_ANY(...) CPU_FORM(__VA_ARGS__)
#define CPU_FORM_CPU(...) CPU_FORM(__VA_ARGS__)
#define CPU_FORM_CUDA(...)
#define CPU_FORM(ID, name)                                                                         \
    void cpu_##name(const struct cpu_task *t);                                                     \
    size_t cpu_##name##_scratch(const struct prog_header *program, const struct prog_op *op);
#define OP(ID, name, target, ...) CPU_FORM_##target(ID, name)
#include "graph/op.def"
#undef CPU_FORM

#endif
