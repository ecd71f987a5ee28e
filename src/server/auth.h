/* auth.h - whether a request brings a key: "Authorization: Bearer KEY", "x-api-key: KEY", or, for
 * browsers, "Authorization: Basic" with the key for a password. */
#ifndef QN_SERVER_AUTH_H
#define QN_SERVER_AUTH_H

#include "server/http.h"

enum { AUTH_NO_KEYS = -1, AUTH_REFUSED = -2 };

/* The index in keys of the request's key, AUTH_NO_KEYS if n_keys is 0, or AUTH_REFUSED. Where a
 * request has both headers, one right key is enough. */
int auth_key(const struct http_exchange *x, const char *const *keys, size_t n_keys);

#endif
