/* sample.cuh - SAMPLE: the next token of each logit row, its log-probability, the request's state.
 * The rules, and the random numbers, are those of kernels/cpu/sampling.h; here a block works on a
 * row together. Sums of masses are integers, and equal maxima are decided by token id, so no result
 * depends on the order of threads.
 *
 * A greedy row without penalties and mask, whose stop ids may be chosen, reads the LM head's parts
 * and one block of logits. Any other row gets a working copy in sample_scratch: logits after mask
 * and penalties, then (logit - max) / temperature. Beside it are the counts for the penalties.
 *
 * Scratch:  0      histogram[2048] of 64-bit masses
 *           16384  struct sample_shared
 */
#ifndef QN_CUDA_OTHER_SAMPLE_CUH
#define QN_CUDA_OTHER_SAMPLE_CUH

#include "kernels/cuda/other/embed.cuh"
#include "kernels/cuda/matmul/lm_head.cuh"
#include "kernels/sampling_rng.h"
#include "runtime/rt_append.h"

enum { DIGIT_BITS = 11, N_DIGITS = 1 << DIGIT_BITS };
#define SEEN        0x80000000u
#define VOCAB_ROUND ((QN_VOCAB + 63) & ~63u)

struct sample_shared {
    uint64_t warp_mass[WARPS];
    double warp_double[WARPS];
    float warp_value[WARPS];
    uint32_t warp_index[WARPS];
    uint64_t mass; /* results of thread searches */
    uint32_t digit, last, id;
    uint32_t position; /* of the row */
    uint32_t slot_idx; /* of its request; `slot`: as it was before the iteration's token */
    struct rt_slot slot;
    struct rt_request request;
    const uint32_t *mask; /* of a guided request; NULL: it is not there */
};

DEV struct sample_shared *sample_shared_of(void) {
    return (struct sample_shared *)(SCRATCH + N_DIGITS * 8);
}

struct sampler {
    const struct warp_context *c;
    struct sample_shared *s;
    uint64_t *histogram;
    float *logit;    /* [vocab] */
    uint32_t *count; /* [vocab] */
    /* The last candidate of the cuts so far, in order of key, then id. */
    uint32_t key, id;
    float least; /* min-p: weights below are no candidates */
};

/* ---- over the block ---- */

struct best {
    float value;
    uint32_t index;
};

DEV struct best better(struct best a, struct best b) {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

/* The largest value, the lowest index of equals; in every thread. */
DEV struct best block_best(const struct warp_context *c, struct sample_shared *s, struct best b) {
    for (int d = 16; d > 0; d /= 2) {
        struct best o = {__shfl_xor_sync(~0u, b.value, d), __shfl_xor_sync(~0u, b.index, d)};
        b = better(b, o);
    }
    if (c->lane == 0) {
        s->warp_value[c->warp] = b.value;
        s->warp_index[c->warp] = b.index;
    }
    sync_compute();
    for (uint32_t w = 0; w < WARPS; w++) b = better(b, best{s->warp_value[w], s->warp_index[w]});
    sync_compute();
    return b;
}

DEV uint64_t block_sum_u64(const struct warp_context *c, struct sample_shared *s, uint64_t v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (c->lane == 0) s->warp_mass[c->warp] = v;
    sync_compute();
    v = 0;
    for (uint32_t w = 0; w < WARPS; w++) v += s->warp_mass[w];
    sync_compute();
    return v;
}

/* Both at once, in every thread. The caller needs a barrier before it uses the shared words
 * again. */
DEV void block_best_and_sum(const struct warp_context *c, struct sample_shared *s, struct best *b,
                            double *sum) {
    for (int d = 16; d > 0; d /= 2) {
        *b = better(*b, best{__shfl_xor_sync(~0u, b->value, d), __shfl_xor_sync(~0u, b->index, d)});
        *sum += __shfl_xor_sync(~0u, *sum, d);
    }
    if (c->lane == 0) {
        s->warp_value[c->warp] = b->value;
        s->warp_index[c->warp] = b->index;
        s->warp_double[c->warp] = *sum;
    }
    sync_compute();
    *sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        *b = better(*b, best{s->warp_value[w], s->warp_index[w]});
        *sum += s->warp_double[w];
    }
}

/* ---- from the LM head's parts ---- */

/* A thread's parts are every COMPUTE_THREADS-th one. The first of them are in registers. */
enum {
    ALL_PARTS = (LM_PARTS + COMPUTE_THREADS - 1) / COMPUTE_THREADS,
    KEPT_PARTS = ALL_PARTS < 12 ? ALL_PARTS : 12
};
struct parts {
    const float2 *from;
    float2 kept[KEPT_PARTS]; /* {max, sum}; beyond the row: -inf, 0 */
};

DEV struct parts load_parts(const struct warp_context *c, const float *part) {
    struct parts p;
    p.from = (const float2 *)part;
#pragma unroll
    for (uint32_t i = 0; i < KEPT_PARTS; i++) {
        const uint32_t at = c->thread + i * COMPUTE_THREADS;
        p.kept[i] = at < LM_PARTS ? __ldcg(p.from + at) : make_float2(-INFINITY, 0);
    }
    return p;
}

DEV struct best best_part(const struct warp_context *c, struct sample_shared *s,
                          const struct parts *p) {
    struct best b = {-INFINITY, 0};
#pragma unroll
    for (uint32_t i = 0; i < KEPT_PARTS; i++)
        b = better(b, best{p->kept[i].x, c->thread + i * COMPUTE_THREADS});
#pragma unroll 1
    for (uint32_t i = c->thread + KEPT_PARTS * COMPUTE_THREADS; i < LM_PARTS; i += COMPUTE_THREADS)
        b = better(b, best{__ldcg(p->from + i).x, i});
    return block_best(c, s, b);
}

/* This thread's share of the sum of exp(logit - most). */
DEV double sum_parts(const struct warp_context *c, const struct parts *p, float most) {
    double sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < KEPT_PARTS; i++) {
        const float mass = p->kept[i].y * expf(p->kept[i].x - most);
        sum += (double)(p->kept[i].y > 0 ? mass : 0.0f);
    }
#pragma unroll 1
    for (uint32_t i = c->thread + KEPT_PARTS * COMPUTE_THREADS; i < LM_PARTS;
         i += COMPUTE_THREADS) {
        const float2 v = __ldcg(p->from + i);
        if (v.y > 0) sum += (double)(v.y * expf(v.x - most));
    }
    return sum;
}

/* Log-softmax of one logit. */
DEV float log_probability(float logit, float most, double sum) {
    return (float)((double)logit - (double)most - log(sum));
}

/* This thread's token of the part with the largest logit; then, from that token's logit, the
 * thread's candidate for the largest. */
DEV uint32_t token_of_part(const struct warp_context *c, uint32_t part) {
    return min(part * LM_BLOCK + c->thread % LM_BLOCK, QN_VOCAB - 1u);
}
DEV struct best best_in_part(uint32_t part, uint32_t token, float logit) {
    return better(best{-INFINITY, part * LM_BLOCK}, best{not_nan(logit), token});
}

/* ---- candidates and cuts ---- */

/* A number that ascends as the float descends; x is no NaN. */
DEV uint32_t descending(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return u >> 31 != 0 ? u : ~u & 0x7fffffffu;
}

DEV bool is_candidate(const struct sampler *p, uint32_t token, float logit) {
    uint32_t key = descending(logit);
    if (key > p->key || (key == p->key && token > p->id)) return false;
    return expf(logit) >= p->least;
}

/* A candidate's weight against the limit of a cut. */
DEV uint64_t mass_of(bool by_count, float logit) {
    return by_count ? 1 : (uint64_t)(expf(logit) * 0x1p40f);
}

/* The first digit at which the mass before it plus its own reaches the limit, or the last with any
 * mass; *before becomes the mass before it. Over the histogram, eight digits a thread. */
DEV uint32_t search_digit(const struct sampler *p, double limit, uint64_t *before) {
    const struct warp_context *c = p->c;
    struct sample_shared *s = p->s;
    const uint64_t *mine = p->histogram + 8 * c->thread;
    uint64_t own = 0, upto;
    uint32_t last = 0;
    for (int i = 0; i < 8; i++) {
        own += mine[i];
        if (mine[i] != 0) last = 8 * c->thread + i;
    }
    upto = own;
    for (int d = 1; d < 32; d *= 2) {
        uint64_t o = __shfl_up_sync(~0u, upto, d);
        if (c->lane >= d) upto += o;
    }
    if (c->lane == 31) s->warp_mass[c->warp] = upto;
    if (c->thread == 0) {
        s->digit = N_DIGITS;
        s->last = 0;
    }
    sync_compute();
    for (uint32_t w = 0; w < c->warp; w++) upto += s->warp_mass[w];
    uint64_t sum = *before + upto - own;
    atomicMax(&s->last, last);
    if ((double)sum < limit || c->thread == 0)
        for (uint32_t i = 0; i < 8; i++) {
            sum += mine[i];
            if ((double)sum >= limit) {
                atomicMin(&s->digit, 8 * c->thread + i);
                break;
            }
        }
    sync_compute();
    uint32_t digit = min(s->digit, s->last);
    if (digit / 8 == c->thread) {
        sum = *before + upto - own;
        for (uint32_t i = 0; i < digit % 8; i++) sum += mine[i];
        s->mass = sum;
    }
    sync_compute();
    *before = s->mass;
    sync_compute();
    return digit;
}

/* The id of the n-th (from 1) candidate with that key, in order of token id; ~0, which keeps all of
 * them, when there are no more than n. */
DEV uint32_t nth_equal(const struct sampler *p, uint32_t key, uint64_t n) {
    const struct warp_context *c = p->c;
    struct sample_shared *s = p->s;
    uint64_t equal = 0;
#pragma unroll 1
    for (uint32_t i = c->thread; i < QN_VOCAB; i += COMPUTE_THREADS)
        if (descending(p->logit[i]) == key && is_candidate(p, i, p->logit[i])) equal++;
    if (block_sum_u64(c, s, equal) <= n) return ~0u;
    if (c->thread == 0) s->id = ~0u;
    uint64_t before = 0;
#pragma unroll 1
    for (uint32_t base = 0; base < QN_VOCAB; base += COMPUTE_THREADS) {
        uint32_t i = base + c->thread;
        bool is = i < QN_VOCAB && descending(p->logit[i]) == key && is_candidate(p, i, p->logit[i]);
        uint32_t ballot = __ballot_sync(~0u, is);
        if (c->lane == 0) s->warp_mass[c->warp] = __popc(ballot);
        sync_compute();
        uint64_t rank = before + __popc(ballot & ((2u << c->lane) - 1));
        for (uint32_t w = 0; w < WARPS; w++) {
            if (w < c->warp) rank += s->warp_mass[w];
            before += s->warp_mass[w];
        }
        if (is && rank == n) s->id = i;
        sync_compute();
        if (before >= n) break;
    }
    return s->id;
}

/* Cuts the candidates where the mass before (by_count: their number) reaches the limit. */
DEV void cut_candidates(struct sampler *p, bool by_count, double limit) {
    const struct warp_context *c = p->c;
    uint32_t key = 0;
    uint64_t before = 0;
#pragma unroll 1
    for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        for (uint32_t i = c->thread; i < N_DIGITS; i += COMPUTE_THREADS) p->histogram[i] = 0;
        sync_compute();
#pragma unroll 1
        for (uint32_t i = c->thread; i < QN_VOCAB; i += COMPUTE_THREADS) {
            float logit = p->logit[i];
            uint32_t k = descending(logit);
            if ((uint64_t)(k ^ key) >> shift >> DIGIT_BITS != 0 || !is_candidate(p, i, logit))
                continue;
            uint64_t mass = mass_of(by_count, logit);
            if (mass != 0) atomicAdd(&p->histogram[k >> shift & (N_DIGITS - 1)], mass);
        }
        sync_compute();
        key |= search_digit(p, limit, &before) << shift;
    }
    /* All tokens with this key weigh the same; how many of them reach the limit? */
    uint32_t u = key >> 31 != 0 ? key : ~key & 0x7fffffffu;
    uint64_t mass = mass_of(by_count, __uint_as_float(u)), n = 0;
#pragma unroll 1
    while (mass != 0 && n < QN_VOCAB && (double)(before + n * mass) < limit) n++;
    if (mass == 0) n = QN_VOCAB;
    uint32_t id = nth_equal(p, key, n);
    if (key > p->key || (key == p->key && id >= p->id)) return;
    p->key = key;
    p->id = id;
}

/* The mass of all candidates. */
DEV uint64_t mass_of_all(const struct sampler *p) {
    uint64_t total = 0;
#pragma unroll 1
    for (uint32_t i = p->c->thread; i < QN_VOCAB; i += COMPUTE_THREADS)
        if (is_candidate(p, i, p->logit[i])) total += mass_of(false, p->logit[i]);
    return block_sum_u64(p->c, p->s, total);
}

/* Top-k, then top-p of the candidates that min-p has left. A loop, so that its code exists once. */
DEV void cut_all(struct sampler *p, const struct rt_sampling *q) {
#pragma unroll 1
    for (int by_count = 1; by_count >= 0; by_count--) {
        if (by_count ? q->top_k <= 0 || q->top_k >= QN_VOCAB : !(q->top_p < 1)) continue;
        const double limit = by_count ? q->top_k : (double)mass_of_all(p) * (double)q->top_p;
        cut_candidates(p, by_count, limit);
    }
}

/* ---- draw ---- */

/* Not inlined: few tokens need it. */
CODE(float, gumbel, float v) {
    return rng_gumbel(v);
}

/* The candidate with the largest logit + noise, the lowest id of equals. Noise is at most -log(v),
 * so a token with v beyond weight / exp(best) cannot win; 1 % covers the rounding. */
DEV uint32_t draw(const struct sampler *p, uint64_t seed, uint32_t output_position) {
    struct best b = {-INFINITY, ~0u};
    float bound = INFINITY;
#pragma unroll 1
    for (uint32_t quad = p->c->thread; quad < (QN_VOCAB + 3) / 4; quad += COMPUTE_THREADS) {
        uint32_t words[4];
        rng_quad(seed, output_position, quad, words);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t token = 4 * quad + i;
            if (token >= QN_VOCAB) break;
            float logit = p->logit[token], v = rng_uniform(words[i]);
            if (!is_candidate(p, token, logit) || v > bound * expf(logit)) continue;
            float score = logit + gumbel(v);
            if (!(score > b.value)) continue;
            b = best{score, token};
            bound = score > -60.0f ? 1.01f * expf(-score) : INFINITY;
        }
    }
    return block_best(p->c, p->s, b).index;
}

/* ---- one row ---- */

DEV bool has_penalties(const struct rt_sampling *q) {
    return q->repetition_penalty != 1.0f || q->presence_penalty != 0.0f ||
           q->frequency_penalty != 0.0f;
}

DEV float penalize(const struct rt_sampling *q, float logit, uint32_t count) {
    if ((count & SEEN) == 0) return logit;
    logit = logit > 0 ? logit / q->repetition_penalty : logit * q->repetition_penalty;
    uint32_t n = count & ~SEEN;
    if (n == 0) return logit;
    return logit - q->frequency_penalty * (float)n - q->presence_penalty;
}

DEV void count_tokens(const struct sampler *p, const int32_t *tokens, uint32_t n_prompt,
                      uint32_t n_known) {
#pragma unroll 1
    for (uint32_t i = p->c->thread; i < QN_VOCAB; i += COMPUTE_THREADS) p->count[i] = 0;
    sync_compute();
#pragma unroll 1
    for (uint32_t i = p->c->thread; i < n_known; i += COMPUTE_THREADS) {
        uint32_t *count = p->count + (uint32_t)load_index_l2(tokens + i);
        atomicOr(count, SEEN);
        if (i >= n_prompt) atomicAdd(count, 1u);
    }
    sync_compute();
}

/* Whether stop ids may not be chosen yet. */
DEV bool is_early(const struct sample_shared *s) {
    return s->slot.n_known - s->slot.n_prompt < s->request.min_tokens;
}

/* Makes the working copy; returns its largest logit. */
DEV struct best copy_logits(const struct sampler *p, const struct rt_sampling *q,
                            const float *logits, bool penalties) {
    const bool early = is_early(p->s);
    struct best b = {-INFINITY, 0};
#pragma unroll 1
    for (uint32_t i = p->c->thread; i < QN_VOCAB; i += COMPUTE_THREADS) {
        float logit = not_nan(load_l2(logits + i));
        if (early && rt_is_stop(&p->s->request, (int32_t)i)) logit = -INFINITY;
        if (penalties) logit = penalize(q, logit, __ldcg(p->count + i));
        p->logit[i] = logit;
        b = better(b, best{logit, i});
    }
    return block_best(p->c, p->s, b);
}

/* The row's working copy: in a place of its own, or in the block's where there are more rows than
 * blocks. */
DEV float *work_of(const struct cuda_args *args, uint32_t row) {
    const bool own = cuda_samples_by_block(args->logit_rows, args->rt.n_workers);
    return args->sample_scratch +
           (own ? blockIdx.x : row) * (cuda_sample_place(QN_VOCAB) / sizeof(float));
}

/* The mask's bits of tokens [first, first + 32). */
DEV uint32_t mask_word(const uint32_t *mask, uint32_t first) {
    return first < QN_VOCAB ? rt_host_load_relaxed(mask + first / 32) : 0;
}

/* Copies to the row's working copy the logits of tokens that the mask of a guided request allows,
 * and minus infinity for the others. False: the mask is not there, and the request sits out.
 * Masks lie in the host's memory, a bus away: a warp processes 1,024 tokens at a time, whose words
 * its lanes load together, one round ahead. This is a function of its own because qn_mega would
 * spill what copy_logits would keep in registers beside it. */
CODE(bool, mask_logits, const struct cuda_args *args, const float *logits, uint32_t row) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    struct sample_shared *s = sample_shared_of();
    if (c.thread == 0)
        s->mask = rt_mask_look(rt_masks_of(SHARED->args.rt.posts, SHARED->batch.n_slots), QN_VOCAB,
                               s->slot_idx, s->slot.n_known - s->slot.n_prompt);
    sync_compute();
    const uint32_t *mask = s->mask;
    if (mask == nullptr) {
        if (c.thread == 0) rt_sit_out(&SHARED->batch, s->slot_idx, &s->slot);
        return false;
    }
    float *work = work_of(args, row);
    uint32_t first = 32 * 32 * c.warp, next = mask_word(mask, first + 32 * c.lane);
#pragma unroll 1
    for (; first < QN_VOCAB; first += 32 * 32 * WARPS) {
        const uint32_t words = next;
        next = mask_word(mask, first + 32 * 32 * WARPS + 32 * c.lane);
#pragma unroll 1
        for (uint32_t k = 0; k < 32; k++) {
            const uint32_t i = first + 32 * k + c.lane, word = __shfl_sync(~0u, words, k);
            if (i >= QN_VOCAB) continue;
            work[i] = (word >> c.lane & 1) != 0 ? load_l2(logits + i) : -INFINITY;
        }
    }
    sync_compute();
    return true;
}

/* Chooses the token of a row that is not greedy, is guided, has penalties or may not end yet. Not
 * inlined: only that row's request waits for it. */
CODE(uint32_t, choose_slowly, const struct cuda_args *args, const float *logits, uint32_t row) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    const struct rt_batch *b = &SHARED->batch;
    struct sample_shared *s = sample_shared_of();
    const struct rt_sampling *q = &s->request.sampling;
    float *work = work_of(args, row);
    struct sampler p = {&c,  s,    (uint64_t *)SCRATCH, work, (uint32_t *)(work + VOCAB_ROUND), ~0u,
                        ~0u, -1.0f};
    const int32_t *tokens = b->tokens + (uint64_t)s->slot_idx * b->max_model_len;
    const bool penalties = has_penalties(q);
    if (s->request.guided != 0) logits = work; /* filled by mask_logits */
    if (penalties) count_tokens(&p, tokens, s->slot.n_prompt, s->slot.n_known);
    struct best most = copy_logits(&p, q, logits, penalties);
    if (!(q->temperature > 0) || !isfinite(most.value))
        return most.value > -INFINITY ? most.index : 0;
#pragma unroll 1
    for (uint32_t i = c.thread; i < QN_VOCAB; i += COMPUTE_THREADS)
        work[i] = (work[i] - most.value) / q->temperature;
    sync_compute();
    if (q->min_p > 0) p.least = q->min_p;
    cut_all(&p, q);
    return draw(&p, q->seed, s->slot.n_known - s->slot.n_prompt);
}

/* Copies the row's request and slot into scratch, for use after the next barrier. Neither changes
 * until the row is sampled. Other blocks wrote the slots, so they are not read through L1. The
 * row's slot number and position are not read from shared memory, where control may lay out the
 * next iteration's rows. */
DEV void sample_fetch(const struct warp_context *c, uint32_t row) {
    const struct rt_batch *b = &SHARED->batch;
    struct sample_shared *s = sample_shared_of();
    const uint32_t token_row = row_of_logits(SHARED, row);
    const uint32_t slot_idx = (uint32_t)load_index_l2(b->rows.slot + token_row);
    const uint32_t *request = (const uint32_t *)&b->requests[slot_idx];
    const uint32_t *slot = (const uint32_t *)&b->slots[slot_idx];
    const uint32_t i = c->thread;
    if (i < RT_SAMPLED_WORDS)
        ((uint32_t *)&s->request)[i] = __ldcg(request + i);
    else if (i - 32 < sizeof s->slot / 4)
        ((uint32_t *)&s->slot)[i - 32] = __ldcg(slot + i - 32);
    else if (i == 64)
        s->slot_idx = slot_idx;
    else if (i == 96)
        s->position = (uint32_t)load_index_l2(b->rows.position + token_row);
}

/* Stores the log-probability of a token of the prompt; the request stays as it is. */
DEV void sample_score(const struct warp_context *c, const float *logits, float most, double sum) {
    const struct rt_batch *b = &SHARED->batch;
    const struct sample_shared *s = sample_shared_of();
    const uint64_t at = (uint64_t)s->slot_idx * b->max_model_len + s->position + 1;
    if (c->thread != 32) return;
    const uint32_t token = (uint32_t)load_index_l2(b->tokens + at);
    b->logprobs[at] = log_probability(load_l2(logits + token), most, sum);
}

/* Samples a row. Not `real`: a rehearsal with a greedy row of any contents, whose result is
 * dropped. */
DEV void sample_row(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                    bool real) {
    const struct rt_batch *b = &SHARED->batch;
    const float *logits = (const float *)task->in + (uint64_t)row * QN_VOCAB;     /* [L, V] */
    const float *part = (const float *)task->more + (uint64_t)row * LM_PARTS * 2; /* [L, n, 2] */
    if (!real) {
        logits = c->args->sample_scratch;
        part = logits + VOCAB_ROUND;
    }
    struct sample_shared *s = sample_shared_of();
    const struct parts parts = load_parts(c, part);
    const struct best most = best_part(c, s, &parts); /* has a barrier: the request is there */
    const struct rt_sampling *q = &s->request.sampling;
    const uint32_t mine = token_of_part(c, most.index);
    const float logit_of_mine = load_l2(logits + mine); /* in flight during the sum */
    double sum = sum_parts(c, &parts, most.value);
    struct best b1 = best_in_part(most.index, mine, logit_of_mine);
    const bool scored = real && rt_is_scored(&s->slot, s->position);
    if (real && !scored &&
        (q->temperature > 0 || has_penalties(q) || is_early(s) || s->request.guided != 0)) {
        if (s->request.guided != 0 && !mask_logits(c->args, logits, row)) return;
        const uint32_t token = choose_slowly(c->args, logits, row);
        b1 = best{load_l2(logits + token), token};
        sync_compute(); /* the words of block_best_and_sum */
    }
    block_best_and_sum(c, s, &b1, &sum);
    if (scored) {
        sample_score(c, logits, most.value, sum);
        return;
    }
    const uint32_t token = b1.index;
    if (c->thread == 0 && real) { /* a warp stores the token, another its log-probability */
        if (task->out != 0) ((int32_t *)task->out)[row] = (int32_t)token;
        rt_append(b, row, s->slot_idx, &s->slot, (int32_t)token,
                  rt_is_stop(&s->request, (int32_t)token));
    } else if (c->thread == 32) {
        const float logit = b1.value > -INFINITY ? b1.value : load_l2(logits + token);
        const float logprob = log_probability(logit, most.value, sum);
        if (real) b->logprobs[rt_append_at(b, s->slot_idx, &s->slot)] = logprob;
    }
    if (real) embed_prefetch(c, task, token);
}

/* Before the event: fetches the first row's request. */
DEV void run_sample_early(const struct warp_context *c, const struct cuda_task *task) {
    if (task->row0 < SHARED->batch.rows.n_logit_rows) sample_fetch(c, task->row0);
}

/* Whether the block rehearses before the event: none of this code is in the instruction cache, and
 * fetching it takes as long as running it. A block that samples alone has time to rehearse, because
 * it ends the LM head before other blocks do (task/place.c). */
DEV bool sample_is_rehearsed(void) {
    return SHARED->batch.rows.n_logit_rows == 1;
}

/* Samples all of the task's rows. Not inlined: a rehearsal must run the same code. */
CODE(void, run_sample, const struct cuda_args *args, const struct cuda_task *task, bool real) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    uint32_t end = min(task->row1, SHARED->batch.rows.n_logit_rows);
    for (uint32_t row = task->row0; row < end; row++) {
        if (row != task->row0) {
            sync_compute();
            sample_fetch(&c, row);
        }
        sample_row(&c, task, row, real);
    }
}

#endif
