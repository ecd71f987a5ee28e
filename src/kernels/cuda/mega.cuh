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

#include "kernels/cuda/common/attention.cuh"
#include "kernels/cuda/common/control.cuh"
#include "kernels/cuda/common/embed.cuh"
#include "kernels/cuda/common/loader.cuh"
#include "kernels/cuda/common/ops_linear.cuh"
#include "kernels/cuda/common/retile.cuh"
#include "kernels/cuda/common/sample.cuh"

/* What a task may fetch before its event is activated. */
DEV void task_early(const struct warp_context *c, const struct cuda_task *task, struct early *e) {
    if (kind_has_weights(task->kind)) early_linear(c, task, e);
}

DEV void task_run(struct warp_context *c, const struct cuda_task *task, const struct early *e) {
    switch (task->kind) {
    case OP_QKV:
    case OP_LINEAR:
    case OP_GATED_MLP:
    case OP_LM_HEAD: run_linear(c, task, e); break;
    case OP_ATTENTION:
    case OP_ATTENTION_SPLIT: run_attention(c, task); break;
    case OP_ATTENTION_COMBINE: run_attention_combine(c, task); break;
    case OP_EMBED: run_embed(c, task); break;
    case OP_SAMPLE: run_sample(*c, task); break;
    default: break;
    }
}

/* All warps' stores are ordered before the trigger: they meet at the barrier, the release covers
 * what this thread has seen. */
DEV void task_finish(const struct warp_context *c, const struct cuda_task *task, uint32_t go) {
    sync_compute();
    if (c->thread != 0) return;
    const struct rt *rt = &c->args->rt;
    if (task->trigger != PROG_NONE && (task->flags & CUDA_TRIGGER_WATCHED) == 0)
        add_release_gpu(rt_counter(rt, task->trigger), 1);
    trace(c->args, c->shared, CUDA_TRACE_DONE, task->index);
    barrier_arrive_release_cta(&c->shared->go_empty[go % GO_DEPTH]);
}

/* Pages that were streamed for an iteration that did not come. */
DEV void drop_pages(struct warp_context *c, uint32_t n_drops) {
    barrier_wait_acquire_cta(&c->shared->drop_ready, n_drops & 1);
    for (uint32_t n = c->shared->drop[c->warp]; n > 0; n--) {
        page_acquire(c);
        page_release(c);
    }
    c->turn = c->shared->drop_turn;
}

/* Waits for the control warp. False: it stopped before. Every warp finds the same, since `stop` is
 * set after the last arrival and the barrier is looked at once more after it was seen. */
DEV bool wait_go(const struct warp_context *c, uint64_t *barrier, uint32_t parity) {
    while (!barrier_test_acquire_cta(barrier, parity))
        if (shared_load_volatile(&c->shared->stop))
            return barrier_test_acquire_cta(barrier, parity);
    return true;
}

DEV void compute_main(struct warp_context *c) {
    struct block_shared *s = c->shared;
    uint32_t n_drops = 0;
    uint32_t ready_parity = 0; /* bit i: of go_ready[i]; drops have no such phase */
    for (uint32_t go = 0;; go++) {
        const uint32_t i = go % GO_DEPTH;
        if (!wait_go(c, &s->go_full[i], go / GO_DEPTH & 1)) break;
        const uint32_t message = s->go[i];
        if (message == GO_DROP) {
            drop_pages(c, n_drops++);
            sync_compute();
            if (c->thread == 0) barrier_arrive_release_cta(&s->go_empty[i]);
            continue;
        }
        const struct cuda_task *task = &s->task[message];
        struct early early;
        task_early(c, task, &early);
        if (!wait_go(c, &s->go_ready[i], ready_parity >> i & 1)) break;
        ready_parity ^= 1u << i;
        if (c->thread == 0) trace(c->args, s, CUDA_TRACE_BEGIN, task->index);
        task_run(c, task, &early);
        task_finish(c, task, go);
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
            barrier_init(&s->go_empty[i], 1);
        }
        barrier_init(&s->drop_ready, 1);
        barrier_init_fence();
        s->published = s->seen = resume;
    }
    __syncthreads();
}

// check_kernels: qn_mega registers 168
extern "C" __global__ void __launch_bounds__(CUDA_BLOCK_THREADS, 1)
    qn_mega(const __grid_constant__ struct cuda_args args) {
    extern __shared__ __align__(1024) char shared_memory[];
    struct block_shared *s = (struct block_shared *)(shared_memory + RING_BYTES + SCRATCH_BYTES);
    const uint32_t resume = rt_load_relaxed(&args.rt.shared->resume);
    block_init(s, resume);
    struct warp_context c;
    c.args = &args;
    c.shared = s;
    c.ring = shared_memory;
    c.scratch = shared_memory + RING_BYTES;
    c.warp = threadIdx.x / 32;
    c.lane = threadIdx.x % 32;
    c.thread = threadIdx.x;
    c.page = c.turn = 0;
    if (c.warp < WARPS) {
        compute_main(&c);
    } else if (c.warp == LOADER_WARP) {
        if (c.lane < LOADER_LANES) loader_main(&c, resume);
    } else if (c.lane == 0) {
        control_main(&args, s);
    }
}

#endif
