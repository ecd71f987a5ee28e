/* json_call.h - a call as a JSON object, {"name": "f", "arguments": {...}}, byte by byte.
 *
 * The object's keys may have any order. "parameters" is another name for "arguments"; other keys
 * are skipped. The arguments are passed on as they arrive, once the name is known.
 */
#ifndef QN_CHAT_JSON_CALL_H
#define QN_CHAT_JSON_CALL_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* Nesting depth of a JSON value whose content is not looked at. Starts as {0}. */
struct nesting {
    uint64_t depth;
    bool in_string, escaped;
};

/* Reads one byte; returns whether it closes the outermost bracket. */
bool nesting_read(struct nesting *n, char byte);

enum json_call_state {
    JSON_OPEN,
    JSON_KEY,
    JSON_IN_KEY,
    JSON_COLON,
    JSON_VALUE,
    JSON_IN_NAME,
    JSON_IN_ARGUMENTS,
    JSON_IN_OTHER,
    JSON_IN_SCALAR,
    JSON_COMMA,
};

enum { JSON_CALL_KEY_MAX = 64, JSON_CALL_EARLY_MAX = 64 << 10 };

/* Starts as {0}. */
struct json_call {
    enum json_call_state state;
    struct nesting nesting;
    struct strbuf key, name;
    struct strbuf early; /* arguments that came before the name */
    bool has_name, has_arguments;
};

void json_call_clear(struct json_call *j);
void json_call_fini(struct json_call *j);

#endif
