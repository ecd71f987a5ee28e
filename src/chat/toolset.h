/* toolset.h - the tools that a request offers to the model, read and bounded.
 *
 * The text is an array as /v1/chat/completions has it:
 *     [{"type": "function", "function": {"name", "description", "parameters": {JSON Schema}}}]
 */
#ifndef QN_CHAT_TOOLSET_H
#define QN_CHAT_TOOLSET_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    TOOLS_MAX = 256,
    TOOLS_BYTES = 1 << 20,
    TOOLS_DEPTH = 64, /* values inside each other */
    TOOL_NAME_MAX = 128,
};

struct tool {
    char name[TOOL_NAME_MAX + 1];
    const json_t *parameters; /* an object; NULL: the tool has none */
};

/* Starts as {0}. */
struct toolset {
    json_t *root; /* owns the parameters */
    struct tool *items;
    size_t n;
};

/* Errors: QN_EFORMAT and QN_EINVAL that begin with the path, "tools[2].function.name: ...";
 * QN_ELIMIT; QN_ENOMEM. */
int toolset_read(struct diag *d, const char *json, struct toolset *t);
void toolset_fini(struct toolset *t);

/* The tool with that name; NULL: there is none. */
const struct tool *toolset_find(const struct toolset *t, const char *name, size_t n);
/* Whether some tool's name begins with text[0, n). */
bool toolset_begins(const struct toolset *t, const char *text, size_t n);
/* The schema of a parameter; NULL: the tool does not describe it. */
const json_t *tool_property(const struct tool *tool, const char *name);

#endif
