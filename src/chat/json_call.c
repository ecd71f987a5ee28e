#include "chat/json_call.h"

#include "chat/tool_form.h"

#include <string.h>

bool nesting_read(struct nesting *n, char byte) {
    if (n->escaped) {
        n->escaped = false;
    } else if (n->in_string) {
        n->escaped = byte == '\\';
        n->in_string = byte != '"';
    } else if (byte == '"') {
        n->in_string = true;
    } else if (byte == '{' || byte == '[') {
        n->depth++;
    } else if (byte == '}' || byte == ']') {
        return --n->depth == 0;
    }
    return false;
}

void json_call_clear(struct json_call *j) {
    struct json_call kept = {.key = j->key, .name = j->name, .early = j->early};
    strbuf_clear(&kept.key);
    strbuf_clear(&kept.name);
    strbuf_clear(&kept.early);
    *j = kept;
}

void json_call_fini(struct json_call *j) {
    strbuf_fini(&j->key);
    strbuf_fini(&j->name);
    strbuf_fini(&j->early);
}

static bool is_key(const struct json_call *j, const char *key) {
    return j->key.n == strlen(key) && memcmp(j->key.text, key, j->key.n) == 0;
}

static enum call_step go(struct json_call *j, enum json_call_state state) {
    j->state = state;
    return CALL_GOES_ON;
}

/* The name is complete: it must be that of a tool. */
static enum call_step take_name(struct call_reader *c) {
    struct json_call *j = &c->json;
    const struct tool *tool = toolset_find(call_tools(c), strbuf_text(&j->name), j->name.n);
    if (!tool) return CALL_IS_NOT;
    j->has_name = true;
    if (j->has_arguments) {
        call_begin(c, tool);
        call_arguments(c, strbuf_text(&j->early), j->early.n);
    }
    return go(j, JSON_COMMA);
}

static enum call_step read_name(struct call_reader *c, char byte) {
    struct json_call *j = &c->json;
    if (byte == '"') return take_name(c);
    strbuf_char(&j->name, byte);
    return toolset_begins(call_tools(c), j->name.text, j->name.n) ? CALL_GOES_ON : CALL_IS_NOT;
}

static enum call_step begin_arguments(struct call_reader *c) {
    struct json_call *j = &c->json;
    j->has_arguments = true;
    j->nesting = (struct nesting){.depth = 1};
    if (j->has_name) {
        call_begin(c, toolset_find(call_tools(c), strbuf_text(&j->name), j->name.n));
        call_arguments(c, "{", 1);
    } else {
        strbuf_char(&j->early, '{');
    }
    return go(j, JSON_IN_ARGUMENTS);
}

static enum call_step read_arguments(struct call_reader *c, char byte) {
    struct json_call *j = &c->json;
    if (c->tool)
        call_arguments(c, &byte, 1);
    else
        strbuf_char(&j->early, byte);
    if (j->early.n > JSON_CALL_EARLY_MAX) return CALL_IS_NOT;
    return nesting_read(&j->nesting, byte) ? go(j, JSON_COMMA) : CALL_GOES_ON;
}

static enum call_step begin_value(struct call_reader *c, char byte) {
    struct json_call *j = &c->json;
    const bool arguments = is_key(j, "arguments") || is_key(j, "parameters");
    if (is_key(j, "name") && !j->has_name) return byte == '"' ? go(j, JSON_IN_NAME) : CALL_IS_NOT;
    if (arguments && !j->has_arguments) return byte == '{' ? begin_arguments(c) : CALL_IS_NOT;
    j->nesting = (struct nesting){0};
    nesting_read(&j->nesting, byte);
    if (byte == '}' || byte == ']' || byte == ',') return CALL_IS_NOT;
    return go(j, byte == '"' || byte == '{' || byte == '[' ? JSON_IN_OTHER : JSON_IN_SCALAR);
}

/* The object ends: without arguments it is a call, too. */
static enum call_step finish(struct call_reader *c) {
    struct json_call *j = &c->json;
    if (!j->has_name) return CALL_IS_NOT;
    if (!j->has_arguments) {
        call_begin(c, toolset_find(call_tools(c), strbuf_text(&j->name), j->name.n));
        call_arguments(c, "{}", 2);
    }
    return CALL_ENDS;
}

static enum call_step read_key(struct json_call *j, char byte) {
    if (byte == '"') return go(j, JSON_COLON);
    strbuf_char(&j->key, byte);
    return j->key.n > JSON_CALL_KEY_MAX || byte == '\\' ? CALL_IS_NOT : CALL_GOES_ON;
}

static enum call_step read_other(struct json_call *j, char byte) {
    const bool closed = nesting_read(&j->nesting, byte);
    const bool ends = closed || (j->nesting.depth == 0 && !j->nesting.in_string);
    return ends ? go(j, JSON_COMMA) : CALL_GOES_ON;
}

static enum call_step read_comma(struct call_reader *c, char byte) {
    if (byte == '}') return finish(c);
    return byte == ',' ? go(&c->json, JSON_KEY) : CALL_IS_NOT;
}

static enum call_step read(struct call_reader *c, char byte) {
    struct json_call *j = &c->json;
    const bool between = j->state <= JSON_KEY || j->state == JSON_COLON || j->state == JSON_VALUE ||
                         j->state == JSON_COMMA;
    if (between && is_space(byte)) return CALL_GOES_ON;
    switch (j->state) {
    case JSON_OPEN: return byte == '{' ? go(j, JSON_KEY) : CALL_IS_NOT;
    case JSON_KEY: strbuf_clear(&j->key); return byte == '"' ? go(j, JSON_IN_KEY) : CALL_IS_NOT;
    case JSON_IN_KEY: return read_key(j, byte);
    case JSON_COLON: return byte == ':' ? go(j, JSON_VALUE) : CALL_IS_NOT;
    case JSON_VALUE: return begin_value(c, byte);
    case JSON_IN_NAME: return read_name(c, byte);
    case JSON_IN_ARGUMENTS: return read_arguments(c, byte);
    case JSON_IN_OTHER: return read_other(j, byte);
    case JSON_IN_SCALAR:
        if (byte == ',' || byte == '}' || is_space(byte)) {
            j->state = JSON_COMMA;
            return is_space(byte) ? CALL_GOES_ON : read_comma(c, byte);
        }
        return strchr("\"{[]:", byte) ? CALL_IS_NOT : CALL_GOES_ON;
    case JSON_COMMA: return read_comma(c, byte);
    }
    return CALL_IS_NOT;
}

enum call_step call_json(struct call_reader *c, char byte) {
    const enum call_step step = read(c, byte);
    /* After its arguments a call is certain, whatever follows. */
    return step == CALL_IS_NOT && c->tool ? CALL_ENDED : step;
}
