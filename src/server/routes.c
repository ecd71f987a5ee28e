/* routes.c - see routes.h. */
#include "server/routes.h"
#include "server/formats.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

const struct route route_table[] = {
#define ROUTE(method, path, is_public, api, dialect, work, answer, about)                          \
    {path, HTTP_##method, DIALECT_##dialect, api, is_public, work, answer, about},
#include "server/routes.def"
#undef ROUTE
};
const size_t route_count = COUNT_OF(route_table);

/* Whether the path is the route's. A last part in braces matches any part that is not empty. */
static bool matches(const struct route *r, const char *path, const char **rest) {
    const size_t fixed = strcspn(r->path, "{");
    *rest = path + strnlen(path, fixed);
    if (strncmp(r->path, path, fixed) != 0) return false;
    return r->path[fixed] ? path[fixed] != '\0' : path[fixed] == '\0';
}

const struct route *routes_find(enum http_method method, const char *path, const char **rest,
                                enum problem_kind *kind, char allow[64]) {
    const enum http_method wanted = method == HTTP_HEAD ? HTTP_GET : method;
    *kind = PROBLEM_ROUTE;
    allow[0] = '\0';
    for (size_t i = 0; i < route_count; i++) {
        if (!matches(&route_table[i], path, rest)) continue;
        if (route_table[i].method == wanted) return &route_table[i];
        *kind = PROBLEM_METHOD;
        snprintf(allow, 64, "%s", route_table[i].method == HTTP_GET ? "GET, HEAD" : "POST");
    }
    return NULL;
}
