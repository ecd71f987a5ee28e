/* tasks_jit.cuh - tasks.cuh for programs that have JIT tasks (rt_claim.h). A block's next task is
 * the earlier of the next one of its list and a JIT task that it has claimed. A claimed task is
 * then like an AOT task, and runs the same code.
 *
 * No list names the next task, so the loader reads control's messages beside the compute warps and
 * streams the pages of each announced task: at most GO_DEPTH tasks ahead, and without guesses.
 */
#ifndef QN_CUDA_BLOCK_TASKS_JIT_CUH
#define QN_CUDA_BLOCK_TASKS_JIT_CUH

#include "kernels/cuda/block/control.cuh"
#include "kernels/cuda/block/loader_work.cuh"

/* ---- control ---- */

/* Claims a JIT task. The task may be of an iteration that this block, whose list is done, has not
 * entered. */
CODE(bool, control_claim, struct control *c) {
    const uint32_t before = c->w.published;
    if (!rt_worker_claim(rt_here(), &c->w)) return false;
    if (c->w.published != before) control_entered(c);
    return true;
}

DEV bool control_claims(struct control *c) {
    return rt_claim_open(rt_here(), &c->w, RT_NONE) && control_idle(c) && control_claim(c);
}

/* Runs the next task of the list. False: the launch ends. */
DEV bool control_listed(struct control *c) {
    copy_wait<FETCH_AHEAD - 1>();
    return control_announce(c, control_slot(c, 0)) && control_run(c, control_slot(c, 0));
}

/* Runs the claimed task. False: the launch ends. */
DEV bool control_claimed(struct control *c) {
    const uint32_t task =
        rt_here()->jit[rt_here()->jit_first[rt_variant_of(c->w.published)] + c->w.claimed];
    const uint32_t slot = N_AOT_SLOTS + c->n_jit++ % (N_TASK_SLOTS - N_AOT_SLOTS);
    if (!control_fetch(c, slot, task)) return false;
    copy_commit();
    copy_wait<0>();
    if (!control_announce(c, slot)) return false;
    if (!control_wait_event(c, slot)) return false;
    control_ready(c, slot);
    c->w.claimed = RT_NONE;
    if (c->w.owes_post) control_post(c);
    return true;
}

/* A block claims a task only when it has nothing to do. Otherwise it might hold two tasks while
 * another block has none. */
CODE(void, control_list_jit, struct control *c) {
    if (c->w.list.n > 0 && !control_fetch_first(c)) return;
    uint32_t bound = rt_claim_bound(rt_here(), &c->w);
    for (uint32_t polls = 1;; polls++) {
        if (c->w.claimed != RT_NONE && c->w.claimed < bound) {
            if (!control_claimed(c)) return;
        } else if (c->w.next == c->w.end) {
            return;
        } else if (c->w.claimed == RT_NONE && rt_claim_open(rt_here(), &c->w, bound)) {
            control_between_polls(c, polls);
            if (c->stop) return;
            if (control_idle(c)) control_claim(c);
        } else {
            if (!control_listed(c)) return;
            bound = rt_claim_bound(rt_here(), &c->w);
        }
    }
}

DEV void control_tasks(struct control *c) {
    control_list_jit(c);
}

DEV void control_tell_loader(struct control *c, uint32_t) {
    c->shared->published = c->w.published; /* the loader sees it with the next message */
}

DEV void control_wait_loader(struct control *c) {
    while (c->n_done != c->n_go) control_reap(c);
}

/* ---- loader ---- */

/* Waits for control's message number n. False: the loader must leave. */
DEV bool loader_wait_message(struct loader *l, uint32_t n) {
    while (!loader_test(&SHARED->go_full[n % GO_DEPTH], n / GO_DEPTH & 1)) {
        loader_look(l);
        if (l->quit) return false;
    }
    return true;
}

/* A message's slot is free again when the compute warps and the loader are done with it, so the
 * loader misses no message. */
DEV void loader_tasks(struct loader *l) {
    for (uint32_t n = 0; loader_wait_message(l, n); n++) {
        const uint32_t i = n % GO_DEPTH;
        const struct cuda_task *task = &SHARED->task[loader_read(&SHARED->go[i])];
        l->published = loader_read(&SHARED->published);
        if (!loader_work(l, loader_fetch(l, task), task)) return;
        __syncwarp(); /* all lanes have read it */
        if (l->lane == 0 || QN_EACH_ARRIVES) barrier_arrive_release_cta(&SHARED->go_empty[i]);
    }
}

#endif
