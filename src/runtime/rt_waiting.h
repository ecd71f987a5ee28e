/* rt_waiting.h - which request gets KV blocks: running requests before waiting ones, these in
 * order, and which request gives way when blocks run out.
 *
 * The order is priority, then arrival. No request passes the first waiting one. It is admitted when
 * there are blocks for all of its known tokens, and one more for each running request that may need
 * more, so that the running ones can go on a while. A running request takes the blocks that its
 * next iteration needs. Where many blocks are idle it takes some more, so that not every iteration
 * has to look.
 *
 * When no block is empty, cached blocks are evicted. When no block is idle, blocks given ahead are
 * taken back, then the last request in order gives way: its whole blocks stay cached, its tokens
 * stay in its slot, and it waits again, in its place. When it is admitted again, it computes the
 * positions that are no longer cached and goes on. Its bits depend neither on that nor on time. The
 * first request in order never gives way, and any request fits alone (rt_request_fits), so one
 * request always goes on.
 */
#ifndef QN_RUNTIME_RT_WAITING_H
#define QN_RUNTIME_RT_WAITING_H

#include "runtime/rt_block.h"

enum {
    RT_AHEAD = 256,     /* positions that a request gets blocks for ahead of its need */
    RT_AHEAD_SHARE = 2, /* if that takes at most 1 / RT_AHEAD_SHARE of the idle blocks */
    RT_LOOK_AGAIN = 16, /* iterations after which a refused request looks for its blocks again */
};

/* Blocks of n positions. */
RT_FN uint32_t rt_blocks_of(const struct rt_batch *b, uint32_t n) {
    return (n + b->kv_block - 1) / b->kv_block;
}

/* KV blocks for a request of n_limit tokens: the last token never gets a row. */
RT_FN uint32_t rt_blocks_needed(const struct rt_batch *b, uint32_t n_limit) {
    return rt_blocks_of(b, n_limit - 1);
}

/* Blocks that a request must hold for its next iteration: for its known tokens, and for the
 * position after them, because on a GPU workers look up the block of the iteration that follows. */
RT_FN uint32_t rt_blocks_wanted(const struct rt_batch *b, const struct rt_slot *s, uint32_t ahead) {
    return rt_blocks_of(b, rt_min(s->n_known + 1 + ahead, s->n_limit - 1));
}

/* ---- the list of requests that wait ---- */

RT_FN int rt_comes_before(const struct rt *rt, uint32_t a, uint32_t b) {
    const struct rt_turn *x = rt_turn_of(rt, a), *y = rt_turn_of(rt, b);
    if (x->priority != y->priority) return x->priority < y->priority;
    return (int32_t)(x->arrival - y->arrival) < 0;
}

/* Adds a request behind those that come before it. A new request mostly becomes the last one, a
 * request that has given way the first. */
RT_COLD void rt_waiting_add(const struct rt *rt, uint32_t slot) {
    struct rt_control *c = rt->control;
    struct rt_turn *t = rt_turn_of(rt, slot);
    if (c->wait_first != RT_NONE && rt_comes_before(rt, slot, c->wait_first)) {
        t->before = RT_NONE;
    } else {
        t->before = c->wait_last;
        while (t->before != RT_NONE && rt_comes_before(rt, slot, t->before))
            t->before = rt_turn_of(rt, t->before)->before;
    }
    t->after = t->before != RT_NONE ? rt_turn_of(rt, t->before)->after : c->wait_first;
    *(t->before != RT_NONE ? &rt_turn_of(rt, t->before)->after : &c->wait_first) = slot;
    *(t->after != RT_NONE ? &rt_turn_of(rt, t->after)->before : &c->wait_last) = slot;
    rt->batch->slots[slot].state = SLOT_WAITING;
    c->n_waiting++;
}

RT_COLD void rt_waiting_remove(const struct rt *rt, uint32_t slot) {
    struct rt_control *c = rt->control;
    const struct rt_turn *t = rt_turn_of(rt, slot);
    *(t->before != RT_NONE ? &rt_turn_of(rt, t->before)->after : &c->wait_first) = t->after;
    *(t->after != RT_NONE ? &rt_turn_of(rt, t->after)->before : &c->wait_last) = t->before;
    c->n_waiting--;
    if (c->refused == slot) c->refused = RT_NONE;
}

/* ---- admission ---- */

/* The first position of a request whose logits are needed: that of its last known token or, before
 * there is output, the first one that scores a token of the prompt. */
RT_FN uint32_t rt_logits_from(const struct rt_batch *b, uint32_t slot) {
    const struct rt_slot *s = &b->slots[slot];
    if (s->n_known > s->n_prompt) return s->n_known - 1;
    return s->n_prompt - 1 - b->requests[slot].n_scored;
}

/* Copies the prompt to where tasks and the boundary read it. */
RT_COLD void rt_request_fetch(const struct rt *rt, uint32_t slot) {
    const struct rt_batch *b = rt->batch;
    const uint64_t at = (uint64_t)slot * b->max_model_len;
    if (rt_turn_of(rt, slot)->fetched) return;
    rt_turn_of(rt, slot)->fetched = 1;
    if (rt->prompts != b->tokens)
        rt_block_copy(b->tokens + at, rt->prompts + at, b->slots[slot].n_prompt);
}

/* Notes how many positions an admitted request has found, for the host and the total. */
RT_FN void rt_request_note(const struct rt *rt, uint32_t slot) {
    struct rt_control *c = rt->control;
    struct rt_turn *t = rt_turn_of(rt, slot);
    const uint32_t n = t->n_shared * rt->batch->kv_block;
    c->n_cached += n;
    if (t->n_admitted++ > 0) return;
    t->n_cached = n;
    rt_host_store_relaxed(&rt->posts[slot].n_cached, n);
}

/* Whether a running request may need more blocks than it holds. */
RT_FN uint32_t rt_request_grows(const struct rt_batch *b, const struct rt_slot *s) {
    return s->n_blocks < rt_blocks_needed(b, s->n_limit);
}

/* Running requests that may need more blocks. */
RT_COLD uint32_t rt_running_grow(const struct rt *rt) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < rt->control->n_running; i++)
        n += rt_request_grows(rt->batch, &rt->batch->slots[rt->running[i]]);
    return n;
}

/* Gives the first waiting request its blocks and lets it run; 0: it has to wait, because too few
 * blocks are idle, counting one for each of `grow` running requests. The row of its last known
 * token is always computed, even if another request has computed it, because its logits are needed.
 */
RT_COLD int rt_request_admit(const struct rt *rt, uint32_t slot, uint32_t grow) {
    struct rt_batch *b = rt->batch;
    struct rt_control *c = rt->control;
    struct rt_slot *s = &b->slots[slot];
    struct rt_turn *t = rt_turn_of(rt, slot);
    const int32_t *table = rt_block_table(rt, slot);
    const int32_t room = (int32_t)(c->n_free - grow);
    /* Looking for its blocks takes long. Others may have computed some of them since. */
    if (c->refused == slot && room <= c->refused_room && c->iteration % RT_LOOK_AGAIN != 0)
        return 0;
    rt_request_fetch(rt, slot);
    const uint32_t may = rt_logits_from(b, slot) / b->kv_block;
    const uint32_t found = rt_blocks_match(rt, slot, may), want = rt_blocks_wanted(b, s, 0);
    uint32_t take = want - found + grow;
    for (uint32_t i = 0; i < found; i++) take += rt_block_of(rt, table[i])->refs == 0;
    if (take > c->n_free) {
        c->refused = slot;
        c->refused_room = room;
        return 0;
    }
    for (uint32_t i = 0; i < found; i++) rt_block_hold(rt, (uint32_t)table[i]);
    s->n_blocks = found;
    rt_blocks_extend(rt, slot, want);
    s->n_computed = s->in_flight = 0;
    t->n_shared = t->n_registered = found;
    t->n_ready = 0;
    rt_request_note(rt, slot);
    /* Blocks are announced that the request computes soon, and once: not that of a guided request's
     * last token, whose row may be computed again, nor those of positions that score the prompt,
     * of which an iteration has room for few. */
    const uint32_t once = (s->n_known - b->requests[slot].guided) / b->kv_block;
    rt_blocks_announce(rt, slot, b->requests[slot].n_scored > 0 ? rt_min(once, may) : once);
    rt_blocks_follow(rt, slot);
    rt_waiting_remove(rt, slot);
    s->state = SLOT_RUNNING;
    rt->running[c->n_running++] = slot;
    return 1;
}

/* ---- giving way ---- */

/* Releases the blocks of a request that ends or gives way; whole blocks of known tokens stay
 * cached. */
RT_COLD void rt_request_leave(const struct rt *rt, uint32_t slot) {
    rt_blocks_computed(rt, slot, rt->batch->slots[slot].n_computed);
    rt_blocks_cut(rt, slot, 0);
}

/* The place in rt.running of the request that comes last in order. */
RT_COLD uint32_t rt_running_last(const struct rt *rt) {
    uint32_t last = 0;
    for (uint32_t i = 1; i < rt->control->n_running; i++)
        if (rt_comes_before(rt, rt->running[last], rt->running[i])) last = i;
    return last;
}

RT_COLD void rt_request_preempt(const struct rt *rt, uint32_t place) {
    struct rt_control *c = rt->control;
    const uint32_t slot = rt->running[place];
    struct rt_turn *t = rt_turn_of(rt, slot);
    rt_request_leave(rt, slot);
    for (uint32_t i = place + 1; i < c->n_running; i++) rt->running[i - 1] = rt->running[i];
    c->n_running--;
    c->n_preempted++;
    rt_host_store_relaxed(&rt->posts[slot].n_preempted, ++t->n_preempted);
    rt_waiting_add(rt, slot);
}

/* Makes n blocks idle: takes back blocks that requests hold ahead of their need, then has the last
 * requests in order give way. 0: the request at *place has given way itself; else *place is where
 * it is now. */
RT_COLD int rt_blocks_free_up(const struct rt *rt, uint32_t n, uint32_t *place) {
    struct rt_control *c = rt->control;
    const struct rt_batch *b = rt->batch;
    for (uint32_t i = 0; i < c->n_running && c->n_free < n; i++)
        rt_blocks_cut(rt, rt->running[i], rt_blocks_wanted(b, &b->slots[rt->running[i]], 0));
    while (c->n_free < n) {
        const uint32_t last = rt_running_last(rt);
        rt_request_preempt(rt, last);
        if (last == *place) return 0;
        *place -= last < *place;
    }
    return 1;
}

/* Positions that each running request may have blocks for ahead of its need. */
RT_FN uint32_t rt_blocks_ahead(const struct rt *rt) {
    const struct rt_batch *b = rt->batch;
    const uint32_t spare = rt->control->n_free / RT_AHEAD_SHARE, n = rt->control->n_running;
    if (spare / n >= rt_blocks_of(b, RT_AHEAD)) return RT_AHEAD;
    return spare / n >= 1 ? b->kv_block : 0;
}

/* Gives every running request the blocks of its next iterations. */
RT_COLD void rt_blocks_supply(const struct rt *rt) {
    struct rt_control *c = rt->control;
    const struct rt_batch *b = rt->batch;
    const uint32_t ahead = rt_blocks_ahead(rt);
    for (uint32_t i = 0; i < c->n_running;) {
        const struct rt_slot *s = &b->slots[rt->running[i]];
        const uint32_t want = rt_blocks_wanted(b, s, ahead);
        rt_blocks_computed(rt, rt->running[i], s->n_computed);
        if (want > s->n_blocks && want - s->n_blocks > c->n_free &&
            !rt_blocks_free_up(rt, want - s->n_blocks, &i))
            continue;
        rt_blocks_extend(rt, rt->running[i++], want);
    }
}

#endif
