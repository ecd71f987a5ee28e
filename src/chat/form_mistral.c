/* form_mistral.c - Mistral, a list, and in newer models a name and its arguments:
 *
 *     [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {...}]
 *     [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]...
 *
 * Both are read alike; a template with [ARGS] has the second.
 */
#include "chat/tool_form.h"

#include <string.h>

enum {
    FIRST,
    IN_LIST,
    BEHIND_ITEM,
    IN_OBJECT,
    IN_NAME,
    IN_TAG,
    IN_ID,
    BEFORE_ARGUMENTS,
    IN_ARGUMENTS
};
enum { ID_MAX = 64 };

static enum call_step go(struct call_reader *c, int state) {
    c->state = state;
    return CALL_GOES_ON;
}

static enum call_step begin_arguments(struct call_reader *c) {
    const struct tool *tool = toolset_find(call_tools(c), strbuf_text(&c->name), c->name.n);
    if (!tool) return CALL_IS_NOT;
    call_begin(c, tool);
    call_arguments(c, "{", 1);
    c->nesting = (struct nesting){.depth = 1};
    return go(c, IN_ARGUMENTS);
}

static enum call_step read_name(struct call_reader *c, char byte) {
    if (byte == '{') return begin_arguments(c);
    if (byte == '[') {
        strbuf_clear(&c->word);
        return go(c, IN_TAG);
    }
    strbuf_char(&c->name, byte);
    return toolset_begins(call_tools(c), c->name.text, c->name.n) ? CALL_GOES_ON : CALL_IS_NOT;
}

/* [ARGS], or [CALL_ID] and the call's id. */
static enum call_step read_tag(struct call_reader *c, char byte) {
    strbuf_char(&c->word, byte);
    const bool ends = byte == ']', args = mark_begins("ARGS]", &c->word);
    if (!args && !mark_begins("CALL_ID]", &c->word)) return CALL_IS_NOT;
    if (!ends) return CALL_GOES_ON;
    strbuf_clear(&c->word);
    return go(c, args ? BEFORE_ARGUMENTS : IN_ID);
}

static enum call_step read_id(struct call_reader *c, char byte) {
    if (byte == '[') {
        strbuf_clear(&c->word);
        return go(c, IN_TAG);
    }
    strbuf_char(&c->word, byte);
    return c->word.n > ID_MAX ? CALL_IS_NOT : CALL_GOES_ON;
}

static enum call_step read_first(struct call_reader *c, char byte) {
    if (is_space(byte)) return CALL_GOES_ON;
    if (byte == '[') return go(c, IN_LIST);
    if (byte == '{') {
        c->state = IN_OBJECT;
        return call_json(c, byte);
    }
    c->state = IN_NAME;
    return read_name(c, byte);
}

static enum call_step read_item(struct call_reader *c, char byte) {
    const enum call_step step = call_json(c, byte);
    if (step != CALL_ENDS || c->state == IN_OBJECT) return step;
    c->tool = NULL;
    json_call_clear(&c->json);
    return go(c, BEHIND_ITEM);
}

static enum call_step read(struct call_reader *c, char byte) {
    switch (c->state) {
    case FIRST: return read_first(c, byte);
    case IN_LIST:
    case IN_OBJECT: return read_item(c, byte);
    case BEHIND_ITEM:
        if (byte == ',') return go(c, IN_LIST);
        if (byte == ']') return CALL_ENDS;
        return is_space(byte) ? CALL_GOES_ON : CALL_ENDED;
    case IN_NAME: return read_name(c, byte);
    case IN_TAG: return read_tag(c, byte);
    case IN_ID: return read_id(c, byte);
    case BEFORE_ARGUMENTS:
        if (is_space(byte)) return CALL_GOES_ON;
        return byte == '{' ? begin_arguments(c) : CALL_IS_NOT;
    default: /* IN_ARGUMENTS */
        call_arguments(c, &byte, 1);
        return nesting_read(&c->nesting, byte) ? CALL_ENDS : CALL_GOES_ON;
    }
}

static int list_grammar(struct diag *d, struct call_grammar *g) {
    (void)d;
    strbuf_str(&g->text, "root ::= ");
    grammar_mark(g, "[TOOL_CALLS]");
    grammar_literal(g, " [");
    strbuf_str(&g->text, g->parallel ? "call (\", \" call)* \"]\"\n" : "call \"]\"\n");
    grammar_json_calls(g, "arguments");
    return QN_OK;
}

static int args_grammar(struct diag *d, struct call_grammar *g) {
    (void)d;
    strbuf_str(&g->text, g->parallel ? "root ::= call+\ncall ::= " : "root ::= call\ncall ::= ");
    grammar_mark(g, "[TOOL_CALLS]");
    strbuf_char(&g->text, '(');
    for (const struct tool *t = grammar_next(g, NULL); t; t = grammar_next(g, t)) {
        if (t != grammar_next(g, NULL)) strbuf_str(&g->text, "| ");
        grammar_literal(g, t->name);
        grammar_mark(g, "[ARGS]");
        grammar_arguments(g, t);
    }
    strbuf_str(&g->text, ")\n");
    return QN_OK;
}

const struct tool_form form_mistral = {
    .name = "mistral",
    .names = (const char *const[]){NULL},
    .signs = (const char *const[]){"[TOOL_CALLS]", NULL},
    .marks = (const char *const[]){"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL},
    .starts = {"[TOOL_CALLS]"},
    .n_id = 9, /* their templates want it so */
    .read = read,
    .grammar = list_grammar,
};

const struct tool_form form_mistral_args = {
    .name = "mistral",
    .names = (const char *const[]){NULL},
    .signs = (const char *const[]){"[ARGS]", NULL},
    .marks = (const char *const[]){"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL},
    .starts = {"[TOOL_CALLS]"},
    .n_id = 9,
    .read = read,
    .grammar = args_grammar,
};
