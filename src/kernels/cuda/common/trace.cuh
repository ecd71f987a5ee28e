/* trace.cuh - the compute and loader warps' part of runtime/rt_trace.h. The control warp records as
 * a worker of the CPU does, into its worker's ring; of the compute warps one thread records when a
 * task's event was seen (READY), when the activations of a linear task are in (BEGIN) and when the
 * body is done (END), into a ring of its own; so does the loader (loader_trace) when it has
 * requested the last page of a task (CUDA_TRACE_RINGS): each ring has one writer. */
#ifndef QN_CUDA_COMMON_TRACE_CUH
#define QN_CUDA_COMMON_TRACE_CUH

#include "kernels/cuda/common/block.cuh"
#include "runtime/rt_trace.h"

DEV struct rt_trace_ring *trace_ring(const struct cuda_args *args) {
    return rt_trace_ring(args->rt.trace, args->rt.n_workers + blockIdx.x);
}

DEV struct rt_trace_ring *trace_loader_ring(const struct cuda_args *args) {
    return rt_trace_ring(args->rt.trace, 2 * args->rt.n_workers + blockIdx.x);
}

/* The n-th record of a ring. */
DEV void trace_put(const struct cuda_args *args, struct rt_trace_ring *ring, uint64_t n,
                   uint64_t now, uint32_t word, uint32_t what) {
    struct rt_trace_record *to = rt_trace_at(args->rt.trace, ring, n);
    to->time_ns = now;
    to->kind = word;
    to->what = what;
    ring->begun = ring->n = n + 1;
}

/* Before the first record of a launch: the ring goes on where the last launch left it. */
DEV void trace_start(const struct cuda_args *args, struct block_shared *shared) {
    if (args->rt.trace == nullptr) return;
    shared->n_traced = trace_ring(args)->n;
    if (blockIdx.x == 0) args->rt.trace->start_ns = rt_now_ns();
}

/* Once per iteration: whether the host wants records. */
DEV void trace_look(const struct cuda_args *args, struct block_shared *shared) {
    if (args->rt.trace == nullptr) return;
    shared_store_volatile(&shared->tracing, rt_load_relaxed(&args->rt.trace->on));
}

/* Whether records are wanted: once per task, where it matters. */
DEV bool trace_wanted(struct block_shared *shared) {
    return shared_load_volatile(&shared->tracing) != 0;
}

/* The time, 0 when nothing is recorded. */
DEV uint64_t trace_now(struct block_shared *shared) {
    return trace_wanted(shared) ? rt_now_ns() : 0;
}

DEV void trace_at(const struct cuda_args *args, struct block_shared *shared, uint64_t now,
                  uint32_t kind, uint32_t task) {
    if (now == 0) return;
    trace_put(args, trace_ring(args), shared->n_traced++, now, kind, task);
}

DEV void trace(const struct cuda_args *args, struct block_shared *shared, uint32_t kind,
               uint32_t task) {
    trace_at(args, shared, trace_now(shared), kind, task);
}

#endif
