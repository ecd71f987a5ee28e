/* http_gate.h - the checks that a request must pass before anything looks at its path.
 *
 * The HTTP library is lenient, and a proxy in front may read the same bytes in another way: two
 * readings are how one client's bytes become another client's request. The gate takes one reading:
 * lines end in CR LF; header names are tokens; there is one Host; the body's length is given once,
 * by digits or by "chunked"; the path is ASCII in origin form, without an escaped NUL. Anything
 * else is refused and its connection closed.
 */
#ifndef QN_SERVER_HTTP_GATE_H
#define QN_SERVER_HTTP_GATE_H

#include <stdbool.h>
#include <stddef.h>

/* ---- bytes, as they arrive ------------------------------------------------------------------ */

/* Follows the header's bytes up to the empty line. */
struct gate_scan {
    bool over;       /* has seen the empty line */
    bool started;    /* has seen a byte */
    const char *bad; /* what is wrong with a byte; NULL: nothing */
    char before[3];  /* the last bytes, newest first */
};

/* Takes the next bytes; those after the empty line are not looked at. */
void gate_scan_bytes(struct gate_scan *s, const char *bytes, size_t n);

/* ---- the header, as it was parsed ----------------------------------------------------------- */

enum { GATE_MAX_HEADERS = 128 };

struct gate_header {
    const char *name, *value;
};

struct gate_head {
    int major, minor;
    const char *target; /* "/v1/models?x=1", as sent */
    const struct gate_header *headers;
    size_t n_headers;
};

/* NULL: the request passes; else what is wrong with it, as one static line. */
const char *gate_check(const struct gate_head *h);

#endif
