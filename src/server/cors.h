/* cors.h - which pages of other origins may read the server's answers in a browser
 * (--allowed-origins).
 *
 * Before a browser sends a request with JSON or a key for such a page, it asks with OPTIONS,
 * without the key: the preflight. Without the option nothing here adds anything.
 */
#ifndef QN_SERVER_CORS_H
#define QN_SERVER_CORS_H

#include "server/state.h"

/* Answers the call if it is a preflight of an allowed origin; false: it is not. */
bool cors_preflight(struct call *c);
/* Adds the headers by which a browser passes the answer on to the page. */
void cors_add_headers(struct call *c);

#endif
