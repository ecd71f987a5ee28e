/* trace.cuh - the compute and loader warps' part of runtime/rt_trace.h. A block has three rings,
 * each with one writer (CUDA_TRACE_RINGS). The control warp records into its worker's ring, as a
 * CPU's worker does. One thread of the compute warps records when a task's event was seen (READY),
 * when the activations of a linear task are in (BEGIN) and when the body is done (END). The loader
 * records when it has requested the last page of a task (loader_trace). */
#ifndef QN_CUDA_BLOCK_TRACE_CUH
#define QN_CUDA_BLOCK_TRACE_CUH

#include "kernels/cuda/block/block.cuh"
#include "runtime/rt_trace.h"

/* The block's n-th ring: of the control warp, the compute warps, the loader. */
DEV struct rt_trace_ring *trace_ring(const struct cuda_args *args, uint32_t n) {
    return rt_trace_ring(rt_trace_of(&args->rt), n * args->rt.n_workers + blockIdx.x);
}

/* The n-th record of a ring of `size`, a power of two. */
DEV void trace_put(struct rt_trace_ring *ring, uint32_t size, uint64_t n, uint64_t now,
                   uint32_t word, uint32_t what) {
    struct rt_trace_record *to = (struct rt_trace_record *)(ring + 1) + (n & (size - 1));
    to->time_ns = now;
    to->kind = word;
    to->what = what;
    ring->begun = ring->n = n + 1;
}

/* Before the first record of a launch: the ring goes on where the last launch left it. Its address
 * is kept, because looking it up for each record cost two trips to L2 between tasks. */
DEV void trace_start(const struct cuda_args *args, struct block_shared *shared) {
    if (rt_trace_of(&args->rt) == nullptr) return;
    shared->trace_ring = (uint64_t)trace_ring(args, 1);
    shared->n_traced = trace_ring(args, 1)->n;
    if (blockIdx.x == 0) args->rt.trace->start_ns = rt_now_ns();
}

/* Once per iteration: whether the host wants records, and how many a ring holds. */
DEV void trace_look(const struct cuda_args *args, struct block_shared *shared) {
    const struct rt_trace *t = rt_trace_of(&args->rt);
    if (t == nullptr) return;
    shared_store_volatile(&shared->tracing, rt_load_relaxed(&t->on) != 0 ? t->mask + 1 : 0);
}

/* Whether records are wanted: once per task, where it matters. */
DEV bool trace_wanted(struct block_shared *shared) {
    return QN_TRACES && shared_load_volatile(&shared->tracing) != 0;
}

/* The time, 0 when nothing is recorded. */
DEV uint64_t trace_now(struct block_shared *shared) {
    return trace_wanted(shared) ? rt_now_ns() : 0;
}

DEV void trace_at(struct block_shared *shared, uint64_t now, uint32_t kind, uint32_t task) {
    if (now == 0) return;
    trace_put((struct rt_trace_ring *)shared->trace_ring, shared->tracing, shared->n_traced++, now,
              kind, task);
}

DEV void trace(struct block_shared *shared, uint32_t kind, uint32_t task) {
    trace_at(shared, trace_now(shared), kind, task);
}

#endif
