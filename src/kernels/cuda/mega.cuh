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
#include "kernels/cuda/common/attention_split.cuh"
#include "kernels/cuda/common/control.cuh"
#include "kernels/cuda/common/embed.cuh"
#include "kernels/cuda/common/loader_kv.cuh"
#include "kernels/cuda/common/ops_linear.cuh"
#include "kernels/cuda/common/retile.cuh"
#include "kernels/cuda/common/sample.cuh"

/* Waits for the task's event (wait_ready) and runs it. False: the launch ends instead. */
DEV bool task_run(struct warp_context *c, const struct cuda_task *task) {
    switch (task->kind) {
    case OP_QKV:
    case OP_QKV_LINEAR:
    case OP_LINEAR:
    case OP_GATED_MLP:
    case OP_LM_HEAD: return run_linear(c, task);
    case OP_ATTENTION: return run_attention(c, task);
    case OP_ATTENTION_SPLIT: return run_split<false>(c, task);
    case OP_ATTENTION_STEP: return run_split<true>(c, task);
    default: break;
    }
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    switch (task->kind) {
    case OP_QKV_HEADS: run_qkv_heads(c, task); break;
    case OP_ATTENTION_COMBINE: run_attention_combine(c, task); break;
    case OP_EMBED: run_embed(c, task); break;
    case OP_SAMPLE: run_sample(c->args, task); break;
    default: break;
    }
    return true;
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
        barrier_init(&s->drop_ready, 1);
        barrier_init_fence();
        s->published = s->done = resume;
    }
    __syncthreads();
}

// check_kernels: qn_mega registers 168 stack 256 spills 420
// (Spills: around the calls of linear_direct and run_sample, in the former, and a few words of
// attention. Fewer would be better: local memory goes through an L1 that every acquire empties; the
// ones that are gone cost 4 to 12 % at batch 1.)
extern "C" __global__ void __launch_bounds__(CUDA_BLOCK_THREADS, 1)
    qn_mega(const __grid_constant__ struct cuda_args args) {
    struct block_shared *s = SHARED;
    const uint32_t resume = rt_load_relaxed(&args.rt.shared->resume);
    block_init(s, resume);
    struct warp_context c = context_of(&args, threadIdx.x, 0, 0);
    if (c.warp < WARPS) {
        compute_main(&c);
    } else if (c.warp == LOADER_WARP) {
        if (c.lane < LOADER_LANES) loader_main(&c, resume);
    } else if (c.lane == 0) {
        control_main(&args, s);
    }
}

#endif
