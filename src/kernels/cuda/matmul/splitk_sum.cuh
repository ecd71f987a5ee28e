/* splitk_sum.cuh - SPLITK_SUM: adds the parts of LINEAR_SPLITK (matmul_tile_hopper.cuh) to the
 * residual stream and makes its copy for the next norm. It works on a row at a time, four columns a
 * thread. The bits are those of LINEAR. */
#ifndef QN_CUDA_MATMUL_SPLITK_SUM_CUH
#define QN_CUDA_MATMUL_SPLITK_SUM_CUH

#include "kernels/cuda/other/embed.cuh"
#include "kernels/cuda/matmul/matmul_epilogue.cuh"

/* Parts of a row: PARTIALS if all the program's operators have that many, otherwise the task's
 * number. A constant keeps the code short: a layer runs this code once, and waits for it. */
#define HAS_ALL_PARTS(i, k) &&cuda_k_tiles(k) >= PARTIALS
#define SUM_ALL_PARTS       (true QN_LINEAR_WIDTHS(HAS_ALL_PARTS))
DEV uint32_t sum_parts(const struct cuda_task *task) {
    return SUM_ALL_PARTS ? PARTIALS : task->n_pieces;
}

/* The part that has partial sum p, if p has k-tiles. With fewer parts than PARTIALS each part is
 * one k-tile. */
struct sum_part {
    uint32_t n;
    bool there;
};
DEV struct sum_part part_of(uint32_t n_parts, uint32_t p) {
    const uint32_t n = partial_first(n_parts, p);
    return {n, n < partial_first(n_parts, p + 1)};
}

/* Everything that a thread reads for columns [k, k + 4). All of it is requested before the first
 * value is used. */
struct sum_terms {
    float4 part[PARTIALS], residual, bias, norm; /* part: by partial sums */
};
DEV struct sum_terms terms_ask(const struct cuda_task *task, uint32_t row, uint32_t k) {
    struct sum_terms t;
    const uint32_t n = sum_parts(task);
    const float *parts = (const float *)task->in + (uint64_t)row * n * QN_HIDDEN + k;
#pragma unroll
    for (uint32_t p = 0; p < PARTIALS; p++) /* always loaded, or they would come one by one */
        t.part[p] = load4_l2(parts + min(part_of(n, p).n, n - 1) * QN_HIDDEN);
    t.residual = load4_l2((const float *)task->more + (uint64_t)row * QN_HIDDEN + k);
    t.bias = make_float4(0, 0, 0, 0);
    if (LINEAR_BIASES && task->bias != 0)
        t.bias = __ldg((const float4 *)((const float *)task->bias + k));
    t.norm = __ldg((const float4 *)((const float *)task->norm + k));
    return t;
}

/* The sum of the terms: LINEAR's two halves. */
DEV float4 terms_sum(const struct cuda_task *task, const struct sum_terms *t) {
    float4 half[2];
    bool any[2] = {false, false};
#pragma unroll
    for (int p = 0; p < PARTIALS; p++) {
        const int h = p / (PARTIALS / 2);
        if (!part_of(sum_parts(task), p).there) continue;
        half[h] = any[h] ? add4(half[h], t->part[p]) : t->part[p];
        any[h] = true;
    }
    float4 sum = any[1] ? add4(half[0], half[1]) : half[0];
    if (LINEAR_BIASES && task->bias != 0) sum = add4(sum, t->bias);
    return add4(t->residual, sum);
}

enum {
    SUM_AT_ONCE = QN_HIDDEN > 4 * COMPUTE_THREADS ? 2 : 1,
    SUM_STEP = 4 * COMPUTE_THREADS,
    SUM_WHOLE = QN_HIDDEN % (SUM_AT_ONCE * SUM_STEP) == 0, /* all threads have columns */
};

/* Where the thread reads for columns from k on: there, or the row's last columns. */
DEV uint32_t sum_column(uint32_t k) {
    return SUM_WHOLE ? k : min(k, QN_HIDDEN - 4u);
}

/* Stores columns [k, k + 4). */
DEV void sum_store(const struct cuda_task *task, uint32_t row, uint32_t k, float4 v, float4 norm) {
    store4_plain((float *)task->out + (uint64_t)row * QN_HIDDEN + k, v);
    const float4 n = mul4(v, norm);
    if (STREAM_IS_PACKED)
        packed_store4(task, task->out2, row, k, n);
    else
        store4_plain((float *)task->out2 + (uint64_t)row * QN_HIDDEN + k, n);
}

/* Stores a row's sum of squares. sum: of the thread's columns. They are added in the order of
 * squares.cuh. */
DEV void sum_squares_put(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                         float sum) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (c->lane == 0) SHARED->warp_sum[c->warp] = sum;
    sync_compute();
    if (c->thread == 0) {
        for (uint32_t w = 1; w < WARPS; w++) sum += SHARED->warp_sum[w];
        store_plain((float *)task->more2 + row, sum);
    }
}

/* Tasks have a row, or a few. */
CODE(void, run_splitk_sum, const struct cuda_task *task) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
#pragma unroll 1
    for (uint32_t row = task->row0; row < end; row++) {
        float sum = 0;
#pragma unroll 1
        for (uint32_t first = 4 * c.thread; first - 4 * c.lane < QN_HIDDEN;
             first += SUM_AT_ONCE * SUM_STEP) {
            struct sum_terms terms[SUM_AT_ONCE];
#pragma unroll
            for (int i = 0; i < SUM_AT_ONCE; i++)
                terms[i] = terms_ask(task, row, sum_column(first + i * SUM_STEP));
#pragma unroll
            for (int i = 0; i < SUM_AT_ONCE; i++) {
                const uint32_t k = first + i * SUM_STEP;
                const bool there = SUM_WHOLE || k < QN_HIDDEN;
                const float4 v = there ? terms_sum(task, &terms[i]) : make_float4(0, 0, 0, 0);
                if (there) sum_store(task, row, k, v, terms[i].norm);
                sum += squares_of_block(v);
            }
        }
        if (row + 1 == end && c.thread == 32) lease_opens(); /* the last reads have arrived */
        sum_squares_put(&c, task, row, sum);
        if (row + 1 < end) sync_compute();
    }
}

#endif
