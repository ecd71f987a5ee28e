/* control.cuh - the control warp: a block's worker (rt_worker.h). It does its work while the
 * compute warps run a task, so that none of it lies between two tasks.
 *
 *   fetch     copies the descriptors of the list's next FETCH_AHEAD tasks into shared memory
 *   announce  tells the compute warps which descriptor comes next, so that they load constants
 *             while the task's event is not activated yet
 *   wait      polls the event while the task before still runs. No other warp polls events, but for
 *             the loader, whose pages may depend on a list of experts
 *   ready     lets the compute warps run the task
 *   trigger   sends the triggers of the end event, because the block that activates it plays the
 *             boundary. The compute warps send all other triggers (task_finish)
 *   boundary  played by the block that activates the end event. One of the blocks that may play it
 *             has read the doorbell before. The news are posted while the block's next task runs
 *   ahead     prepares the next iteration while the last tasks run, on the guess that it is like
 *             this one
 *
 * One thread runs all this; its state is in shared memory. Between two iterations every load
 * counts, since each waits for the one before. The next iteration most likely runs the same
 * variant, so the first descriptors of the list are fetched while the last tasks run.
 */
#ifndef QN_CUDA_BLOCK_CONTROL_CUH
#define QN_CUDA_BLOCK_CONTROL_CUH

#include "kernels/cuda/attention/attention_items.cuh"
#include "kernels/cuda/block/tasks.cuh"
#include "kernels/cuda/block/trace.cuh"
#include "runtime/rt_worker.h"

/* Polls of a wait between two looks at the stop word. A GPU's iterations have waits longer than
 * this; the emulated GPU's need not. */
#ifndef QN_LOOK_EVERY
#define QN_LOOK_EVERY 64
#endif

enum {
    FETCH_AHEAD = N_AOT_SLOTS - GO_DEPTH,
    LOOK_EVERY = QN_LOOK_EVERY,
    ROWS_AT_ONCE = 16, /* token rows whose places are fetched together */
    BELL_NS = 50000,   /* between two readings of the host's doorbell while tasks run */
    QUICK_NEWS = 16,   /* most news that are posted while any task runs */
    PATIENT_LOOKS = 8, /* looks after which more news are posted in any case */
};

struct control {
    const struct cuda_args *args;
    struct block_shared *shared;
    struct rt_worker w;
    uint32_t variant;   /* the one that runs; RT_NONE: none has run */
    uint32_t end_event; /* the variant's */
    uint32_t fetched;   /* variant whose first descriptors are fetched; RT_NONE: none */
    uint32_t n_go;      /* messages to the compute warps so far */
    uint32_t n_done;    /* messages known to be done */
    uint32_t n_watched; /* messages not done whose trigger control sends */
    uint32_t n_fetched; /* AOT descriptors fetched */
    uint32_t ahead;     /* task index to fetch next */
    uint32_t n_jit;     /* JIT descriptors fetched */
    uint64_t heard_ns;  /* when control read the doorbell */
    uint32_t beat;
    uint32_t n_looks; /* while news are owed */
    uint32_t left;    /* phase of the barrier `left` */
    bool entered;     /* control has entered an iteration of this launch */
    bool listens;     /* reads the doorbell in this iteration */
    bool prepared;    /* rows are laid out for the next iteration, guessed to be steady */
    bool announced;   /* the next iteration's first task is announced, its variant guessed */
    bool stop;
};

/* The runtime, at an address that the compiler knows. */
DEV const struct rt *rt_here(void) {
    return &SHARED->args.rt;
}

CODE_AHEAD(void, control_enter, struct control *c);
CODE_AHEAD(void, control_post, struct control *c);

/* ---- messages ---- */

/* Sends a trigger. If that activates the end event, this block plays the boundary. */
CODE(void, control_trigger, struct control *c, uint32_t event) {
    rt_trigger(rt_here(), &c->w, event, c->w.epoch, c->end_event);
}

/* Takes note of finished tasks and sends their watched triggers. */
DEV void control_reap(struct control *c) {
    while (c->n_done != c->n_go &&
           barrier_test_acquire_cta(&c->shared->go_empty[c->n_done % GO_DEPTH],
                                    c->n_done / GO_DEPTH & 1)) {
        uint32_t event = c->shared->watch[c->n_done % GO_DEPTH];
        c->n_done++;
        if (event == PROG_NONE) continue;
        c->n_watched--;
        control_trigger(c, event);
    }
}

/* Whether the compute warps are done with all messages. */
DEV bool control_idle(struct control *c) {
    control_reap(c);
    return c->n_done == c->n_go;
}

/* Reads the doorbell every BELL_NS, in a block that may play the boundary. Trips over the bus seem
 * to hold up other accesses of the block's GPC, and not to overlap. When every block with a task of
 * SAMPLE made a trip at each look, half of the device ran the LM head of 64 requests very slowly
 * (bench/measurements.md, "Boundary and host"). */
DEV void control_listen(struct control *c) {
    const uint64_t now = rt_now_ns();
    if (now - c->heard_ns < BELL_NS) return;
    c->heard_ns = now;
    rt_boundary_listen(rt_here());
}

/* Whether posting the news of the boundary that this block has played takes no longer than a short
 * task. */
DEV bool control_is_quick(const struct control *c) {
    return c->w.n_news <= QUICK_NEWS;
}

/* Looks whether the launch ends and whether the program stalls. A block that has played the
 * boundary posts its news here if it waits for its next task. */
DEV void control_look(struct control *c) {
    c->stop = rt_stopped(rt_here());
    if (c->w.owes_post && (control_is_quick(c) || ++c->n_looks == PATIENT_LOOKS)) control_post(c);
    rt_stall_look(rt_here(), &c->w);
    if (c->listens && c->n_watched != 0) control_listen(c);
}

/* Waits until at most `most` messages are not done. False: the launch ends. This looks as often as
 * a wait for an event does, because a task that polls data may take as long. */
CODE(bool, control_until, struct control *c, uint32_t most) {
    c->w.spins = 0;
    c->w.idle_since = 0;
    for (uint32_t polls = 1; c->n_go - c->n_done > most; polls++) {
        control_reap(c);
        if (polls % LOOK_EVERY == 0) control_look(c);
        if (c->stop) return false;
    }
    return true;
}

/* Sends a message; the caller knows that there is room for it. After a task's message control_ready
 * must follow. */
DEV void control_go(struct control *c, uint32_t message, uint32_t watched_event) {
    uint32_t i = c->n_go % GO_DEPTH;
    c->shared->watch[i] = watched_event;
    c->shared->go[i] = message;
    barrier_arrive_release_cta(&c->shared->go_full[i]);
    c->n_go++;
    if (watched_event != PROG_NONE) c->n_watched++;
}

/* ---- descriptors ---- */

/* Fetches a descriptor into a slot, once the compute warps are done with the task in it. False: the
 * launch ends. */
DEV bool control_fetch(struct control *c, uint32_t slot, uint32_t task) {
    if (!control_until(c, c->n_go - c->shared->slot_free[slot])) return false;
    const char *src = (const char *)&c->args->tasks[task];
    char *dst = (char *)&c->shared->task[slot];
    for (uint32_t i = 0; i < sizeof(struct cuda_task); i += 16) copy16_async(dst + i, src + i);
    return true;
}

/* The place in rt.aot of a position in the list. Beyond the list's end the list begins anew. */
DEV uint32_t control_place(const struct control *c, uint32_t position) {
    while (position >= c->w.end) position -= c->w.list.n;
    return position;
}

/* Fetches the descriptor of the AOT task FETCH_AHEAD after the current one, as one group of copies.
 * Once all but the last FETCH_AHEAD - 1 groups have arrived, the current task's descriptor has. */
DEV bool control_fetch_ahead(struct control *c, uint32_t position) {
    if (!control_fetch(c, c->n_fetched % N_AOT_SLOTS, c->ahead)) return false;
    c->ahead = rt_here()->aot[control_place(c, position + 1)];
    c->n_fetched++;
    copy_commit();
    return true;
}

/* Fetches the first descriptors of the list, if they are not fetched yet. */
DEV bool control_fetch_first(struct control *c) {
    if (c->fetched == c->w.list_variant) return true;
    c->fetched = c->w.list_variant;
    c->ahead = rt_here()->aot[c->w.next];
    bool ok = true;
    for (uint32_t i = 0; i < FETCH_AHEAD; i++) ok = ok && control_fetch_ahead(c, c->w.next + i);
    return ok;
}

/* ---- running a task ---- */

/* The task triggers the end event, so the block may have to play the boundary. One of the blocks
 * with such a task reads the doorbell: the one with SAMPLE's first row. (Of several bands of logit
 * rows the first one does not end the iteration. Then the boundary itself reads the doorbell.) */
CODE(void, control_ask, struct control *c, const struct cuda_task *task) {
    rt_boundary_ask(rt_here(), &c->w);
    if (task->kind != OP_SAMPLE || task->row0 != 0 || c->listens) return;
    c->listens = true;
    c->heard_ns = rt_now_ns();
    rt_boundary_listen(rt_here());
}

/* Posts the news of the boundary that this block has played. */
CODE(void, control_post, struct control *c) {
    c->n_looks = 0;
    rt_boundary_post(rt_here(), &c->w);
}

/* Whether news may be posted while a task of this kind runs. Meanwhile control does not poll the
 * block's next event: posting the news of 64 requests takes 35 us (H200), and all blocks wait for
 * EMBED. */
DEV bool control_may_post(const struct control *c, uint32_t kind) {
    return control_is_quick(c) ? kind != OP_EMBED : kind == OP_GATED_MLP;
}

/* Tells the compute warps that the task in this slot is next. False: the launch ends. */
DEV bool control_announce(struct control *c, uint32_t slot) {
    const struct cuda_task *task = &c->shared->task[slot];
    if (task->trigger == c->end_event) control_ask(c, task);
    if (task->kind == OP_NONE) return true;
    if (!control_until(c, GO_DEPTH - 1)) return false;
    control_go(c, slot, task->flags & CUDA_TRIGGER_WATCHED ? task->trigger : PROG_NONE);
    c->shared->slot_free[slot] = c->n_go;
    return true;
}

/* A task without a body. */
CODE(void, control_none, struct control *c, const struct cuda_task *task) {
    rt_trace(rt_here(), c->w.id, RT_TRACE_READY, 0, task->index);
    rt_trace(rt_here(), c->w.id, RT_TRACE_END, 0, task->index);
    control_trigger(c, task->trigger);
}

/* Tells the compute warps that the event of an announced task is activated. */
DEV void control_ready(struct control *c, uint32_t slot) {
    const struct cuda_task *task = &c->shared->task[slot];
    if (task->kind == OP_NONE)
        control_none(c, task);
    else
        barrier_arrive_release_cta(
            &c->shared->go_ready[(c->shared->slot_free[slot] - 1) % GO_DEPTH]);
}

/* The heartbeat: a task is next. */
DEV void control_beat(struct control *c, uint32_t task) {
    struct rt_beat *beat = &rt_here()->beats[c->w.id];
    rt_store_relaxed(&beat->task, task);
    rt_store_relaxed(&beat->head, task);
    rt_store_relaxed(&beat->beat, c->beat += 2);
}

/* The worker has entered an iteration. */
DEV void control_entered(struct control *c) {
    const uint32_t variant = rt_variant_of(c->w.published);
    if (variant == c->variant) return;
    c->variant = variant;
    c->end_event = rt_here()->variants[variant].end_event;
}

/* Enters the iteration that was published last. False: none was published since. */
DEV bool control_advance(struct control *c) {
    if (!rt_worker_advance(rt_here(), &c->w)) return false;
    control_entered(c);
    return true;
}

/* Whether the compute warps are done with all tasks before the announced one in this slot. */
DEV bool control_is_next(struct control *c, uint32_t slot) {
    if (c->shared->task[slot].kind == OP_NONE) return false;
    control_reap(c);
    return c->n_done + 1 == c->shared->slot_free[slot];
}

/* The other work between two polls of an event. It looks, which takes a trip to L2, only every
 * LOOK_EVERY polls. */
CODE(void, control_between_polls, struct control *c, uint32_t polls) {
    if (c->n_watched != 0) control_reap(c);
    if (polls % LOOK_EVERY == 0) control_look(c);
}

/* Waits until the event of the task in this slot is activated. False: the launch ends. An acquire
 * after the polls is a fence, which takes 400 ns (H200). A poll that acquires empties the L1, so it
 * is for a block whose compute warps have nothing else to do. */
DEV bool control_wait_event(struct control *c, uint32_t slot) {
    const struct cuda_task *task = &c->shared->task[slot];
    control_beat(c, task->index);
    if (task->wait == PROG_NONE) return true;
    const uint32_t *counter = rt_counter(rt_here(), task->wait);
    const uint32_t goal = task->wait_triggers * c->w.epoch;
    c->w.spins = 0;
    c->w.idle_since = 0;
    const bool watching = c->n_watched != 0, counts = (task->flags & CUDA_WAIT_HINT) == 0;
    bool acquires = false;
    for (uint32_t polls = 1;; polls++) {
        if (counts && !acquires) acquires = control_is_next(c, slot);
        const uint32_t have = acquires ? rt_load_acquire(counter) : rt_load_relaxed(counter);
        if ((int32_t)(have - goal) >= 0) break;
        if (!watching && polls % LOOK_EVERY != 0) continue;
        control_between_polls(c, polls);
        if (c->stop) return false;
    }
    if (counts && !acquires) rt_fence_acquire(counter);
    return true;
}

/* Waits for the event of the next AOT task, which is announced already. False: the launch ends. */
DEV bool control_run(struct control *c, uint32_t slot) {
    if (!control_wait_event(c, slot)) return false;
    control_ready(c, slot);
    if (c->shared->task[slot].trigger == c->end_event) rt_boundary_near(rt_here(), c->end_event);
    if (!control_fetch_ahead(c, c->w.next + FETCH_AHEAD)) return false;
    if (c->w.owes_post && control_may_post(c, c->shared->task[slot].kind)) control_post(c);
    c->w.next++;
    return true;
}

/* The slot of the next AOT task's descriptor (after = 0), or of the one after it (1). */
DEV uint32_t control_slot(const struct control *c, uint32_t after) {
    return (c->n_fetched - FETCH_AHEAD + after) % N_AOT_SLOTS;
}

/* ---- iterations ---- */

/* Plays the boundary, if the news of the boundary before are posted. */
CODE(void, control_boundary, struct control *c) {
    if (rt_boundary_ask(rt_here(), &c->w) && rt_worker_boundary(rt_here(), &c->w))
        control_entered(c);
}

CODE_AHEAD(void, control_rows_steady, struct block_shared *s);

/* Whether no warp of the block reads the places of the iteration's rows any more. Only a task of
 * SAMPLE, which does not need them, may be left, and the loader is done. True only once. */
DEV bool control_rows_free(struct control *c) {
    control_reap(c);
    const uint32_t last = c->shared->go[(c->n_go - 1) % GO_DEPTH];
    if (c->n_go != c->n_done &&
        (c->n_go - 1 != c->n_done || c->shared->task[last].kind != OP_SAMPLE))
        return false;
    if (!barrier_test_acquire_cta(&c->shared->left, c->left)) return false;
    c->left ^= 1;
    return true;
}

/* Prepares the next iteration while the last tasks of this one run, on the guess that the next one
 * is steady: lays out its rows. If the block's first task of it is EMBED, for which all blocks
 * wait, control announces that task to the compute warps. control_enter finds out whether the guess
 * was right. */
CODE(void, control_ahead, struct control *c) {
    if (!control_rows_free(c)) return;
    c->prepared = true;
    if (c->shared->batch.rows.n_rows <= MAX_PLACES) control_rows_steady(c->shared);
    copy_wait<0>();
    const uint32_t slot = control_slot(c, 0);
    const struct cuda_task *task = &c->shared->task[slot];
    if (c->w.list.n > 0 && task->kind == OP_EMBED && task->trigger != c->end_event)
        c->announced = control_announce(c, slot);
}

/* Turns the announced task into one that does nothing, because it is not of this iteration. Called
 * after rows are laid out, because the task reads their number, and before control_drop, which
 * waits for the task. */
CODE(void, control_void, struct control *c) {
    struct cuda_task *task = &c->shared->task[control_slot(c, 0)];
    task->row1 = task->row0;
    task->trigger = PROG_NONE;
    task->flags = 0;
    control_ready(c, control_slot(c, 0));
    c->announced = false;
}

/* Waits until the block has a task: the next one of a list, or a claimed one. False: the launch
 * ends. */
DEV bool control_wait_iteration(struct control *c) {
    const struct rt *rt = rt_here();
    c->w.spins = 0;
    c->w.idle_since = 0;
    for (uint32_t polls = 1; c->w.next == c->w.end && c->w.claimed == RT_NONE; polls++) {
        if (AHEAD && !c->prepared && c->entered) control_ahead(c);
        /* The iteration does not end while a task of this block is not done. */
        if (c->n_watched == 0 && control_advance(c)) continue;
        if (control_claims(c)) break;
        control_between_polls(c, polls);
        if (c->w.boundary) { /* it is owed only when all tasks are done */
            control_boundary(c);
        } else if (c->n_watched == 0 && polls % 16 == 0) { /* while tasks run, the phase is RUN */
            uint32_t phase = rt_load_relaxed(&rt->shared->phase);
            if (phase != RT_PHASE_RUN) rt_worker_between(rt, &c->w, phase);
            if (c->w.owes_post) control_post(c);
        }
        if (c->stop) return false;
    }
    return true;
}

/* Lays out the places of a steady iteration's first token rows, for QKV and attention of all
 * layers. Each row is one position further than in the iteration before. Eight rows are done at a
 * time, without a branch while none of them enters another KV block. */
CODE(void, control_rows_steady, struct block_shared *s) {
    static_assert(MAX_PLACES % 8 == 0 && sizeof(struct row_place) == 8, "two places a vector");
    const uint32_t n = s->batch.rows.n_rows;
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += 8) {
        uint4 *two = (uint4 *)&s->place[first], v[4];
        uint32_t crosses = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = two[i];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i].x += PROG_MAX_SEQS;
            v[i].z += PROG_MAX_SEQS;
            two[i] = make_uint4(v[i].x, v[i].y + 1, v[i].z, v[i].w + 1);
            crosses |= (v[i].x / PROG_MAX_SEQS % QN_KV_BLOCK == 0) << 2 * i;
            crosses |= (v[i].z / PROG_MAX_SEQS % QN_KV_BLOCK == 0) << (2 * i + 1);
        }
#pragma unroll 1
        for (uint32_t i = first; crosses != 0; i++, crosses >>= 1)
            if (crosses % 2 != 0 && i < n)
                s->place[i].kv_row = kv_row(&s->batch, row_slot(s, i), row_position(s, i));
    }
    s->last_position++;
    items_note_most(s);
}

/* The same for any iteration. */
CODE(void, control_rows, const struct control *c) {
    struct block_shared *s = c->shared;
    const struct rt_batch *b = &s->batch;
    const struct rt_rows *rows = &rt_here()->batch->rows;
    uint32_t n = 0, n_logits = 0, n_alone = 0, steady = 0, first = 0, last = 0, slot_before = ~0u;
    bool decode_only = true;
    do { /* each array of rows is a multiple of 64 bytes: loads beyond n stay inside it */
        uint32_t slot[ROWS_AT_ONCE], position[ROWS_AT_ONCE], row[ROWS_AT_ONCE];
        n = __ldcg(&rows->n_rows);
        n_logits = __ldcg(&rows->n_logit_rows);
        steady = __ldcg(&rows->steady);
        n_alone = __ldcg(&rows->n_alone);
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
            slot[i] = (uint32_t)load_index_l2(b->rows.slot + first + i);
            position[i] = (uint32_t)load_index_l2(b->rows.position + first + i);
            row[i] = (uint32_t)load_index_l2(b->rows.logit_row + first + i);
        }
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
            if (first + i < min(n_logits, (uint32_t)MAX_LOGIT_PLACES))
                s->logit_row[first + i] = (uint16_t)row[i];
            row[i] = first + i < n ? kv_row(b, slot[i], position[i]) : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
            if (first + i >= min(n, (uint32_t)MAX_PLACES)) continue;
            last = max(last, position[i]);
            decode_only =
                decode_only && slot[i] != slot_before; /* rows of a slot follow each other */
            slot_before = slot[i];
            s->place[first + i].position_slot = position[i] * PROG_MAX_SEQS + slot[i];
            s->place[first + i].kv_row = row[i];
        }
        first += ROWS_AT_ONCE;
    } while ((first < MAX_PLACES && first < n) || (first < MAX_LOGIT_PLACES && first < n_logits));
    s->last_position = last;
    s->decode_only = decode_only && n <= MAX_PLACES;
    s->batch.rows.n_rows = n;
    s->batch.rows.n_logit_rows = n_logits;
    s->batch.rows.steady = steady;
    s->batch.rows.n_alone = n_alone;
    items_note_most(s);
}

/* Copies the batch's addresses. Called after the first iteration is published: until then the
 * addresses may be written, afterwards they never change. */
CODE(void, control_batch, struct block_shared *s) {
    s->batch = *rt_here()->batch;
}

/* Tells the block about the published iteration, once. The block has a task of that iteration which
 * is not done, so the iteration cannot end meanwhile. */
CODE(void, control_enter, struct control *c) {
    struct block_shared *s = c->shared;
    const uint32_t before = s->published;
    if (c->w.published == before) return;
    c->listens = false;
    if (!c->prepared) control_wait_loader(c);
    trace_look(c->args, s);
    if (!c->entered) control_batch(s);
    const bool follows =
        c->entered && rt_iteration_of(c->w.published) == rt_iteration_of(before) + 1;
    if (!follows || (c->w.published & RT_STEADY) == 0 || s->batch.rows.n_rows > MAX_PLACES)
        control_rows(c);
    else if (!c->prepared)
        control_rows_steady(s);
    c->prepared = false;
    s->flag = c->w.published;
    if (c->announced && c->fetched != c->w.list_variant) control_void(c);
    s->epoch = c->w.epoch;
    control_tell_loader(c, before);
    c->entered = true;
}

DEV void control_main(const struct cuda_args *args, struct block_shared *shared) {
    static_assert(sizeof(struct control) <= sizeof shared->control, "room for it");
    struct control *c = (struct control *)shared->control; /* zeroed */
    c->args = args;
    c->shared = shared;
    c->fetched = c->variant = RT_NONE;
    c->left = 1; /* before the first iteration there is no warp to wait for */
    rt_worker_init(rt_here(), &c->w, blockIdx.x);
    c->beat = rt_load_relaxed(&rt_here()->beats[c->w.id].beat) & ~1u;
    while (control_wait_iteration(c)) {
        control_enter(c);
        control_tasks(c);
        if (c->stop) break;
    }
    control_post(c);
    barrier_arrive_release_cta(&shared->stop); /* after the last message: see wait_control */
}

#endif
