/* sample.c - SAMPLE: the next token of each logit row, its log-probability, the request's state. Of
 * a token that the prompt has already, the log-probability only.
 *
 * Nothing of a row depends on another row, nor on what another row changes. The log-probability is
 * that of the raw logits, before penalties and temperature. */
#include "kernels/cpu/sampling.h"
#include "kernels/cpu/tile.h"
#include "runtime/rt_append.h"

#include <assert.h>
#include <math.h>

size_t cpu_sample_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)op;
    return sampling_layout(NULL, PROG(program, MODEL)->vocab).bytes;
}

/* The block of columns with the largest maximum, the first of equals. part: [n_blocks, 2] */
static uint32_t best_block(const float *part, uint32_t n_blocks) {
    uint32_t best = 0;
    for (uint32_t b = 1; b < n_blocks; b++)
        if (part[2 * b] > part[2 * best]) best = b;
    return best;
}

/* Log-softmax at one logit; blocks are summed in order. */
static float log_probability(float logit, const float *part, uint32_t n_blocks) {
    double max = (double)part[2 * best_block(part, n_blocks)], sum = 0;
    for (uint32_t b = 0; b < n_blocks; b++)
        if (part[2 * b + 1] > 0) sum += (double)part[2 * b + 1] * exp((double)part[2 * b] - max);
    return (float)((double)logit - max - log(sum));
}

static uint32_t argmax_by_part(const float *logits, const float *part, uint32_t vocab,
                               uint32_t n_blocks) {
    uint32_t first = best_block(part, n_blocks) * LM_BLOCK;
    uint32_t n = vocab - first < LM_BLOCK ? vocab - first : LM_BLOCK;
    return first + sampling_argmax(logits + first, n);
}

/* Appends a token to the request of a logit row and decides whether it ends. */
static void append(const struct rt_batch *b, uint32_t row, uint32_t slot_idx, int32_t id,
                   float logprob) {
    const struct rt_slot slot = b->slots[slot_idx];
    assert(slot.n_known < b->max_model_len && slot.n_known >= slot.n_prompt);
    b->logprobs[rt_append_at(b, slot_idx, &slot)] = logprob;
    rt_append(b, row, slot_idx, &slot, id, rt_is_stop(&b->requests[slot_idx], id));
}

static int32_t choose(const struct cpu_task *t, uint32_t slot_idx, const float *logits,
                      const float *part, struct sampling *s) {
    const struct rt_batch *b = t->batch;
    const struct rt_slot *slot = &b->slots[slot_idx];
    const struct rt_sampling *p = &b->requests[slot_idx].sampling;
    uint32_t vocab = tile_in_shape(t, SAMPLE_LOGITS)[1];
    if (!(p->temperature > 0) && !sampling_has_penalties(p))
        return (int32_t)argmax_by_part(logits, part, vocab, (vocab + LM_BLOCK - 1) / LM_BLOCK);
    struct sampling_context c = {
        .params = p,
        .tokens = b->tokens + (size_t)slot_idx * b->max_model_len,
        .n_prompt = slot->n_prompt,
        .n_known = slot->n_known,
    };
    return (int32_t)sampling_choose(t->isa, &c, logits, vocab, s);
}

/* Stores the log-probability of the prompt's token after `position`; returns the token. */
static int32_t score(const struct rt_batch *b, uint32_t slot_idx, uint32_t position,
                     const float *logits, const float *part, uint32_t vocab) {
    const size_t at = (size_t)slot_idx * b->max_model_len + position + 1;
    const int32_t id = b->tokens[at];
    b->logprobs[at] = log_probability(logits[id], part, (vocab + LM_BLOCK - 1) / LM_BLOCK);
    return id;
}

void cpu_sample(const struct cpu_task *t) {
    const struct rt_rows *rows = &t->batch->rows;
    uint32_t vocab = tile_in_shape(t, SAMPLE_LOGITS)[1],
             n_blocks = (vocab + LM_BLOCK - 1) / LM_BLOCK;
    uint32_t end = tile_row_end(t, rows->n_logit_rows);
    int32_t *token = tile_out(t, 0); /* [L] */
    struct sampling s = sampling_layout(t->scratch, vocab);
    for (uint32_t r = t->task->row0; r < end; r++) {
        const float *logits = (const float *)tile_in(t, SAMPLE_LOGITS) + (size_t)r * vocab;
        const float *part = (const float *)tile_in(t, SAMPLE_PART) + (size_t)r * n_blocks * 2;
        uint32_t slot = (uint32_t)rows->slot[rows->logit_row[r]];
        uint32_t position = (uint32_t)rows->position[rows->logit_row[r]];
        assert(slot < t->batch->n_slots);
        const bool scored = rt_is_scored(&t->batch->slots[slot], position);
        int32_t id = scored ? score(t->batch, slot, position, logits, part, vocab)
                            : choose(t, slot, logits, part, &s);
        if (token != NULL) token[r] = id;
        if (!scored) append(t->batch, r, slot, id, log_probability(logits[id], part, n_blocks));
    }
}
