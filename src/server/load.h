/* load.h - puts load on a server that speaks OpenAI's completions, and records what its clients
 * see.
 *
 * Requests arrive by a Poisson process, or all at once. At most `concurrency` are in flight; the
 * others wait in this process, and their times begin when they are sent. Every request streams.
 */
#ifndef QN_SERVER_LOAD_H
#define QN_SERVER_LOAD_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct load_params {
    const char *host;
    uint16_t port;
    const char *path;    /* of completions */
    const char *model;   /* NULL: not sent */
    const char *api_key; /* NULL: none */
    uint32_t n_requests, concurrency;
    double rate; /* requests per second; 0: all at once */
    uint32_t input_len, output_len;
    uint64_t seed;                                               /* of prompts and arrivals */
    void (*progress)(void *user, uint32_t done, uint32_t total); /* may be NULL */
    void *user;
};

/* One request, as its client saw it; times in seconds. */
struct load_request {
    bool ok;
    double sent_s, first_s, last_s; /* since the beginning of the run; first_s: its first token */
    uint32_t n_tokens;              /* as the server counts them, else n_events */
    uint32_t n_events;
};

struct load_result {
    struct load_request *requests; /* [n_requests] */
    double *gaps_s;                /* [n_gaps] between events of one request, over all requests */
    size_t n_gaps;
    uint32_t n_failed;
    double seconds;
    char error[256]; /* the first failure; "": none */
};

/* Errors: QN_ENOMEM, QN_EIO (no request got through). The result is freed with load_free, also
 * after a failure. */
int load_run(struct diag *d, const struct load_params *params, struct load_result *result);
void load_free(struct load_result *result);

#endif
