/* form_qwen3_xml.c - Qwen3-Coder, values as they are:
 *
 *     <tool_call>
 *     <function=get_weather>
 *     <parameter=city>
 *     Oslo
 *     </parameter>
 *     </function>
 *     </tool_call>
 *
 * A parameter that the tool describes as text is passed on as it arrives. Other parameters are read
 * whole and passed on as JSON if they are valid JSON.
 */
#include "chat/tool_form.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST, IN_FUNCTION, BODY, IN_PARAMETER, VALUE_BEGINS, IN_VALUE, BEHIND };
enum { NAME_MAX = 256, VALUE_DEPTH = 64 };

#define FUNCTION  "<function="
#define PARAMETER "<parameter="
#define CLOSE     "\n</parameter>"

static enum call_step go(struct call_reader *c, int state) {
    c->state = state;
    strbuf_clear(&c->word);
    return CALL_GOES_ON;
}

static bool is(const struct strbuf *b, const char *text) {
    return b->n == strlen(text) && memcmp(strbuf_text(b), text, b->n) == 0;
}

/* ---- values --------------------------------------------------------------------------------- */

/* Whether a schema names this type, alone or in its list. */
static bool takes(const json_t *schema, const char *type) {
    const json_t *types = json_object_get(schema, "type");
    if (json_is_string(types)) return strcmp(json_string_value(types), type) == 0;
    for (size_t i = 0; i < json_array_size(types); i++)
        if (json_is_string(json_array_get(types, i)) &&
            strcmp(json_string_value(json_array_get(types, i)), type) == 0)
            return true;
    return false;
}

static void add_byte(struct call_reader *c, char byte) {
    static const struct {
        char byte, letter;
    } escapes[] = {{'"', '"'},  {'\\', '\\'}, {'\n', 'n'}, {'\t', 't'},
                   {'\r', 'r'}, {'\b', 'b'},  {'\f', 'f'}};
    char code[8];
    for (size_t i = 0; i < COUNT_OF(escapes); i++)
        if (escapes[i].byte == byte) {
            call_arguments(c, (const char[]){'\\', escapes[i].letter}, 2);
            return;
        }
    if ((unsigned char)byte < ' ')
        call_arguments(c, code, (size_t)snprintf(code, sizeof code, "\\u%04x", (unsigned)byte));
    else
        call_arguments(c, &byte, 1);
}

static void add_text(struct call_reader *c, const char *text, size_t n) {
    call_arguments(c, "\"", 1);
    for (size_t i = 0; i < n; i++) add_byte(c, text[i]);
    call_arguments(c, "\"", 1);
}

static bool is_shallow(const char *text) {
    size_t depth = 0;
    for (; *text && depth <= VALUE_DEPTH; text++) depth += *text == '[' || *text == '{';
    return depth <= VALUE_DEPTH;
}

/* A value that was read whole: JSON, a Python word, or otherwise text. */
static void add_whole(struct call_reader *c) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const struct strbuf *v = &c->word;
    const json_t *schema = tool_property(c->tool, strbuf_text(&c->name));
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (is(v, words[i][0]) && (i == 2 || !takes(schema, "string"))) {
            call_arguments(c, words[i][1], strlen(words[i][1]));
            return;
        }
    json_t *json =
        is_shallow(strbuf_text(v)) && strlen(strbuf_text(v)) == v->n
            ? json_loadb(strbuf_text(v), v->n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL)
            : NULL;
    if (json && (json_is_null(json) || !takes(schema, "string")))
        call_arguments(c, strbuf_text(v), v->n);
    else
        add_text(c, strbuf_text(v), v->n);
    json_decref(json);
}

static enum call_step end_value(struct call_reader *c) {
    if (c->quoted)
        call_arguments(c, "\"", 1);
    else
        add_whole(c);
    strbuf_clear(&c->name);
    c->matched = 0;
    return go(c, BODY);
}

/* Adds the bytes of c->part to the value, but keeps a tail that may be the start of the end tag. */
static void release(struct call_reader *c) {
    while (c->part.n > 0 && !mark_begins(CLOSE, &c->part) && !mark_begins(CLOSE + 1, &c->part)) {
        if (c->quoted)
            add_byte(c, c->part.text[0]);
        else
            strbuf_char(&c->word, c->part.text[0]);
        memmove(c->part.text, c->part.text + 1, c->part.n--);
    }
}

static enum call_step read_value(struct call_reader *c, char byte) {
    strbuf_char(&c->part, byte);
    release(c);
    if (!is(&c->part, CLOSE) && !is(&c->part, CLOSE + 1)) return CALL_GOES_ON;
    strbuf_clear(&c->part);
    return end_value(c);
}

/* ---- tags ----------------------------------------------------------------------------------- */

static enum call_step read_function(struct call_reader *c, char byte) {
    if (byte != '>') {
        strbuf_char(&c->word, byte);
        return toolset_begins(call_tools(c), c->word.text, c->word.n) ? CALL_GOES_ON : CALL_IS_NOT;
    }
    const struct tool *tool = toolset_find(call_tools(c), strbuf_text(&c->word), c->word.n);
    if (!tool) return CALL_IS_NOT;
    call_begin(c, tool);
    call_arguments(c, "{", 1);
    return go(c, BODY);
}

/* Anything but a tag ends the call; the bytes read in search of a tag are text. */
static enum call_step break_off(struct call_reader *c, const char *text, size_t n) {
    call_arguments(c, "}", 1);
    c->tool = NULL;
    call_unread(c, text, n);
    return CALL_ENDED;
}

static enum call_step read_parameter(struct call_reader *c, char byte) {
    if (byte != '>') {
        if (c->name.n == NAME_MAX) return break_off(c, c->name.text, c->name.n);
        strbuf_char(&c->name, byte);
        return CALL_GOES_ON;
    }
    if (c->n_parameters++) call_arguments(c, ", ", 2);
    add_text(c, strbuf_text(&c->name), c->name.n);
    call_arguments(c, ": ", 2);
    const json_t *schema = tool_property(c->tool, strbuf_text(&c->name));
    c->quoted = json_is_string(json_object_get(schema, "type")) && takes(schema, "string");
    if (c->quoted) call_arguments(c, "\"", 1);
    return go(c, VALUE_BEGINS);
}

/* A parameter, or the end of the function. */
static enum call_step read_body(struct call_reader *c, char byte) {
    if (c->word.n == 0 && is_space(byte)) return CALL_GOES_ON;
    strbuf_char(&c->word, byte);
    if (is(&c->word, PARAMETER)) return go(c, IN_PARAMETER);
    if (is(&c->word, "</function>")) {
        call_arguments(c, "}", 1);
        c->tool = NULL;
        go(c, BEHIND);
        return c->mark == 0 ? CALL_GOES_ON : CALL_ENDS;
    }
    if (mark_begins(PARAMETER, &c->word) || mark_begins("</function>", &c->word))
        return CALL_GOES_ON;
    return break_off(c, c->word.text, c->word.n - 1);
}

static enum call_step read(struct call_reader *c, char byte) {
    enum call_step step;
    switch (c->state) {
    case FIRST:
        if (c->mark == 1) {
            c->state = IN_FUNCTION;
            return read_function(c, byte);
        }
        if (c->matched == 0 && is_space(byte)) return CALL_GOES_ON;
        step = call_expect(c, FUNCTION, byte);
        return step == CALL_ENDS ? go(c, IN_FUNCTION) : step;
    case IN_FUNCTION: return read_function(c, byte);
    case BODY: return read_body(c, byte);
    case IN_PARAMETER: return read_parameter(c, byte);
    case VALUE_BEGINS:
        c->state = IN_VALUE;
        return byte == '\n' ? CALL_GOES_ON : read_value(c, byte);
    case IN_VALUE: return read_value(c, byte);
    default: /* BEHIND */
        if (c->matched == 0 && is_space(byte)) return CALL_GOES_ON;
        step = call_expect(c, "</tool_call>", byte);
        return step == CALL_IS_NOT ? CALL_ENDED : step;
    }
}

/* ---- the grammar ---------------------------------------------------------------------------- */

/* A value of a parameter as the form writes it: texts without quotes. */
static void write_value(struct call_grammar *g, const struct tool *tool, const char *name) {
    const json_t *schema = tool_property(tool, name), *each;
    const json_t *list = json_object_get(schema, "enum");
    const json_t *most = json_object_get(schema, "maxLength");
    size_t i;
    if (json_array_size(list) > 0) {
        json_array_foreach(list, i, each) {
            char *text = json_is_string(each) ? strdup(json_string_value(each))
                                              : json_dumps(each, JSON_COMPACT | JSON_ENCODE_ANY);
            strbuf_str(&g->text, i ? "| " : "(");
            if (text) grammar_literal(g, text);
            free(text);
        }
        strbuf_str(&g->text, ") ");
    } else if (takes(schema, "string") && json_is_integer(most)) {
        const json_int_t least = json_integer_value(json_object_get(schema, "minLength"));
        strbuf_printf(&g->text, "[^\\n<]{%lld,%lld} ", (long long)least,
                      (long long)json_integer_value(most));
    } else if (takes(schema, "string")) {
        strbuf_str(&g->text, "free ");
    } else {
        json_t *property = grammar_property(tool, name);
        grammar_schema(g, property);
        json_decref(property);
    }
}

static int write_function(struct diag *d, struct call_grammar *g, const struct tool *tool) {
    const json_t *properties = json_object_get(tool->parameters, "properties"), *schema;
    const char *name;
    if (json_object_get(tool->parameters, "$ref") || json_object_get(tool->parameters, "anyOf"))
        return fail(d, QN_EUNSUPPORTED,
                    "tools: '%s': this model writes parameters one by one; want them as "
                    "`properties`",
                    tool->name);
    grammar_literal(g, FUNCTION);
    grammar_literal(g, tool->name);
    grammar_literal(g, ">\n");
    json_object_foreach((json_t *)properties, name, *(json_t **)&schema) {
        strbuf_char(&g->text, '(');
        grammar_literal(g, PARAMETER);
        grammar_literal(g, name);
        grammar_literal(g, ">\n");
        write_value(g, tool, name);
        grammar_literal(g, CLOSE "\n");
        strbuf_str(&g->text, tool_requires(tool, name) ? ") " : ")? ");
    }
    grammar_literal(g, "</function>");
    return QN_OK;
}

static int grammar(struct diag *d, struct call_grammar *g) {
    strbuf_str(&g->text, g->parallel ? "root ::= call (\"\\n\" call)*\n" : "root ::= call\n");
    strbuf_str(&g->text, "call ::= ");
    grammar_mark(g, "<tool_call>");
    strbuf_str(&g->text, "\"\\n\" (");
    for (const struct tool *t = grammar_next(g, NULL); t; t = grammar_next(g, t)) {
        if (t != grammar_next(g, NULL)) strbuf_str(&g->text, "| ");
        TRY(write_function(d, g, t));
    }
    strbuf_str(&g->text, ") \"\\n\" ");
    grammar_mark(g, "</tool_call>");
    grammar_without(g, "free", CLOSE + 1);
    return QN_OK;
}

const struct tool_form form_qwen3_xml = {
    .name = "qwen3_xml",
    .names = (const char *const[]){"qwen3_coder", NULL},
    .signs = (const char *const[]){FUNCTION, NULL},
    .marks = (const char *const[]){"<tool_call>", "</tool_call>", NULL},
    .starts = {"<tool_call>", FUNCTION},
    .read = read,
    .grammar = grammar,
};
