#include "chat/tool_form.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ------------------------------------------------------------------------------ */

/* In the order in which a template is checked against them. */
static const struct tool_form *const table[] = {&form_qwen3_xml, &form_hermes,   &form_mistral_args,
                                                &form_mistral,   &form_pythonic, &form_llama3};

static bool has_name(const struct tool_form *f, const char *name) {
    if (strcmp(f->name, name) == 0) return true;
    for (const char *const *also = f->names; *also; also++)
        if (strcmp(*also, name) == 0) return true;
    return false;
}

static bool fits(const struct tool_form *f, const char *chat_template) {
    if (f->needs && !strstr(chat_template, f->needs)) return false;
    for (const char *const *sign = f->signs; *sign; sign++)
        if (strstr(chat_template, *sign)) return true;
    return false;
}

const struct tool_form *tool_form_of(const char *chat_template) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (fits(table[i], chat_template)) return table[i];
    return NULL;
}

const struct tool_form *tool_form_named(const char *name, const char *chat_template) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (has_name(table[i], name) && fits(table[i], chat_template)) return table[i];
    return tool_form_find(name);
}

/* Of two rows with one name the later one is the older form. */
const struct tool_form *tool_form_find(const char *name) {
    for (size_t i = COUNT_OF(table); i-- > 0;)
        if (has_name(table[i], name)) return table[i];
    return NULL;
}

const char *tool_form_names(void) {
    return "hermes, llama3_json, mistral, pythonic, qwen3_xml";
}

/* ---- parts of a grammar --------------------------------------------------------------------- */

static void quote(struct strbuf *b, const char *text, size_t n) {
    strbuf_char(b, '"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            strbuf_printf(b, "\\%c", c);
        else if (c < ' ')
            strbuf_printf(b, "\\x%02x", c);
        else
            strbuf_char(b, (char)c);
    }
    strbuf_str(b, "\" ");
}

void grammar_literal(struct call_grammar *g, const char *text) {
    quote(&g->text, text, strlen(text));
}

void grammar_mark(struct call_grammar *g, const char *text) {
    if (g->is_special && g->is_special(g->user, text)) strbuf_str(&g->text, "%token ");
    grammar_literal(g, text);
}

void grammar_schema(struct call_grammar *g, const json_t *schema) {
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) g->text.failed = true;
    if (text) strbuf_printf(&g->text, "%%json %s ", text);
    free(text);
}

/* Whether the schema has no reference and no alternatives: then its object can be closed. */
static bool is_plain(const json_t *schema) {
    static const char *const others[] = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (json_object_get(schema, others[i])) return false;
    return true;
}

/* A parameter that the tool does not describe is no argument. */
void grammar_arguments(struct call_grammar *g, const struct tool *tool) {
    if (tool->parameters && !is_plain(tool->parameters)) {
        grammar_schema(g, tool->parameters);
        return;
    }
    json_t *closed = tool->parameters ? json_copy((json_t *)tool->parameters) : json_object();
    if (!json_object_get(closed, "type"))
        json_object_set_new(closed, "type", json_string("object"));
    if (!json_object_get(closed, "additionalProperties"))
        json_object_set_new(closed, "additionalProperties", json_false());
    grammar_schema(g, closed);
    json_decref(closed);
}

void grammar_without(struct call_grammar *g, const char *name, const char *mark) {
    const size_t n = strlen(mark);
    for (size_t i = 0; i < n; i++) {
        const char *const from = i == 0 ? "" : "-";
        char number[24] = "";
        if (i > 0) snprintf(number, sizeof number, "%zu", i);
        strbuf_printf(&g->text, "\n%s%s%s ::= \"\" | ", name, from, number);
        if (i + 1 < n) {
            quote(&g->text, mark + i, 1);
            strbuf_printf(&g->text, "%s-%zu | ", name, i + 1);
        }
        if (i > 0) {
            quote(&g->text, mark, 1);
            strbuf_printf(&g->text, "%s-1 | ", name);
        }
        strbuf_printf(&g->text, "[^\\x%02x\\x%02x] %s\n", (unsigned char)mark[0],
                      (unsigned char)mark[i], name);
    }
}

const struct tool *grammar_next(const struct call_grammar *g, const struct tool *before) {
    if (g->named) return before ? NULL : g->named;
    const size_t i = before ? (size_t)(before - g->tools->items) + 1 : 0;
    return i < g->tools->n ? &g->tools->items[i] : NULL;
}

void grammar_json_calls(struct call_grammar *g, const char *key) {
    strbuf_str(&g->text, "\ncall ::= ");
    for (const struct tool *t = grammar_next(g, NULL); t; t = grammar_next(g, t)) {
        char middle[64];
        if (t != grammar_next(g, NULL)) strbuf_str(&g->text, "| ");
        grammar_literal(g, "{\"name\": \"");
        grammar_literal(g, t->name);
        snprintf(middle, sizeof middle, "\", \"%s\": ", key);
        grammar_literal(g, middle);
        grammar_arguments(g, t);
        grammar_literal(g, "}");
    }
    strbuf_char(&g->text, '\n');
}

json_t *grammar_property(const struct tool *tool, const char *name) {
    static const char *const definitions[] = {"$defs", "definitions"};
    json_t *copy = json_copy((json_t *)tool_property(tool, name));
    for (size_t i = 0; i < COUNT_OF(definitions); i++) {
        json_t *v = json_object_get(tool->parameters, definitions[i]);
        if (v) json_object_set(copy, definitions[i], v);
    }
    return copy;
}

bool tool_requires(const struct tool *tool, const char *name) {
    const json_t *required = json_object_get(tool->parameters, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *one = json_string_value(json_array_get(required, i));
        if (one && strcmp(one, name) == 0) return true;
    }
    return false;
}
