#include "chat/toolset.h"

#include "base/checked.h"
#include "base/jsonio.h"

#include <stdlib.h>
#include <string.h>

/* Nesting depth of a text's brackets, found without a recursive parser. */
static size_t depth_of(const char *text) {
    size_t depth = 0, most = 0;
    bool in_string = false;
    for (; *text; text++) {
        if (in_string && *text == '\\' && text[1]) {
            text++;
            continue;
        }
        if (*text == '"') in_string = !in_string;
        if (in_string) continue;
        if (*text == '{' || *text == '[') depth++;
        most = MAX(most, depth);
        if ((*text == '}' || *text == ']') && depth > 0) depth--;
    }
    return most;
}

/* Letters, digits and the characters of namespaces: none that a form of calls uses. */
static bool is_name(const char *name, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char c = name[i];
        const bool plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && (c == '\0' || !strchr("_-.:/", c))) return false;
    }
    return n > 0 && n <= TOOL_NAME_MAX;
}

static int read_one(struct diag *d, const json_t *item, size_t i, struct toolset *t) {
    const json_t *function = json_object_get(item, "function");
    const json_t *given = json_object_get(function, "name");
    const char *name = json_string_value(given);
    const json_t *parameters = json_object_get(function, "parameters");
    if (!json_is_object(function))
        return fail(d, QN_EFORMAT, "tools[%zu].function: want an object", i);
    if (!name || !is_name(name, json_string_length(given)))
        return fail(d, QN_EINVAL,
                    "tools[%zu].function.name: want 1 to %d letters, digits and _ - . : /", i,
                    TOOL_NAME_MAX);
    if (toolset_find(t, name, strlen(name)))
        return fail(d, QN_EINVAL, "tools[%zu].function.name: '%s' is there twice", i, name);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return fail(d, QN_EFORMAT, "tools[%zu].function.parameters: want an object", i);
    const char *type = json_string_value(json_object_get(parameters, "type"));
    if (type && strcmp(type, "object") != 0)
        return fail(d, QN_EINVAL, "tools[%zu].function.parameters.type: want 'object'", i);
    struct tool *made = &t->items[t->n++];
    memcpy(made->name, name, strlen(name) + 1); /* is_name has bounded its length */
    made->parameters = json_is_object(parameters) ? parameters : NULL;
    return QN_OK;
}

static int read_root(struct diag *d, struct toolset *t) {
    const size_t n = json_array_size(t->root);
    if (!json_is_array(t->root)) return fail(d, QN_EFORMAT, "tools: want an array");
    if (n > TOOLS_MAX) return fail(d, QN_ELIMIT, "tools: want at most %d, have %zu", TOOLS_MAX, n);
    t->items = calloc(n + 1, sizeof *t->items);
    if (!t->items) return fail_nomem(d, n * sizeof *t->items, "the tools");
    for (size_t i = 0; i < n; i++) TRY(read_one(d, json_array_get(t->root, i), i, t));
    return QN_OK;
}

int toolset_read(struct diag *d, const char *json, struct toolset *t) {
    const size_t n = strlen(json);
    *t = (struct toolset){0};
    if (n > TOOLS_BYTES)
        return fail(d, QN_ELIMIT, "tools: want at most %d bytes, have %zu", TOOLS_BYTES, n);
    if (depth_of(json) > TOOLS_DEPTH)
        return fail(d, QN_ELIMIT, "tools: want at most %d values inside each other", TOOLS_DEPTH);
    int rc = jsonio_parse_unique(d, "tools", json, n, &t->root);
    if (rc == QN_OK) rc = read_root(d, t);
    if (rc != QN_OK) toolset_fini(t);
    return rc;
}

void toolset_fini(struct toolset *t) {
    free(t->items);
    json_decref(t->root);
    *t = (struct toolset){0};
}

const struct tool *toolset_find(const struct toolset *t, const char *name, size_t n) {
    for (size_t i = 0; i < t->n; i++)
        if (strlen(t->items[i].name) == n && memcmp(t->items[i].name, name, n) == 0)
            return &t->items[i];
    return NULL;
}

bool toolset_begins(const struct toolset *t, const char *text, size_t n) {
    for (size_t i = 0; i < t->n; i++)
        if (n <= strlen(t->items[i].name) && memcmp(t->items[i].name, text, n) == 0) return true;
    return false;
}

const json_t *tool_property(const struct tool *tool, const char *name) {
    return json_object_get(json_object_get(tool->parameters, "properties"), name);
}
