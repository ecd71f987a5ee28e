/* rt_append.h - a request gets its next token: what SAMPLE does, on every backend.
 *
 * In a steady iteration (rt_rows.steady) each request's row stays where it is and is of its newest
 * token. So the SAMPLE task that has that token lays the row out. All SAMPLE tasks do so at the
 * same time, and the boundary has nothing left to do for any row.
 */
#ifndef QN_RUNTIME_RT_APPEND_H
#define QN_RUNTIME_RT_APPEND_H

#include "runtime/rt_mask.h"

/* Whether the token is one that ends the request. */
RT_FN int rt_is_stop(const struct rt_request *q, int32_t token) {
    if (q->sampling.ignore_eos != 0) return 0;
    for (uint32_t i = 0; i < q->n_stop && i < RT_MAX_STOP_IDS; i++)
        if (q->stop[i] == token) return 1;
    return 0;
}

/* Whether the token after `position` is of the request's prompt. Its logit row then scores that
 * token, and leaves the request as it is. */
RT_FN int rt_is_scored(const struct rt_slot *s, uint32_t position) {
    return position + 1 < s->n_prompt;
}

/* Where the next token of the request in `slot` and its log-probability lie; s: the slot before the
 * token is appended. */
RT_FN uint64_t rt_append_at(const struct rt_batch *b, uint32_t slot, const struct rt_slot *s) {
    return (uint64_t)slot * b->max_model_len + s->n_known;
}

/* Appends a token to the request in `slot`, of logit row `row`; s: the slot before; stops:
 * rt_is_stop. One thread calls this, after the iteration's other tasks that read its rows are done.
 * The thread that has the token's log-probability stores it beside the token (rt_append_at). */
RT_FN void rt_append(const struct rt_batch *b, uint32_t row, uint32_t slot, const struct rt_slot *s,
                     int32_t token, int stops) {
    struct rt_slot *to = &b->slots[slot];
    const uint32_t position = s->n_known, n_known = position + 1;
    const int ends = stops || n_known >= s->n_limit;
    b->tokens[rt_append_at(b, slot, s)] = token;
    to->n_known = n_known;
    to->n_computed = position;
    to->in_flight = 0;
    if (ends) to->finish = stops ? RT_FINISH_STOP : RT_FINISH_LENGTH;
    if (!b->rows.steady) return;
    if (ends) {
        rt_store_relaxed(b->rows.ended, 1);
        return;
    }
    b->rows.token[row] = token;
    b->rows.position[row] = (int32_t)position;
}

/* Instead of rt_append, for a guided request whose mask is not made yet: the request sits the
 * iteration out. Its row is laid out again, with the same bits. */
RT_FN void rt_sit_out(const struct rt_batch *b, uint32_t slot, const struct rt_slot *s) {
    struct rt_slot *to = &b->slots[slot];
    to->n_computed = s->n_known - 1;
    to->in_flight = RT_SAT_OUT;
    if (b->rows.steady) rt_store_relaxed(b->rows.ended, 1);
}

#endif
