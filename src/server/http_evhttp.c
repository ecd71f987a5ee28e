/* http_evhttp.c - http.h over libevent's evhttp.
 *
 * evhttp parses and frames. This file adds what evhttp leaves open: the gate, an absolute deadline
 * for every state of a connection, a bound on connections, and a stream's backpressure. It ends a
 * connection by shutting the socket down, so that evhttp takes the same path as when a client
 * leaves.
 */
#include "server/http.h"
#include "server/http_gate.h"

#include "base/clock.h"
#include "base/checked.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum {
    MAX_HEADER_BYTES = 32 << 10,
    SWEEP_MS = 250,      /* how late a deadline may be seen */
    BACKLOG = 1024,      /* connections that wait to be accepted */
    DRAIN_IDLE_S = 1,    /* how long a connection may be idle while draining */
    NEVER_S = 365 << 16, /* for evhttp's own deadlines, which trickling bytes would move */
};

enum state { IDLE, HEADER, BODY, BUSY };

struct conn {
    struct http_server *server;
    struct evhttp_connection *evcon;
    struct bufferevent *bev;
    struct event *hangup; /* while busy, when evhttp does not read */
    int fd;
    enum state state;
    double deadline; /* seconds, monotonic; 0: none */
    struct gate_scan scan;
    const char *refused; /* what is wrong with the current request */
    bool too_large;
    struct http_exchange *x;    /* being answered; NULL: none */
    struct conn *before, *next; /* all connections */
};

struct http_exchange {
    struct evhttp_request *req;
    struct conn *conn;
    struct evbuffer *out; /* scratch for the next write */
    void *user;
    bool streaming, full;
    char *path;
};

struct http_server {
    struct event_base *base;
    struct evhttp *http;
    struct evconnlistener *listener;
    struct event *sweep, *resume, *adopt;
    struct http_limits limits;
    struct http_handler handler;
    struct conn **by_fd; /* [n_by_fd] NULL where there is none */
    size_t n_by_fd;
    struct conn *conns;
    struct conn *fresh; /* those that evhttp has not begun to read; by `next` */
    uint32_t n_conns;
    uint16_t port;
    bool draining, paused;
};

/* ---- deadlines ------------------------------------------------------------------------------ */

static void enter(struct conn *c, enum state state) {
    const struct http_limits *l = &c->server->limits;
    const uint32_t of_state[] = {[IDLE] = c->server->draining ? DRAIN_IDLE_S : l->idle_s,
                                 [HEADER] = l->header_s,
                                 [BODY] = l->body_s};
    c->state = state;
    c->deadline = state == BUSY ? 0 : clock_s() + of_state[state];
}

static void on_sweep(evutil_socket_t fd, short what, void *user) {
    struct http_server *s = user;
    const double now = clock_s();
    (void)fd, (void)what;
    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->deadline == 0 || now < c->deadline) continue;
        c->deadline = 0;
        shutdown(c->fd, SHUT_RDWR);
    }
}

/* ---- bytes in and out ----------------------------------------------------------------------- */

static void scan_tail(struct conn *c, struct evbuffer *buffer, size_t n_added) {
    struct evbuffer_iovec pieces[16];
    struct evbuffer_ptr at;
    const size_t n = evbuffer_get_length(buffer);
    if (c->scan.over || n_added == 0 || n_added > n) return;
    evbuffer_ptr_set(buffer, &at, n - n_added, EVBUFFER_PTR_SET);
    int n_pieces = evbuffer_peek(buffer, (ev_ssize_t)n_added, &at, pieces, COUNT_OF(pieces));
    for (int i = 0; i < MIN(n_pieces, (int)COUNT_OF(pieces)); i++)
        gate_scan_bytes(&c->scan, pieces[i].iov_base, pieces[i].iov_len);
}

static void on_input(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *user) {
    struct conn *c = user;
    if (info->n_added == 0) return;
    if (c->state == IDLE) enter(c, HEADER);
    if (c->state != HEADER) return;
    scan_tail(c, buffer, info->n_added);
    if (c->scan.over) enter(c, BODY);
}

/* The client must take some of its unsent bytes in every stuck_s seconds. */
static void on_output(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *user) {
    struct conn *c = user;
    const size_t n = evbuffer_get_length(buffer);
    if (c->state != BUSY) return;
    if (info->n_deleted > 0 || info->orig_size == 0)
        c->deadline = n > 0 ? clock_s() + c->server->limits.stuck_s : 0;
    if (c->x && c->x->full && n <= c->server->limits.stream_cap / 2)
        event_active(c->server->resume, EV_TIMEOUT, 0);
}

static void on_resume(evutil_socket_t fd, short what, void *user) {
    struct http_server *s = user;
    (void)fd, (void)what;
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        struct http_exchange *x = c->x;
        if (!x || !x->full) continue;
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) > s->limits.stream_cap / 2)
            continue;
        x->full = false;
        s->handler.room(s->handler.user, x);
    }
}

/* ---- connections ---------------------------------------------------------------------------- */

static void forget_exchange(struct http_exchange *x) {
    if (x->conn) x->conn->x = NULL;
    evbuffer_free(x->out);
    free(x->path);
    free(x);
}

/* Connections beyond the maximum wait in the system's backlog. */
static void balance(struct http_server *s) {
    const bool pause = s->n_conns >= s->limits.max_connections;
    if (pause == s->paused || !s->listener) return;
    s->paused = pause;
    if (pause)
        evconnlistener_disable(s->listener);
    else
        evconnlistener_enable(s->listener);
}

static void on_closed(struct evhttp_connection *evcon, void *user) {
    struct conn *c = user;
    struct http_server *s = c->server;
    struct http_exchange *x = c->x;
    (void)evcon;
    evbuffer_remove_cb(bufferevent_get_input(c->bev), on_input, c);
    evbuffer_remove_cb(bufferevent_get_output(c->bev), on_output, c);
    event_free(c->hangup);
    if (x) {
        struct evhttp_request *req = x->req;
        s->handler.gone(s->handler.user, x);
        forget_exchange(x);
        /* A failed connection has released its request; a freed one frees it, too. */
        if (evhttp_request_get_connection(req) == NULL) evhttp_request_free(req);
    }
    if (c->next) c->next->before = c->before;
    *(c->before ? &c->before->next : &s->conns) = c->next;
    s->by_fd[c->fd] = NULL;
    s->n_conns--;
    free(c);
    balance(s);
}

/* evhttp accepts a connection and calls this for its bufferevent; adopt() finds the connection
 * later. */
static struct bufferevent *on_accept(struct event_base *base, void *user) {
    struct http_server *s = user;
    struct bufferevent *bev = bufferevent_socket_new(base, -1, 0);
    struct conn *c = bev ? calloc(1, sizeof *c) : NULL;
    if (!c) return bev;
    *c = (struct conn){.server = s, .bev = bev, .fd = -1, .next = s->fresh};
    s->fresh = c;
    s->n_conns++;
    balance(s); /* here, before the same callback accepts more */
    event_active(s->adopt, EV_TIMEOUT, 0);
    return bev;
}

/* The client left before it had its answer. */
static void on_hangup(evutil_socket_t fd, short what, void *user) {
    struct conn *c = user;
    (void)fd, (void)what;
    if (c->x) evhttp_connection_free(c->evcon);
}

/* Makes the table long enough for a descriptor. */
static bool room_for(struct http_server *s, size_t fd) {
    if (fd < s->n_by_fd) return true;
    const size_t n = 2 * fd + 64;
    struct conn **more = realloc(s->by_fd, n * sizeof(struct conn *));
    if (!more) return false;
    for (size_t i = s->n_by_fd; i < n; i++) more[i] = NULL;
    s->by_fd = more;
    s->n_by_fd = n;
    return true;
}

/* Finds the connection: it is the callback argument of a bufferevent that evhttp reads. */
static bool adopt(struct http_server *s, struct conn *c) {
    void *evcon = NULL;
    bufferevent_getcb(c->bev, NULL, NULL, NULL, &evcon);
    c->fd = bufferevent_getfd(c->bev);
    if (!evcon || c->fd < 0 || !room_for(s, (size_t)c->fd)) return false;
    c->hangup = event_new(s->base, c->fd, EV_CLOSED, on_hangup, c);
    if (!c->hangup) return false;
    c->evcon = evcon;
    c->next = s->conns;
    if (s->conns) s->conns->before = c;
    s->conns = s->by_fd[c->fd] = c;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    bufferevent_setwatermark(c->bev, EV_READ, 0, 2 * s->limits.max_body + 2 * MAX_HEADER_BYTES);
    evbuffer_add_cb(bufferevent_get_input(c->bev), on_input, c);
    evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c);
    evhttp_connection_set_closecb(evcon, on_closed, c);
    enter(c, IDLE);
    return true;
}

/* Runs in the same pass of the loop as the accept, before anything is read. */
static void on_adopt(evutil_socket_t fd, short what, void *user) {
    struct http_server *s = user;
    (void)fd, (void)what;
    while (s->fresh) {
        struct conn *c = s->fresh;
        s->fresh = c->next;
        if (adopt(s, c)) continue;
        free(c);
        s->n_conns--;
        balance(s);
    }
}

/* ---- requests ------------------------------------------------------------------------------- */

static struct conn *conn_of(struct http_server *s, struct evhttp_request *req) {
    struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    const int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(evcon));
    return fd >= 0 && (size_t)fd < s->n_by_fd ? s->by_fd[fd] : NULL;
}

static const char *check_head(struct evhttp_request *req) {
    struct gate_header headers[GATE_MAX_HEADERS + 1];
    struct gate_head head = {
        .major = req->major,
        .minor = req->minor,
        .target = evhttp_request_get_uri(req),
        .headers = headers,
    };
    for (struct evkeyval *h = evhttp_request_get_input_headers(req)->tqh_first;
         h && head.n_headers <= GATE_MAX_HEADERS; h = h->next.tqe_next)
        headers[head.n_headers++] = (struct gate_header){h->key, h->value};
    return gate_check(&head);
}

/* The answer is sent; bytes that the client has sent meanwhile are the next request. */
static void on_complete(struct evhttp_request *req, void *user) {
    struct conn *c = user;
    struct evbuffer *input = bufferevent_get_input(c->bev);
    const size_t n = evbuffer_get_length(input);
    (void)req;
    event_del(c->hangup);
    c->scan = (struct gate_scan){0};
    enter(c, n > 0 ? HEADER : IDLE);
    scan_tail(c, input, n);
    if (c->scan.over) enter(c, BODY);
}

static void check(struct conn *c, struct evhttp_request *req) {
    const size_t n = evbuffer_get_length(evhttp_request_get_input_buffer(req));
    c->refused = c->scan.bad ? c->scan.bad : check_head(req);
    c->too_large = !c->refused && n > c->server->limits.max_body;
    if (c->too_large) c->refused = "the body is too large";
}

static char *copy_path(struct evhttp_request *req) {
    const char *target = evhttp_request_get_uri(req);
    return target ? strndup(target, strcspn(target, "?")) : strdup("/");
}

static void on_request(struct evhttp_request *req, void *user) {
    struct http_server *s = user;
    struct conn *c = conn_of(s, req);
    struct http_exchange *x = calloc(1, sizeof *x);
    if (x) *x = (struct http_exchange){.req = req, .conn = c, .path = copy_path(req)};
    if (x) x->out = evbuffer_new();
    if (!c || !x || !x->path || !x->out) {
        if (x && x->out) evbuffer_free(x->out);
        if (x) free(x->path);
        free(x);
        evhttp_send_error(req, 503, NULL);
        return;
    }
    check(c, req);
    enter(c, BUSY);
    c->x = x;
    evhttp_request_set_on_complete_cb(req, on_complete, c);
    event_add(c->hangup, NULL);
    s->handler.request(s->handler.user, x);
}

const char *http_refused(const struct http_exchange *x, bool *too_large) {
    *too_large = x->conn->too_large;
    return x->conn->refused;
}

enum http_method http_method(const struct http_exchange *x) {
    switch (evhttp_request_get_command(x->req)) {
    case EVHTTP_REQ_GET: return HTTP_GET;
    case EVHTTP_REQ_POST: return HTTP_POST;
    case EVHTTP_REQ_HEAD: return HTTP_HEAD;
    case EVHTTP_REQ_OPTIONS: return HTTP_OPTIONS;
    default: return HTTP_OTHER;
    }
}

const char *http_method_text(const struct http_exchange *x) {
    static const struct {
        enum evhttp_cmd_type command;
        const char *text;
    } table[] = {{EVHTTP_REQ_GET, "GET"},       {EVHTTP_REQ_POST, "POST"},
                 {EVHTTP_REQ_HEAD, "HEAD"},     {EVHTTP_REQ_PUT, "PUT"},
                 {EVHTTP_REQ_DELETE, "DELETE"}, {EVHTTP_REQ_OPTIONS, "OPTIONS"},
                 {EVHTTP_REQ_TRACE, "TRACE"},   {EVHTTP_REQ_PATCH, "PATCH"}};
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].command == evhttp_request_get_command(x->req)) return table[i].text;
    return "?";
}

const char *http_path(const struct http_exchange *x) {
    return x->path;
}

const char *http_header(const struct http_exchange *x, const char *name) {
    return evhttp_find_header(evhttp_request_get_input_headers(x->req), name);
}

const char *http_body(struct http_exchange *x, size_t *n) {
    struct evbuffer *body = evhttp_request_get_input_buffer(x->req);
    *n = evbuffer_get_length(body);
    const unsigned char *bytes = *n ? evbuffer_pullup(body, -1) : NULL;
    if (!bytes) *n = 0;
    return bytes ? (const char *)bytes : "";
}

void http_set_user(struct http_exchange *x, void *user) {
    x->user = user;
}

void *http_user(const struct http_exchange *x) {
    return x->user;
}

/* ---- answers -------------------------------------------------------------------------------- */

void http_add_header(struct http_exchange *x, const char *name, const char *value) {
    evhttp_add_header(evhttp_request_get_output_headers(x->req), name, value);
}

static void add_common(struct http_exchange *x, const char *type) {
    if (type) http_add_header(x, "Content-Type", type);
    if (x->conn->refused || x->conn->server->draining) http_add_header(x, "Connection", "close");
}

/* Writes evhttp's output to the socket at once, as far as the system takes it; evhttp itself would
 * first wait for the loop to report the socket writable. evhttp's own event sends the rest. */
static void send_now(struct conn *c) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    evbuffer_unfreeze(out, 1);
    (void)evbuffer_write(out, c->fd);
    evbuffer_freeze(out, 1);
}

/* The answer to HEAD has the length of GET's body, and no body; evhttp writes the bytes that it is
 * given. */
static void add_body(struct http_exchange *x, const char *body, size_t n) {
    char length[24];
    if (http_method(x) != HTTP_HEAD) {
        evbuffer_add(x->out, body, n);
        return;
    }
    snprintf(length, sizeof length, "%zu", n);
    http_add_header(x, "Content-Length", length);
}

void http_reply(struct http_exchange *x, int status, const char *type, const char *body, size_t n) {
    struct evhttp_request *req = x->req;
    struct evbuffer *out = x->out;
    struct conn *c = x->conn;
    add_common(x, type);
    add_body(x, body, n);
    x->out = NULL;
    c->x = NULL;
    free(x->path);
    free(x);
    evhttp_send_reply(req, status, NULL, out);
    evbuffer_free(out);
    send_now(c);
}

/* HTTP/1.0 has no chunks: the end of the connection ends the body. A client that asks to keep the
 * connection would get evhttp's `Content-Length: 0`. */
static void end_by_close(struct http_exchange *x) {
    struct evkeyvalq *headers = evhttp_request_get_input_headers(x->req);
    while (evhttp_remove_header(headers, "Connection") == 0) continue;
    evhttp_remove_header(evhttp_request_get_output_headers(x->req), "Connection");
    http_add_header(x, "Connection", "close");
}

void http_stream_start(struct http_exchange *x, const char *type) {
    add_common(x, type);
    if (x->req->minor == 0) end_by_close(x);
    x->streaming = true;
    evhttp_send_reply_start(x->req, 200, NULL);
}

void http_stream_write(struct http_exchange *x, const char *bytes, size_t n) {
    if (n == 0) return;
    evbuffer_add(x->out, bytes, n);
    evhttp_send_reply_chunk(x->req, x->out);
    send_now(x->conn);
    evbuffer_drain(x->out, evbuffer_get_length(x->out));
}

bool http_stream_full(struct http_exchange *x) {
    const size_t n = evbuffer_get_length(bufferevent_get_output(x->conn->bev));
    x->full = n >= x->conn->server->limits.stream_cap;
    return x->full;
}

void http_stream_end(struct http_exchange *x) {
    struct evhttp_request *req = x->req;
    struct http_server *s = x->conn->server;
    const int fd = x->conn->fd;
    forget_exchange(x);
    evhttp_send_reply_end(req);
    /* Where the end of the connection ends the body, evhttp has freed the connection if all is
     * sent. */
    if (s->by_fd[fd]) send_now(s->by_fd[fd]);
}

/* ---- the server ----------------------------------------------------------------------------- */

static int bind_to(struct diag *d, struct http_server *s, const char *host, uint16_t port) {
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(s->http, host, port);
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t n = sizeof address;
    memset(&address, 0, sizeof address);
    if (!bound) return fail(d, QN_EIO, "%s:%u: %s", host, port, strerror(errno));
    s->listener = evhttp_bound_socket_get_listener(bound);
    const int fd = evhttp_bound_socket_get_fd(bound);
    if (listen(fd, BACKLOG) != 0 || getsockname(fd, &address.any, &n) != 0)
        return fail(d, QN_EIO, "%s:%u: %s", host, port, strerror(errno));
    const bool is_v6 = address.any.sa_family == AF_INET6;
    s->port = ntohs(is_v6 ? address.v6.sin6_port : address.v4.sin_port);
    return QN_OK;
}

static int set_up(struct diag *d, struct http_server *s, const char *host, uint16_t port) {
    const struct timeval every = {.tv_usec = SWEEP_MS * 1000};
    s->http = evhttp_new(s->base);
    s->sweep = event_new(s->base, -1, EV_PERSIST, on_sweep, s);
    s->resume = event_new(s->base, -1, 0, on_resume, s);
    s->adopt = event_new(s->base, -1, 0, on_adopt, s);
    if (!s->http || !s->sweep || !s->resume || !s->adopt)
        return fail_nomem(d, sizeof *s, "the HTTP server");
    evhttp_set_allowed_methods(
        s->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT |
                     EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE | EVHTTP_REQ_PATCH);
    evhttp_set_max_headers_size(s->http, MAX_HEADER_BYTES);
    /* evhttp reads up to twice the limit, so that the refusal can be in the API's format. */
    evhttp_set_max_body_size(s->http, (ev_ssize_t)(2 * s->limits.max_body));
    evhttp_set_timeout(s->http, NEVER_S);
    evhttp_set_gencb(s->http, on_request, s);
    evhttp_set_bevcb(s->http, on_accept, s);
    TRY(bind_to(d, s, host, port));
    return event_add(s->sweep, &every) == 0 ? QN_OK : fail_nomem(d, 0, "a timer");
}

int http_open(struct diag *d, struct event_base *base, const char *host, uint16_t port,
              const struct http_limits *limits, const struct http_handler *handler,
              struct http_server **server) {
    struct http_server *s = calloc(1, sizeof *s);
    *server = NULL;
    if (!s) return fail_nomem(d, sizeof *s, "the HTTP server");
    signal(SIGPIPE, SIG_IGN);
    s->base = base;
    s->limits = *limits;
    s->handler = *handler;
    int rc = set_up(d, s, host, port);
    if (rc != QN_OK)
        http_close(s);
    else
        *server = s;
    return rc;
}

void http_close(struct http_server *s) {
    if (!s) return;
    s->listener = NULL;
    if (s->http) evhttp_free(s->http);
    if (s->sweep) event_free(s->sweep);
    if (s->resume) event_free(s->resume);
    if (s->adopt) event_free(s->adopt);
    free(s->by_fd);
    free(s);
}

uint16_t http_port(const struct http_server *s) {
    return s->port;
}

uint32_t http_connections(const struct http_server *s) {
    return s->n_conns;
}

void http_drain(struct http_server *s) {
    s->draining = true;
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->state == IDLE) enter(c, IDLE);
}
