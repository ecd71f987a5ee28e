#include "model/component.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 8 }; /* Sequences inside Sequences */

struct component component_inside(const struct component *at, const char *key, size_t idx) {
    struct component member = {.t = at->t, .file = at->file, .depth = at->depth + 1};
    snprintf(member.field, sizeof member.field, "%.116s.%.20s[%zu]", at->field, key, idx);
    return member;
}

int component_unsupported(struct diag *d, const struct component *at, const char *what,
                          const char *value) {
    return fail(d, QN_EUNSUPPORTED, "%s: %s%s: '%.60s' is not supported", at->file, at->field, what,
                value);
}

int component_bool(struct diag *d, const struct component *at, const json_t *o, const char *key,
                   bool fallback, bool *out) {
    char file[400];
    snprintf(file, sizeof file, "%.220s: %s", at->file, at->field);
    return jsonio_bool(d, file, o, key, fallback, out);
}

int component_text(struct diag *d, const struct component *at, const json_t *o, const char *key,
                   const char *fallback, const char **out, size_t *n) {
    const json_t *v = json_object_get(o, key);
    char *copy;
    if ((v == NULL || json_is_null(v)) && fallback != NULL) {
        TRY(arena_strdup(d, &at->t->arena, fallback, &copy));
        *n = strlen(fallback);
    } else if (!json_is_string(v)) {
        return fail(d, QN_EFORMAT, "%s: %s.%s: want a string", at->file, at->field, key);
    } else {
        *n = json_string_length(v);
        if (*n > COMPONENT_MAX_TEXT)
            return fail(d, QN_ELIMIT, "%s: %s.%s: want at most %d bytes, have %zu", at->file,
                        at->field, key, COMPONENT_MAX_TEXT, *n);
        TRY(arena_copy(d, &at->t->arena, json_string_value(v), *n, &copy));
    }
    *out = copy;
    return QN_OK;
}

int component_type(struct diag *d, const struct component *at, const json_t *o, const char **type) {
    if (!json_is_object(o))
        return fail(d, QN_EFORMAT, "%s: %s: want an object or null", at->file, at->field);
    if (at->depth > MAX_DEPTH)
        return fail(d, QN_ELIMIT, "%s: %s: nested too deep", at->file, at->field);
    *type = json_string_value(json_object_get(o, "type"));
    if (*type == NULL)
        return fail(d, QN_EFORMAT, "%s: %s.type: want a string", at->file, at->field);
    return QN_OK;
}

int component_sequence(struct diag *d, const struct component *at, const json_t *o, const char *key,
                       int (*parse)(struct diag *, const struct component *, const json_t *)) {
    const json_t *list = json_object_get(o, key), *member;
    size_t i;
    if (!json_is_array(list))
        return fail(d, QN_EFORMAT, "%s: %s.%s: want an array", at->file, at->field, key);
    json_array_foreach(list, i, member) {
        struct component m = component_inside(at, key, i);
        TRY(parse(d, &m, member));
    }
    return QN_OK;
}
