/* cors.c - see cors.h. */
#include "server/cors.h"

#include <string.h>

#define MAX_AGE "600" /* seconds for which a browser remembers a preflight's answer */

/* The origin as Access-Control-Allow-Origin has it; NULL: not allowed. */
static const char *allowed(const struct call *c) {
    const struct server_params *p = c->server->params;
    const char *origin = http_header(c->x, "Origin");
    for (size_t i = 0; i < p->n_origins; i++) {
        if (strcmp(p->origins[i], "*") == 0) return "*";
        if (origin && strcmp(p->origins[i], origin) == 0) return origin;
    }
    return NULL;
}

bool cors_preflight(struct call *c) {
    const bool asks = http_method(c->x) == HTTP_OPTIONS && http_header(c->x, "Origin") &&
                      http_header(c->x, "Access-Control-Request-Method");
    const char *wanted = http_header(c->x, "Access-Control-Request-Headers");
    if (!asks || !allowed(c)) return false;
    call_add_headers(c);
    http_add_header(c->x, "Access-Control-Allow-Methods", "GET, HEAD, POST");
    if (wanted) http_add_header(c->x, "Access-Control-Allow-Headers", wanted);
    http_add_header(c->x, "Access-Control-Max-Age", MAX_AGE);
    http_reply(c->x, 204, NULL, "", 0);
    c->x = NULL;
    call_free(c);
    return true;
}

void cors_add_headers(struct call *c) {
    const char *origin = allowed(c);
    if (c->server->params->n_origins == 0) return;
    http_add_header(c->x, "Vary", "Origin");
    if (!origin) return;
    http_add_header(c->x, "Access-Control-Allow-Origin", origin);
    http_add_header(c->x, "Access-Control-Expose-Headers", "x-quern-ignored, x-request-id");
}
