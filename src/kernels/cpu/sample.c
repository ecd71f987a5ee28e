/* sample.c - SAMPLE: the next token of each logit row, its log-probability, the request's state. Of
 * a token that the prompt has already, it makes the log-probability only. If the request wants
 * them, it also lists the most likely tokens.
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

/* What log-softmax subtracts from a logit: the row's largest logit, and the logarithm of the sum of
 * exp(logit - largest), whose blocks are summed in order. NaN if any logit of the row is NaN. */
struct norm {
    double max, log_sum;
};

static struct norm norm_of(const float *part, uint32_t n_blocks) {
    double max = (double)part[2 * best_block(part, n_blocks)], sum = 0;
    for (uint32_t b = 0; b < n_blocks; b++)
        if (!(part[2 * b + 1] <= 0))
            sum += (double)part[2 * b + 1] * exp((double)part[2 * b] - max);
    return (struct norm){.max = max, .log_sum = log(sum)};
}

static float log_probability(float logit, const struct norm *norm) {
    return (float)((double)logit - norm->max - norm->log_sum);
}

static uint32_t argmax_by_part(const float *logits, const float *part, uint32_t vocab,
                               uint32_t n_blocks) {
    uint32_t first = best_block(part, n_blocks) * LM_BLOCK;
    uint32_t n = vocab - first < LM_BLOCK ? vocab - first : LM_BLOCK;
    return first + sampling_argmax(logits + first, n);
}

/* One logit row of a request. */
struct row {
    const struct rt_batch *batch;
    uint32_t index, slot, position;
    uint32_t vocab, n_blocks;
    const float *logits; /* [vocab] */
    const float *part;   /* [n_blocks, 2] */
    struct norm norm;
};

/* Stores the log-probability of the token at `index` of the request, and beside it the most likely
 * tokens with theirs, as many as the request wants. */
static void store_logprobs(const struct row *r, uint32_t index, int32_t id) {
    const struct rt_batch *b = r->batch;
    const size_t at = (size_t)r->slot * b->max_model_len + index;
    const uint32_t n_top = b->requests[r->slot].n_top;
    b->logprobs[at] = log_probability(r->logits[id], &r->norm);
    if (n_top == 0) return;
    struct rt_token_value *top = b->lists->tops + at * b->lists->n_top;
    sampling_largest(r->logits, r->vocab, n_top, top);
    for (uint32_t i = 0; i < n_top; i++) top[i].value = log_probability(top[i].value, &r->norm);
}

/* Appends a token to the request and decides whether it ends. */
static void append(const struct row *r, int32_t id) {
    const struct rt_batch *b = r->batch;
    const struct rt_slot slot = b->slots[r->slot];
    assert(slot.n_known < b->max_model_len && slot.n_known >= slot.n_prompt);
    store_logprobs(r, slot.n_known, id);
    rt_append(b, r->index, r->slot, &slot, id, rt_is_stop(&b->requests[r->slot], id));
}

/* The next token; -1: the request sits the iteration out, because its mask is not ready. */
static int32_t choose(const struct cpu_isa *isa, const struct row *r, struct sampling *s) {
    const struct rt_batch *b = r->batch;
    const struct rt_slot *slot = &b->slots[r->slot];
    const struct rt_request *q = &b->requests[r->slot];
    const bool early =
        q->sampling.ignore_eos == 0 && slot->n_known - slot->n_prompt < q->min_tokens;
    const int32_t *tokens = b->tokens + (size_t)r->slot * b->max_model_len;
    struct sampling_context c = {
        .params = &q->sampling,
        .tokens = tokens,
        .n_prompt = slot->n_prompt,
        .n_known = slot->n_known,
        .biases = q->n_biases > 0 ? b->lists->biases + (size_t)r->slot * RT_MAX_BIASES : NULL,
        .n_biases = q->n_biases,
        .barred = q->stop,
        .n_barred = early ? q->n_stop : 0,
    };
    if (q->guided) {
        c.allowed =
            rt_mask_look(b->lists->masks, r->vocab, r->slot, slot->n_known - slot->n_prompt);
        if (c.allowed == NULL) return -1;
    }
    if (!(q->sampling.temperature > 0) && !sampling_alters(&c))
        return (int32_t)argmax_by_part(r->logits, r->part, r->vocab, r->n_blocks);
    return (int32_t)sampling_choose(isa, &c, r->logits, r->vocab, s);
}

void cpu_sample(const struct cpu_task *t) {
    const struct rt_rows *rows = &t->batch->rows;
    struct row row = {.batch = t->batch, .vocab = tile_in_shape(t, SAMPLE_LOGITS)[1]};
    uint32_t end = tile_band_end(t);
    int32_t *token = tile_out(t, 0); /* [band] */
    struct sampling s = sampling_layout(t->scratch, row.vocab);
    row.n_blocks = (row.vocab + LM_BLOCK - 1) / LM_BLOCK;
    for (uint32_t r = t->task->row0; r < end; r++) {
        row.index = tile_logit_row(t, r);
        row.logits = (const float *)tile_in(t, SAMPLE_LOGITS) + (size_t)r * row.vocab;
        row.part = (const float *)tile_in(t, SAMPLE_PART) + (size_t)r * row.n_blocks * 2;
        row.slot = (uint32_t)rows->slot[rows->logit_row[row.index]];
        row.position = (uint32_t)rows->position[rows->logit_row[row.index]];
        row.norm = norm_of(row.part, row.n_blocks);
        assert(row.slot < t->batch->n_slots);
        const bool scored = rt_is_scored(&t->batch->slots[row.slot], row.position);
        const size_t at = (size_t)row.slot * t->batch->max_model_len + row.position + 1;
        int32_t id = scored ? t->batch->tokens[at] : choose(t->isa, &row, &s);
        if (token != NULL) token[r] = id < 0 ? 0 : id;
        if (scored)
            store_logprobs(&row, row.position + 1, id);
        else if (id < 0)
            rt_sit_out(row.batch, row.slot, &row.batch->slots[row.slot]);
        else
            append(&row, id);
    }
}
