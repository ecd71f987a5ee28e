#include "server/chat_use.h"

#include "base/checked.h"
#include "server/gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct call *c;
    struct problem *p;
    const struct fields *f;
    struct chat_use *u;
};

static bool is(const json_t *v, const char *text) {
    return json_string_length(v) == strlen(text) && strcmp(json_string_value(v), text) == 0;
}

static int no_memory(struct reader *r) {
    return problem_set(r->p, PROBLEM_INTERNAL, NULL, "out of memory");
}

/* ---- tools ---------------------------------------------------------------------------------- */

/* One API's words for a tool: where its members are, and the name of its parameters. */
struct tool_words {
    const char *inside; /* the object that has name and parameters; NULL: the tool itself */
    const char *parameters;
    const char *type;   /* the `type` of a tool that is a function ... */
    bool may_have_none; /* ... which may be missing */
    bool skips;         /* tools of other types are left out, not refused */
};

static const struct tool_words chat_words = {"function", "parameters", "function", true, false};
static const struct tool_words messages_words = {NULL, "input_schema", "custom", true, true};
static const struct tool_words responses_words = {NULL, "parameters", "function", false, true};

static const struct tool_words *words_of(const struct reader *r) {
    if (r->c->route->api & RESPONSES) return &responses_words;
    return r->c->route->api & (MESSAGES | COUNT) ? &messages_words : &chat_words;
}

/* Bounds the size of the tools before anything else is made of them. */
static int write_tool(struct reader *r, const json_t *tool) {
    struct strbuf *b = &r->u->tools_text;
    char *text = json_dumps(tool, JSON_COMPACT);
    if (!text) return no_memory(r);
    strbuf_char(b, b->n ? ',' : '[');
    strbuf_str(b, text);
    free(text);
    if (b->n < CHAT_USE_TOOLS_BYTES) return QN_OK;
    return problem_set(r->p, PROBLEM_VALUE, "tools", "tools: want at most %d bytes",
                       CHAT_USE_TOOLS_BYTES);
}

static int add_tool(struct reader *r, const json_t *of, const char *path,
                    const struct tool_words *w) {
    char at[96];
    const json_t *name = json_object_get(of, "name");
    json_t *words = json_object_get(of, "description");
    json_t *parameters = json_object_get(of, w->parameters);
    snprintf(at, sizeof at, "%s.name", path);
    if (!json_is_string(name))
        return problem_set(r->p, PROBLEM_MISSING, at, "%s: is missing, or no text", at);
    snprintf(at, sizeof at, "%s.description", path);
    if (words && !json_is_string(words) && !json_is_null(words))
        return problem_set(r->p, PROBLEM_TYPE, at, "%s: want a string", at);
    snprintf(at, sizeof at, "%s.%s", path, w->parameters);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return problem_set(r->p, PROBLEM_TYPE, at, "%s: want an object", at);
    json_t *function = json_pack("{s:O}", "name", name);
    if (json_is_string(words)) json_object_set(function, "description", words);
    if (json_is_object(parameters))
        json_object_set(function, "parameters", parameters);
    else
        json_object_set_new(function, "parameters",
                            json_pack("{s:s, s:{}}", "type", "object", "properties"));
    json_t *tool = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (!tool || json_array_append_new(r->u->tools, tool) != 0) return no_memory(r);
    return write_tool(r, tool);
}

static int read_tool(struct reader *r, const json_t *tool, size_t i) {
    const struct tool_words *w = words_of(r);
    const json_t *type = json_object_get(tool, "type");
    const json_t *of = w->inside ? json_object_get(tool, w->inside) : tool;
    char path[64];
    snprintf(path, sizeof path, "tools[%zu]", i);
    if (!json_is_object(tool))
        return problem_set(r->p, PROBLEM_TYPE, path, "%s: want an object", path);
    const bool missing = !type || json_is_null(type);
    if (!is(type, w->type) && !(missing && w->may_have_none)) {
        snprintf(path, sizeof path, "tools[%zu].type", i);
        if (!w->skips || !json_is_string(type))
            return problem_set(r->p, PROBLEM_UNSUPPORTED, path, "%s: want '%s'", path, w->type);
        if (r->c->ignored.n < 512)
            strbuf_printf(&r->c->ignored, "%stools[%zu]", r->c->ignored.n ? ", " : "", i);
        return QN_OK;
    }
    if (w->inside) snprintf(path, sizeof path, "tools[%zu].%s", i, w->inside);
    if (!json_is_object(of))
        return problem_set(r->p, PROBLEM_TYPE, path, "%s: want an object", path);
    return add_tool(r, of, path, w);
}

static int read_tools(struct reader *r) {
    const json_t *tools = r->f->value[F_TOOLS];
    if (json_array_size(tools) == 0) return QN_OK;
    r->u->tools = json_array();
    if (!r->u->tools) return no_memory(r);
    for (size_t i = 0; i < json_array_size(tools); i++)
        TRY(read_tool(r, json_array_get(tools, i), i));
    strbuf_char(&r->u->tools_text, ']');
    if (json_array_size(r->u->tools) > 0) return QN_OK;
    json_decref(r->u->tools);
    r->u->tools = NULL;
    return QN_OK;
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* The names of a choice: a word in OpenAI's APIs, a type in Anthropic's. */
static const struct {
    const char *word, *type;
    enum tool_choice choice;
} choices[] = {
    {"auto", "auto", TOOLS_AUTO},
    {"none", "none", TOOLS_NONE},
    {"required", "any", TOOLS_REQUIRED},
};

static int name_tool(struct reader *r, const json_t *name) {
    if (!json_is_string(name))
        return problem_set(r->p, PROBLEM_MISSING, "tool_choice.name",
                           "tool_choice: want the name of a tool");
    r->u->choice = TOOLS_REQUIRED;
    r->u->parallel = false;
    r->u->named = json_string_value(name);
    for (size_t i = 0; i < json_array_size(r->u->tools); i++) {
        const json_t *tool = json_object_get(json_array_get(r->u->tools, i), "function");
        if (json_equal(json_object_get(tool, "name"), name)) return QN_OK;
    }
    return problem_set(r->p, PROBLEM_VALUE, "tool_choice.name",
                       "tool_choice: '%.60s' is none of the tools", r->u->named);
}

static int read_choice(struct reader *r) {
    const json_t *v = r->f->value[F_TOOL_CHOICE];
    const json_t *type = json_object_get(v, "type");
    const bool is_anthropic = words_of(r) == &messages_words;
    r->u->parallel = fields_bool(r->f, F_PARALLEL_TOOLS, true) &&
                     !json_is_true(json_object_get(v, "disable_parallel_tool_use"));
    if (!v) return QN_OK;
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        if (!(is_anthropic ? is(type, choices[i].type) : is(v, choices[i].word))) continue;
        r->u->choice = choices[i].choice;
        if (r->u->choice != TOOLS_REQUIRED || r->u->tools) return QN_OK;
        return problem_set(r->p, PROBLEM_VALUE, "tool_choice",
                           "tool_choice: has no meaning without tools");
    }
    if (is_anthropic ? is(type, "tool") : is(type, "function")) {
        const char *inside = words_of(r)->inside;
        return name_tool(r, json_object_get(inside ? json_object_get(v, inside) : v, "name"));
    }
    return problem_set(r->p, PROBLEM_UNSUPPORTED, "tool_choice", "tool_choice: want %s",
                       is_anthropic ? "a type of auto, any, none or tool"
                                    : "auto, none, required or a function");
}

/* ---- thoughts ------------------------------------------------------------------------------- */

/* Sets a variable of the template, unless the request sets it itself. */
static int set_variable(struct reader *r, const char *name, json_t *value) {
    if (!r->u->kwargs) r->u->kwargs = json_object();
    if (json_object_get(r->u->kwargs, name)) {
        json_decref(value);
        return QN_OK;
    }
    return json_object_set_new(r->u->kwargs, name, value) == 0 ? QN_OK : no_memory(r);
}

/* Templates have different names for the switch. */
static int switch_thoughts(struct reader *r, bool on) {
    TRY(set_variable(r, "enable_thinking", json_boolean(on)));
    return set_variable(r, "thinking", json_boolean(on));
}

static int set_effort(struct reader *r, const json_t *effort, const char *param) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    size_t i = 0;
    if (!effort || json_is_null(effort)) return QN_OK;
    while (i < COUNT_OF(efforts) && !is(effort, efforts[i])) i++;
    if (i == COUNT_OF(efforts))
        return problem_set(r->p, PROBLEM_VALUE, param,
                           "%s: want none, minimal, low, medium, high, xhigh or max", param);
    if (i == 0) TRY(switch_thoughts(r, false));
    return set_variable(r, "reasoning_effort", json_incref((json_t *)effort));
}

/* Anthropic's. */
static int read_thinking(struct reader *r, const json_t *v) {
    const json_t *type = json_object_get(v, "type"), *budget = json_object_get(v, "budget_tokens");
    if (!v) return QN_OK;
    if (is(type, "disabled")) return switch_thoughts(r, false);
    if (!is(type, "enabled") && !is(type, "adaptive"))
        return problem_set(r->p, PROBLEM_VALUE, "thinking.type",
                           "thinking.type: want enabled, disabled or adaptive");
    if (budget && !(json_is_integer(budget) && json_integer_value(budget) >= 0))
        return problem_set(r->p, PROBLEM_VALUE, "thinking.budget_tokens",
                           "thinking.budget_tokens: want a whole number from 0");
    if (budget) r->u->budget = json_integer_value(budget);
    return is(type, "enabled") ? switch_thoughts(r, true) : QN_OK;
}

static int read_thoughts(struct reader *r) {
    const json_t *reasoning = r->f->value[F_REASONING];
    r->u->parts_thoughts = fields_bool(r->f, F_SEPARATE_REASONING, true);
    r->u->shows_thoughts = fields_bool(r->f, F_INCLUDE_REASONING, true);
    r->u->budget = fields_int(r->f, F_THINKING_BUDGET, -1);
    TRY(set_effort(r, r->f->value[F_EFFORT], "reasoning_effort"));
    TRY(set_effort(r, json_object_get(reasoning, "effort"), "reasoning.effort"));
    TRY(set_effort(r, json_object_get(r->f->value[F_OUTPUT_CONFIG], "effort"),
                   "output_config.effort"));
    return read_thinking(r, r->f->value[F_THINKING]);
}

/* ---- all of it ------------------------------------------------------------------------------ */

int chat_use_read(struct call *c, struct chat_use *u) {
    struct reader r = {c, &c->problem, &c->fields, u};
    const json_t *kwargs = c->fields.value[F_KWARGS];
    *u = (struct chat_use){.kwargs = kwargs ? json_copy((json_t *)kwargs) : NULL};
    if (kwargs && !u->kwargs) return no_memory(&r);
    TRY(read_tools(&r));
    TRY(read_choice(&r));
    return read_thoughts(&r);
}

void chat_use_free(struct chat_use *u) {
    json_decref(u->tools);
    json_decref(u->kwargs);
    strbuf_fini(&u->tools_text);
    *u = (struct chat_use){0};
}

int chat_use_work(struct call *c, const struct format *format, chat_read_fn *read) {
    struct chat_use use = {0};
    char *text = NULL;
    TRY(gen_new(c, format));
    int rc = chat_use_read(c, &use);
    if (rc == QN_OK) rc = read(c->gen, &use, &text);
    chat_use_free(&use);
    qn_free(text);
    return rc;
}
