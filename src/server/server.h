/* server.h - quern serve: one model behind HTTP, as OpenAI's clients speak it.
 *
 *   event loop, one thread     gate, routes, keys ─► work ─► submit ─► outputs ─► bytes
 *   work, two threads          JSON, template, tokenizer of large bodies
 *   engine thread              opens the engine; then turns its outputs into an event
 *
 * The loop listens before the model is loaded; until then /health says 503. SIGTERM and SIGINT
 * drain: accepted calls go on to their end, new ones are refused. A second signal ends all at once.
 */
#ifndef QN_SERVER_SERVER_H
#define QN_SERVER_SERVER_H

#include "base/status.h"

#include "quern.h"

#include <stdbool.h>

struct server_params {
    const char *host;
    uint16_t port;                   /* 0: a free one, which `say` reports */
    const char *model;               /* directory, for tokenizer_config.json; NULL: none */
    const char *const *served_names; /* [n_served_names] values that `model` may have; the first is
                                      * reported */
    size_t n_served_names;           /* 0: the directory */
    const char *const *api_keys;     /* [n_api_keys] */
    size_t n_api_keys;               /* 0: no key is required */
    const char *const *origins;      /* [n_origins] of pages that may read answers; "*": of all */
    size_t n_origins;
    const char *root_path; /* "/x": a proxy's prefix; NULL: none */
    uint32_t max_queue;    /* requests that wait for a place */
    uint32_t max_connections;
    uint32_t max_logprobs;                      /* that the engine is opened with */
    uint32_t shutdown_s;                        /* how long a drain may take */
    bool strict;                                /* unknown fields are refused */
    const char *chat_template;                  /* as in qn_chat_params */
    const char *tool_parser, *reasoning_parser; /* as in qn_answer_params */

    /* Opens the engine, on a thread of the server's; prints its own error. */
    int (*open)(void *user, qn_engine **engine);
    /* Reports in one line for people that the server listens (engine still loading), then that it
     * is ready. */
    void (*say)(void *user, const char *line);
    void *user;
};

/* Serves until it is told to end. Errors: QN_EIO (the address), QN_ESTALL and QN_EDEVICE (the
 * engine broke), QN_EINVAL (the engine did not open; `open` has printed why), QN_ENOMEM. */
int server_run(struct diag *d, const struct server_params *params);

#endif
