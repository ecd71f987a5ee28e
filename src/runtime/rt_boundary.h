/* rt_boundary.h - between two iterations: what the last one gave is published, requests come and
 * go, the next token rows are laid out.
 *
 * Played by the worker whose trigger activated the end event (no hand-over at all), or by whoever
 * wakes an idle runtime. Until it publishes the next iteration that worker is alone: all tasks are
 * done, everybody else only polls.
 *
 *   collect ──► commands ──► sweep ──► admit ──► rows ──► choose variant ──► publish, trigger start
 *                                                  └ none: idle or stop
 *
 * Policy. First come, first served, no preemption: admission takes all the KV blocks that a request
 * can ever need, and the first in line waits for them. Every admitted request advances in every
 * iteration in which there is room: one row for each that has one token to compute (decoding),
 * then chunks of prompts, both in order of admission. A request wants logits when its rows
 * reach its last known token. The smallest variant that has room runs.
 */
#ifndef QN_RUNTIME_RT_BOUNDARY_H
#define QN_RUNTIME_RT_BOUNDARY_H

#include "runtime/rt_sched.h"

RT_FN uint32_t rt_min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* KV blocks for a request of n_limit tokens: the last one is never computed on. */
RT_FN uint32_t rt_blocks_needed(const struct rt_batch *b, uint32_t n_limit) {
    return (n_limit - 1 + b->kv_block - 1) / b->kv_block;
}

/* Whether a request can ever run here; the host checks the same before it submits. */
RT_FN int rt_request_fits(const struct rt_batch *b, const struct rt_request *q) {
    return q->n_prompt >= 1 && q->max_tokens >= 1 && q->n_prompt <= b->max_model_len &&
           q->max_tokens <= b->max_model_len - q->n_prompt && q->n_stop <= RT_MAX_STOP_IDS &&
           rt_blocks_needed(b, q->n_prompt + q->max_tokens) <= b->n_kv_blocks;
}

/* ---- collect: the last iteration's results ---- */

RT_FN void rt_boundary_post_tokens(const struct rt *rt, uint32_t slot) {
    const struct rt_slot *s = &rt->batch->slots[slot];
    uint64_t row = (uint64_t)slot * rt->batch->max_model_len;
    for (uint32_t p = s->n_computed; p < s->n_known; p++) {
        rt->out_tokens[row + p] = rt->batch->tokens[row + p];
        rt->out_logprobs[row + p] = rt->batch->logprobs[row + p];
    }
}

/* Whether the slot got a token in the iteration that ended. */
RT_FN int rt_boundary_has_token(const struct rt_slot *s) {
    return s->n_known > s->n_prompt && s->n_computed + 1 == s->n_known;
}

/* Tells the host of the new tokens: all of them, one fence, then their numbers. Beside a GPU a
 * fence is a trip over the bus, so there is not one for each request. */
RT_FN void rt_boundary_post(const struct rt *rt) {
    const struct rt_control *c = rt->control;
    const struct rt_slot *slots = rt->batch->slots;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        if (!rt_boundary_has_token(&slots[rt->running[i]])) continue;
        if (rt->out_tokens) rt_boundary_post_tokens(rt, rt->running[i]);
        n++;
    }
    if (n == 0) return;
    rt_host_fence_release();
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct rt_slot *s = &slots[rt->running[i]];
        if (rt_boundary_has_token(s))
            rt_host_store_relaxed(&rt->posts[rt->running[i]].n_out, s->n_known - s->n_prompt);
    }
}

RT_FN void rt_boundary_collect(const struct rt *rt) {
    struct rt_control *c = rt->control;
    for (uint32_t i = 0; i < c->n_running; i++) {
        uint32_t slot = rt->running[i];
        struct rt_slot *s = &rt->batch->slots[slot];
        s->n_computed += rt->in_flight[slot];
        rt->in_flight[slot] = 0;
        if (s->n_known > s->n_limit) s->n_known = s->n_limit;
        if (s->finish != RT_RUNNING) continue;
        if (s->n_known >= s->n_limit) s->finish = RT_FINISH_LENGTH;
        if (s->n_computed >= s->n_known) s->finish = RT_FINISH_ABORT; /* no token came */
    }
    rt_boundary_post(rt);
}

/* ---- commands: what the host wants ---- */

RT_FN void rt_boundary_submit(const struct rt *rt, uint32_t slot) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    if (s->state != SLOT_FREE) return;
    if (rt->mail_requests != b->requests) b->requests[slot] = rt->mail_requests[slot];
    const struct rt_request *q = &b->requests[slot];
    s->state = SLOT_WAITING;
    s->n_known = s->n_prompt = q->n_prompt;
    s->n_limit = q->n_prompt + q->max_tokens;
    s->n_computed = 0;
    s->n_blocks = 0;
    s->finish = rt_request_fits(b, q) ? RT_RUNNING : RT_FINISH_ABORT;
    rt->waiting[rt->control->n_waiting++] = slot;
}

RT_FN void rt_boundary_cancel(const struct rt *rt, uint32_t slot) {
    struct rt_slot *s = &rt->batch->slots[slot];
    if (s->state != SLOT_FREE && s->finish == RT_RUNNING) s->finish = RT_FINISH_ABORT;
}

/* Takes all commands; returns the doorbell's value that they reach up to. */
RT_FN void rt_boundary_commands(const struct rt *rt, uint32_t tail) {
    struct rt_control *c = rt->control;
    if (c->taken == tail) return;
    rt_host_fence_acquire(&rt->mail->tail);
    for (; c->taken != tail; c->taken++) {
        const struct rt_command *command = &rt->commands[c->taken & rt->command_mask];
        if (command->slot >= rt->batch->n_slots) continue;
        if (command->kind == RT_COMMAND_SUBMIT) rt_boundary_submit(rt, command->slot);
        if (command->kind == RT_COMMAND_CANCEL) rt_boundary_cancel(rt, command->slot);
    }
    rt_host_store_release(&rt->mail->head, c->taken);
}

/* ---- sweep: finished requests give back what they hold ---- */

RT_FN void rt_boundary_free(const struct rt *rt, uint32_t slot) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    const int32_t *table = b->block_table + (uint64_t)slot * b->max_blocks;
    for (uint32_t i = 0; i < s->n_blocks; i++) rt->free_blocks[rt->control->n_free++] = table[i];
    s->n_blocks = 0;
    s->state = SLOT_FREE;
    rt_host_store_release(&rt->posts[slot].finish, s->finish); /* the host's slot from here */
}

/* Removes finished slots from a list, keeping the order; returns how many are left. */
RT_FN uint32_t rt_boundary_sweep(const struct rt *rt, uint32_t *list, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rt->batch->slots[list[i]].finish == RT_RUNNING)
            list[kept++] = list[i];
        else
            rt_boundary_free(rt, list[i]);
    }
    return kept;
}

/* ---- admit ---- */

RT_FN int rt_boundary_take_blocks(const struct rt *rt, uint32_t slot) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    uint32_t need = rt_blocks_needed(b, s->n_limit);
    if (need > rt->control->n_free) return 0;
    int32_t *table = b->block_table + (uint64_t)slot * b->max_blocks;
    while (s->n_blocks < need) table[s->n_blocks++] = rt->free_blocks[--rt->control->n_free];
    return 1;
}

/* As many as the largest variant can advance in every iteration. */
RT_FN void rt_boundary_admit(const struct rt *rt) {
    struct rt_control *c = rt->control;
    const struct prog_variant *v = &rt->variants[rt->largest];
    uint32_t most = rt_min(rt->batch->n_slots, rt_min(v->n_rows, v->n_logit_rows));
    uint32_t n = 0;
    while (n < c->n_waiting && c->n_running < most && rt_boundary_take_blocks(rt, rt->waiting[n])) {
        struct rt_slot *s = &rt->batch->slots[rt->waiting[n]];
        s->state = SLOT_RUNNING;
        s->order = c->order++;
        rt->running[c->n_running++] = rt->waiting[n++];
    }
    c->n_waiting -= n;
    for (uint32_t i = 0; n > 0 && i < c->n_waiting; i++) rt->waiting[i] = rt->waiting[i + n];
}

/* ---- rows ---- */

RT_FN void rt_boundary_add_rows(const struct rt *rt, uint32_t slot, uint32_t n) {
    struct rt_batch *b = rt->batch;
    struct rt_rows *rows = &b->rows;
    struct rt_slot *s = &b->slots[slot];
    uint64_t row = (uint64_t)slot * b->max_model_len;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = s->n_computed + i;
        if (rt->prompts != b->tokens && p < s->n_prompt) b->tokens[row + p] = rt->prompts[row + p];
        rows->token[rows->n_rows] = b->tokens[row + p];
        rows->slot[rows->n_rows] = (int32_t)slot;
        rows->position[rows->n_rows] = (int32_t)p;
        rows->n_rows++;
    }
    if (n > 0 && s->n_computed + n == s->n_known)
        rows->logit_row[rows->n_logit_rows++] = (int32_t)rows->n_rows - 1;
    rt->in_flight[slot] = n;
}

RT_FN void rt_boundary_rows(const struct rt *rt) {
    struct rt_control *c = rt->control;
    struct rt_slot *slots = rt->batch->slots;
    struct rt_rows *rows = &rt->batch->rows;
    rows->n_rows = rows->n_logit_rows = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        uint32_t slot = rt->running[i];
        if (slots[slot].n_known - slots[slot].n_computed == 1) rt_boundary_add_rows(rt, slot, 1);
    }
    /* One row more than there are decoding requests always fits: see `most` above. */
    uint32_t budget = rt_min(rt->max_batched, rt->variants[rt->largest].n_rows);
    if (budget <= rows->n_rows) budget = rows->n_rows + 1;
    for (uint32_t i = 0; i < c->n_running && rows->n_rows < budget; i++) {
        uint32_t slot = rt->running[i];
        uint32_t todo = slots[slot].n_known - slots[slot].n_computed;
        if (todo > 1) rt_boundary_add_rows(rt, slot, rt_min(todo, budget - rows->n_rows));
    }
}

/* The smallest variant with room for the rows: fewest token rows, then fewest logit rows. The
 * largest has room for any that rt_boundary_rows makes. */
RT_FN uint32_t rt_boundary_variant(const struct rt *rt) {
    const struct rt_rows *rows = &rt->batch->rows;
    uint32_t best = rt->largest;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const struct prog_variant *v = &rt->variants[i], *b = &rt->variants[best];
        if (v->n_rows < rows->n_rows || v->n_logit_rows < rows->n_logit_rows) continue;
        if (v->n_rows < b->n_rows || (v->n_rows == b->n_rows && v->n_logit_rows < b->n_logit_rows))
            best = i;
    }
    return best;
}

/* ---- the whole ---- */

/* Everything up to publishing: leaves variant and epoch in rt->control. 0: there is no work; *bell
 * is the doorbell's value up to which that is so. */
RT_FN int rt_boundary_prepare(const struct rt *rt, uint32_t *bell) {
    struct rt_control *c = rt->control;
    *bell = rt_host_load_relaxed(&rt->mail->tail); /* early: it may come over a bus */
    rt_boundary_collect(rt);
    rt_boundary_commands(rt, *bell);
    c->n_running = rt_boundary_sweep(rt, rt->running, c->n_running);
    c->n_waiting = rt_boundary_sweep(rt, rt->waiting, c->n_waiting);
    rt_boundary_admit(rt);
    if (c->n_running == 0) return 0;
    rt_boundary_rows(rt);
    c->variant = rt_boundary_variant(rt);
    c->epoch = ++rt->epochs[c->variant];
    c->iteration++;
    c->n_iterations++;
    c->n_rows_run += rt->batch->rows.n_rows;
    return 1;
}

/* No work. The state is complete before anybody may claim the boundary, or leaves. When told to
 * return, the phase stays RUN: nobody may claim a boundary of a launch that is over. */
RT_FN void rt_boundary_idle(const struct rt *rt, uint32_t bell) {
    struct rt_shared *sh = rt->shared;
    uint32_t *progress = &rt->mail->progress, *sleepers = &rt->mail->host_sleepers;
    rt_store_relaxed(&sh->idle_bell, bell);
    rt_store_relaxed(&sh->resume, rt_load_relaxed(&sh->published));
    rt_host_publish(progress, ++rt->control->progress);
    if (rt->until_idle)
        rt_cas_acquire(&sh->stop, RT_GO, RT_STOP_IDLE);
    else
        rt_store_release(&sh->phase, RT_PHASE_IDLE);
    rt_host_wake(progress, sleepers);
}

/* The boundary. After the start event's trigger the next boundary may already be run by somebody
 * else, so nothing of the iteration is touched then. */
RT_FN void rt_boundary(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    uint32_t bell;
    rt_trace(rt, w->id, RT_TRACE_DONE, 0, c->iteration);
    if (!rt_boundary_prepare(rt, &bell)) {
        rt_trace(rt, w->id, RT_TRACE_IDLE, 0, c->iteration);
        rt_boundary_idle(rt, bell);
        return;
    }
    const struct prog_variant *v = &rt->variants[c->variant];
    uint32_t epoch = c->epoch;
    rt_trace_iteration(rt, w->id);
    rt_host_store_relaxed(&rt->mail->heartbeat, c->iteration);
    rt_host_publish(&rt->mail->progress, ++c->progress);
    rt_store_release(&rt->shared->published, c->iteration << RT_VARIANT_BITS | c->variant);
    rt_trigger(rt, w, v->start_event, epoch, v->end_event);
    rt_host_wake(&rt->mail->progress, &rt->mail->host_sleepers);
}

#endif
