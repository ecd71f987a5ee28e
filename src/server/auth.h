/* auth.h - whether a request brings a key: "Authorization: Bearer KEY", "x-api-key: KEY", or, for
 * browsers, "Authorization: Basic" with the key for a password. */
#ifndef QN_SERVER_AUTH_H
#define QN_SERVER_AUTH_H

#include "server/http.h"

/* Also true where there are no keys. */
bool auth_passes(const struct http_exchange *x, const char *const *keys, size_t n_keys);

#endif
