/* load.c - see load.h. */
#include "server/load.h"
#include "server/json_write.h"

#include "base/clock.h"
#include "base/array.h"
#include "base/checked.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIMEOUT_S = 600, FIRST_ID = 10, LAST_ID = 2000 };

struct load;

/* A connection, and the request that it has in flight. */
struct lane {
    struct load *load;
    struct evhttp_connection *evcon;
    struct load_request *request;
    struct strbuf text; /* of an incomplete event */
    bool answered;      /* status 200, and the stream has ended */
    struct lane *next;  /* free ones */
};

struct load {
    const struct load_params *p;
    struct load_result *r;
    struct event_base *base;
    struct event *arrival;
    struct lane *lanes, *free_lanes;
    ARRAY(double) gaps;
    uint32_t n_arrived, n_sent, n_done;
    double began, next_arrival;
    uint64_t random;
};

static uint64_t next_random(struct load *l) {
    l->random += 0x9e3779b97f4a7c15u;
    uint64_t x = l->random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void send_more(struct load *l);

/* ---- an answer ------------------------------------------------------------------------------ */

static void note_failure(struct load *l, const char *what, const char *more) {
    if (l->r->error[0]) return;
    snprintf(l->r->error, sizeof l->r->error, "%s%s%.180s", what, *more ? ": " : "", more);
    status_one_line(l->r->error);
}

/* Whether the event carries a token. A completion's text may be empty, for a special token or a
 * part of a character; a chat's first delta is empty before there is a token. */
static bool has_token(const json_t *event) {
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    if (delta) return json_string_length(json_object_get(delta, "content")) > 0;
    return json_is_string(json_object_get(choice, "text"));
}

static void take_event(struct lane *lane, const char *text, size_t n) {
    struct load *l = lane->load;
    struct load_request *r = lane->request;
    const double now = clock_s() - l->began;
    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) {
        lane->answered = true;
        return;
    }
    json_t *event = json_loadb(text, n, 0, NULL);
    const json_t *tokens = json_object_get(json_object_get(event, "usage"), "completion_tokens");
    const json_t *error = json_object_get(json_object_get(event, "error"), "message");
    if (json_is_string(error)) note_failure(l, "an event", json_string_value(error));
    if (json_is_integer(tokens)) r->n_tokens = (uint32_t)json_integer_value(tokens);
    if (has_token(event)) {
        if (r->n_events++ == 0)
            r->first_s = now;
        else
            (void)ARRAY_PUSH(NULL, &l->gaps, now - r->last_s);
        r->last_s = now;
    }
    json_decref(event);
}

static void on_chunk(struct evhttp_request *req, void *user) {
    static const char mark[] = "data: ";
    struct lane *lane = user;
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    const size_t n = evbuffer_get_length(in);
    strbuf_add(&lane->text, (const char *)evbuffer_pullup(in, -1), n);
    evbuffer_drain(in, n);
    size_t from = 0;
    for (const char *end; lane->text.text && (end = strchr(lane->text.text + from, '\n'));) {
        const char *line = lane->text.text + from;
        if (strncmp(line, mark, sizeof mark - 1) == 0)
            take_event(lane, line + sizeof mark - 1, (size_t)(end - line) - (sizeof mark - 1));
        from = (size_t)(end - lane->text.text) + 1;
    }
    if (!lane->text.text || from == 0) return;
    lane->text.n -= from;
    memmove(lane->text.text, lane->text.text + from, lane->text.n + 1);
}

static void on_done(struct evhttp_request *req, void *user) {
    struct lane *lane = user;
    struct load *l = lane->load;
    const int status = req ? evhttp_request_get_response_code(req) : 0;
    lane->request->ok = status == 200 && lane->answered && lane->request->n_events > 0;
    if (!lane->request->ok) {
        char said[32];
        snprintf(said, sizeof said, "HTTP status %d", status);
        l->r->n_failed++;
        note_failure(l, status == 0 ? "the connection broke" : said, strbuf_text(&lane->text));
    }
    if (lane->request->n_tokens == 0) lane->request->n_tokens = lane->request->n_events;
    strbuf_clear(&lane->text);
    lane->next = l->free_lanes;
    l->free_lanes = lane;
    l->n_done++;
    if (l->p->progress) l->p->progress(l->p->user, l->n_done, l->p->n_requests);
    if (l->n_done == l->p->n_requests)
        event_base_loopbreak(l->base);
    else
        send_more(l);
}

/* ---- a request ------------------------------------------------------------------------------ */

/* The fields that vLLM's `bench serve` sends; the prompt is token ids. */
static void write_body(struct load *l, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    if (l->p->model) json_write_text(b, "model", l->p->model);
    json_write_open(b, "prompt", '[');
    for (uint32_t i = 0; i < l->p->input_len; i++)
        json_write_int(b, NULL, FIRST_ID + (int64_t)(next_random(l) % (LAST_ID - FIRST_ID)));
    json_write_close(b, ']');
    json_write_number(b, "temperature", 0, 3);
    json_write_number(b, "repetition_penalty", 1, 3);
    json_write_int(b, "max_tokens", l->p->output_len);
    strbuf_str(b, ",\"logprobs\":null,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                  "\"ignore_eos\":true}");
}

static void send_one(struct load *l, struct lane *lane) {
    struct evhttp_request *req = evhttp_request_new(on_done, lane);
    struct strbuf body = {0};
    char host[300], key[300];
    lane->request = &l->r->requests[l->n_sent++];
    lane->answered = false;
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    snprintf(host, sizeof host, "%s:%u", l->p->host, l->p->port);
    evhttp_add_header(headers, "Host", host);
    evhttp_add_header(headers, "Content-Type", "application/json");
    snprintf(key, sizeof key, "Bearer %s", l->p->api_key ? l->p->api_key : "");
    if (l->p->api_key) evhttp_add_header(headers, "Authorization", key);
    write_body(l, &body);
    evbuffer_add(evhttp_request_get_output_buffer(req), strbuf_text(&body), body.n);
    strbuf_fini(&body);
    evhttp_request_set_chunked_cb(req, on_chunk);
    lane->request->sent_s = clock_s() - l->began;
    evhttp_make_request(lane->evcon, req, EVHTTP_REQ_POST, l->p->path);
}

static void send_more(struct load *l) {
    while (l->n_sent < l->n_arrived && l->free_lanes) {
        struct lane *lane = l->free_lanes;
        l->free_lanes = lane->next;
        send_one(l, lane);
    }
}

/* Starts the requests whose time has come, and sets the timer for the next one. */
static void on_arrival(evutil_socket_t fd, short what, void *user) {
    struct load *l = user;
    const double now = clock_s() - l->began;
    (void)fd, (void)what;
    while (l->n_arrived < l->p->n_requests && l->next_arrival <= now) {
        l->n_arrived++;
        if (l->p->rate > 0)
            l->next_arrival -= log1p(-(double)(next_random(l) >> 11) * 0x1p-53) / l->p->rate;
    }
    send_more(l);
    if (l->n_arrived == l->p->n_requests) return;
    const double wait = MAX(l->next_arrival - now, 0.0);
    const struct timeval t = {(time_t)wait, (suseconds_t)((wait - floor(wait)) * 1e6)};
    event_add(l->arrival, &t);
}

/* ---- a run ---------------------------------------------------------------------------------- */

static int set_up(struct diag *d, struct load *l) {
    const uint32_t n = MIN(l->p->concurrency, l->p->n_requests);
    l->base = event_base_new();
    l->arrival = l->base ? event_new(l->base, -1, 0, on_arrival, l) : NULL;
    l->lanes = calloc(n, sizeof *l->lanes);
    l->r->requests = calloc(l->p->n_requests, sizeof *l->r->requests);
    if (!l->arrival || !l->lanes || !l->r->requests) return fail_nomem(d, 0, "the requests");
    for (uint32_t i = 0; i < n; i++) {
        struct lane *lane = &l->lanes[i];
        lane->load = l;
        lane->evcon = evhttp_connection_base_new(l->base, NULL, l->p->host, l->p->port);
        if (!lane->evcon) return fail_nomem(d, 0, "a connection");
        evhttp_connection_set_timeout(lane->evcon, TIMEOUT_S);
        lane->next = l->free_lanes;
        l->free_lanes = lane;
    }
    return QN_OK;
}

static void tear_down(struct load *l) {
    const uint32_t n = l->lanes ? MIN(l->p->concurrency, l->p->n_requests) : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (l->lanes[i].evcon) evhttp_connection_free(l->lanes[i].evcon);
        strbuf_fini(&l->lanes[i].text);
    }
    free(l->lanes);
    if (l->arrival) event_free(l->arrival);
    if (l->base) event_base_free(l->base);
}

int load_run(struct diag *d, const struct load_params *params, struct load_result *result) {
    struct load l = {.p = params, .r = result, .random = params->seed};
    *result = (struct load_result){0};
    int rc = set_up(d, &l);
    if (rc == QN_OK) {
        l.began = clock_s();
        on_arrival(-1, 0, &l);
        event_base_dispatch(l.base);
        result->seconds = clock_s() - l.began;
        if (result->n_failed == params->n_requests)
            rc = fail(d, QN_EIO, "http://%s:%u%s: %s", params->host, params->port, params->path,
                      result->error);
    }
    tear_down(&l);
    result->gaps_s = l.gaps.items;
    result->n_gaps = l.gaps.n;
    return rc;
}

void load_free(struct load_result *result) {
    free(result->requests);
    free(result->gaps_s);
    *result = (struct load_result){0};
}
