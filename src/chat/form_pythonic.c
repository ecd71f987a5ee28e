/* form_pythonic.c - Llama 4 and others, a list as the whole answer or between marks:
 *
 *     [get_weather(city="Oslo", days=3), get_time()]
 *
 * A list is read whole, because only then is it certain that all its elements are calls. Arguments
 * have names; values are literals of Python or JSON, and are passed on as JSON.
 */
#include "chat/tool_form.h"

#include "base/checked.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { OPEN, IN_NAME, IN_LIST, BEHIND };
enum { LIST_MAX = 256 << 10, VALUE_DEPTH = 64 };

/* ---- one value, as JSON --------------------------------------------------------------------- */

/* A complete list, and the JSON made from it. */
struct literal {
    const char *at; /* NUL behind the text */
    struct strbuf out;
    unsigned depth;
};

static void skip_space(struct literal *l) {
    while (is_space(*l->at)) l->at++;
}

static bool take(struct literal *l, const char *word) {
    const size_t n = strlen(word);
    if (strncmp(l->at, word, n) != 0) return false;
    l->at += n;
    return true;
}

static bool take_hex(struct literal *l, int n, uint32_t *code) {
    static const char digits[] = "0123456789abcdef";
    for (*code = 0; n > 0; n--, l->at++) {
        const char c = *l->at >= 'A' && *l->at <= 'F' ? (char)(*l->at | 0x20) : *l->at;
        const char *found = c ? strchr(digits, c) : NULL;
        if (!found) return false;
        *code = *code << 4 | (uint32_t)(found - digits);
    }
    return true;
}

static void add_code(struct literal *l, uint32_t code) {
    if (code > 0xffff) {
        strbuf_printf(&l->out, "\\u%04x", 0xd800 + ((code - 0x10000) >> 10));
        code = 0xdc00 + ((code - 0x10000) & 0x3ff);
    }
    strbuf_printf(&l->out, "\\u%04x", code);
}

/* After a backslash. */
static bool read_escape(struct literal *l) {
    static const char plain[] = "\"\\/bfnrt";
    static const struct {
        char letter;
        int n_digits;
    } codes[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    const char c = *l->at++;
    uint32_t code;
    if (c && strchr(plain, c)) {
        strbuf_printf(&l->out, "\\%c", c);
        return true;
    }
    if (c == '\'') {
        strbuf_char(&l->out, c);
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        if (c == codes[i].letter) {
            if (!take_hex(l, codes[i].n_digits, &code) || code > 0x10ffff) return false;
            add_code(l, code);
            return true;
        }
    return false;
}

static bool read_text(struct literal *l) {
    const char quote = *l->at++;
    strbuf_char(&l->out, '"');
    while (*l->at != quote) {
        const char c = *l->at++;
        if (c == '\0') return false;
        if (c == '\\') {
            if (!read_escape(l)) return false;
        } else if (c == '"') {
            strbuf_str(&l->out, "\\\"");
        } else if ((unsigned char)c < ' ') {
            add_code(l, (unsigned char)c);
        } else {
            strbuf_char(&l->out, c);
        }
    }
    l->at++;
    strbuf_char(&l->out, '"');
    return true;
}

/* A number that is valid in JSON, too. */
static bool read_number(struct literal *l) {
    const char *from = l->at;
    if (*l->at == '-') l->at++;
    const size_t whole = strspn(l->at, "0123456789");
    if (whole == 0 || (whole > 1 && *l->at == '0')) return false;
    l->at += whole;
    if (take(l, ".")) {
        const size_t n = strspn(l->at, "0123456789");
        if (n == 0) return false;
        l->at += n;
    }
    if (*l->at == 'e' || *l->at == 'E') {
        l->at += 1 + (l->at[1] == '-' || l->at[1] == '+');
        const size_t n = strspn(l->at, "0123456789");
        if (n == 0) return false;
        l->at += n;
    }
    strbuf_add(&l->out, from, (size_t)(l->at - from));
    return true;
}

static bool read_value(struct literal *l);

/* Values, or `key: value`, between brackets. */
static bool read_group(struct literal *l, char close, bool has_keys) {
    const char *json = has_keys ? "{}" : "[]";
    bool first = true;
    l->at++;
    strbuf_char(&l->out, json[0]);
    for (skip_space(l); *l->at != close; skip_space(l)) {
        if (!first) strbuf_str(&l->out, ", ");
        first = false;
        if (has_keys) {
            if (*l->at != '"' && *l->at != '\'') return false;
            if (!read_text(l)) return false;
            skip_space(l);
            if (!take(l, ":")) return false;
            strbuf_str(&l->out, ": ");
            skip_space(l);
        }
        if (!read_value(l)) return false;
        skip_space(l);
        if (!take(l, ",") && *l->at != close) return false;
    }
    l->at++;
    strbuf_char(&l->out, json[1]);
    return true;
}

static bool read_word(struct literal *l) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (take(l, words[i][0])) {
            strbuf_str(&l->out, words[i][1]);
            return true;
        }
    return read_number(l);
}

static bool read_value(struct literal *l) {
    bool right;
    if (*l->at == '"' || *l->at == '\'') return read_text(l);
    if (!*l->at || !strchr("[({", *l->at)) return read_word(l);
    if (++l->depth > VALUE_DEPTH) return false;
    right = *l->at == '['   ? read_group(l, ']', false)
            : *l->at == '(' ? read_group(l, ')', false)
                            : read_group(l, '}', true);
    l->depth--;
    return right;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static size_t name_length(const char *at) {
    size_t n = 0;
    while ((at[n] >= 'a' && at[n] <= 'z') || (at[n] >= 'A' && at[n] <= 'Z') ||
           (at[n] >= '0' && at[n] <= '9') || at[n] == '_')
        n++;
    return n;
}

/* name=value, ... up to the bracket that closes the call. */
static bool read_arguments(struct literal *l) {
    bool first = true;
    strbuf_clear(&l->out);
    strbuf_char(&l->out, '{');
    for (skip_space(l); *l->at != ')'; skip_space(l)) {
        const size_t n = name_length(l->at);
        if (n == 0) return false;
        strbuf_str(&l->out, first ? "\"" : ", \"");
        strbuf_add(&l->out, l->at, n);
        strbuf_str(&l->out, "\": ");
        first = false;
        l->at += n;
        skip_space(l);
        if (!take(l, "=")) return false;
        skip_space(l);
        if (!read_value(l)) return false;
        skip_space(l);
        if (!take(l, ",") && *l->at != ')') return false;
    }
    l->at++;
    strbuf_char(&l->out, '}');
    return true;
}

/* Reads the whole list; `give`: passes the calls on, which is done once the list is known to be
 * right.
 */
static bool read_calls(struct call_reader *c, struct literal *l, bool give) {
    l->at = strbuf_text(&c->word) + 1;
    for (skip_space(l); *l->at != ']'; skip_space(l)) {
        const size_t n = strcspn(l->at, "(");
        const struct tool *tool = toolset_find(call_tools(c), l->at, n);
        if (!tool || !l->at[n]) return false;
        l->at += n + 1;
        if (!read_arguments(l)) return false;
        if (give) {
            call_begin(c, tool);
            call_arguments(c, strbuf_text(&l->out), l->out.n);
        }
        skip_space(l);
        if (!take(l, ",") && *l->at != ']') return false;
    }
    return l->at[1] == '\0';
}

/* The list has closed. */
static enum call_step take_list(struct call_reader *c) {
    struct literal l = {0};
    const struct strbuf *b = &c->word;
    const bool right = strlen(strbuf_text(b)) == b->n && utf8_end(b->text, b->n) == b->n &&
                       read_calls(c, &l, false) && !l.out.failed;
    if (right) read_calls(c, &l, true);
    strbuf_fini(&l.out);
    if (!right || !c->tool) return CALL_IS_NOT; /* an empty list is text */
    c->tool = NULL;
    c->state = BEHIND;
    return c->mark < 0 ? CALL_ENDS : CALL_GOES_ON;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* Whether the byte ends the list, judged by brackets and both kinds of quotes. */
static bool closes(struct call_reader *c, char byte) {
    struct nesting *n = &c->nesting;
    if (n->escaped) {
        n->escaped = false;
    } else if (n->in_string) {
        n->escaped = byte == '\\';
        n->in_string = byte != c->quote;
    } else if (byte == '"' || byte == '\'') {
        n->in_string = true;
        c->quote = byte;
    } else if (strchr("([{", byte) && byte) {
        n->depth++;
    } else if (strchr(")]}", byte) && byte) {
        return --n->depth == 0;
    }
    return false;
}

/* The name of the first call must be that of a tool: most text in brackets is ruled out here. */
static enum call_step read_name(struct call_reader *c, char byte) {
    if (c->name.n == 0 && is_space(byte)) return CALL_GOES_ON;
    if (byte == '(') {
        if (!toolset_find(call_tools(c), strbuf_text(&c->name), c->name.n)) return CALL_IS_NOT;
        c->state = IN_LIST;
        return CALL_GOES_ON;
    }
    strbuf_char(&c->name, byte);
    return toolset_begins(call_tools(c), c->name.text, c->name.n) ? CALL_GOES_ON : CALL_IS_NOT;
}

static enum call_step read(struct call_reader *c, char byte) {
    if (c->state == BEHIND) {
        if (c->matched == 0 && is_space(byte)) return CALL_GOES_ON;
        const enum call_step step = call_expect(c, "<|python_end|>", byte);
        return step == CALL_IS_NOT ? CALL_ENDED : step;
    }
    if (c->state == OPEN && is_space(byte)) return CALL_GOES_ON;
    if (c->state == OPEN && byte != '[') return CALL_IS_NOT;
    if (c->word.n == LIST_MAX) return CALL_IS_NOT;
    strbuf_char(&c->word, byte);
    const bool closed = closes(c, byte);
    if (c->state == OPEN) {
        c->state = IN_NAME;
        return CALL_GOES_ON;
    }
    if (c->state == IN_NAME) return read_name(c, byte);
    return closed ? take_list(c) : CALL_GOES_ON;
}

/* ---- the grammar ---------------------------------------------------------------------------- */

static bool is_boolean(const json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && strcmp(type, "boolean") == 0;
}

/* One parameter, after others or as the first. */
static void write_parameter(struct call_grammar *g, const struct tool *tool, const char *name) {
    json_t *property = grammar_property(tool, name);
    grammar_literal(g, name);
    grammar_literal(g, "=");
    if (is_boolean(property) && !json_object_get(property, "enum"))
        strbuf_str(&g->text, "(\"True\" | \"False\") ");
    else
        grammar_schema(g, property);
    json_decref(property);
}

/* Rules first-T-I and then-T-I: the parameters from the I-th on, if none came before and if some
 * did. */
static void write_parameters(struct call_grammar *g, const struct tool *tool) {
    const size_t t = (size_t)(tool - g->tools->items);
    const json_t *properties = json_object_get(tool->parameters, "properties"), *schema;
    const char *name;
    size_t i = 0;
    json_object_foreach((json_t *)properties, name, *(json_t **)&schema) {
        const bool may_miss = !tool_requires(tool, name);
        for (int then = 0; then < 2; then++) {
            strbuf_printf(&g->text, "\n%s-%zu-%zu ::= ", then ? "then" : "first", t, i);
            if (may_miss)
                strbuf_printf(&g->text, "%s-%zu-%zu | ", then ? "then" : "first", t, i + 1);
            strbuf_printf(&g->text, "%s value-%zu-%zu then-%zu-%zu\n", then ? "\", \"" : "", t, i,
                          t, i + 1);
        }
        strbuf_printf(&g->text, "value-%zu-%zu ::= ", t, i);
        write_parameter(g, tool, name);
        i++;
    }
    strbuf_printf(&g->text, "\nfirst-%zu-%zu ::= \"\"\nthen-%zu-%zu ::= \"\"\n", t, i, t, i);
}

static int check(struct diag *d, const struct tool *tool) {
    const json_t *properties = json_object_get(tool->parameters, "properties"), *schema;
    const char *name;
    json_object_foreach((json_t *)properties, name, *(json_t **)&schema) {
        if (name_length(name) != strlen(name))
            return fail(d, QN_EUNSUPPORTED,
                        "tools: '%s': this model writes parameters as Python does, and '%.40s' is "
                        "no name there",
                        tool->name, name);
    }
    if (json_object_get(tool->parameters, "$ref") || json_object_get(tool->parameters, "anyOf"))
        return fail(d, QN_EUNSUPPORTED,
                    "tools: '%s': this model writes parameters one by one; want them as "
                    "`properties`",
                    tool->name);
    return QN_OK;
}

static int grammar(struct diag *d, struct call_grammar *g) {
    strbuf_str(&g->text, g->parallel ? "root ::= \"[\" call (\", \" call)* \"]\"\ncall ::= "
                                     : "root ::= \"[\" call \"]\"\ncall ::= ");
    for (const struct tool *t = grammar_next(g, NULL); t; t = grammar_next(g, t)) {
        TRY(check(d, t));
        if (t != grammar_next(g, NULL)) strbuf_str(&g->text, "| ");
        grammar_literal(g, t->name);
        strbuf_printf(&g->text, "\"(\" first-%zu-0 \")\" ", (size_t)(t - g->tools->items));
    }
    strbuf_char(&g->text, '\n');
    for (const struct tool *t = grammar_next(g, NULL); t; t = grammar_next(g, t))
        write_parameters(g, t);
    return QN_OK;
}

const struct tool_form form_pythonic = {
    .name = "pythonic",
    .names = (const char *const[]){"llama4_pythonic", NULL},
    .signs = (const char *const[]){"func_name1(", "<|python_start|>", NULL},
    .marks = (const char *const[]){"<|python_start|>", "<|python_end|>", NULL},
    .starts = {"<|python_start|>"},
    .first = '[',
    .read = read,
    .grammar = grammar,
};
