/* mega.cuh - the mega-kernel: one launch runs every iteration of every request.
 *
 * Entry points: qn_mega here; qn_retile, qn_dummy and qn_read_all in common/retile.cuh. What the
 * host passes: codegen/cuda_abi.h; the model's constants come as QN_* macros.
 *
 * One block per multiprocessor, all co-resident (cooperative launch). Roles of the warps and the
 * map of shared memory: common/block.cuh. Per task, in time:
 *
 *   control   fetch descriptor ... poll event, go
 *   loader    ..... pages stream long before ...........................
 *   compute                                   activations, mma, results, trigger
 */
#ifndef QN_CUDA_MEGA_CUH
#define QN_CUDA_MEGA_CUH

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#include "kernels/cuda/common/attention_combine.cuh"
#include "kernels/cuda/common/attention_rows.cuh"
#include "kernels/cuda/common/attention_split.cuh"
#include "kernels/cuda/common/control.cuh"
#include "kernels/cuda/common/embed.cuh"
#include "kernels/cuda/common/loader_kv.cuh"
#include "kernels/cuda/common/ops_linear.cuh"
#include "kernels/cuda/common/retile.cuh"
#include "kernels/cuda/common/sample.cuh"

/* Tasks of many rows. One function, not inlined, with one call: registers and code stay away from
 * those of few. A task that works in the ring's memory takes its lease before the event. */
__device__ __noinline__ uint32_t many_rows(const struct cuda_args *args,
                                           const struct cuda_task *task, uint32_t state,
                                           uint32_t message) {
    struct warp_context c = context_again(args, state, message);
    const bool leased = task->columns == CUDA_LEASE;
    if (leased) lease_take(&c);
    if (!wait_ready(&c)) return CONTEXT_STOP;
    if (c.thread == 0) trace(args, SHARED, RT_TRACE_READY, task->index);
    if (!leased) {
        linear_direct(&c, task, linear_rows(task), linear_unit_rows(task));
        return context_pack(&c);
    }
    if (task->kind != OP_ATTENTION) packed_task(args, task);
#if QN_HEAD_DIM <= 128
    if (task->kind == OP_ATTENTION) rows_task(&c, task);
#endif
    lease_give(&c);
    return context_pack(&c);
}

/* Matrices times packed activations of few rows. */
template <int COLUMNS>
__device__ __noinline__ uint32_t packed_few(const struct cuda_args *args,
                                            const struct cuda_task *task, uint32_t state,
                                            uint32_t message) {
    struct warp_context c = context_again(args, state, message);
    if (!wait_ready(&c)) return CONTEXT_STOP;
    if (c.thread == 0) trace(args, SHARED, RT_TRACE_READY, task->index);
    packed_few_task<COLUMNS>(&c, task);
    return context_pack(&c);
}

/* Matrices of few rows: decode's linear operators. */
__device__ __noinline__ uint32_t few_rows(const struct cuda_args *args,
                                          const struct cuda_task *task, uint32_t state,
                                          uint32_t message) {
    struct warp_context c = context_again(args, state, message);
    return run_linear(&c, task) ? context_pack(&c) : CONTEXT_STOP;
}

/* Attention of few rows. */
template <bool STEP>
__device__ __noinline__ uint32_t few_rows_attention(const struct cuda_args *args,
                                                    const struct cuda_task *task, uint32_t state,
                                                    uint32_t message) {
    struct warp_context c = context_again(args, state, message);
    return run_split<STEP>(&c, task) ? context_pack(&c) : CONTEXT_STOP;
}

/* All others: they need nothing but their event. */
__device__ __noinline__ uint32_t other_task(const struct cuda_args *args,
                                            const struct cuda_task *task, uint32_t state,
                                            uint32_t message) {
    struct warp_context c = context_again(args, state, message);
    if (task->kind == OP_SAMPLE) run_sample_early(args, task);
    if (!wait_ready(&c)) return CONTEXT_STOP;
    if (c.thread == 0) trace(args, SHARED, RT_TRACE_READY, task->index);
    switch (task->kind) {
    case OP_QKV_HEADS: run_qkv_heads(&c, task); break;
    case OP_ATTENTION_COMBINE: run_attention_combine(&c, task); break;
    case OP_PACK:
    case OP_PACK_LOGITS: run_pack(args, task); break;
    case OP_EMBED: run_embed(&c, task); break;
    case OP_SAMPLE: run_sample(args, task); break;
    default: break;
    }
    packed_fence(task);
    return context_pack(&c);
}

/* Runs a task by one of these functions. */
typedef uint32_t outlined(const struct cuda_args *args, const struct cuda_task *task,
                          uint32_t state, uint32_t message);
template <outlined RUN>
DEV bool run_outlined(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t state = RUN(c->args, task, context_pack(c), c->message);
    if (state == CONTEXT_STOP) return false;
    context_unpack(c, state);
    return true;
}

/* Waits for the task's event (wait_ready) and runs it. False: the launch ends instead. Every kind
 * is run by a function that is not inlined: what one of them keeps in registers is nobody else's to
 * spill, and this one, which calls them all, has nothing to keep. */
DEV bool task_run(struct warp_context *c, const struct cuda_task *task) {
    if (task->columns != 0) {
        const bool packed = (task->flags & CUDA_IN_PACKED) != 0;
        if (packed && task->columns == 1) return run_outlined<packed_few<1>>(c, task);
        if (packed && task->columns == 2) return run_outlined<packed_few<2>>(c, task);
        return run_outlined<many_rows>(c, task);
    }
    switch (task->kind) {
    case OP_QKV:
    case OP_QKV_LINEAR:
    case OP_LINEAR:
    case OP_GATED_MLP:
    case OP_LM_HEAD: return run_outlined<few_rows>(c, task);
    case OP_ATTENTION: return run_attention(c, task);
    case OP_ATTENTION_SPLIT: return run_outlined<few_rows_attention<false>>(c, task);
    case OP_ATTENTION_STEP: return run_outlined<few_rows_attention<true>>(c, task);
    default: return run_outlined<other_task>(c, task);
    }
}

/* All warps' stores are ordered before the trigger: they meet at the barrier, the release covers
 * what this thread has seen. A hint orders nothing and goes at once. */
DEV void task_finish(const struct warp_context *c, const struct cuda_task *task) {
    const struct rt *rt = &c->args->rt;
    const bool hint = (task->flags & CUDA_TRIGGER_HINT) != 0;
    if (c->thread == 0 && hint) add_relaxed_gpu(rt_counter(rt, task->trigger), 1);
    sync_compute();
    if (c->thread != 0) return;
    const uint64_t now = trace_now(c->args, SHARED); /* what the trigger sets off comes later */
    if (!hint && task->trigger != PROG_NONE && (task->flags & CUDA_TRIGGER_WATCHED) == 0)
        add_release_gpu(rt_counter(rt, task->trigger), 1);
    trace_at(c->args, SHARED, now, RT_TRACE_END, task->index);
    barrier_arrive_release_cta(&SHARED->go_empty[c->message % GO_DEPTH]);
}

/* Pages that were streamed for an iteration that did not come. */
DEV void drop_pages(struct warp_context *c, uint32_t n_drops) {
    barrier_wait_acquire_cta(&SHARED->drop_ready, n_drops & 1);
    for (uint32_t n = SHARED->drop[c->warp]; n > 0; n--) {
        page_acquire(c);
        page_release(c);
    }
    c->turn = SHARED->drop_turn;
}

DEV void compute_main(struct warp_context *c) {
    struct block_shared *s = SHARED;
    uint32_t n_drops = 0;
    if (c->thread == 0) trace_start(c->args, s);
    for (c->message = 0;; c->message++) {
        const uint32_t i = c->message % GO_DEPTH;
        if (!wait_control(c, &s->go_full[i], c->message / GO_DEPTH & 1)) break;
        const uint32_t message = s->go[i];
        if (message == GO_DROP) {
            drop_pages(c, n_drops++);
            sync_compute();
            if (c->thread == 0) barrier_arrive_release_cta(&s->go_empty[i]);
            continue;
        }
        if (!task_run(c, &s->task[message])) break;
        task_finish(c, &s->task[message]);
    }
    sync_compute();
    if (c->thread == 0) shared_store_volatile(&s->quit, 1);
}

DEV void block_init(struct block_shared *s, uint32_t resume) {
    for (uint32_t i = threadIdx.x; i < sizeof *s / 4; i += CUDA_BLOCK_THREADS)
        ((uint32_t *)s)[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < RING_PAGES; i++) {
            barrier_init(&s->page_full[i], page_copy_arrivals());
            barrier_init(&s->page_empty[i], 1);
        }
        for (uint32_t i = 0; i < GO_DEPTH; i++) {
            barrier_init(&s->go_full[i], 1);
            barrier_init(&s->go_ready[i], 1);
            barrier_init(&s->go_empty[i], 1 + QN_JIT_WEIGHTS);
        }
        for (uint32_t i = 0; i < MAX_STAGES; i++) {
            barrier_init(&s->packed_full[i], page_copy_arrivals());
            barrier_init(&s->packed_empty[i], WARPS);
        }
        barrier_init(&s->drop_ready, 1);
        barrier_init_fence();
        s->published = s->done = resume;
    }
    __syncthreads();
}

/* The roles of warps: functions of their own, so that one's registers are not spilled for
 * another's. */
__device__ __noinline__ void role_loader(const struct cuda_args *args, uint32_t resume) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    if (c.lane < LOADER_LANES) loader_main(&c, resume);
}

__device__ __noinline__ void role_control(const struct cuda_args *args) {
    if (threadIdx.x % 32 == 0) control_main(args, SHARED);
}

// check_kernels: qn_mega registers 168 stack 320 spills 420
// (Spills: around the calls of the functions that run tasks, in this one, which only calls them.
// Where a task runs there must be none: local memory goes through an L1 that every acquire empties.
// Spilled contexts cost 10 % at batch 1.)
extern "C" __global__ void __launch_bounds__(CUDA_BLOCK_THREADS, 1)
    qn_mega(const __grid_constant__ struct cuda_args args) {
    struct block_shared *s = SHARED;
    const uint32_t resume = rt_load_relaxed(&args.rt.shared->resume);
    block_init(s, resume);
    struct warp_context c = context_of(&args, threadIdx.x, 0, 0);
    if (c.warp < WARPS)
        compute_main(&c);
    else if (c.warp == LOADER_WARP)
        role_loader(&args, resume);
    else
        role_control(&args);
}

#endif
