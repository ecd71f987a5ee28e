/* tasks_aot.cuh - tasks.cuh for programs that have only AOT tasks: a block runs the tasks of its
 * list in order.
 *
 * Control announces a task before the task before it is ready. The loader is far ahead of both in
 * the list, as far as the ring has room. At the end of the list it goes on with the same list, on
 * the guess that the next iteration runs the same variant (`guessing`). If another variant is
 * published, the loader tells the compute warps how many pages each must drop.
 */
#ifndef QN_CUDA_BLOCK_TASKS_AOT_CUH
#define QN_CUDA_BLOCK_TASKS_AOT_CUH

#include "kernels/cuda/block/control.cuh"
#include "kernels/cuda/block/loader_work.cuh"

enum { LIST_BATCH = 8 }; /* tasks whose descriptors the loader loads together */

/* ---- control ---- */

/* A task is announced before the task before it is ready, so that the compute warps prepare it
 * while they wait for an event. If the task before waits for no event, the announcement comes after
 * it is ready. */
DEV void control_tasks(struct control *c) {
    static_assert(FETCH_AHEAD == 2 && GO_DEPTH > 2, "the second descriptor is fetched, too");
    if (c->w.next == c->w.end || !control_fetch_first(c)) return;
    copy_wait<FETCH_AHEAD - 1>();
    if (!c->announced && !control_announce(c, control_slot(c, 0))) return;
    c->announced = false;
    while (c->w.next < c->w.end) {
        copy_wait<0>();
        const bool waits = c->shared->task[control_slot(c, 0)].wait != PROG_NONE;
        if (waits && c->w.next + 1 < c->w.end && !control_announce(c, control_slot(c, 1))) return;
        if (!control_run(c, control_slot(c, 0))) return;
        if (!waits && c->w.next < c->w.end && !control_announce(c, control_slot(c, 0))) return;
    }
}

DEV bool control_claims(struct control *) {
    return false;
}

/* The guessed pages are of another variant: tells the compute warps to drop them. */
CODE(void, control_drop, struct control *c) {
    control_go(c, GO_DROP, PROG_NONE); /* there is room: every task is done */
    while (c->n_done != c->n_go) control_reap(c);
}

/* The loader is done with the iteration before, so control and the loader see every change of
 * variant. */
DEV void control_tell_loader(struct control *c, uint32_t before) {
    struct block_shared *s = c->shared;
    s->published = c->w.published;
    barrier_arrive_release_cta(&s->entered);
    if (rt_variant_of(c->w.published) != rt_variant_of(before) && c->entered &&
        c->args->stream == CUDA_STREAM_ITERATIONS)
        control_drop(c);
}

DEV void control_wait_loader(struct control *c) {
    while (QN_EACH_ARRIVES && c->n_done != c->n_go) control_reap(c);
    barrier_wait_acquire_cta(&c->shared->left, c->left);
    c->left ^= 1;
}

/* ---- loader ---- */

/* Descriptors of tasks that follow each other in a list. Beyond the list's end the last task's is
 * repeated. Each lane has one word of each descriptor. */
struct loader_batch {
    uint32_t word[LIST_BATCH];
};

/* The tasks' numbers in the program, one a lane. */
DEV uint32_t batch_numbers(const struct loader *l, const uint32_t *aot, uint32_t first,
                           uint32_t last) {
    return aot[min(first + l->lane % LIST_BATCH, last)];
}

DEV struct loader_batch batch_fetch(const struct loader *l, uint32_t numbers) {
    struct loader_batch b;
#pragma unroll
    for (int i = 0; i < LIST_BATCH; i++)
        b.word[i] = loader_fetch(l, &l->args->tasks[__shfl_sync(~0u, numbers, i)]);
    return b;
}

DEV uint32_t batch_word(const struct loader_batch *b, uint32_t n) {
    uint32_t word = b->word[0];
#pragma unroll
    for (uint32_t i = 1; i < LIST_BATCH; i++) word = n == i ? b->word[i] : word;
    return word;
}

/* Streams the whole list of the published iteration's variant. At about its next branch a warp
 * waits for all its outstanding loads, and requests no weights meanwhile. So one descriptor at a
 * time, loaded a task ahead, cost a trip to memory for each task. Therefore descriptors are loaded
 * in batches, one batch ahead, and the tasks' numbers two batches ahead. */
DEV bool loader_list(struct loader *l) {
    const struct rt *rt = &l->args->rt;
    const struct prog_list list =
        rt->lists[rt_variant_of(l->published) * rt->n_workers + blockIdx.x];
    if (list.n == 0) return true;
    const uint32_t *aot = rt->aot + list.first, last = list.n - 1;
    const uint32_t begin = batch_numbers(l, aot, 0, last);
    uint32_t numbers = batch_numbers(l, aot, LIST_BATCH, last);
    struct loader_batch next = batch_fetch(l, begin);
#pragma unroll 1
    for (uint32_t first = 0; first < list.n; first += LIST_BATCH) {
        const struct loader_batch now = next;
        next = batch_fetch(l, numbers);
        numbers = batch_numbers(l, aot, first + 2 * LIST_BATCH, last);
#pragma unroll 1
        for (uint32_t i = 0; i < min((uint32_t)LIST_BATCH, list.n - first); i++) {
            const uint32_t word = batch_word(&now, i);
            const uint32_t task = loader_word(word, TASK_WORD(index));
            if (!loader_work(l, word, &l->args->tasks[task])) return false;
        }
    }
    return true;
}

/* Waits for the next iteration. */
DEV void loader_wait_iteration(struct loader *l) {
    while (!l->quit && !loader_enter(l)) {
        pause_ns(20);
        l->quit = loader_quits();
    }
}

/* After a wrong guess: tells the compute warps how many pages belong to no task. */
DEV void loader_drop(struct loader *l) {
    struct block_shared *s = SHARED;
    if (l->lane == 0) {
        for (uint32_t w = 0; w < WARPS; w++)
            s->drop[w] = (l->n_guessed + WARPS - 1 - (w + WARPS - l->guess_turn) % WARPS) / WARPS;
        s->drop_turn = l->slot % WARPS;
        barrier_arrive_release_cta(&s->drop_ready);
    }
    l->wrong = false;
}

/* Streams list after list. */
DEV void loader_tasks(struct loader *l) {
    loader_wait_iteration(l);
    while (!l->quit) {
        loader_list(l);
        if (!l->quit && l->guessing && !l->wrong) loader_wait_iteration(l);
        if (l->quit) break;
        if (l->wrong) {
            loader_drop(l);
            continue;
        }
        /* All that was streamed belongs to the published iteration. */
        loader_leave(l);
        if (l->stream == CUDA_STREAM_ITERATIONS) {
            l->guessing = true;
            l->guess_turn = l->slot % WARPS;
            l->n_guessed = 0;
        } else {
            loader_wait_iteration(l);
        }
    }
}

#endif
