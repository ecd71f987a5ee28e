/* rt_batch.h - requests in flight, as the kernels and the iteration boundary see them.
 *
 * Memory that outlives an iteration, and its writers:
 *
 *   mailbox   host <-> runtime (rt_mail.h). The host fills a request and rings the doorbell; the
 *             runtime publishes tokens. One writer per field, release stores, acquire loads.
 *   slots     one per request in flight; written by the iteration boundary (rt_boundary.h) and by
 *             the SAMPLE task of that request's row, which the boundary orders.
 *   rows      the token rows of the current iteration; written at the boundary, read by tasks.
 *             In a steady iteration SAMPLE writes the rows of the next one (rt_append.h).
 *   KV cache  blocks of kv_block positions, found through a block table per slot:
 *
 *       state tensor of a layer: [n_blocks] blocks, each as graph/kv_row.h draws it
 *       row of position p of slot s: block_table[s * max_blocks + p / kv_block], p % kv_block
 *
 * The same structs are used by every backend (rt_sync_*.h gives the memory orders).
 */
#ifndef QN_RUNTIME_RT_BATCH_H
#define QN_RUNTIME_RT_BATCH_H

#include "base/abi.h"
#include "graph/model_spec.h"

enum {
    RT_MAX_STOP_IDS = 16,
    RT_MAX_BIASES = 300,
    RT_MAX_TOP = 100,
    RT_SAMPLED_WORDS = 32, /* first words of a request: all that SAMPLE reads, one load for a
                            * warp */
    RT_MAX_CACHE_SPACE = 0x3ffffff0,
};

enum rt_finish { RT_RUNNING = 0, RT_FINISH_STOP = 1, RT_FINISH_LENGTH = 2, RT_FINISH_ABORT = 3 };

/* A token with a number: its log-probability, or what is added to its logit. */
struct rt_token_value {
    int32_t id;
    float value;
};
ABI_SIZE(struct rt_token_value, 8);

/* How a request wants its tokens chosen. The order of the steps, as in vLLM: biases, stop ids that
 * come too early, penalties, then temperature, then min-p, top-k and top-p, then the draw. Greedy
 * is temperature 0; the repetition penalty is over prompt and output, the other two over the
 * output. */
struct rt_sampling {
#define RT_TYPE_NUMBER float
#define RT_TYPE_ABOVE  float
#define RT_TYPE_INT    int32_t
#define SAMPLING(...)
#define SAMPLING_LIST(...)
#define SAMPLING_DRAW(ID, name, kind, ...) RT_TYPE_##kind name;
#include "base/sampling.def"
    uint32_t ignore_eos;
    uint64_t seed; /* the draw for output position i uses Philox(seed, i): the same in any batch */
};
ABI_SIZE(struct rt_sampling, 40);

/* One request as the host writes it. */
struct rt_request {
    uint32_t n_prompt;   /* its prompt's tokens in the slot's row of `tokens`, at least 1 */
    uint32_t max_tokens; /* output tokens wanted; n_prompt + max_tokens <= max_model_len */
    uint32_t n_stop;
    int32_t stop[RT_MAX_STOP_IDS]; /* token ids that end it (eos and stop_token_ids) */
    uint32_t n_scored; /* tokens at the prompt's end whose log-probabilities are wanted, too; fewer
                        * than n_prompt */
    struct rt_sampling sampling;
    uint32_t min_tokens; /* output tokens before the first at which a stop id may be chosen */
    uint8_t n_top;       /* most likely tokens to list beside each, at most rt_lists.n_top */
    uint8_t guided;      /* 1: each token is one that the slot's mask allows (rt_mask.h) */
    uint16_t n_biases;   /* of the slot's rt_lists.biases, at most RT_MAX_BIASES */
    /* SAMPLE reads none of the following. */
    uint32_t cache_space; /* requests of one space may share KV blocks; at most
                           * RT_MAX_CACHE_SPACE */
    int32_t priority;     /* of requests that wait, the lowest goes first */
};
ABI_SIZE(struct rt_request, 136);

#define RT_SAT_OUT 0xffffffffu /* rt_slot.in_flight: the request sat the last iteration out */

enum rt_slot_state { SLOT_FREE = 0, SLOT_WAITING = 1, SLOT_RUNNING = 2 };

/* One request as the runtime keeps it. For a logit row of slot s, with p = n_known before it,
 * SAMPLE sets tokens[s][p] = the token, logprobs[s][p] = its log-probability, n_known = p + 1,
 * n_computed = p, in_flight = 0, and finish = RT_FINISH_STOP for a stop id (kept in tokens) or
 * RT_FINISH_LENGTH when n_known reaches n_limit (rt_append.h). SAMPLE must advance n_known or have
 * the request sit the iteration out (rt_sit_out): the boundary ends a request otherwise. */
struct rt_slot {
    uint32_t state;      /* enum rt_slot_state */
    uint32_t n_known;    /* prompt tokens plus sampled tokens */
    uint32_t n_computed; /* positions whose KV rows are in the cache */
    uint32_t n_prompt;
    uint32_t n_limit;   /* n_known at which it ends for its length */
    uint32_t finish;    /* enum rt_finish, set by SAMPLE and by the boundary */
    uint32_t n_blocks;  /* KV blocks it holds */
    uint32_t in_flight; /* token rows of it that are laid out and not yet sampled; RT_SAT_OUT */
};
ABI_SIZE(struct rt_slot, 32);

/* The token rows of the current iteration. Arrays have the length named; all rows are valid.
 *
 * The token rows of a request are contiguous. So are its logit rows, which are those of its last
 * token rows: one while it decodes, none in the middle of a prompt, more where tokens of the prompt
 * are scored. A logit row is for the token at its position + 1. If that token is part of the
 * prompt, SAMPLE stores its log-probability; else SAMPLE draws it. */
struct rt_rows {
    uint32_t n_rows;       /* rows in use, <= the variant's T */
    uint32_t n_logit_rows; /* <= the variant's L */
    uint32_t steady;  /* 1: row i, and logit row i, is of the i-th running request, which decodes */
    uint32_t scored;  /* 1: some request has several logit rows */
    uint32_t n_alone; /* the first rows: of requests that have one row */
    uint32_t *ended;  /* SAMPLE: 1, if a request of a steady iteration has ended or sat it out */
    int32_t *token;   /* [T] */
    int32_t *slot;    /* [T] */
    int32_t *position;  /* [T] 0-based position of the token in its request */
    int32_t *logit_row; /* [L] row whose logits are wanted */
};

/* Experts read so far by iterations that only decode. ROUTE adds to the counts; the host may read
 * them at any time. */
struct rt_reads {
    uint64_t experts; /* experts whose weights a layer has read */
    uint64_t layers;  /* layers with experts that were run */
};

/* What a request has beside struct rt_request. */
struct rt_extras {
    const struct rt_token_value *biases; /* [n_biases]; where a backend has lists */
    const uint32_t *mask; /* of a guided request: the tokens that may come first (rt_mask.h) */
};

/* Tokens with numbers, masks and counts, where a backend has them. */
struct rt_lists {
    struct rt_token_value *tops;   /* [n_slots][max_model_len][n_top] at the token's index: the most
                                    * likely tokens in its place, and their log-probabilities */
    struct rt_token_value *biases; /* [n_slots][RT_MAX_BIASES] written by the host, like requests */
    const uint32_t *masks;         /* [n_slots] places for masks (rt_mask.h) */
    uint32_t n_top;                /* tokens that can be listed beside each */
};

/* Everything that a task may read besides its operands. Pointers are the backend's. */
struct rt_batch {
    struct rt_rows rows;
    struct rt_slot *slots;       /* [n_slots] */
    struct rt_request *requests; /* [n_slots] in the state (rt_memory.h) */
    int32_t *tokens;             /* [n_slots][max_model_len] prompt, then output */
    float *logprobs;             /* [n_slots][max_model_len] natural log, at the same index as the
                                  * token in `tokens`; of output tokens and of scored ones */
    int32_t *block_table;        /* [n_slots][max_blocks] */
    struct rt_lists *lists;      /* NULL: the backend has none */
    struct rt_reads *reads;
    /* [n_slots][max_model_len][route_stride] the experts that a token is sent to, at its position:
     * of each layer with experts the top_k ids that ROUTE chose, ascending. NULL: not kept */
    uint16_t *routes;
    uint32_t n_slots;
    uint32_t max_model_len;
    uint32_t max_blocks; /* KV blocks per request, at most */
    uint32_t kv_block;
    uint32_t n_kv_blocks;
    uint32_t route_stride; /* ids of a position: n_layers * top_k; 0: no routes are kept */
};

#endif
