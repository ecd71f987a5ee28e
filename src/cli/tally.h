/* tally.h - the output of one request: tokens, text and times; and sums over several requests for
 * the line that ends a run.
 */
#ifndef QN_CLI_TALLY_H
#define QN_CLI_TALLY_H

#include "base/strbuf.h"
#include "cli/cli.h"

struct tally_token {
    int32_t id;
    float logprob;
    uint64_t time_ns;            /* when the token was seen */
    const qn_token_logprob *top; /* [n_top] owned by the request */
    size_t n_top;
};

struct tally {
    struct tally_token *items;
    size_t n, capacity;
    struct strbuf text;
    int finish_reason;
    char *stop;            /* the stop string that ended it; NULL: none */
    int32_t stop_token_id; /* qn_output's */
    uint64_t start_ns, end_ns;
};

void tally_start(struct tally *t);
/* Errors: QN_ENOMEM. */
int tally_add(struct tally *t, const qn_output *out);
void tally_fini(struct tally *t);

/* {"prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "ttft_ms", "total_s",
 * "tokens_per_s"}; the last one over the tokens after the first, null for fewer than two tokens. */
json_t *tally_json(const struct tally *t, const qn_request *request);

struct tally_sum {
    size_t n_requests, n_tokens;
    uint64_t n_prompt, n_cached, n_preempted; /* sums of qn_request_stats */
    uint64_t first_start_ns, last_end_ns, longest_ttft_ns;
    uint64_t decode_ns; /* of the only request: first to last token */
};

void tally_sum(struct tally_sum *sum, const struct tally *t, const qn_request *request);

/* "24 tokens in 0.31 s: 77.1 tokens/s, first token after 12.3 ms, 18.9 GB/s (93 % of ...)". */
void tally_report(const struct options *o, qn_engine *engine, const struct tally_sum *sum);

#endif
