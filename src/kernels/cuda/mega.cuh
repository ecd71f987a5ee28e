/* mega.cuh - the mega-kernel: one launch runs every iteration of every request.
 *
 * Entry points: qn_mega here; qn_retile, qn_dummy and qn_read_all in data/retile.cuh. Their
 * parameters are in codegen/cuda_abi.h; the model's constants come as QN_* macros.
 *
 * One block per multiprocessor, all co-resident (cooperative launch). block/block.cuh has the roles
 * of the warps and the map of shared memory. A task, in time:
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

#define CODE_FILES
#include "kernels/cuda/form.def"
#undef CODE_FILES
#include "kernels/cuda/form.h"
#if QN_JIT
#include "kernels/cuda/block/tasks_jit.cuh"
#else
#include "kernels/cuda/block/tasks_aot.cuh"
#endif

/* ---- forms: kernels/cuda/form.def ---- */

/* The rest of the arguments, if the image has the entry; else nothing. */
#define FORM_IF(name, ...)     FORM_IF_HAS(QN_HAS_##name, __VA_ARGS__)
#define FORM_IF_HAS(has, ...)  FORM_IF_HAS_(has, __VA_ARGS__)
#define FORM_IF_HAS_(has, ...) FORM_IF_##has(__VA_ARGS__)
#define FORM_IF_1(...)         __VA_ARGS__
#define FORM_IF_0(...)
static_assert(N_FORMS <= 1 << 7, "struct warp_state");

/* The form that runs a task: the host's choice, or the form that stands in for it now. */
DEV uint32_t form_of(const struct cuda_task *task) {
    const uint32_t form = task->form;
#define NOW(name, of, has, condition)                                                              \
    FORM_IF(name, if (form == FORM_##of && (condition)) return FORM_##name;)
#include "kernels/cuda/form.def"
    return form;
}

/* ---- functions that run a task ----
 *
 * Each waits for the task's event (wait_ready), then runs the task. False: the launch ends. */

/* Runs a task that needs nothing but its event. */
DEV bool run_other(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    switch (form_of(task)) {
#define ENTRY(...)
#define PLAIN(name, code) FORM_IF(name, case FORM_##name : code; break;)
#include "kernels/cuda/form.def"
    default: break;
    }
    return true;
}

/* The first and the last task of an iteration. All blocks wait for them, and their code is not in
 * the instruction cache, so each has a function with nothing else in it. */
DEV bool run_first(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    run_embed(c, task);
    return true;
}
DEV bool run_last(struct warp_context *c, const struct cuda_task *task) {
    run_sample_early(c, task);
    if (sample_is_rehearsed()) {
        sync_compute();
        run_sample(c->args, task, false);
    }
    sync_compute();
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    run_sample(c->args, task, true);
    return true;
}

/* Says that the block is done with the message. Called after a barrier. */
DEV void message_done(const struct warp_context *c) {
    if (c->thread == 0 || QN_EACH_ARRIVES)
        barrier_arrive_release_cta(&SHARED->go_empty[c->message % GO_DEPTH]);
}

/* Sends the task's trigger. All warps' stores are ordered before it: the warps meet at the barrier,
 * and the release covers all that this thread has seen. A hint orders nothing, so it is sent before
 * the barrier. HINTED: the task has sent its hint itself. */
template <bool HINTED>
DEV void task_finish(const struct warp_context *c, const struct cuda_task *task) {
    uint32_t *counter = rt_counter(&SHARED->args.rt, task->trigger);
    const bool hint = (task->flags & CUDA_TRIGGER_HINT) != 0;
    if (!HINTED && c->thread == 0 && hint) add_relaxed_gpu(counter, 1);
    sync_compute();
    if (c->thread == 0) {
        const uint64_t now = trace_now(SHARED); /* before anything that the trigger sets off */
        if (!hint && task->trigger != PROG_NONE && (task->flags & CUDA_TRIGGER_WATCHED) == 0)
            add_release_gpu(counter, 1);
        trace_at(SHARED, now, RT_TRACE_END, task->index);
    }
    message_done(c);
}

/* ---- the compute warps ---- */

DEV const struct cuda_task *task_of(uint32_t message) {
    return &SHARED->task[SHARED->go[message % GO_DEPTH]];
}

/* The form of an announced message. */
DEV uint32_t form_for(uint32_t message) {
    if (SHARED->go[message % GO_DEPTH] == GO_DROP) return FORM_DROP;
    return form_of(task_of(message));
}

/* Waits for the next message; stores its form and the context to shared memory. */
DEV void compute_next(struct warp_context *c) {
    c->next = FORM_STOP;
    if (wait_control(c, &SHARED->go_full[c->message % GO_DEPTH], c->message / GO_DEPTH & 1))
        c->next = form_for(c->message);
    context_store(c);
}

/* The form of the next message, if that is announced already, else FORM_STOP. The warp
 * decides as one: FORM_STOP, unless each lane has acquired the message. */
DEV uint32_t compute_peek(const struct warp_context *c) {
    uint64_t *announced = &SHARED->go_full[c->message % GO_DEPTH];
    if (!__all_sync(~0u, barrier_test_acquire_cta(announced, c->message / GO_DEPTH & 1)))
        return FORM_STOP;
    return form_for(c->message);
}

/* Ends the message's task and waits for the next message. */
template <bool HINTED = false>
DEV void compute_done(struct warp_context *c, const struct cuda_task *task) {
    task_finish<HINTED>(c, task);
    c->message++;
    compute_next(c);
}

DEV void compute_stop(struct warp_context *c) {
    __syncwarp(); /* all lanes have read the next form */
    c->next = FORM_STOP;
    context_store(c);
}

/* Runs the message's task and waits for the next message. Each kind of task has such a function of
 * its own, so that the registers of one cannot make another spill. Their caller keeps nothing in
 * registers. HINTED: RUN sends the hint itself. */
typedef bool run_function(struct warp_context *c, const struct cuda_task *task);
template <run_function RUN, bool HINTED = false> DEV void compute_with(void) {
    struct warp_context c = context_load();
    const struct cuda_task *task = task_of(c.message);
    if (!RUN(&c, task)) {
        compute_stop(&c);
        return;
    }
    compute_done<HINTED>(&c, task);
}

CODE(void, code_first, void) {
    compute_with<run_first>();
}
CODE(void, code_last, void) {
    compute_with<run_last>();
}
CODE(void, code_other, void) {
    compute_with<run_other>();
}

CODE(void, code_merge, void) {
    compute_with<run_merge, true>();
}
CODE(void, code_mixed, void) {
    compute_with<run_attention>();
}
CODE(void, code_whole_one, void) {
    compute_with<run_decode_one<OP_ATTENTION_WHOLE, 1>, true>();
}
#if QN_HAS_whole_two
CODE(void, code_whole_two, void) {
    compute_with<run_decode_one<OP_ATTENTION_WHOLE, 2>, true>();
}
#endif
CODE(void, code_whole, void) {
    compute_with<run_decode_whole, true>();
}
CODE(void, code_step_one, void) {
    compute_with<run_decode_one<OP_ATTENTION_STEP, 1>, true>();
}
CODE(void, code_teams, void) {
    compute_with<run_attention_teams>();
}

#if QN_EXPERTS

/* A task that needs nothing but its event, in a function of its own. */
typedef void plain_function(const struct warp_context *c, const struct cuda_task *task);
template <plain_function RUN>
DEV bool run_alone(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    RUN(c, task);
    return true;
}

CODE(void, code_route, void) {
    compute_with<run_alone<run_route>>();
}
CODE(void, code_route_list, void) {
    compute_with<run_alone<run_route_list>>();
}
#if QN_HAS_router_row
CODE(void, code_router_row, void) {
    compute_with<router_run_row, true>();
}
#endif
CODE(void, code_router_rows, void) {
    compute_with<router_run_rows>();
}
CODE(void, code_up_row, void) {
    compute_with<up_run_row, true>();
}
CODE(void, code_up_gather, void) {
    compute_with<up_run_gather>();
}
#if QN_HAS_down_row
CODE(void, code_down_row, void) {
    compute_with<down_run_row, true>();
}
#endif
CODE(void, code_down_gather, void) {
    compute_with<down_run_gather>();
}

#endif

#if QN_LATENT
CODE(void, code_latent_heads, void) {
    compute_with<run_latent_heads>();
}
CODE(void, code_latent, void) {
    compute_with<run_attention_latent>();
}
#if QN_HAS_latent_pages
CODE(void, code_latent_pages, void) {
    compute_with<run_latent_pages>();
}
#endif
CODE(void, code_latent_values, void) {
    compute_with<run_latent_values>();
}
CODE(void, code_latent_merge, void) {
    compute_with<run_latent_merge, true>();
}
#endif

/* Matrices times packed activations of up to 16 rows. */
CODE_OF((int COLUMNS, uint32_t KIND, uint32_t K), void, run_stream, void) {
    compute_with<stream_run<KIND, K, COLUMNS>>();
}

/* Matrices times packed activations of many rows. The kernel itself multiplies a tile
 * (matmul_tile_wgmma.cuh). All else is in functions, between which nothing is kept in registers.
 * Each returns the next tile to multiply; 0: there is none. */

DEV uint32_t packed_done(struct warp_context *c, const struct cuda_task *task) {
    lease_release(c);
    compute_done(c, task);
    return 0;
}

CODE(uint32_t, packed_begin, void) {
    struct warp_context c = context_load();
    const struct cuda_task *task = task_of(c.message);
    packed_take(&c, task);
    bool stop = false;
    const uint32_t next = packed_first(&c, task, &stop);
    if (stop) {
        compute_stop(&c);
        return 0;
    }
    context_store(&c);
    if (next != 0) return next;
    lease_end();
    return packed_done(&c, task);
}

CODE(uint32_t, packed_next, void) {
    struct warp_context c = context_load();
    const struct cuda_task *task = task_of(c.message);
    if (packed_stopped(&c)) {
        compute_stop(&c);
        return 0;
    }
    const uint32_t next = packed_results(&c, task);
    if (next != 0) return next;
    lease_end();
    packed_leave(&c);
    return packed_done(&c, task);
}

DEV void compute_packed(void) {
    for (uint32_t next = packed_begin(); __shfl_sync(~0u, next, 0) != 0; next = packed_next())
        packed_multiply(next);
}

#if ROWS_BY_WGMMA

/* Attention of many rows: the kernel itself multiplies, too. The functions return whether the task
 * goes on. */

CODE(uint32_t, rows_open, void) {
    struct warp_context c = context_load();
    const struct cuda_task *task = task_of(c.message);
    lease_take(&c);
    if (!wait_ready(&c)) {
        compute_stop(&c);
        return 0;
    }
    if (c.thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (rows_begin(&c, task)) {
        context_store(&c);
        return 1;
    }
    lease_give(&c);
    compute_done(&c, task);
    return 0;
}

CODE(uint32_t, rows_next, void) {
    struct warp_context c = context_load();
    const struct cuda_task *task = task_of(c.message);
    if (rows_go_on(&c, task)) return 1;
    lease_give(&c);
    compute_done(&c, task);
    return 0;
}

DEV void compute_rows(void) {
    for (uint32_t more = rows_open(); __shfl_sync(~0u, more, 0) != 0; more = rows_next())
        rows_multiply();
}

#elif HAS_PREFILL

CODE(void, code_rows, void) {
    compute_with<run_attention_rows>();
}

DEV void compute_rows(void) {
    code_rows();
}

#else

DEV void compute_rows(void) {} /* cuda_rows_fit */

#endif

/* ATTENTION_STEP: items that all warps share, then a run, and so on. Items and runs have functions
 * of their own. The warp's state holds the run; kind 0: there is none. step_items continues after a
 * run. It returns whether another run follows. */
CODE(bool, step_items, void) {
    struct warp_context c = context_load();
    const struct cuda_task *task = task_of(c.message);
    struct attention_item *run = &SHARED->warp[c.warp].run, w = *run;
    const bool again = w.kind != 0;
    bool same_head = false;
    if (again)
        same_head = run_done(&w);
    else
        w = items_first(&c, task);
    const struct heads_range heads = decode_heads_of<OP_ATTENTION_STEP>(&w, same_head);
    const struct item_head h = decode_head_of<OP_ATTENTION_STEP>(&c, task, &w, heads.from);
    if (!again) {
        if (!wait_data(&c, task)) {
            compute_stop(&c);
            return false;
        }
        if (c.thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    }
    decode_items<OP_ATTENTION_STEP>(&c, task, &w, heads, h, nullptr);
    __syncwarp(); /* all lanes have read the run */
    if (w.left == 0) w.kind = 0;
    if (c.lane == 0) *run = w;
    if (w.left > 0) {
        context_store(&c);
        return true;
    }
    compute_done(&c, task);
    return false;
}

CODE(void, step_run, void) {
    struct warp_context c = context_load();
    const struct attention_item w = SHARED->warp[c.warp].run;
    run_pieces(&c, task_of(c.message), &w);
    context_store(&c);
}

DEV void compute_step(void) {
    while (step_items()) step_run();
}

/* Runs linear tasks of one row, as many as follow each other. */
CODE(void, compute_one_row, void) {
    struct warp_context c = context_load();
#pragma unroll 1
    do {
        const struct cuda_task *task = task_of(c.message);
        if (!row_task(&c, task)) {
            compute_stop(&c);
            return;
        }
        task_finish<true>(&c, task);
        c.message++;
        c.next = compute_peek(&c);
    } while (c.next == FORM_matvec);
    if (c.next == FORM_STOP)
        compute_next(&c);
    else
        context_store(&c);
}

/* Drops the pages of a wrong guess. */
CODE(void, compute_drop, void) {
    struct warp_context c = context_load();
    barrier_wait_acquire_cta(&SHARED->drop_ready, c.n_drops);
    c.n_drops ^= 1;
    for (uint32_t n = SHARED->drop[c.warp]; n > 0; n--) {
        page_acquire(&c);
        page_release(&c);
    }
    c.turn = SHARED->drop_turn;
    sync_compute();
    message_done(&c);
    c.message++;
    compute_next(&c);
}

CODE(void, compute_first, void) {
    struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    if (c.thread == 0) trace_start(c.args, SHARED);
    compute_next(&c);
}

DEV void compute_main(void) {
    compute_first();
    for (;;) {
        switch (context_next()) {
#define ENTRY(name, ...) FORM_IF(name, case FORM_##name : __VA_ARGS__; continue;)
#include "kernels/cuda/form.def"
        case FORM_DROP: compute_drop(); continue;
        default: break;
        }
        break;
    }
    sync_compute();
    if (threadIdx.x == 0) barrier_arrive_release_cta(&SHARED->quit);
}

DEV void block_init(const struct cuda_args *args, struct block_shared *s, uint32_t resume) {
    for (uint32_t i = threadIdx.x; i < sizeof *s / 4; i += CUDA_BLOCK_THREADS)
        ((uint32_t *)s)[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < sizeof *args / 4; i += CUDA_BLOCK_THREADS)
        ((uint32_t *)&s->args)[i] = ((const uint32_t *)args)[i];
    memory_check();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < RING_PAGES; i++) {
            barrier_init(&s->page_full[i], page_copy_arrivals());
            barrier_init(&s->page_empty[i], QN_EACH_ARRIVES ? 32 : 1);
        }
        for (uint32_t i = 0; i < GO_DEPTH; i++) {
            barrier_init(&s->go_full[i], 1);
            barrier_init(&s->go_ready[i], 1);
            barrier_init(&s->go_empty[i], QN_EACH_ARRIVES ? COMPUTE_THREADS + LOADER_FOLLOWS * 32
                                                          : 1 + LOADER_FOLLOWS);
        }
        for (uint32_t i = 0; i < MAX_W_SLOTS + MAX_X_SLOTS; i++) {
            barrier_init(&s->packed_full[i], page_copy_arrivals());
            barrier_init(&s->packed_empty[i], WARPS);
        }
        for (uint32_t i = 0; i < 2; i++) {
            barrier_init(&s->piece_full[i], WARPS);
            barrier_init(&s->piece_empty[i], WARPS);
        }
        barrier_init(&s->lease_open, 1);
        barrier_init(&s->lease_taken, 1);
        barrier_init(&s->drop_ready, 1);
        barrier_init(&s->entered, 1);
        barrier_init(&s->stop, 1);
        barrier_init(&s->quit, 1);
        barrier_init(&s->left, QN_EACH_ARRIVES ? 32 : 1);
        barrier_init_fence();
        s->published = resume;
    }
    __syncthreads();
}

/* The roles of warps: functions of their own, so that one's registers are not spilled for
 * another's. */
CODE(void, role_loader, uint32_t resume) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    loader_main(&c, resume);
}

CODE(void, role_ask, void) {
    ask_main(threadIdx.x / 32 == ASK_WARP);
}

CODE(void, role_control, void) {
    if (threadIdx.x % 32 == 0) control_main(&SHARED->args, SHARED);
}

/* Most bytes that each function spills. Code that every layer of a decode step runs, up to 8 rows,
 * spills nothing, except for some words of attention, which holds keys and values, and of experts.
 */
// clang-format off
// check_kernels: function compute_one_row spills 0
// check_kernels: function compute_one_row spills 28 on sm_100a
// check_kernels: function code_whole_one spills 24
// check_kernels: function code_whole_one spills 32 on odd
// check_kernels: function code_wholeE spills 0
// check_kernels: function code_wholeE spills 36 on qwen3-30b-a3b
// check_kernels: function code_step_one spills 24
// check_kernels: function code_step_one spills 32 on odd
// check_kernels: function code_teams spills 0
// check_kernels: function code_teams spills 12 on sm_80
// check_kernels: function code_teams spills 8 on odd.sm_90a
// check_kernels: function step_items spills 16
// check_kernels: function step_run spills 400
// check_kernels: function code_merge spills 0
// check_kernels: function run_streamILi1E spills 0
// check_kernels: function run_streamILi2E spills 104
// check_kernels: function packed_begin spills 4
// check_kernels: function narrow_multiply spills 0
// check_kernels: function packed_linear spills 132 on odd.sm_80
// check_kernels: function run_splitk_sum spills 64 on odd.sm_100a
// check_kernels: function part_multiply spills 40
// check_kernels: function part_multiply spills 112 on qwen3-30b-a3b
// check_kernels: function packed_next spills 0
// check_kernels: function packed_next spills 12 on odd.sm_90a
// check_kernels: function tile_finish spills 0
// check_kernels: function tile_finish spills 12 on odd.sm_90a
// check_kernels: function role_loader spills 0
// check_kernels: function role_loader spills 36 on odd.sm_80
// check_kernels: function role_loader spills 8 on sm_80
// check_kernels: function role_control spills 0
// check_kernels: function code_mixed spills 12
// check_kernels: function rows_step spills 80
// check_kernels: function rows_step spills 184 on sm_100a
// check_kernels: function code_rows spills 228
// check_kernels: function code_router spills 0
// check_kernels: function code_router_rows spills 0
// check_kernels: function code_route spills 0
// check_kernels: function code_up_row spills 64
// check_kernels: function code_up_gather spills 200
// check_kernels: function code_up_gather spills 232 on qwen3-30b-a3b
// check_kernels: function code_down spills 8
// check_kernels: function run_expert_gather spills 0
// check_kernels: function run_expert_sum spills 0
// check_kernels: function run_splitk_sum spills 0
// check_kernels: function step_items spills 80 on qwen3-30b-a3b
// check_kernels: function packed_next spills 12 on qwen3-30b-a3b
// check_kernels: function tile_finish spills 8 on qwen3-30b-a3b
// check_kernels: function code_teams spills 68 on qwen3-30b-a3b
// check_kernels: function code_latent_heads spills 0
// check_kernels: function code_latent_merge spills 0
// check_kernels: function code_latentEv spills 0
// check_kernels: function code_latent_pages spills 0
// check_kernels: function code_latentEv spills 364 on deepseek-v2-lite.sm_80
// check_kernels: function packed_linearILi4ELi4ELi2ELi4E spills 168 on deepseek-v2-lite.sm_80
// check_kernels: qn_mega registers 168 stack 440 spills 184
// clang-format on
extern "C" __global__ void __launch_bounds__(CUDA_BLOCK_THREADS, 1)
    qn_mega(const __grid_constant__ struct cuda_args args) {
    const uint32_t resume = rt_load_relaxed(&args.rt.shared->resume);
    block_init(&args, SHARED, resume);
    if (threadIdx.x / 32 < WARPS)
        compute_main();
    else if (threadIdx.x / 32 == LOADER_WARP)
        role_loader(resume);
    else if (threadIdx.x / 32 == CONTROL_WARP)
        role_control();
    else
        role_ask();
}

#endif
