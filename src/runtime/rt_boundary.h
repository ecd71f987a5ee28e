/* rt_boundary.h - what happens between two iterations: the results of the last one are published,
 * requests come and go, and the next token rows are laid out.
 *
 * The worker whose trigger activated the end event plays the boundary, without any hand-over. When
 * the runtime is idle, the worker that wakes it does. Until that worker publishes the next
 * iteration it is alone: all tasks are done, and all other workers only poll.
 *
 *   commands ──► collect ──► admit ──► rows ──► choose variant ──► publish ──► trigger start, post
 *      │                                 └ none: post, idle or stop ▲
 *      └ none, and nothing but decoding goes on: steady ────────────┘
 *
 * A steady iteration has one row for each running request, and SAMPLE lays out the rows of the next
 * iteration (rt_append.h). Until a request ends, comes or is cancelled, a boundary takes as long
 * for 64 requests as for one.
 *
 * No boundary waits for the host. Where the host's memory is a bus away, one worker reads the
 * doorbell early, for all (rt_boundary_listen). The boundary lays out its news in rt.news, which no
 * task touches. They are posted while the next iteration runs (rt_boundary_post). The boundary
 * after that waits until they are posted, because it overwrites them.
 *
 * Policy. rt_waiting.h decides which request has KV blocks, and which gives way when they run out.
 * Every running request advances in every iteration in which there is room. First each request with
 * one token to compute (decoding) gets a row, then chunks of prompts share the rows that are left
 * (rt_budget.h). A request needs logits of the row of its last known
 * token, and of the rows before it that score tokens of the prompt. The smallest variant that has
 * room runs.
 */
#ifndef QN_RUNTIME_RT_BOUNDARY_H
#define QN_RUNTIME_RT_BOUNDARY_H

#include "runtime/rt_budget.h"
#include "runtime/rt_claim.h"

#if defined(QN_DEBUG) && !defined(__CUDACC__)
#include <assert.h>
#endif

/* Whether a request can ever run here; the host checks the same before it submits. */
RT_FN int rt_request_fits(const struct rt_batch *b, const struct rt_request *q) {
    return q->n_prompt >= 1 && q->max_tokens >= 1 && q->n_prompt <= b->max_model_len &&
           q->max_tokens <= b->max_model_len - q->n_prompt && q->n_stop <= RT_MAX_STOP_IDS &&
           q->n_scored < q->n_prompt && q->cache_space <= RT_MAX_CACHE_SPACE &&
           rt_blocks_needed(b, q->n_prompt + q->max_tokens) <= b->n_kv_blocks;
}

/* ---- commands: what the host wants ---- */

RT_FN void rt_boundary_submit(const struct rt *rt, uint32_t slot) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    if (s->state != SLOT_FREE) return;
    if (rt->mail_requests != b->requests) b->requests[slot] = rt->mail_requests[slot];
    const struct rt_request *q = &b->requests[slot];
    s->n_known = s->n_prompt = q->n_prompt;
    s->n_limit = q->n_prompt + q->max_tokens;
    s->n_computed = 0;
    s->n_blocks = 0;
    s->finish = rt_request_fits(b, q) ? RT_RUNNING : RT_FINISH_ABORT;
    rt->control->n_dropped += s->finish != RT_RUNNING;
    struct rt_turn *t = rt_turn_of(rt, slot);
    t->priority = q->priority;
    t->arrival = rt->control->n_arrived++;
    t->n_cached = t->n_preempted = t->n_admitted = t->fetched = 0;
    rt_waiting_add(rt, slot);
}

RT_FN void rt_boundary_cancel(const struct rt *rt, uint32_t slot) {
    struct rt_slot *s = &rt->batch->slots[slot];
    if (s->state == SLOT_FREE || s->finish != RT_RUNNING) return;
    s->finish = RT_FINISH_ABORT;
    rt->control->n_dropped += s->state == SLOT_WAITING;
}

/* Takes all commands up to the doorbell's value `tail`. */
RT_COLD void rt_boundary_commands(const struct rt *rt, uint32_t tail) {
    struct rt_control *c = rt->control;
    rt_host_fence_acquire(&rt->mail->tail);
    for (; c->taken != tail; c->taken++) {
        const struct rt_command *command = &rt->commands[c->taken & rt->command_mask];
        if (command->slot >= rt->batch->n_slots) continue;
        if (command->kind == RT_COMMAND_SUBMIT) rt_boundary_submit(rt, command->slot);
        if (command->kind == RT_COMMAND_CANCEL) rt_boundary_cancel(rt, command->slot);
    }
    rt_host_store_release(&rt->mail->head, c->taken);
}

/* ---- finished requests release what they hold ---- */

/* News of one request, for rt_boundary_post. */
RT_FN void rt_boundary_tell(const struct rt *rt, struct rt_worker *w, uint32_t slot,
                            uint32_t n_known, uint32_t n_out, uint32_t finish) {
    struct rt_news *news = &rt->news[w->n_news++];
    news->slot = slot;
    news->n_known = n_known;
    news->n_out = n_out;
    news->finish = finish;
}

/* Removes waiting requests that were cancelled or can never fit. */
RT_COLD void rt_boundary_sweep(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    uint32_t slot = c->wait_first;
    while (slot != RT_NONE && c->n_dropped > 0) {
        struct rt_slot *s = &rt->batch->slots[slot];
        const uint32_t next = rt_turn_of(rt, slot)->after;
        if (s->finish != RT_RUNNING) {
            rt_waiting_remove(rt, slot);
            s->state = SLOT_FREE;
            c->n_dropped--;
            rt_boundary_tell(rt, w, slot, 0, 0, s->finish);
        }
        slot = next;
    }
}

/* Admits waiting requests, as many as the largest variant can advance in every iteration. */
RT_COLD void rt_boundary_admit(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    const uint32_t shape = rt->shapes[rt->largest];
    const uint32_t most = rt_min(rt->batch->n_slots, rt_min(shape & 0xffff, shape >> 16));
    rt_boundary_sweep(rt, w);
    uint32_t grow = rt_running_grow(rt);
    while (c->n_waiting > 0 && c->n_running < most && rt_request_admit(rt, c->wait_first, grow))
        grow += rt_request_grows(rt->batch, &rt->batch->slots[rt->running[c->n_running - 1]]);
}

/* ---- rows ---- */

/* Rows as they are laid out are counted like shapes: n_rows | n_logit_rows << 16. */
enum { RT_LOGIT_ROW = 1 << 16 };

/* Notes that a row at `position` is laid out. */
RT_FN void rt_boundary_reach(struct rt_worker *w, uint32_t position) {
    if (w->context <= position) w->context = position + 1;
}

/* How many of the next `most` tokens of a request can have rows, if `room` logit rows are left. */
RT_FN uint32_t rt_boundary_chunk(const struct rt_batch *b, uint32_t slot, uint32_t most,
                                 uint32_t room) {
    const uint32_t at = b->slots[slot].n_computed, from = rt_logits_from(b, slot);
    return rt_min(most, (from > at ? from - at : 0) + room);
}

/* Adds logit rows for those of the token rows [first, first + n) that need logits; row `first` is
 * at `position`. Returns the new counts. */
RT_FN uint32_t rt_boundary_add_logits(const struct rt_batch *b, uint32_t slot, uint32_t position,
                                      uint32_t first, uint32_t n, uint32_t filled) {
    const uint32_t from = rt_logits_from(b, slot);
    const uint32_t skipped = rt_min(n, from > position ? from - position : 0);
    for (uint32_t i = skipped; i < n; i++, filled += RT_LOGIT_ROW)
        b->rows.logit_row[filled >> 16] = (int32_t)(first + i);
    return filled;
}

/* Adds rows for the next n tokens of a request; returns the new counts. */
RT_COLD uint32_t rt_boundary_add_rows(const struct rt *rt, struct rt_worker *w, uint32_t slot,
                                      uint32_t n, uint32_t filled) {
    struct rt_batch *b = rt->batch;
    struct rt_slot *s = &b->slots[slot];
    const uint64_t at = (uint64_t)slot * b->max_model_len;
    const uint32_t first = filled & 0xffff;
    const uint32_t position = s->n_computed;
    rt_block_copy(b->rows.token + first, b->tokens + at + position, n);
    for (uint32_t i = 0; i < n; i++) {
        b->rows.slot[first + i] = (int32_t)slot;
        b->rows.position[first + i] = (int32_t)(position + i);
    }
    s->in_flight = n;
    filled += n;
    if (n > 0) rt_boundary_reach(w, position + n - 1);
    const uint32_t before = filled;
    filled = rt_boundary_add_logits(b, slot, position, first, n, filled);
    if (filled - before > RT_LOGIT_ROW) b->rows.scored = 1;
    return filled;
}

/* How many tokens a request may compute now. */
RT_FN uint32_t rt_boundary_todo(const struct rt *rt, uint32_t slot) {
    const struct rt_slot *s = &rt->batch->slots[slot];
    return rt_blocks_open(rt, slot, s->n_known - s->n_computed);
}

/* The running requests that have no row yet: their number, the tokens that they may compute, at
 * most `share` each, and their longest context. */
struct rt_prompts {
    uint32_t n, rows, context;
};

RT_COLD struct rt_prompts rt_boundary_prompts(const struct rt *rt, uint32_t share) {
    struct rt_prompts p = {0, 0, 0};
    for (uint32_t i = 0; i < rt->control->n_running; i++) {
        const uint32_t slot = rt->running[i];
        if (rt->batch->slots[slot].in_flight > 0) continue;
        rt_blocks_follow(rt, slot);
        p.n++;
        p.rows += rt_min(share, rt_boundary_todo(rt, slot));
        p.context = rt_max(p.context, rt->batch->slots[slot].n_computed + 1);
    }
    return p;
}

/* The place of the nth running request without a row. */
RT_COLD uint32_t rt_boundary_nth_prompt(const struct rt *rt, uint32_t nth) {
    uint32_t i = 0;
    for (;; i++)
        if (rt->batch->slots[rt->running[i]].in_flight == 0 && nth-- == 0) return i;
}

/* Lays out chunks of prompts. Each prompt has an equal share of the budget, a multiple of
 * RT_LEAST_CHUNK, so that a long prompt does not hold up a short one. The first prompts get the
 * rows that others leave. If the budget has no RT_LEAST_CHUNK for each prompt, the prompts take
 * turns. */
RT_COLD uint32_t rt_boundary_chunks(const struct rt *rt, struct rt_worker *w, uint32_t filled) {
    const struct rt_control *c = rt->control;
    const struct rt_prompts all = rt_boundary_prompts(rt, 0);
    if (all.n == 0) return filled;
    const uint32_t n_rows = filled & 0xffff;
    uint32_t left = rt_budget(rt, n_rows, rt_max(w->context, all.context)) - n_rows;
    const uint32_t chunks = left / all.n / RT_LEAST_CHUNK;
    const uint32_t share = rt_max(chunks, 1) * RT_LEAST_CHUNK;
    const uint32_t taken = rt_boundary_prompts(rt, share).rows;
    uint32_t spare = left > taken ? left - taken : 0;
    uint32_t i = rt_boundary_nth_prompt(rt, chunks > 0 ? 0 : (uint32_t)(c->n_iterations % all.n));
    for (uint32_t k = 0; k < c->n_running && left > 0; k++, i = i + 1 < c->n_running ? i + 1 : 0) {
        const uint32_t slot = rt->running[i];
        if (rt->batch->slots[slot].in_flight > 0) continue;
        const uint32_t todo = rt_boundary_todo(rt, slot), own = rt_min(todo, share);
        const uint32_t more = rt_min(todo - own, spare);
        const uint32_t room = (rt->shapes[rt->largest] >> 16) - (filled >> 16);
        const uint32_t n = rt_boundary_chunk(rt->batch, slot, rt_min(own + more, left), room);
        spare -= more;
        left -= n;
        filled = rt_boundary_add_rows(rt, w, slot, n, filled);
    }
    return filled;
}

/* Lays out rows of the requests at [from, n_running) that have one token to compute, then chunks of
 * prompts. */
RT_COLD uint32_t rt_boundary_rows(const struct rt *rt, struct rt_worker *w, uint32_t from,
                                  uint32_t filled) {
    const struct rt_slot *slots = rt->batch->slots;
    for (uint32_t i = from; i < rt->control->n_running; i++) {
        const struct rt_slot *s = &slots[rt->running[i]];
        if (s->n_known - s->n_computed == 1)
            filled = rt_boundary_add_rows(rt, w, rt->running[i], 1, filled);
    }
    rt->batch->rows.n_alone = filled & 0xffff;
    return rt_boundary_chunks(rt, w, filled);
}

/* The smallest variant with room for the rows and their contexts: fewest token rows, then fewest
 * logit rows, then a decode-only one, then the shortest contexts. The largest variant has room for
 * all rows that rt_boundary_rows lays out. If no request has several logit rows and each row is a
 * logit row, then no two rows are of the same request. */
RT_COLD uint32_t rt_boundary_variant(const struct rt *rt, uint32_t filled, uint32_t context) {
    const int decodes = (filled & 0xffff) == filled >> 16 && !rt->batch->rows.scored;
    const uint32_t decode_only = decodes ? rt->decode_only : 0;
    uint32_t best = rt->largest;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        uint32_t shape = rt->shapes[i], least = rt->shapes[best];
        if ((shape & 0xffff) < (filled & 0xffff) || shape >> 16 < filled >> 16 ||
            rt->contexts[i] < context || (rt->decode_only & ~decode_only) >> i & 1)
            continue;
        const uint32_t is_decode_only = decode_only >> i & 1,
                       was_decode_only = decode_only >> best & 1;
        if ((shape & 0xffff) < (least & 0xffff) ||
            ((shape & 0xffff) == (least & 0xffff) &&
             (shape >> 16 < least >> 16 ||
              (shape == least &&
               (is_decode_only > was_decode_only ||
                (is_decode_only == was_decode_only && rt->contexts[i] < rt->contexts[best]))))))
            best = i;
    }
    return best;
}

/* ---- collect: the last iteration's results, and the rows of requests that decode ---- */

/* Prefetches what rt_boundary_collect_one reads of eight requests. On a GPU each load is a trip to
 * L2, and each load of a request needs the result of the one before. */
RT_FN void rt_boundary_touch(const struct rt *rt, const struct rt_batch *b, uint32_t i,
                             uint32_t n) {
    uint32_t slot[RT_AT_ONCE], n_known[RT_AT_ONCE];
    RT_UNROLL
    for (uint32_t j = 0; j < RT_AT_ONCE; j++) slot[j] = rt->running[rt_min(i + j, n - 1)];
    RT_UNROLL
    for (uint32_t j = 0; j < RT_AT_ONCE; j++) n_known[j] = b->slots[slot[j]].n_known;
    RT_UNROLL
    for (uint32_t j = 0; j < RT_AT_ONCE; j++)
        rt_touch(&b->tokens[(uint64_t)slot[j] * b->max_model_len + n_known[j] - 1]);
}

/* Lowers w->supply to the steady boundaries that a running request's blocks last for. Sets
 * w->hungry if the request lacks a block already. */
RT_FN void rt_boundary_reckon(const struct rt_batch *b, struct rt_worker *w,
                              const struct rt_slot *s) {
    const uint32_t have = s->n_blocks * b->kv_block;
    if (have >= s->n_limit - 1) return;
    if (have < s->n_known + 1)
        w->hungry = 1;
    else
        w->supply = rt_min(w->supply, have - 1 - s->n_known);
}

/* Collects the results of one running request. Adds its row to *filled if one token is to be
 * computed, else counts it in *more. Returns whether the request has finished. */
RT_FN int rt_boundary_collect_one(const struct rt *rt, struct rt_worker *w,
                                  const struct rt_batch *b, uint32_t slot, uint32_t *filled,
                                  uint32_t *more) {
    struct rt_slot *to = &b->slots[slot];
    struct rt_slot s = *to;
    const int sat_out = s.in_flight == RT_SAT_OUT;
    if (!sat_out) s.n_computed += s.in_flight;
    if (s.n_known > s.n_limit) s.n_known = s.n_limit;
    if (s.finish == RT_RUNNING) {
        if (s.n_known >= s.n_limit)
            s.finish = RT_FINISH_LENGTH;
        else if (s.n_computed >= s.n_known)
            s.finish = RT_FINISH_ABORT; /* no token came */
    }
    uint32_t todo = s.n_known - s.n_computed;
    uint32_t n_out = todo == 1 ? s.n_known - s.n_prompt : 0;
    if (todo > 1 || n_out <= 1) rt_blocks_computed(rt, slot, s.n_computed);
    if (s.finish == RT_RUNNING) rt_boundary_reckon(b, w, &s);
    const int decodes = s.finish == RT_RUNNING && n_out > 0, is_new = n_out > 0 && !sat_out;
    to->n_computed = s.n_computed;
    to->n_known = s.n_known;
    to->finish = s.finish;
    to->in_flight = (uint32_t)decodes;
    if (is_new || s.finish != RT_RUNNING)
        rt_boundary_tell(rt, w, slot, is_new ? s.n_known : 0, n_out, s.finish);
    if (decodes) {
        const uint32_t row = *filled & 0xffff;
        b->rows.token[row] = b->tokens[(uint64_t)slot * b->max_model_len + s.n_computed];
        b->rows.slot[row] = (int32_t)slot;
        b->rows.position[row] = (int32_t)s.n_computed;
        rt_boundary_reach(w, s.n_computed);
        b->rows.logit_row[*filled >> 16] = (int32_t)row;
        *filled += 1 + RT_LOGIT_ROW;
    } else if (s.finish == RT_RUNNING && todo == 1) { /* the last token of a prompt */
        *filled = rt_boundary_add_rows(rt, w, slot, 1, *filled);
    } else if (s.finish == RT_RUNNING) {
        ++*more;
    }
    return s.finish != RT_RUNNING;
}

RT_COLD void rt_boundary_free(const struct rt *rt, uint32_t slot) {
    rt_request_leave(rt, slot);
    rt->batch->slots[slot].state = SLOT_FREE;
}

/* Collects all running requests and takes the finished ones out, keeping the order. Returns the
 * counts of rows; *more: how many have more than one token to compute. */
RT_FN uint32_t rt_boundary_collect(const struct rt *rt, struct rt_worker *w, uint32_t *more) {
    const struct rt_batch b = *rt->batch;
    const uint32_t n = rt->control->n_running;
    uint32_t kept = 0, filled = 0;
    *more = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i % RT_AT_ONCE == 0) rt_boundary_touch(rt, &b, i, n);
        uint32_t slot = rt->running[i];
        if (rt_boundary_collect_one(rt, w, &b, slot, &filled, more))
            rt_boundary_free(rt, slot);
        else
            rt->running[kept++] = slot;
    }
    rt->control->n_running = kept;
    return filled;
}

/* Lays out the rows of decoding requests anew, after other requests have given way. Returns their
 * counts; *more as in rt_boundary_collect. */
RT_COLD uint32_t rt_boundary_decode_rows(const struct rt *rt, struct rt_worker *w, uint32_t *more) {
    struct rt_control *c = rt->control;
    uint32_t filled = 0;
    w->context = *more = 0;
    rt->batch->rows.scored = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct rt_slot *s = &rt->batch->slots[rt->running[i]];
        if (s->n_known - s->n_computed == 1)
            filled = rt_boundary_add_rows(rt, w, rt->running[i], 1, filled);
        else
            ++*more;
    }
    return filled;
}

/* Gives running requests blocks, because one of them lacks a block. Returns the counts of rows,
 * which are new if requests have given way. */
RT_COLD uint32_t rt_boundary_feed(const struct rt *rt, struct rt_worker *w, uint32_t filled,
                                  uint32_t *more) {
    const struct rt_control *c = rt->control;
    const uint32_t before = c->n_running;
    rt_blocks_supply(rt);
    w->supply = RT_NONE;
    for (uint32_t i = 0; i < c->n_running; i++)
        rt_boundary_reckon(rt->batch, w, &rt->batch->slots[rt->running[i]]);
    return c->n_running < before ? rt_boundary_decode_rows(rt, w, more) : filled;
}

/* ---- post: what the host has to hear ---- */

/* Copies the newest token of every request that has one. */
RT_FN void rt_boundary_post_tokens(const struct rt *rt, uint32_t n) {
    const uint64_t stride = rt->batch->max_model_len;
    const uint32_t n_steady = rt->control->n_steady;
    for (uint32_t i = 0; i < n; i += RT_AT_ONCE) {
        uint64_t at[RT_AT_ONCE];
        int32_t token[RT_AT_ONCE];
        float logprob[RT_AT_ONCE];
        RT_UNROLL
        for (uint32_t j = 0; j < RT_AT_ONCE; j++) {
            const struct rt_news *m = &rt->news[rt_min(i + j, n - 1)];
            at[j] = stride * m->slot + (m->n_known > 0 ? m->n_known + n_steady - 1 : 0);
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

/* Copies the scores of a prompt, together with the request's first token. */
RT_COLD void rt_boundary_post_scores(const struct rt *rt, uint32_t slot) {
    const struct rt_request *q = &rt->batch->requests[slot];
    const uint64_t at = (uint64_t)slot * rt->batch->max_model_len + q->n_prompt - q->n_scored;
    for (uint32_t i = 0; i < q->n_scored; i++)
        rt->out_logprobs[at + i] = rt->batch->logprobs[at + i];
}

/* Triggers the start event of the iteration that was published last. */
RT_FN void rt_boundary_start(const struct rt *rt, struct rt_worker *w) {
    const struct rt_control *c = rt->control;
    const struct prog_variant *v = &rt->variants[c->variant];
    w->owes_start = 0;
    rt_trigger(rt, w, v->start_event, c->epoch, v->end_event);
}

/* Starts the iteration for the tasks that wait for its start event. Then posts all news: tokens,
 * one fence, their numbers, then the finished requests, whose slots belong to the host from there
 * on. Beside a GPU a fence is a trip over the bus, so one fence serves all requests. The data read
 * here does not change: no boundary overwrites the news before `posted` has this iteration's
 * number, and a token stays as it is until its slot is released. */
RT_COLD void rt_boundary_post(const struct rt *rt, struct rt_worker *w) {
    if (!w->owes_post) return;
    const uint32_t n = w->n_news;
    if (w->owes_start) rt_boundary_start(rt, w);
    w->owes_post = w->n_news = 0;
    if (n > 0) {
        if (rt->out_tokens) {
            rt_boundary_post_tokens(rt, n);
            for (uint32_t i = 0; rt->control->n_steady == 0 && i < n; i++)
                if (rt->news[i].n_out == 1) rt_boundary_post_scores(rt, rt->news[i].slot);
        }
        rt_host_fence_release();
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_news *m = &rt->news[i];
        if (m->n_known > 0)
            rt_host_store_relaxed(&rt->posts[m->slot].n_out, m->n_out + rt->control->n_steady);
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

/* Prefetches what a boundary reads. The list of running requests does not change while an iteration
 * runs. */
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

/* Touches what every boundary reads, while the task runs that ends the iteration. */
RT_FN void rt_boundary_near(const struct rt *rt, uint32_t end_event) {
    rt_touch(rt->control);
    rt_touch(&rt->batch->rows);
    rt_touch(&rt->events[end_event]);
}

/* For a worker that holds a task of the iteration, or owes the boundary. 0: the boundary cannot be
 * played yet, because the last one's news are not all posted. */
RT_FN int rt_boundary_ask(const struct rt *rt, struct rt_worker *w) {
    if (w->asked) return 1;
    rt_boundary_post(rt, w);
    if (rt_load_acquire(&rt->shared->posted) != rt->control->iteration) return 0;
    w->asked = 1;
    rt_boundary_prefetch(rt);
    return 1;
}

/* Where the host's memory is a bus away: reads the doorbell for the worker that will play the
 * boundary. One worker with a task that triggers the end event does so, before its trigger. */
RT_FN void rt_boundary_listen(const struct rt *rt) {
    rt_store_relaxed(&rt->shared->bell, rt_host_load_acquire(&rt->mail->tail));
    rt_store_relaxed(&rt->shared->bell_of, rt->control->iteration);
}

/* The doorbell's value at the end of an iteration, not older than the last boundary's. A value from
 * rt_boundary_listen is used once, because after an idle time it would be old. */
RT_FN uint32_t rt_boundary_bell(const struct rt *rt, uint32_t iteration) {
    struct rt_shared *sh = rt->shared;
    const uint32_t of = rt_load_relaxed(&sh->bell_of), bell = rt_load_relaxed(&sh->bell);
    if (of != iteration) return rt_host_load_relaxed(&rt->mail->tail);
    rt_store_relaxed(&sh->bell_of, RT_NONE);
    return bell;
}

/* Reads the doorbell again, when there is nothing else to do, and takes the commands that came
 * meanwhile. */
RT_COLD void rt_boundary_ask_again(const struct rt *rt, struct rt_worker *w) {
    w->bell = rt_host_load_relaxed(&rt->mail->tail);
    rt_boundary_commands(rt, w->bell);
    rt_boundary_admit(rt, w);
}

/* Lays out the next rows from the state of every request. 0: there are none. A request that runs on
 * and has a new token decodes, and has one row. So the iteration is steady if all requests that ran
 * decode and no other request runs. Then the rows and the news are those of these requests, in
 * their order. */
RT_COLD int rt_boundary_lay_out(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    struct rt_rows *rows = &rt->batch->rows;
    const uint32_t before = c->n_running;
    w->n_news = w->context = w->hungry = c->n_steady = 0;
    w->supply = RT_NONE;
    rows->steady = rows->scored = 0;
    rt_store_relaxed(&c->ended, 0);
    uint32_t more, filled = rt_boundary_collect(rt, w, &more);
    if (w->hungry) filled = rt_boundary_feed(rt, w, filled, &more);
    const uint32_t first = c->n_running;
    const int all_decode = first == before && w->n_news == first;
    if (c->n_waiting > 0) rt_boundary_admit(rt, w);
    if (c->n_running == 0) rt_boundary_ask_again(rt, w);
    if (c->n_running == 0) return 0;
    rows->n_alone = filled & 0xffff;
    if (more > 0 || c->n_running > first) filled = rt_boundary_rows(rt, w, first, filled);
    c->context = w->context;
    c->supply = w->supply;
    rows->n_rows = filled & 0xffff;
    rows->n_logit_rows = filled >> 16;
    rows->steady = all_decode && c->n_running == first && w->n_news == first;
    return 1;
}

RT_FN void rt_boundary_count(const struct rt *rt) {
    const struct rt_control *c = rt->control;
    struct rt_counts *to = &rt->mail->counts;
    rt_host_store_relaxed(&to->n_free, c->n_free);
    rt_host_store_relaxed(&to->n_cached, c->n_idle_known);
    rt_host_store_relaxed(&to->n_running, c->n_running);
    rt_host_store_relaxed(&to->n_waiting, c->n_waiting);
    rt_host_store_relaxed(&to->n_preempted, c->n_preempted);
}

/* The next iteration's number. It skips a number whose `published` could be 0, which means none. */
RT_FN uint32_t rt_boundary_iteration(uint32_t before) {
    const uint32_t next = before + 1;
    return next << RT_ITERATION_SHIFT == 0 ? next + 1 : next;
}

/* The iteration that is prepared, as it is to be published. */
RT_FN uint32_t rt_boundary_published(const struct rt_control *c) {
    return rt_published(c->iteration, c->n_steady > 0, c->variant);
}

/* In debug builds: checks that no block is lost. */
RT_FN void rt_boundary_check(const struct rt *rt) {
#if defined(QN_DEBUG) && !defined(__CUDACC__)
    assert(rt_blocks_sound(rt));
#else
    (void)rt;
#endif
}

/* Prepares any iteration. In a steady iteration the smallest variant stays the same as long as the
 * contexts fit. */
RT_COLD uint32_t rt_boundary_any(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    const struct rt_rows *rows = &rt->batch->rows;
    uint32_t variant = c->variant;
    const int called = c->taken != w->bell;
    rt_budget_measure(rt);
    if (called) rt_boundary_commands(rt, w->bell);
    /* Steady: SAMPLE has laid out the rows, every request has blocks for its row, and there is
     * still no room for waiting requests. */
    const int steady =
        rows->steady && rt_load_relaxed(&c->ended) == 0 && !called && c->n_steady < c->supply;
    if (steady) {
        w->n_news = c->n_running;
        c->n_steady++;
        c->context++;
    } else {
        const int runs = rt_boundary_lay_out(rt, w);
        rt_boundary_count(rt);
        if (!runs) {
            rt_boundary_check(rt);
            c->began_ns = 0;
            return 0;
        }
    }
    if (!steady || c->context > rt->contexts[variant])
        variant = rt_boundary_variant(rt, rows->n_rows | rows->n_logit_rows << 16, c->context);
    c->room = rt_min(c->supply, c->n_steady + rt->contexts[variant] - c->context);
    uint32_t epoch = (variant == c->variant ? c->epoch : rt->epochs[variant]) + 1;
    c->epoch = rt->epochs[variant] = epoch;
    c->variant = variant;
    c->iteration = rt_boundary_iteration(c->iteration);
    c->n_iterations++;
    c->n_rows_run += rows->n_rows;
    rt_boundary_check(rt);
    rt_budget_begin(rt);
    return rt_boundary_published(c);
}

/* Does everything up to publishing, once rt_boundary_ask has returned 1: leaves variant and epoch
 * in rt->control, and the news to be posted. Returns the iteration as it is to be published; 0:
 * there is no work, up to the doorbell's value w->bell.
 *
 * In steady decoding all workers wait for this function. Its steady path does what rt_boundary_any
 * would do for a steady iteration whose contexts fit. It issues all its loads before it uses the
 * first value, and on a GPU it is little code to fetch. */
RT_FN uint32_t rt_boundary_prepare(const struct rt *rt, struct rt_worker *w) {
    struct rt_control *c = rt->control;
    const struct rt_rows *rows = &rt->batch->rows;
    const struct rt_control was = *c;
    const uint32_t laid_out = rows->steady, n_rows = rows->n_rows;
    const uint32_t ended = rt_load_relaxed(&c->ended);
    w->boundary = w->asked = 0;
    w->owes_post = 1;
    w->bell = rt_boundary_bell(rt, was.iteration);
    if (!laid_out || ended != 0 || w->bell != was.taken || was.n_steady >= was.room)
        return rt_boundary_any(rt, w);
    const uint32_t iteration = rt_boundary_iteration(was.iteration);
    w->n_news = was.n_running;
    c->iteration = iteration;
    c->epoch = rt->epochs[was.variant] = was.epoch + 1;
    c->n_rows_run = was.n_rows_run + n_rows;
    c->n_iterations = was.n_iterations + 1;
    c->context = was.context + 1;
    c->n_steady = was.n_steady + 1;
    return rt_published(iteration, 1, was.variant);
}

/* No work is left. The state is complete and all news are posted before any worker may claim the
 * boundary or leave. When the launch was told to return, the phase stays RUN: no worker may claim a
 * boundary of a launch that is over. */
RT_COLD void rt_boundary_idle(const struct rt *rt, struct rt_worker *w) {
    struct rt_shared *sh = rt->shared;
    rt_store_relaxed(&sh->idle_bell, w->bell);
    rt_store_relaxed(&sh->resume, rt_load_relaxed(&sh->published));
    rt_boundary_post(rt, w);
    if (rt->until_idle && rt->pool->linger_ns == 0)
        rt_cas_acquire(&sh->stop, RT_GO, RT_STOP_IDLE);
    else
        rt_store_release(&sh->phase, RT_PHASE_IDLE);
    rt_host_wake(&rt->mail->progress, &rt->mail->host_sleepers);
}

/* Plays the boundary, once rt_boundary_ask has returned 1. The iteration is published before its
 * JIT tasks can be claimed. The other way round, these tasks might run to the iteration's end, and
 * this `published` would be stored after the next one. The caller goes on with rt_boundary_post;
 * until then the next boundary waits. Returns the iteration as published; 0: there is none. */
RT_FN uint32_t rt_boundary(const struct rt *rt, struct rt_worker *w) {
    rt_trace(rt, w->id, RT_TRACE_DONE, 0, rt->control->iteration);
    const uint32_t published = rt_boundary_prepare(rt, w);
    if (published == 0) {
        rt_trace(rt, w->id, RT_TRACE_IDLE, 0, rt->control->iteration);
        rt_boundary_idle(rt, w);
        return 0;
    }
    rt_trace_iteration(rt, w->id);
    rt_store_release(&rt->shared->published, published);
    rt_claim_begin(rt, published);
    w->owes_start = 1;
    return published;
}

#endif
