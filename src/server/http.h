/* http.h - the seam to the HTTP library: the one file behind it is http_evhttp.c.
 *
 * An exchange is one request and its answer. The layer reads a request, checks it against the gate
 * (http_gate.h) and the limits below, and passes it to the handler whole. The handler answers at
 * once or later, in one piece or as a stream. All calls are on the event loop's thread.
 *
 *   handler.request(x) ──► http_reply(x)                                    x is gone
 *                     └──► http_stream_start(x) ─► http_stream_write(x) ... http_stream_end(x)
 *   handler.gone(x)        the client left first; x is gone when the call returns
 *   handler.room(x)        a stream that was full has room again
 *
 * A connection is in one state, and each state has its own deadline. Bytes that trickle in do not
 * move the deadline:
 *
 *   idle ─ first byte ─► header ─ all lines ─► body ─ last byte ─► busy ─ answer sent ─► idle
 *
 * Requests on one connection are answered one after the other.
 */
#ifndef QN_SERVER_HTTP_H
#define QN_SERVER_HTTP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;
struct http_server;
struct http_exchange;

struct http_limits {
    uint64_t max_body;        /* bytes */
    uint32_t max_connections; /* more of them wait in the system's backlog */
    uint32_t idle_s, header_s, body_s;
    uint32_t stuck_s;    /* an answer ends if its client takes none of it for so long */
    uint32_t stream_cap; /* unsent bytes from which on a stream is full */
};

enum http_method { HTTP_GET, HTTP_POST, HTTP_HEAD, HTTP_OPTIONS, HTTP_OTHER };

struct http_handler {
    void *user;
    void (*request)(void *user, struct http_exchange *x);
    void (*gone)(void *user, struct http_exchange *x);
    void (*room)(void *user, struct http_exchange *x);
};

/* Listens; port 0 takes a free one. The handler and the base must outlive the server. Errors:
 * QN_EIO (address in use, ...), QN_ENOMEM. */
int http_open(struct diag *d, struct event_base *base, const char *host, uint16_t port,
              const struct http_limits *limits, const struct http_handler *handler,
              struct http_server **server);
/* Every exchange must be gone. NULL is allowed. */
void http_close(struct http_server *s);
uint16_t http_port(const struct http_server *s);
uint32_t http_connections(const struct http_server *s);
/* From now on every answer closes its connection, and idle connections close. */
void http_drain(struct http_server *s);

/* ---- a request; strings live until the exchange is gone ------------------------------------- */

/* Why the gate or a limit refuses the request; NULL: not refused. The answer to a refused request
 * closes the connection, and nothing else of the request may be used. */
const char *http_refused(const struct http_exchange *x, bool *too_large);
enum http_method http_method(const struct http_exchange *x);
const char *http_method_text(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x); /* as sent, without the query */
/* The header's value; NULL: there is none. */
const char *http_header(const struct http_exchange *x, const char *name);
/* The body's bytes, not ended by a NUL; valid until the handler returns. */
const char *http_body(struct http_exchange *x, size_t *n);

/* The handler's own pointer. */
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);

/* ---- its answer ----------------------------------------------------------------------------- */

/* Adds a header to the answer, before it is sent. */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
/* type: of the body; NULL: there is none. */
void http_reply(struct http_exchange *x, int status, const char *type, const char *body, size_t n);
void http_stream_start(struct http_exchange *x, const char *type);
void http_stream_write(struct http_exchange *x, const char *bytes, size_t n);
/* Whether stream_cap bytes are unsent, so that the handler should write no more now. */
bool http_stream_full(struct http_exchange *x);
void http_stream_end(struct http_exchange *x);

#endif
