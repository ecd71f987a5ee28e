/* state.h - the server's state, and a call: one request from its bytes to its answer.
 *
 * The event loop owns all of it. A call in the work threads belongs to them until it comes back
 * through the inbox. They touch only the call, and read the tokenizer and the chat template.
 */
#ifndef QN_SERVER_STATE_H
#define QN_SERVER_STATE_H

#include "server/fields.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/problem.h"
#include "server/server.h"

struct inbox;
struct pool;
struct wake;
struct gen;
struct choice;
struct call;

enum phase { PHASE_LOADING, PHASE_READY, PHASE_DRAINING, PHASE_STALLED };

/* One row of routes.def. */
struct route {
    const char *path; /* "/v1/models/{model}": the last part is free */
    enum http_method method;
    enum dialect dialect;
    uint32_t api;                   /* the fields that the body has; 0: no body */
    bool is_public;                 /* no key is required */
    int (*work)(struct call *c);    /* reads the fields; on any thread. NULL: nothing to read */
    void (*answer)(struct call *c); /* on the loop; answers now or later */
    const char *about;
};

extern const struct route route_table[];
extern const size_t route_count;

struct call {
    struct server *server;
    struct http_exchange *x; /* NULL: the client left */
    const struct route *route;
    const char *rest; /* the path's free part, of x */
    char *body;
    size_t n_body;
    int key; /* index into the server's keys, or AUTH_NO_KEYS */
    json_t *root;
    struct fields fields; /* of root */
    struct strbuf ignored;
    struct problem problem;
    struct strbuf out; /* the answer */
    struct gen *gen;   /* its generation; NULL: none */
    uint64_t arrival_ns;
    struct call *next; /* in a queue */
};

enum { GEN_BUCKETS = 1024 };

struct server {
    const struct server_params *params;
    struct event_base *base;
    struct http_server *http;
    struct inbox *inbox;
    struct pool *pool;
    struct wake *wake;
    struct event *signals[2], *tick;

    enum phase phase;
    int result; /* of server_run */
    char trouble[1000];
    char url[256]; /* of the page */
    uint64_t started_ns, drain_until_ns;
    uint32_t n_calls; /* calls that are not answered */
    uint32_t n_ticks;
    uint64_t trimmed_calls; /* all calls so far, and connections, at the last malloc_trim */
    uint32_t trimmed_connections;

    qn_engine *engine; /* NULL while loading */
    qn_engine_info info;
    const qn_tokenizer *tokenizer;
    qn_chat_template *chat; /* NULL: the model has none */
    qn_answer_params forms; /* of calls and thoughts: from the template or from options */
    qn_answer_info forms_info;
    qn_sampling_params defaults;
    char fingerprint[24];
    int64_t created;
    uint64_t id_seed, n_ids;
    char *tokenizer_info; /* tokenizer_config.json; NULL: there is none */

    struct gen *gens;                    /* those that have requests in the engine */
    struct choice *buckets[GEN_BUCKETS]; /* choices by the address of their request */
    uint32_t n_choices, n_gens;          /* not ended */
    struct metrics metrics;
};

/* The model's name in answers. */
const char *state_model(const struct server *s);
bool state_is_model(const struct server *s, const char *name);
/* A name for an answer, "chatcmpl-" and 24 characters. */
void state_new_id(struct server *s, const char *prefix, char id[48]);

/* Ends a call: answers with its problem, or with `out` as JSON, and frees it. */
void call_reply(struct call *c);
void call_reply_as(struct call *c, const char *type);
/* Frees a call that is answered, or that its client has left. */
void call_free(struct call *c);
/* Adds headers that every answer has. */
void call_add_headers(struct call *c);

#endif
