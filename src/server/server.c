/* server.c - see server.h. */
#include "server/server.h"
#include "server/auth.h"
#include "server/cors.h"
#include "server/fingerprint.h"
#include "server/gen.h"
#include "server/inbox.h"
#include "server/pool.h"
#include "server/routes.h"
#include "server/wake.h"

#include "base/clock.h"
#include "base/checked.h"
#include "base/jsonio.h"

#include <event2/event.h>

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_BODY = 16 << 20,
    MAX_DEPTH = 64,          /* levels of a body's JSON */
    INLINE_BODY = 16 << 10,  /* larger bodies are read by the work threads */
    OWN_MAPPING = 128 << 10, /* larger blocks return to the system when they are freed; by default
                              * the C library raises this limit to the largest block ever freed */
    TICK_MS = 250,
    TRIM_TICKS = 4, /* ticks between two checks whether memory can be returned */
    STALLED_MS =
        500, /* how long /health says that the engine has stalled before the process ends */
};

static const struct http_limits limits = {
    .max_body = MAX_BODY,
    .idle_s = 75,
    .header_s = 10,
    .body_s = 30,
    .stuck_s = 60,
    .stream_cap = 64 << 10,
};

/* ---- small things --------------------------------------------------------------------------- */

const char *state_model(const struct server *s) {
    const struct server_params *p = s->params;
    if (p->n_served_names > 0) return p->served_names[0];
    return p->model ? p->model : "model";
}

bool state_is_model(const struct server *s, const char *name) {
    const struct server_params *p = s->params;
    for (size_t i = 0; i < p->n_served_names; i++)
        if (strcmp(p->served_names[i], name) == 0) return true;
    return p->n_served_names == 0 && strcmp(name, state_model(s)) == 0;
}

void state_new_id(struct server *s, const char *prefix, char id[48]) {
    snprintf(id, 48, "%s%016llx%08llx", prefix, (unsigned long long)s->id_seed,
             (unsigned long long)++s->n_ids);
}

static void say(const struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct server *s, const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    s->params->say(s->params->user, line);
}

/* ---- calls ---------------------------------------------------------------------------------- */

void call_free(struct call *c) {
    c->server->n_calls--;
    gen_free(c->gen);
    json_decref(c->root);
    free(c->body);
    strbuf_fini(&c->ignored);
    strbuf_fini(&c->out);
    free(c);
}

void call_add_headers(struct call *c) {
    const char *id = http_header(c->x, "x-request-id");
    if (id && strlen(id) <= 256) http_add_header(c->x, "x-request-id", id);
    if (c->ignored.n > 0) http_add_header(c->x, "x-quern-ignored", strbuf_text(&c->ignored));
    cors_add_headers(c);
}

/* Adds the headers that an error's status requires. */
static void add_error_headers(struct call *c) {
    const int status = problem_status(c->problem.kind);
    if (status == 429 || status == 503) http_add_header(c->x, "Retry-After", "1");
    if (status == 401)
        http_add_header(c->x, "WWW-Authenticate", "Basic realm=\"quern: the API key as password\"");
}

void call_reply_as(struct call *c, const char *type) {
    if (strbuf_status(NULL, &c->out) != QN_OK)
        problem_set(&c->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    if (c->problem.kind != PROBLEM_NONE) {
        strbuf_fini(&c->out);
        problem_json(&c->problem, c->route ? c->route->dialect : DIALECT_OPENAI, &c->out);
        metrics_add(&c->server->metrics, COUNTER_REFUSED, 1);
        type = "application/json";
    }
    if (c->x) {
        call_add_headers(c);
        add_error_headers(c);
        http_reply(c->x, problem_status(c->problem.kind), type, strbuf_text(&c->out), c->out.n);
        c->x = NULL;
    }
    call_free(c);
}

void call_reply(struct call *c) {
    call_reply_as(c, "application/json");
}

/* ---- a body --------------------------------------------------------------------------------- */

/* Whether more brackets are open at once, outside strings, than JSON's recursive reader may
 * follow. */
static bool too_deep(const char *text, size_t n) {
    unsigned depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted && (c == '{' || c == '['))
            depth++;
        else if (!quoted && depth > 0 && (c == '}' || c == ']'))
            depth--;
        if (depth > MAX_DEPTH) return true;
    }
    return false;
}

static int parse_body(struct call *c) {
    struct diag d = {0};
    if (too_deep(c->body, c->n_body))
        return problem_set(&c->problem, PROBLEM_JSON, NULL, "body: more than %d levels", MAX_DEPTH);
    if (jsonio_parse_unique(&d, "body", c->body, c->n_body, &c->root) != QN_OK)
        return problem_set(&c->problem, PROBLEM_JSON, NULL, "%s", d.message);
    free(c->body);
    c->body = NULL;
    return QN_OK;
}

static int check_model(struct call *c) {
    const char *model = fields_text(&c->fields, F_MODEL, NULL);
    if (!model || !*model || state_is_model(c->server, model)) return QN_OK;
    return problem_set(&c->problem, PROBLEM_MODEL, "model", "The model '%.200s' does not exist",
                       model);
}

static int read_call(struct call *c) {
    const struct server *s = c->server;
    const struct field_limits of_model = {.n_vocab = s->info.vocab,
                                          .max_logprobs = s->params->max_logprobs,
                                          .strict = s->params->strict};
    TRY(parse_body(c));
    TRY(fields_read(&c->problem, c->root, c->route->api, &of_model, &c->fields, &c->ignored));
    TRY(check_model(c));
    return c->route->work(c);
}

static void work(struct call *c) {
    (void)read_call(c); /* the failure is in c->problem */
}

static void after_work(struct call *c) {
    if (c->ignored.n > 0) metrics_add(&c->server->metrics, COUNTER_IGNORED, 1);
    if (!c->x)
        call_free(c);
    else if (c->problem.kind != PROBLEM_NONE)
        call_reply(c);
    else
        c->route->answer(c);
}

/* ---- a request ------------------------------------------------------------------------------ */

static const char *path_of(const struct server *s, const struct http_exchange *x) {
    const char *path = http_path(x), *root = s->params->root_path;
    const size_t n = root ? strlen(root) : 0;
    return n > 0 && strncmp(path, root, n) == 0 && path[n] == '/' ? path + n : path;
}

static int check_media(struct call *c) {
    const char *type = http_header(c->x, "Content-Type");
    static const char json[] = "application/json";
    if (type && strncasecmp(type, json, sizeof json - 1) == 0 &&
        strchr("; \t", type[sizeof json - 1]))
        return QN_OK;
    return problem_set(&c->problem, PROBLEM_MEDIA, NULL, "Content-Type: want %s, have '%.80s'",
                       json, type ? type : "none");
}

static int check_phase(struct call *c) {
    const struct server *s = c->server;
    const bool early = c->route->answer == info_health || c->route->answer == info_version;
    if (early) return QN_OK;
    if (!s->engine && s->phase != PHASE_STALLED)
        return problem_set(&c->problem, PROBLEM_LOADING, NULL, "the model is being loaded");
    if (s->phase == PHASE_STALLED)
        return problem_set(&c->problem, PROBLEM_STALLED, NULL, "the engine has stalled");
    if (s->phase == PHASE_DRAINING && c->route->api)
        return problem_set(&c->problem, PROBLEM_DRAINING, NULL, "the server is shutting down");
    return QN_OK;
}

/* A request without a key learns nothing about any path. */
static int find_route(struct call *c, char allow[64]) {
    const struct server *s = c->server;
    enum problem_kind kind;
    const char *path = path_of(s, c->x);
    /* HEAD has the length of GET's answer. */
    const char *method = http_method(c->x) == HTTP_HEAD ? "GET" : http_method_text(c->x);
    const struct route *route = routes_find(http_method(c->x), path, &c->rest, &kind, allow);
    c->route = route; /* an error has its route's format */
    c->key = auth_key(c->x, s->params->api_keys, s->params->n_api_keys);
    if (!(route && route->is_public) && c->key == AUTH_REFUSED) {
        allow[0] = '\0';
        return problem_set(&c->problem, PROBLEM_KEY, NULL,
                           "no valid API key; send it as 'Authorization: Bearer KEY'");
    }
    if (!route)
        return problem_set(&c->problem, kind, NULL, "%.10s %.200s: %s", method, path,
                           kind == PROBLEM_METHOD ? "this path has other methods" : "no such path");
    return QN_OK;
}

static int check_request(struct call *c) {
    char allow[64] = "";
    bool too_large;
    const char *refused = http_refused(c->x, &too_large);
    if (refused)
        return problem_set(&c->problem, too_large ? PROBLEM_TOO_LARGE : PROBLEM_HTTP, NULL, "%s",
                           refused);
    const int rc = find_route(c, allow);
    if (allow[0] && rc != QN_OK) http_add_header(c->x, "Allow", allow);
    if (rc == QN_OK && c->route->api) TRY(check_media(c));
    return rc == QN_OK ? check_phase(c) : rc;
}

static struct call *new_call(struct server *s, struct http_exchange *x) {
    struct call *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s;
    c->x = x;
    c->arrival_ns = clock_ns();
    s->n_calls++;
    metrics_add(&s->metrics, COUNTER_CALLS, 1);
    http_set_user(x, c);
    return c;
}

static void take_body(struct call *c) {
    const char *body = http_body(c->x, &c->n_body);
    c->body = malloc(c->n_body + 1);
    if (!c->body) {
        problem_set(&c->problem, PROBLEM_INTERNAL, NULL, "out of memory");
        call_reply(c);
        return;
    }
    memcpy(c->body, body, c->n_body);
    c->body[c->n_body] = '\0';
    if (c->n_body > INLINE_BODY) {
        pool_put(c->server->pool, c);
        return;
    }
    work(c);
    after_work(c);
}

static void on_request(void *user, struct http_exchange *x) {
    struct call *c = new_call(user, x);
    bool too_large;
    if (!c)
        http_reply(x, 503, "application/json", "{}", 2);
    else if (!http_refused(x, &too_large) && cors_preflight(c))
        return;
    else if (check_request(c) != QN_OK)
        call_reply(c);
    else if (c->route->api)
        take_body(c);
    else
        c->route->answer(c);
}

/* The client left: a generation ends at once; a call in the work threads ends when it comes
 * back. */
static void on_gone(void *user, struct http_exchange *x) {
    struct call *c = http_user(x);
    (void)user;
    if (!c) return;
    c->x = NULL;
    if (c->gen && c->gen->choices) gen_gone(c->gen);
}

static void on_room(void *user, struct http_exchange *x) {
    struct call *c = http_user(x);
    (void)user;
    if (c && c->gen && c->gen->streaming) gen_room(c->gen);
}

/* ---- the engine comes, the server goes ------------------------------------------------------ */

static void read_tokenizer_info(struct server *s) {
    char path[4096];
    json_t *root = NULL;
    if (!s->params->model) return;
    snprintf(path, sizeof path, "%s/tokenizer_config.json", s->params->model);
    if (jsonio_load(NULL, path, MAX_BODY, &root) == QN_OK)
        s->tokenizer_info = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(root);
}

static void end_loop(struct server *s, int result) {
    s->result = result;
    event_base_loopbreak(s->base);
}

/* How the model writes calls and thoughts. */
static int read_forms(struct server *s) {
    qn_error error;
    qn_answer_params_init(&s->forms);
    s->forms.chat_template = s->chat;
    s->forms.tool_parser = s->params->tool_parser;
    s->forms.reasoning_parser = s->params->reasoning_parser;
    s->forms_info.struct_size = sizeof s->forms_info;
    const int rc = qn_answer_get_info(&s->forms, s->tokenizer, &s->forms_info, &error);
    if (rc != QN_OK) say(s, "--%s", error.message);
    return rc;
}

static void on_output(void *user) {
    gen_poll(user);
}

static void look_whether_opened(struct server *s) {
    struct diag d = {0};
    qn_engine *engine;
    const int opened = wake_opened(s->wake, &engine);
    if (opened == 0) return;
    if (opened < 0) {
        end_loop(s, QN_EINVAL);
        return;
    }
    s->engine = engine;
    s->info.struct_size = sizeof s->info;
    qn_engine_get_info(engine, &s->info);
    s->tokenizer = qn_engine_tokenizer(engine);
    qn_sampling_params_init(&s->defaults, engine);
    if (s->params->model)
        (void)qn_chat_template_open(s->params->model, s->params->chat_template, &s->chat, NULL);
    if (read_forms(s) != QN_OK) {
        end_loop(s, QN_EINVAL);
        return;
    }
    read_tokenizer_info(s);
    fingerprint_make(&s->info, s->fingerprint);
    if (wake_watch(&d, s->wake, s->base, on_output, s) != QN_OK) {
        snprintf(s->trouble, sizeof s->trouble, "%s", d.message);
        end_loop(s, d.code);
        return;
    }
    if (s->phase == PHASE_LOADING) s->phase = PHASE_READY;
    const char *calls = s->forms_info.tool_parser, *thoughts = s->forms_info.reasoning_parser;
    say(s, "ready: %s, model '%s'%s%s%s%s", s->url, state_model(s), calls ? ", calls as " : "",
        calls ? calls : "", thoughts ? ", thoughts as " : "", thoughts ? thoughts : "");
}

static void on_inbox(void *user, struct call *c) {
    struct server *s = user;
    if (c) {
        after_work(c);
        return;
    }
    if (!s->engine) look_whether_opened(s);
}

/* The first signal drains, the second ends what runs. */
static void on_signal(evutil_socket_t number, short what, void *user) {
    struct server *s = user;
    (void)number, (void)what;
    if (s->phase == PHASE_STALLED) return;
    if (s->phase == PHASE_LOADING) _exit(0); /* nothing was accepted; loading cannot be ended */
    if (s->phase == PHASE_DRAINING) {
        s->drain_until_ns = 0;
        http_drain(s->http);
        gen_end_all(s, PROBLEM_DRAINING, "the server is shutting down");
        return;
    }
    say(s, "draining: %u requests; a second signal ends them", s->n_choices);
    s->phase = PHASE_DRAINING;
    s->drain_until_ns = clock_ns() + s->params->shutdown_s * 1000000000ull;
    http_drain(s->http);
}

static bool is_drained(const struct server *s) {
    return s->n_calls == 0 && http_connections(s->http) == 0;
}

/* Returns free memory between used blocks to the system while nothing generates, once after each
 * burst of calls: a burst leaves much of it, and the C library returns only the end of the heap. */
static void trim(struct server *s) {
    const uint64_t calls = s->metrics.counters[COUNTER_CALLS];
    const uint32_t connections = http_connections(s->http);
    if (++s->n_ticks % TRIM_TICKS != 0 || s->n_choices > 0) return;
    if (calls == s->trimmed_calls && connections == s->trimmed_connections) return;
    s->trimmed_calls = calls;
    s->trimmed_connections = connections;
#ifdef M_MMAP_THRESHOLD
    malloc_trim(0);
#endif
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    struct server *s = user;
    (void)fd, (void)what;
    gen_tick(s);
    trim(s);
    if (s->phase == PHASE_STALLED) {
        if (s->drain_until_ns == 0) {
            http_drain(s->http);
            s->drain_until_ns = clock_ns() + STALLED_MS * 1000000ull;
        }
        if (clock_ns() >= s->drain_until_ns) end_loop(s, s->result);
    }
    if (s->phase != PHASE_DRAINING) return;
    if (is_drained(s)) end_loop(s, QN_OK);
    if (s->drain_until_ns && clock_ns() >= s->drain_until_ns) {
        gen_end_all(s, PROBLEM_DRAINING, "the server is shutting down");
        s->drain_until_ns = 0;
    } else if (s->drain_until_ns == 0) {
        end_loop(s, QN_OK); /* one tick after gen_end_all */
    }
}

/* ---- set-up --------------------------------------------------------------------------------- */

static int add_events(struct diag *d, struct server *s) {
    static const int numbers[] = {SIGTERM, SIGINT};
    const struct timeval every = {.tv_usec = TICK_MS * 1000};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        s->signals[i] = evsignal_new(s->base, numbers[i], on_signal, s);
        if (!s->signals[i] || event_add(s->signals[i], NULL) != 0)
            return fail_nomem(d, 0, "a signal's event");
    }
    s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    if (!s->tick || event_add(s->tick, &every) != 0) return fail_nomem(d, 0, "a timer");
    return QN_OK;
}

/* An event loop that tells the system about changed events only when it waits, so that events which
 * came and went cost no call.
 */
static struct event_base *new_loop(void) {
    struct event_config *config = event_config_new();
    if (!config) return NULL;
    event_config_set_flag(config, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

static int set_up(struct diag *d, struct server *s) {
    const struct server_params *p = s->params;
    const struct http_handler handler = {s, on_request, on_gone, on_room};
    struct http_limits l = limits;
    l.max_connections = p->max_connections;
    s->base = new_loop();
    if (!s->base) return fail_nomem(d, 0, "the event loop");
    TRY(inbox_open(d, s->base, on_inbox, s, &s->inbox));
    TRY(http_open(d, s->base, p->host, p->port, &l, &handler, &s->http));
    TRY(add_events(d, s));
    TRY(pool_open(d, s->inbox, work, &s->pool));
    return wake_start(d, s->inbox, p->open, p->user, &s->wake);
}

static void tear_down(struct server *s) {
    pool_close(s->pool);
    s->pool = NULL;
    if (s->engine || s->gens) gen_end_all(s, PROBLEM_DRAINING, "the server is shutting down");
    wake_stop(s->wake);
    if (s->base) event_base_loop(s->base, EVLOOP_NONBLOCK); /* calls from the work threads */
    http_close(s->http);
    inbox_close(s->inbox);
    for (size_t i = 0; i < COUNT_OF(s->signals); i++)
        if (s->signals[i]) event_free(s->signals[i]);
    if (s->tick) event_free(s->tick);
    if (s->base) event_base_free(s->base);
    qn_chat_template_close(s->chat);
    if (s->engine) qn_engine_close(s->engine);
    free(s->tokenizer_info);
    free(s);
}

int server_run(struct diag *d, const struct server_params *params) {
    struct server *s = calloc(1, sizeof *s);
    if (!s) return fail_nomem(d, sizeof *s, "the server");
#ifdef M_MMAP_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, OWN_MAPPING);
#endif
    s->params = params;
    s->started_ns = clock_ns();
    s->created = (int64_t)time(NULL);
    s->id_seed = (uint64_t)s->created * 0x9e3779b97f4a7c15u ^ s->started_ns;
    int rc = set_up(d, s);
    if (rc == QN_OK) {
        const bool is_v6 = strchr(params->host, ':') != NULL;
        snprintf(s->url, sizeof s->url, is_v6 ? "http://[%.200s]:%u" : "http://%.200s:%u",
                 params->host, http_port(s->http));
        say(s, "listening on %s", s->url);
        event_base_dispatch(s->base);
        rc = s->result;
        if (rc != QN_OK) fail(d, rc, "%s", s->trouble[0] ? s->trouble : "the model did not open");
    }
    tear_down(s);
    return rc;
}
