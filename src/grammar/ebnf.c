#include "grammar/ebnf.h"

#include "base/checked.h"
#include "base/map.h"
#include "base/utf8.h"
#include "grammar/repeat.h"
#include "grammar/schema.h"
#include "grammar/vocab.h"

#include <string.h>

struct reader {
    struct exprs *x;
    const char *text;
    size_t n, at;
    struct map rules; /* name -> rule */
    uint32_t depth, n_visits;
};

static int refuse(struct reader *r, int code, const char *what) {
    size_t line = 1, first = 0;
    for (size_t i = 0; i < r->at; i++)
        if (r->text[i] == '\n') {
            line++;
            first = i + 1;
        }
    return exprs_fail(r->x, code, "grammar: line %zu, column %zu: %s", line, r->at - first + 1,
                      what);
}

static char peek(const struct reader *r) {
    return r->at < r->n ? r->text[r->at] : '\0';
}

static bool take(struct reader *r, const char *word) {
    const size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->text + r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static void skip_space(struct reader *r) {
    for (; r->at < r->n; r->at++) {
        if (peek(r) == '#')
            while (r->at < r->n && peek(r) != '\n') r->at++;
        if (!strchr(" \t\r\n", peek(r)) || r->at == r->n) return;
    }
}

/* ---- names -------------------------------------------------------------------------------- */

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_length(const struct reader *r) {
    size_t n = 0;
    while (r->at + n < r->n && is_name_char(r->text[r->at + n])) n++;
    return n;
}

/* Whether a rule begins here: a name and ::= */
static bool at_rule(const struct reader *r) {
    struct reader ahead = *r;
    const size_t n = name_length(r);
    ahead.at += n;
    skip_space(&ahead);
    return n > 0 && take(&ahead, "::=");
}

static uint32_t take_name(struct reader *r) {
    const size_t n = name_length(r);
    const char *name = r->text + r->at;
    uint64_t rule;
    if (n == 0 || n > EXPR_NAME_MAX) refuse(r, QN_EINVAL, "want the name of a rule");
    if (r->x->rc != QN_OK) return 0;
    r->at += n;
    if (map_find(&r->rules, name, n, &rule)) return (uint32_t)rule;
    char copy[EXPR_NAME_MAX + 1];
    memcpy(copy, name, n);
    copy[n] = '\0';
    rule = expr_rule_new(r->x, copy);
    if (r->x->rc == QN_OK) r->x->rc = map_put(r->x->d, &r->rules, name, n, rule, NULL);
    return (uint32_t)rule;
}

/* ---- characters --------------------------------------------------------------------------- */

/* Characters by the letter after a backslash, and how many hexadecimal digits follow the letter. */
static const struct escape {
    char letter, is;
    uint32_t n_digits;
} escapes[] = {{'n', '\n', 0},  {'t', '\t', 0}, {'r', '\r', 0}, {'\\', '\\', 0}, {'"', '"', 0},
               {'\'', '\'', 0}, {'[', '[', 0},  {']', ']', 0},  {'-', '-', 0},   {'^', '^', 0},
               {'x', 0, 2},     {'u', 0, 4},    {'U', 0, 8}};

static uint32_t take_hex(struct reader *r, uint32_t n) {
    static const char digits[] = "0123456789abcdef";
    uint32_t c = 0;
    for (; n > 0; n--, r->at++) {
        const char *found =
            peek(r) ? strchr(digits, peek(r) >= 'A' ? peek(r) | 0x20 : peek(r)) : NULL;
        if (!found) {
            refuse(r, QN_EINVAL, "want a hexadecimal digit");
            return 0;
        }
        c = c << 4 | (uint32_t)(found - digits);
    }
    if (c > CHAR_LAST) refuse(r, QN_EINVAL, "no such character");
    return c;
}

static uint32_t take_char(struct reader *r) {
    size_t n;
    if (r->at == r->n) return (uint32_t)refuse(r, QN_EINVAL, "nothing more");
    if (take(r, "\\")) {
        for (size_t i = 0; i < COUNT_OF(escapes); i++)
            if (r->at < r->n && peek(r) == escapes[i].letter) {
                r->at++;
                if (escapes[i].n_digits == 0) return (uint32_t)escapes[i].is;
                return take_hex(r, escapes[i].n_digits);
            }
        refuse(r, QN_EINVAL, "this escape is not known: want \\n \\t \\r \\\\ \\\" \\xHH \\uHHHH");
        return 0;
    }
    const uint32_t c = char_read(r->text + r->at, r->n - r->at, &n);
    r->at += n;
    return c;
}

/* Reads a string after its opening quote. */
static uint32_t take_string(struct reader *r) {
    ARRAY(char) text = {0};
    uint32_t e = 0;
    int rc = QN_OK;
    while (r->at < r->n && peek(r) != '"' && peek(r) != '\n' && r->x->rc == QN_OK && rc == QN_OK) {
        uint8_t bytes[4];
        const uint32_t n = char_write(take_char(r), bytes);
        for (uint32_t i = 0; i < n && rc == QN_OK; i++)
            rc = ARRAY_PUSH(r->x->d, &text, (char)bytes[i]);
    }
    if (!take(r, "\"")) refuse(r, QN_EINVAL, "want '\"' before the end of the line");
    if (r->x->rc == QN_OK) r->x->rc = rc;
    e = expr_bytes(r->x, text.items, text.n);
    ARRAY_FINI(&text);
    return e;
}

/* Reads a class after its opening bracket. */
static uint32_t take_class(struct reader *r) {
    struct charset s = {0};
    const bool inverted = take(r, "^");
    while (r->at < r->n && peek(r) != ']' && r->x->rc == QN_OK) {
        const uint32_t low = take_char(r);
        uint32_t high = low;
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            high = take_char(r);
        }
        if (high < low) refuse(r, QN_EINVAL, "a range whose end comes before its beginning");
        charset_add(&s, low, high);
    }
    if (!take(r, "]")) refuse(r, QN_EINVAL, "want ']'");
    charset_sort(&s);
    if (inverted) charset_invert(&s);
    if (s.n == 0) refuse(r, QN_EINVAL, "no character is in this class");
    return expr_class(r->x, &s);
}

/* ---- parts -------------------------------------------------------------------------------- */

static uint32_t take_choice(struct reader *r);

/* Length in bytes of the JSON object that begins here; 0: it does not end. */
static size_t object_length(const struct reader *r) {
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = r->at; i < r->n; i++) {
        const char c = r->text[i];
        if (in_string && c == '\\') i++;
        if (c == '"') in_string = !in_string;
        if (in_string) continue;
        if (c == '{') depth++;
        if (c == '}' && --depth == 0) return i + 1 - r->at;
    }
    return 0;
}

/* Reads the schema after %json; the part is a value of the schema. */
static uint32_t take_schema(struct reader *r) {
    skip_space(r);
    const size_t n = peek(r) == '{' ? object_length(r) : 0;
    if (n == 0) return (uint32_t)refuse(r, QN_EINVAL, "want a schema: an object in JSON");
    const uint32_t rule = schema_rule(r->x, r->text + r->at, n, &r->n_visits);
    r->at += n;
    return r->x->rc == QN_OK ? expr_call(r->x, rule) : 0;
}

/* Reads the text after %token; the part is the special token, as guide.c spells it. */
static uint32_t take_token(struct reader *r) {
    skip_space(r);
    if (!take(r, "\"")) return (uint32_t)refuse(r, QN_EINVAL, "want the token's text in quotes");
    return EXPR_SEQ_OF(r->x, expr_bytes(r->x, VOCAB_SPECIAL, 1), take_string(r));
}

static uint32_t take_atom(struct reader *r) {
    if (take(r, "%json")) return take_schema(r);
    if (take(r, "%token")) return take_token(r);
    if (take(r, "\"")) return take_string(r);
    if (take(r, "[")) return take_class(r);
    if (take(r, ".")) return expr_range(r->x, 0, CHAR_LAST);
    if (!take(r, "(")) return expr_call(r->x, take_name(r));
    if (++r->depth > EBNF_DEPTH) refuse(r, QN_ELIMIT, "groups more than 32 deep");
    const uint32_t e = r->x->rc == QN_OK ? take_choice(r) : 0;
    r->depth--;
    if (!take(r, ")")) refuse(r, QN_EINVAL, "want ')'");
    return e;
}

/* Reads a part and its repetition count. */
static uint32_t take_part(struct reader *r) {
    const uint32_t one = take_atom(r);
    skip_space(r);
    if (r->x->rc != QN_OK) return one;
    const struct repeat times = repeat_read(r->text, r->n, " \t\r\n", &r->at);
    if (times.wrong) refuse(r, times.code, times.wrong);
    return times.found ? expr_repeat(r->x, one, times.least, times.most) : one;
}

static uint32_t take_sequence(struct reader *r) {
    ARRAY(uint32_t) list = {0};
    uint32_t e = 0;
    int rc = QN_OK;
    for (skip_space(r); r->at < r->n && peek(r) != '|' && peek(r) != ')' && !at_rule(r) &&
                        rc == QN_OK && r->x->rc == QN_OK;
         skip_space(r))
        rc = ARRAY_PUSH(r->x->d, &list, take_part(r));
    if (r->x->rc == QN_OK) r->x->rc = rc;
    if (r->x->rc == QN_OK) e = expr_list(r->x, EXPR_SEQ, list.items, list.n);
    ARRAY_FINI(&list);
    return e;
}

static uint32_t take_choice(struct reader *r) {
    ARRAY(uint32_t) list = {0};
    uint32_t e = 0;
    int rc = QN_OK;
    do rc = ARRAY_PUSH(r->x->d, &list, take_sequence(r));
    while (rc == QN_OK && r->x->rc == QN_OK && take(r, "|"));
    if (r->x->rc == QN_OK) r->x->rc = rc;
    if (r->x->rc == QN_OK) e = expr_list(r->x, EXPR_ALT, list.items, list.n);
    ARRAY_FINI(&list);
    return e;
}

static void take_rule(struct reader *r) {
    if (!at_rule(r)) {
        refuse(r, QN_EINVAL, "want a rule: name ::= ...");
        return;
    }
    const uint32_t rule = take_name(r);
    skip_space(r);
    take(r, "::=");
    if (r->x->rc != QN_OK) return;
    if (r->x->rules.items[rule].defined) refuse(r, QN_EINVAL, "this rule is there twice");
    expr_rule_define(r->x, rule, take_choice(r));
}

int ebnf_read(struct exprs *x, const char *text, size_t n) {
    struct reader r = {.x = x, .text = text, .n = n};
    if (n > EBNF_MAX)
        return exprs_fail(x, QN_ELIMIT, "grammar: at most %d bytes, have %zu", EBNF_MAX, n);
    if (utf8_end(text, n) != n || memchr(text, '\0', n))
        return exprs_fail(x, QN_EINVAL, "grammar: want UTF-8 without zero bytes");
    const uint32_t root = expr_rule_new(x, "root");
    if (x->rc == QN_OK) x->rc = map_put(x->d, &r.rules, "root", 4, root, NULL);
    for (skip_space(&r); r.at < r.n && x->rc == QN_OK; skip_space(&r)) take_rule(&r);
    if (x->rc == QN_OK && !x->rules.items[root].defined)
        exprs_fail(x, QN_EINVAL, "grammar: no rule is called root");
    map_fini(&r.rules);
    return x->rc;
}
