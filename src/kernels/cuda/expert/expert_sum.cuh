/* expert_sum.cuh - EXPERT_SUM: a row's parts by their experts' weights, and the shared experts'
 * result, are added to the residual stream, with its copy for the next norm. It works on a row at a
 * time, four columns a thread, as SPLITK_SUM. The bits are those of EXPERT_DOWN.
 *
 * Bytes per row: (top_k + 2) * 4 * H loaded, from L2, and 6 * H stored. */
#ifndef QN_CUDA_EXPERT_EXPERT_SUM_CUH
#define QN_CUDA_EXPERT_EXPERT_SUM_CUH

#include "kernels/cuda/expert/expert_list.cuh"
#include "kernels/cuda/matmul/splitk_sum.cuh"

enum { EXPERTS_AT_ONCE = QN_TOP_K < 8 ? QN_TOP_K : 8 };

/* Experts of a row, from number `first` on: their weights, and their parts' columns [k, k + 4). */
struct expert_parts {
    float weight[EXPERTS_AT_ONCE];
    float4 part[EXPERTS_AT_ONCE];
};

/* Requests them. Beyond the last expert its part is loaded again, which nothing adds. */
DEV struct expert_parts expert_parts_ask(const struct cuda_task *task, uint32_t row, uint32_t k,
                                         uint32_t first) {
    struct expert_parts e;
    const float *parts = (const float *)task->in + (uint64_t)row * (QN_TOP_K * QN_HIDDEN) + k;
    const float *weight = (const float *)task->bias + (uint64_t)row * (QN_TOP_K + QN_EXPERT_GATES);
#pragma unroll
    for (uint32_t i = 0; i < EXPERTS_AT_ONCE; i++) {
        const uint32_t at = min(first + i, QN_TOP_K - 1u);
        e.part[i] = load4_l2(parts + at * QN_HIDDEN);
        e.weight[i] = load_l2(weight + at);
    }
    return e;
}

/* Adds them to a sum, in order. */
DEV float4 expert_parts_add(float4 sum, uint32_t first, const struct expert_parts *e) {
#pragma unroll
    for (uint32_t i = 0; i < EXPERTS_AT_ONCE; i++)
        if (QN_TOP_K % EXPERTS_AT_ONCE == 0 || first + i < QN_TOP_K)
            sum = add4(sum, times4(e->part[i], e->weight[i]));
    return sum;
}

/* Everything that a thread reads for columns [k, k + 4), but for experts beyond the first ones. */
struct expert_terms {
    struct expert_parts first;
    float4 residual, shared, norm;
    float gate;
};

DEV struct expert_terms expert_terms_ask(const struct cuda_task *task, uint32_t row, uint32_t k) {
    const uint64_t at = (uint64_t)row * QN_HIDDEN + k;
    struct expert_terms t;
    t.first = expert_parts_ask(task, row, k, 0);
    t.residual = load4_l2((const float *)task->more + at);
    t.shared = make_float4(0, 0, 0, 0);
    t.gate = 1;
    if (task->w != 0) t.shared = load4_l2((const float *)task->w + at);
    if (QN_EXPERT_GATES)
        t.gate = load_l2((const float *)task->bias + (uint64_t)row * (QN_TOP_K + QN_EXPERT_GATES) +
                         QN_TOP_K);
    t.norm = __ldg((const float4 *)((const float *)task->norm + k));
    return t;
}

/* The row's elements of the result. */
DEV float4 expert_terms_sum(const struct cuda_task *task, uint32_t row, uint32_t k,
                            const struct expert_terms *t) {
    float4 sum = expert_parts_add(make_float4(0, 0, 0, 0), 0, &t->first);
#pragma unroll 1
    for (uint32_t i = EXPERTS_AT_ONCE; i < QN_TOP_K; i += EXPERTS_AT_ONCE) {
        const struct expert_parts more = expert_parts_ask(task, row, k, i);
        sum = expert_parts_add(sum, i, &more);
    }
    if (task->w != 0) sum = add4(sum, times4(t->shared, t->gate));
    return add4(t->residual, sum);
}

/* Stores a row. Returns the sum of the squares of the thread's columns. */
DEV float expert_sum_row(const struct warp_context *c, const struct cuda_task *task, uint32_t row) {
    float squares = 0;
#pragma unroll 1
    for (uint32_t first = 4 * c->thread; first - 4 * c->lane < QN_HIDDEN;
         first += SUM_AT_ONCE * SUM_STEP) {
        struct expert_terms terms[SUM_AT_ONCE];
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE; i++)
            terms[i] = expert_terms_ask(task, row, sum_column(first + i * SUM_STEP));
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE; i++) {
            const uint32_t k = first + i * SUM_STEP;
            const bool there = SUM_WHOLE || k < QN_HIDDEN;
            const float4 v =
                there ? expert_terms_sum(task, row, k, &terms[i]) : make_float4(0, 0, 0, 0);
            if (there) sum_store(task, row, k, v, terms[i].norm);
            squares += squares_of_block(v);
        }
    }
    return squares;
}

CODE(void, run_expert_sum, const struct cuda_task *task) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
#pragma unroll 1
    for (uint32_t row = task->row0; row < end; row++) {
        const float squares = expert_sum_row(&c, task, row);
        if (row + 1 == end && c.thread == 32) lease_opens(); /* the last reads have arrived */
        sum_squares_put(&c, task, row, squares);
        if (row + 1 < end) sync_compute();
    }
}

#endif
