/* rt_boundary.h - between two iterations: what the last one gave is published, requests come and
 * go, the next token rows are laid out.
 *
 * Played by the worker whose trigger activated the end event (no hand-over at all), or by whoever
 * wakes an idle runtime. Until it publishes the next iteration that worker is alone: all tasks are
 * done, everybody else only polls.
 *
 *   commands ──► collect ──► admit ──► rows ──► choose variant ──► publish, trigger start ──► post
 *                                        └ none: post, idle or stop
 *
 * Nothing of the host lies between two iterations. The doorbell is read before (rt_boundary_ask),
 * by whoever expects to play the boundary. What the host has to hear is laid out in rt.news, which
 * no task touches, and posted when the next iteration runs (rt_boundary_post); the boundary after
 * that one waits for it, since the news are its own to write then.
 *
 * Policy. First come, first served, no preemption: admission takes all the KV blocks that a request
 * can ever need, and the first in line waits for them. Every admitted request advances in every
 * iteration in which there is room: one row for each that has one token to compute (decoding),
 * then chunks of prompts, both in order of admission. A request wants logits when its rows
 * reach its last known token. The smallest variant that has room runs.
 */
#ifndef QN_RUNTIME_RT_BOUNDARY_H
#define QN_RUNTIME_RT_BOUNDARY_H

#include "runtime/rt_claim.h"

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

/* ---- finished requests give back what they hold ---- */

/* News of one request, for rt_boundary_post. */
RT_FN void rt_boundary_tell(const struct rt *rt, struct rt_worker *w, uint32_t slot,
                            uint32_t n_known, uint32_t n_out, uint32_t finish) {
    struct rt_news *news = &rt->news[w->n_news++];
    news->slot = slot;
    news->n_known = n_known;
    news->n_out = n_out;
    news->finish = finish;
}

RT_FN void rt_boundary_free(const struct rt *rt, uint32_t slot) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    const int32_t *table = b->block_table + (uint64_t)slot * b->max_blocks;
    for (uint32_t i = 0; i < s->n_blocks; i++) rt->free_blocks[rt->control->n_free++] = table[i];
    s->n_blocks = 0;
    s->state = SLOT_FREE;
}

/* Removes those that were cancelled, or never fit, from the waiting. */
RT_FN void rt_boundary_sweep(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_waiting; i++) {
        uint32_t slot = rt->waiting[i], finish = rt->batch->slots[slot].finish;
        if (finish == RT_RUNNING) {
            rt->waiting[kept++] = slot;
        } else {
            rt_boundary_free(rt, slot);
            rt_boundary_tell(rt, w, slot, 0, 0, finish);
        }
    }
    c->n_waiting = kept;
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

/* Of those who wait, as many as the largest variant can advance in every iteration. */
RT_FN void rt_boundary_admit(const struct rt *rt) {
    struct rt_control *c = rt->control;
    uint32_t shape = rt->shapes[rt->largest];
    uint32_t most = rt_min(rt->batch->n_slots, rt_min(shape & 0xffff, shape >> 16));
    uint32_t n = 0;
    while (n < c->n_waiting && c->n_running < most && rt_boundary_take_blocks(rt, rt->waiting[n])) {
        struct rt_slot *s = &rt->batch->slots[rt->waiting[n]];
        s->state = SLOT_RUNNING;
        s->in_flight = 0;
        rt->running[c->n_running++] = rt->waiting[n++];
    }
    c->n_waiting -= n;
    for (uint32_t i = 0; n > 0 && i < c->n_waiting; i++) rt->waiting[i] = rt->waiting[i + n];
}

/* ---- rows ---- */

/* The rows are laid out in a copy of rt_batch.rows, so that their numbers are in registers. */
RT_FN void rt_boundary_add_row(struct rt_rows *rows, uint32_t slot, uint32_t position,
                               int32_t token) {
    rows->token[rows->n_rows] = token;
    rows->slot[rows->n_rows] = (int32_t)slot;
    rows->position[rows->n_rows] = (int32_t)position;
    rows->n_rows++;
}

RT_FN void rt_boundary_add_rows(const struct rt *rt, struct rt_rows *rows, uint32_t slot,
                                uint32_t n) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    uint64_t row = (uint64_t)slot * b->max_model_len;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = s->n_computed + i;
        if (rt->prompts != b->tokens && p < s->n_prompt) b->tokens[row + p] = rt->prompts[row + p];
        rt_boundary_add_row(rows, slot, p, b->tokens[row + p]);
    }
    if (n > 0 && s->n_computed + n == s->n_known)
        rows->logit_row[rows->n_logit_rows++] = (int32_t)rows->n_rows - 1;
    s->in_flight = n;
}

/* Rows of the requests that were just admitted, [first, n_running), with one token to compute, then
 * chunks of prompts. */
RT_FN void rt_boundary_rows(const struct rt *rt, struct rt_rows *rows, uint32_t first) {
    struct rt_control *c = rt->control;
    struct rt_slot *slots = rt->batch->slots;
    for (uint32_t i = first; i < c->n_running; i++) {
        uint32_t slot = rt->running[i];
        if (slots[slot].n_known == 1) rt_boundary_add_rows(rt, rows, slot, 1);
    }
    /* One row more than there are decoding requests always fits: see `most` above. */
    uint32_t budget = rt_min(rt->max_batched, rt->shapes[rt->largest] & 0xffff);
    if (budget <= rows->n_rows) budget = rows->n_rows + 1;
    for (uint32_t i = 0; i < c->n_running && rows->n_rows < budget; i++) {
        uint32_t slot = rt->running[i];
        uint32_t todo = slots[slot].n_known - slots[slot].n_computed;
        if (todo > 1) rt_boundary_add_rows(rt, rows, slot, rt_min(todo, budget - rows->n_rows));
    }
}

/* The smallest variant with room for the rows: fewest token rows, then fewest logit rows. The
 * largest has room for any that rt_boundary_rows makes. */
RT_FN uint32_t rt_boundary_variant(const struct rt *rt, const struct rt_rows *rows) {
    uint32_t best = rt->largest;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        uint32_t n_rows = rt->shapes[i] & 0xffff, n_logit_rows = rt->shapes[i] >> 16;
        uint32_t least = rt->shapes[best] & 0xffff;
        if (n_rows < rows->n_rows || n_logit_rows < rows->n_logit_rows) continue;
        if (n_rows < least || (n_rows == least && n_logit_rows < rt->shapes[best] >> 16)) best = i;
    }
    return best;
}

/* ---- collect: the last iteration's results, and the rows of requests that decode ---- */

/* One running request, `s` its slot's copy, `token` its newest. Whether it goes on. */
RT_FN int rt_boundary_collect_one(const struct rt *rt, struct rt_worker *w, struct rt_rows *rows,
                                  uint32_t slot, struct rt_slot s, int32_t token) {
    struct rt_slot *to = &rt->batch->slots[slot];
    s.n_computed += s.in_flight;
    if (s.n_known > s.n_limit) s.n_known = s.n_limit;
    if (s.finish == RT_RUNNING) {
        if (s.n_known >= s.n_limit)
            s.finish = RT_FINISH_LENGTH;
        else if (s.n_computed >= s.n_known)
            s.finish = RT_FINISH_ABORT; /* no token came */
    }
    uint32_t todo = s.n_known - s.n_computed;
    uint32_t n_out = todo == 1 ? s.n_known - s.n_prompt : 0;
    to->n_computed = s.n_computed;
    to->n_known = s.n_known;
    to->finish = s.finish;
    to->in_flight = 0;
    if (n_out > 0 || s.finish != RT_RUNNING)
        rt_boundary_tell(rt, w, slot, n_out > 0 ? s.n_known : 0, n_out, s.finish);
    if (s.finish != RT_RUNNING) {
        rt_boundary_free(rt, slot);
        return 0;
    }
    if (todo != 1) return 1;
    if (n_out == 0) { /* the last of a prompt */
        rt_boundary_add_rows(rt, rows, slot, 1);
        return 1;
    }
    rt_boundary_add_row(rows, slot, s.n_computed, token);
    rows->logit_row[rows->n_logit_rows++] = (int32_t)rows->n_rows - 1;
    to->in_flight = 1;
    return 1;
}

/* All running requests; takes the finished ones out, keeping the order. How many have more than one
 * token to compute. */
RT_FN uint32_t rt_boundary_collect(const struct rt *rt, struct rt_worker *w,
                                   struct rt_rows *rows) {
    struct rt_control *c = rt->control;
    const struct rt_slot *slots = rt->batch->slots;
    const int32_t *tokens = rt->batch->tokens;
    const uint64_t stride = rt->batch->max_model_len;
    const uint32_t n = c->n_running;
    uint32_t kept = 0, more = 0;
    for (uint32_t i = 0; i < n; i += RT_AT_ONCE) {
        uint32_t slot[RT_AT_ONCE];
        struct rt_slot s[RT_AT_ONCE];
        int32_t token[RT_AT_ONCE];
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) slot[j] = rt->running[rt_min(i + j, n - 1)];
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) s[j] = slots[slot[j]];
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++)
            token[j] = tokens[stride * slot[j] + s[j].n_known - 1];
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) {
            if (i + j >= n || !rt_boundary_collect_one(rt, w, rows, slot[j], s[j], token[j]))
                continue;
            rt->running[kept++] = slot[j];
            more += s[j].n_known - (s[j].n_computed + s[j].in_flight) > 1;
        }
    }
    c->n_running = kept;
    return more;
}

/* ---- post: what the host has to hear ---- */

/* The newest token of every request that has one. */
RT_FN void rt_boundary_post_tokens(const struct rt *rt, uint32_t n) {
    const uint64_t stride = rt->batch->max_model_len;
    for (uint32_t i = 0; i < n; i += RT_AT_ONCE) {
        uint64_t at[RT_AT_ONCE];
        int32_t token[RT_AT_ONCE];
        float logprob[RT_AT_ONCE];
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) {
            const struct rt_news *m = &rt->news[rt_min(i + j, n - 1)];
            at[j] = stride * m->slot + (m->n_known > 0 ? m->n_known - 1 : 0);
        }
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) {
            token[j] = rt->batch->tokens[at[j]];
            logprob[j] = rt->batch->logprobs[at[j]];
        }
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) {
            rt->out_tokens[at[j]] = token[j];
            rt->out_logprobs[at[j]] = logprob[j];
        }
    }
}

/* Tells the host of all the news: tokens, one fence, their numbers, then who has finished, whose
 * slot is the host's from there. Beside a GPU a fence is a trip over the bus, so there is not one
 * for each request. Nobody writes what is read here: the news are ours until `posted` says so, and a
 * token stays as it is until its slot is given back. */
RT_FN void rt_boundary_post(const struct rt *rt, struct rt_worker *w) {
    if (!w->owes_post) return;
    const uint32_t n = w->n_news;
    w->owes_post = w->n_news = 0;
    if (n > 0) {
        if (rt->out_tokens) rt_boundary_post_tokens(rt, n);
        rt_host_fence_release();
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_news *m = &rt->news[i];
        if (m->n_known > 0) rt_host_store_relaxed(&rt->posts[m->slot].n_out, m->n_out);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_news *m = &rt->news[i];
        if (m->finish != RT_RUNNING) rt_host_store_release(&rt->posts[m->slot].finish, m->finish);
    }
    rt_host_store_relaxed(&rt->mail->heartbeat, rt->control->iteration);
    rt_host_publish(&rt->mail->progress, ++rt->control->progress);
    rt_store_release(&rt->shared->posted, rt->control->iteration);
    rt_host_wake(&rt->mail->progress, &rt->mail->host_sleepers);
}

/* ---- the whole ---- */

/* What a boundary reads, wanted soon. It stands still while an iteration runs. */
RT_FN void rt_boundary_prefetch(const struct rt *rt) {
    const struct rt_control *c = rt->control;
    const struct rt_batch *b = rt->batch;
    for (uint32_t i = 0; i < rt_min(c->n_running, 2 * RT_AT_ONCE); i++) {
        rt_prefetch(&b->slots[rt->running[i]]);
        rt_prefetch(&rt->news[i]);
    }
    rt_prefetch(b->rows.token);
    rt_prefetch(b->rows.slot);
    rt_prefetch(b->rows.position);
    rt_prefetch(b->rows.logit_row);
}

/* For a worker that holds a task of the iteration, or owes the boundary: reads the doorbell, which
 * may take a trip over a bus. 0: the boundary cannot be played yet, since the last one has not
 * posted everything. */
RT_FN int rt_boundary_ask(const struct rt *rt, struct rt_worker *w) {
    if (w->asked) return 1;
    rt_boundary_post(rt, w);
    if (rt_load_acquire(&rt->shared->posted) != rt->control->iteration) return 0;
    w->bell = rt_host_load_relaxed(&rt->mail->tail);
    w->asked = 1;
    rt_boundary_prefetch(rt);
    return 1;
}

/* What came after the doorbell was read, when there is nothing else to do. */
RT_FN void rt_boundary_ask_again(const struct rt *rt, struct rt_worker *w) {
    w->bell = rt_host_load_relaxed(&rt->mail->tail);
    rt_boundary_commands(rt, w->bell);
    rt_boundary_sweep(rt, w);
    rt_boundary_admit(rt);
}

/* Everything up to publishing, once rt_boundary_ask said that the boundary can be played: leaves
 * variant and epoch in rt->control, and the news to be posted. 0: there is no work, up to the
 * doorbell's value w->bell. */
RT_FN int rt_boundary_prepare(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    struct rt_rows rows = rt->batch->rows;
    w->boundary = w->asked = w->n_news = 0;
    w->owes_post = 1;
    rows.n_rows = rows.n_logit_rows = 0;
    rt_boundary_commands(rt, w->bell);
    uint32_t more = rt_boundary_collect(rt, w, &rows), first = c->n_running;
    if (c->n_waiting > 0) {
        rt_boundary_sweep(rt, w);
        rt_boundary_admit(rt);
    }
    if (c->n_running == 0) rt_boundary_ask_again(rt, w);
    if (c->n_running == 0) return 0;
    if (more > 0 || c->n_running > first) rt_boundary_rows(rt, &rows, first);
    rt->batch->rows.n_rows = rows.n_rows;
    rt->batch->rows.n_logit_rows = rows.n_logit_rows;
    uint32_t variant = rt_boundary_variant(rt, &rows);
    c->epoch = variant == c->variant ? c->epoch + 1 : rt->epochs[variant] + 1;
    c->variant = variant;
    rt->epochs[variant] = c->epoch;
    c->iteration++;
    c->n_iterations++;
    c->n_rows_run += rows.n_rows;
    return 1;
}

/* No work. The state is complete, and the host has heard all, before anybody may claim the
 * boundary, or leaves. When told to return, the phase stays RUN: nobody may claim a boundary of a
 * launch that is over. */
RT_FN void rt_boundary_idle(const struct rt *rt, struct rt_worker *w) {
    struct rt_shared *sh = rt->shared;
    rt_store_relaxed(&sh->idle_bell, w->bell);
    rt_store_relaxed(&sh->resume, rt_load_relaxed(&sh->published));
    rt_boundary_post(rt, w);
    if (rt->until_idle)
        rt_cas_acquire(&sh->stop, RT_GO, RT_STOP_IDLE);
    else
        rt_store_release(&sh->phase, RT_PHASE_IDLE);
    rt_host_wake(&rt->mail->progress, &rt->mail->host_sleepers);
}

/* The boundary, once rt_boundary_ask said that it can be played. The iteration is published before
 * its JIT tasks can be claimed: the other way round they might run to its end, and this `published`
 * would come after the next one. After the start event's trigger the iteration may be over, so
 * nothing of it is touched then; rt_boundary_post follows. */
RT_FN void rt_boundary(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    rt_trace(rt, w->id, RT_TRACE_DONE, 0, c->iteration);
    if (!rt_boundary_prepare(rt, w)) {
        rt_trace(rt, w->id, RT_TRACE_IDLE, 0, c->iteration);
        rt_boundary_idle(rt, w);
        return;
    }
    const struct prog_variant *v = &rt->variants[c->variant];
    uint32_t epoch = c->epoch, start = v->start_event, end = v->end_event;
    rt_trace_iteration(rt, w->id);
    uint32_t published = c->iteration << RT_VARIANT_BITS | c->variant;
    rt_store_release(&rt->shared->published, published);
    rt_claim_begin(rt, published);
    rt_trigger(rt, w, start, epoch, end);
}

#endif
