#include "kernels/cpu/sampling.h"

#include "kernels/cpu/convert.h"
#include "kernels/cpu/tile.h"
#include "kernels/sampling_rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { DIGIT_BITS = 11, N_DIGITS = 1 << DIGIT_BITS, SEEN = 1u << 31 };

struct sampling sampling_layout(void *base, uint32_t vocab) {
    struct tile_scratch t = {.base = base};
    struct sampling s = {0};
    s.logit = tile_take(&t, (size_t)vocab * sizeof(float));
    s.weight = tile_take(&t, (size_t)vocab * sizeof(float));
    s.count = (uint32_t *)s.weight; /* penalties are done before weights are made */
    s.ids = tile_take(&t, (size_t)vocab * sizeof(uint32_t));
    s.histogram = tile_take(&t, N_DIGITS * sizeof(uint64_t));
    s.bytes = t.used;
    return s;
}

uint32_t sampling_argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > max) {
            max = x[i];
            best = i;
        }
    return best;
}

void sampling_largest(const float *logits, uint32_t vocab, uint32_t n, struct rt_token_value *out) {
    uint32_t have = 0;
    for (uint32_t i = 0; i < vocab && n > 0; i++) {
        const float x = logits[i] == logits[i] ? logits[i] : -INFINITY;
        if (have == n && !(x > out[n - 1].value)) continue;
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && out[at - 1].value < x; at--) out[at] = out[at - 1];
        out[at] = (struct rt_token_value){.id = (int32_t)i, .value = x};
    }
}

/* ---- penalties ---- */

static void count_tokens(const struct sampling_context *c, uint32_t *count, uint32_t vocab) {
    memset(count, 0, (size_t)vocab * sizeof *count);
    for (uint32_t i = 0; i < c->n_known; i++) {
        uint32_t id = (uint32_t)c->tokens[i];
        assert(id < vocab);
        if (i >= c->n_prompt) count[id]++;
        count[id] |= SEEN;
    }
}

static void penalize(const struct rt_sampling *p, float *logit, uint32_t count) {
    if ((count & SEEN) == 0) return;
    *logit = *logit > 0 ? *logit / p->repetition_penalty : *logit * p->repetition_penalty;
    uint32_t n = count & ~(uint32_t)SEEN;
    if (n == 0) return;
    *logit -= p->frequency_penalty * (float)n;
    *logit -= p->presence_penalty;
}

/* ---- cuts ---- */

/* A number that ascends as the float descends; no NaN. */
static uint32_t descending(float x) {
    uint32_t u = convert_bits(x + 0.0f); /* -0 and 0 are equal */
    return (u >> 31) != 0 ? u : ~u & 0x7fffffffu;
}

/* What candidate i weighs against the limit of a cut. */
static uint64_t mass(const float *weight, uint32_t i) {
    return weight == NULL ? 1 : (uint64_t)(weight[i] * 0x1p40f);
}

/* Where a cut falls: candidates with key < this one's are kept, of equal ones those up to `id`. */
struct cut {
    uint32_t key;
    uint32_t id; /* last that is kept */
};

/* One digit of the search: finds the digit among the candidates whose higher digits are those of
 * `key` at which the mass before it, *before, reaches the limit. Returns the digit; *before becomes
 * the mass before that digit's candidates. */
static uint32_t search_digit(struct sampling *s, uint32_t n, const float *weight, double limit,
                             uint32_t key, int shift, uint64_t *before) {
    uint32_t digits = shift + DIGIT_BITS > 32 ? 1u << (32 - shift) : N_DIGITS;
    memset(s->histogram, 0, N_DIGITS * sizeof *s->histogram);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = descending(s->logit[s->ids[i]]);
        if (((uint64_t)(k ^ key) >> shift) >> DIGIT_BITS != 0) continue;
        s->histogram[k >> shift & (N_DIGITS - 1)] += mass(weight, i);
    }
    uint32_t last = 0; /* the last digit with any mass: where to stop when rounding leaves a rest */
    for (uint32_t d = 0; d < digits; d++)
        if (s->histogram[d] != 0) last = d;
    uint32_t digit = 0;
    while (digit < last && (double)(*before + s->histogram[digit]) < limit)
        *before += s->histogram[digit++];
    return digit;
}

/* Finds the cut at which the mass of the candidates before it reaches the limit. */
static struct cut find_cut(struct sampling *s, uint32_t n, const float *weight, double limit) {
    struct cut cut = {0};
    uint64_t before = 0;
    for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS)
        cut.key |= search_digit(s, n, weight, limit, cut.key, shift, &before) << shift;
    for (uint32_t i = 0; i < n && (double)before < limit; i++) {
        if (descending(s->logit[s->ids[i]]) != cut.key) continue;
        before += mass(weight, i);
        cut.id = s->ids[i];
    }
    return cut;
}

/* Drops the candidates behind the cut; returns how many are left. */
static uint32_t apply_cut(struct sampling *s, uint32_t n, struct cut cut) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = s->ids[i], key = descending(s->logit[id]);
        if (key < cut.key || (key == cut.key && id <= cut.id)) s->ids[kept++] = id;
    }
    return kept;
}

/* weight[i] = exp(logit of candidate i) */
static void weigh(const struct cpu_isa *isa, struct sampling *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) s->weight[i] = s->logit[s->ids[i]];
    isa->exp_of(s->weight, s->weight, n);
}

static uint32_t keep_top_p(struct sampling *s, uint32_t n, float top_p) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) total += mass(s->weight, i);
    return apply_cut(s, n, find_cut(s, n, s->weight, (double)total * (double)top_p));
}

static uint32_t keep_min_p(struct sampling *s, uint32_t n, float min_p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (s->weight[i] >= min_p) s->ids[kept++] = s->ids[i];
    return kept;
}

/* ---- draw ---- */

/* The candidate with the largest logit + noise, the lowest id of equals. Noise is at most -log(v),
 * so a candidate with v beyond weight / exp(best) cannot win; 1 % covers the rounding. */
static uint32_t draw(const struct rt_sampling *p, uint32_t output_position,
                     const struct sampling *s, uint32_t n) {
    uint32_t best_id = s->ids[0], quad = UINT32_MAX, words[4] = {0};
    float best = -INFINITY, bound = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = s->ids[i];
        if (id / 4 != quad) {
            quad = id / 4;
            rng_quad(p->seed, output_position, quad, words);
        }
        float v = rng_uniform(words[id % 4]);
        if (v > bound * s->weight[i]) continue;
        float score = s->logit[id] + rng_gumbel(v);
        if (!(score > best)) continue;
        best = score;
        best_id = id;
        bound = best > -60 ? 1.01f * expf(-best) : INFINITY;
    }
    return best_id;
}

/* All steps after the penalties; logit[max_id] is the largest and finite. */
static uint32_t choose_random(const struct cpu_isa *isa, const struct rt_sampling *p,
                              uint32_t output_position, uint32_t max_id, uint32_t vocab,
                              struct sampling *s) {
    float max = s->logit[max_id];
    for (uint32_t i = 0; i < vocab; i++) {
        s->logit[i] = (s->logit[i] - max) / p->temperature;
        s->ids[i] = i;
    }
    uint32_t n = vocab;
    if (p->min_p > 0) {
        weigh(isa, s, n);
        n = keep_min_p(s, n, p->min_p);
    }
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = apply_cut(s, n, find_cut(s, n, NULL, (double)p->top_k));
    weigh(isa, s, n);
    if (p->top_p < 1) {
        n = keep_top_p(s, n, p->top_p);
        weigh(isa, s, n);
    }
    return draw(p, output_position, s, n);
}

uint32_t sampling_choose(const struct cpu_isa *isa, const struct sampling_context *c,
                         const float *logits, uint32_t vocab, struct sampling *s) {
    const struct rt_sampling *p = c->params;
    bool penalties = sampling_has_penalties(p);
    if (penalties) count_tokens(c, s->count, vocab);
    for (uint32_t i = 0; i < vocab; i++)
        s->logit[i] = logits[i] == logits[i] ? logits[i] : -INFINITY;
    for (uint32_t i = 0; c->allowed != NULL && i < vocab; i++)
        if ((c->allowed[i / 32] >> i % 32 & 1) == 0) s->logit[i] = -INFINITY;
    for (uint32_t i = 0; i < c->n_biases; i++) s->logit[c->biases[i].id] += c->biases[i].value;
    for (uint32_t i = 0; i < c->n_barred; i++) s->logit[c->barred[i]] = -INFINITY;
    for (uint32_t i = 0; penalties && i < vocab; i++) penalize(p, &s->logit[i], s->count[i]);
    uint32_t max_id = sampling_argmax(s->logit, vocab);
    if (!(p->temperature > 0) || !isfinite(s->logit[max_id])) return max_id;
    return choose_random(isa, p, c->n_known - c->n_prompt, max_id, vocab, s);
}
