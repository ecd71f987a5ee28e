#include "model/jinja/lex.h"
#include "base/checked.h"
#include "model/jinja/text.h"

#include <stdio.h>
#include <string.h>

static int bad(struct lex *l, int code, const char *why) {
    return fail(l->d, code, "%s: line %u: %s", l->where, l->line, why);
}

static int push(struct lex *l, struct token t) {
    return ARRAY_PUSH(l->d, &l->tokens, t);
}

static bool at(const struct lex *l, const char *p, const char *word) {
    size_t n = strlen(word);
    return (size_t)(l->end - p) >= n && memcmp(p, word, n) == 0;
}

static const char *skip_space(const struct lex *l, const char *p) {
    while (p < l->end) {
        size_t i = 0;
        if (!text_is_space(text_next(p, &i))) break;
        p += i;
    }
    return p;
}

/* Moves to `to`, counting lines. */
static void move(struct lex *l, const char *to) {
    for (; l->p < to; l->p++) l->line += *l->p == '\n';
    l->line_starts = to > l->start && to[-1] == '\n';
}

/* Behind the end of a tag, whose two characters are at p: -}} eats white space, %} and #} a newline
 * unless + stands before. */
static const char *behind_end(const struct lex *l, const char *p, char sign, bool trims) {
    p += 2;
    if (sign == '-') return skip_space(l, p);
    return trims && sign != '+' && p < l->end && *p == '\n' ? p + 1 : p;
}

/* Text between tags. */

/* The text in front of a tag: what `sign` and lstrip_blocks leave of p[0, n). */
static size_t text_before(const struct lex *l, const char *p, size_t n, char sign, bool variable) {
    size_t start, end, line = n;
    if (sign == '-') {
        text_strip(p, n, NULL, false, true, &start, &end);
        return end;
    }
    if (sign == '+' || variable) return n;
    while (line > 0 && p[line - 1] != '\n') line--;
    if (line == 0 && !l->line_starts) return n;
    text_strip(p + line, n - line, NULL, true, false, &start, &end);
    return start == n - line ? line : n;
}

static int push_data(struct lex *l, const char *p, size_t n) {
    return n == 0 ? QN_OK
                  : push(l, (struct token){.type = TOKEN_DATA, .line = l->line, .p = p, .n = n});
}

static char sign_at(const struct lex *l, const char *p) {
    return p < l->end && (*p == '-' || *p == '+') ? *p : '\0';
}

/* Whether {% raw %} is at p (with the word endraw: its end); *behind is what follows the word. */
static bool is_raw(const struct lex *l, const char *p, const char *word, const char **behind) {
    if (!at(l, p, "{%")) return false;
    p += 2;
    if (sign_at(l, p)) p++;
    p = skip_space(l, p);
    if (!at(l, p, word)) return false;
    *behind = skip_space(l, p + strlen(word));
    return true;
}

/* l->p is behind the begin of a raw block. */
static int lex_raw(struct lex *l) {
    const char *tag = l->p, *end;
    for (;; tag++) {
        if (tag >= l->end) return bad(l, QN_EFORMAT, "{% raw %} without {% endraw %}");
        if (!is_raw(l, tag, "endraw", &end)) continue;
        char sign = sign_at(l, end);
        if (at(l, end + (sign != '\0'), "%}")) {
            TRY(push_data(l, l->p,
                          text_before(l, l->p, (size_t)(tag - l->p), sign_at(l, tag + 2), false)));
            move(l, behind_end(l, end + (sign != '\0'), sign, true));
            return QN_OK;
        }
    }
}

static int lex_comment(struct lex *l) {
    const char *end = memmem(l->p, (size_t)(l->end - l->p), "#}", 2);
    if (end == NULL) return bad(l, QN_EFORMAT, "{# without #}");
    char sign = end > l->p && (end[-1] == '-' || end[-1] == '+') ? end[-1] : '\0';
    move(l, behind_end(l, end, sign, true));
    return QN_OK;
}

/* Inside tags. */

static bool is_name(char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

static bool is_digit(const struct lex *l, const char *p) {
    return p < l->end && *p >= '0' && *p <= '9';
}

static const char *behind_digits(const struct lex *l, const char *p) {
    while (is_digit(l, p) || (p < l->end && *p == '_' && is_digit(l, p + 1))) p++;
    return p;
}

static bool is_based(char c, int base) {
    return (c >= '0' && c < '0' + MIN(base, 10)) ||
           (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
}

/* Behind the integer at p. */
static const char *behind_integer(const struct lex *l, const char *p) {
    if (*p == '0' && p + 1 < l->end) {
        char x = (char)(p[1] | 32);
        int base = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
        const char *q = p + 2;
        while (base > 0 && q < l->end &&
               (is_based(*q, base) || (*q == '_' && q + 1 < l->end && is_based(q[1], base))))
            q++;
        if (q > p + 2 && base > 0) return q;
    }
    if (*p != '0') return behind_digits(l, p);
    while (p < l->end && (*p == '0' || (*p == '_' && at(l, p + 1, "0")))) p++;
    return p;
}

static int lex_number(struct lex *l) {
    const char *from = l->p, *p = behind_digits(l, from);
    bool real = false;
    if (from == l->start || from[-1] != '.') {
        const char *q = p;
        if (at(l, q, ".") && is_digit(l, q + 1)) {
            q = p = behind_digits(l, q + 1);
            real = true;
        }
        if (q < l->end && (*q == 'e' || *q == 'E')) {
            q += 1 + (q + 1 < l->end && (q[1] == '+' || q[1] == '-'));
            if (is_digit(l, q)) {
                p = behind_digits(l, q);
                real = true;
            }
        }
    }
    if (!real) p = behind_integer(l, from);
    TRY(push(l, (struct token){.type = real ? TOKEN_FLOAT : TOKEN_INT,
                               .line = l->line,
                               .p = from,
                               .n = (size_t)(p - from)}));
    move(l, p);
    return QN_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* \x, \u, \U with so many digits at *p. */
static int coded_char(struct lex *l, const char **p, const char *end, int n, int32_t *c) {
    *c = 0;
    for (; n > 0; n--, ++*p) {
        int digit = *p < end ? hex_digit(**p) : -1;
        if (digit < 0 || *c > 0x110000) return bad(l, QN_EFORMAT, "a malformed escape in a string");
        *c = *c << 4 | digit;
    }
    if (*c > 0x10FFFF) return bad(l, QN_EFORMAT, "an escape beyond U+10FFFF");
    if (*c >= 0xD800 && *c < 0xE000)
        return bad(l, QN_EUNSUPPORTED, "half of a surrogate pair in a string is not supported");
    return QN_OK;
}

/* An escape at p, behind its backslash, as Python resolves it; *n bytes into out. */
static int escape(struct lex *l, const char **p, const char *end, char *out, size_t *n) {
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    int32_t c = 0;
    char e = *(*p)++;
    *n = 0;
    if (e == '\n') return QN_OK;
    for (const char *q = plain; *q != '\0'; q += 2)
        if (*q == e) return out[(*n)++] = q[1], QN_OK;
    if (e == 'N') return bad(l, QN_EUNSUPPORTED, "\\N in a string is not supported");
    if (e == 'x' || e == 'u' || e == 'U') {
        TRY(coded_char(l, p, end, e == 'x' ? 2 : e == 'u' ? 4 : 8, &c));
    } else if (e >= '0' && e <= '7') {
        c = e - '0';
        for (int i = 0; i < 2 && *p < end && **p >= '0' && **p <= '7'; i++)
            c = c << 3 | (*(*p)++ - '0');
    } else { /* not an escape; of a character beyond ASCII, Python's spelling of it remains */
        size_t i = 0;
        int32_t code = text_next(*p - 1, &i);
        *p += i - 1;
        *n = code < 0x80 ? (size_t)snprintf(out, 16, "\\%c", (char)code)
                         : (size_t)snprintf(out, 16,
                                            code < 0x100     ? "\\x%02x"
                                            : code < 0x10000 ? "\\u%04x"
                                                             : "\\U%08x",
                                            (unsigned)code);
        return QN_OK;
    }
    *n = text_put(c, out);
    return QN_OK;
}

static int lex_string(struct lex *l) {
    char quote = *l->p, *text;
    const char *p = l->p + 1, *end = p;
    while (end < l->end && *end != quote) end += *end == '\\' ? 2 : 1;
    if (end >= l->end) return bad(l, QN_EFORMAT, "a string does not end");
    size_t n = 0;
    TRY(arena_take(l->d, l->arena, 4 * (uint64_t)(end - p) + 16, 1, (void **)&text));
    while (p < end) {
        size_t k = 1;
        if (*p != '\\') {
            text[n] = *p++;
        } else {
            p++;
            TRY(escape(l, &p, end, text + n, &k));
        }
        n += k;
    }
    TRY(push(l, (struct token){.type = TOKEN_STRING, .line = l->line, .p = text, .n = n}));
    move(l, end + 1);
    return QN_OK;
}

/* Brackets must match, so that }} inside of them ends no tag. */
static int balance(struct lex *l, char c) {
    static const char pairs[] = "{}()[]";
    const char *p = strchr(pairs, c);
    if ((p - pairs) % 2 == 0) {
        if (l->n_open == sizeof l->open) return bad(l, QN_ELIMIT, "brackets nested too deep");
        l->open[l->n_open++] = p[1];
        return QN_OK;
    }
    if (l->n_open == 0 || l->open[--l->n_open] != c)
        return bad(l, QN_EFORMAT, "a bracket that was not opened");
    return QN_OK;
}

static int lex_operator(struct lex *l) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (size_t i = 0; i < COUNT_OF(operators); i++) {
        const char *op = operators[i];
        struct token t = {.type = TOKEN_OPERATOR, .line = l->line, .p = l->p, .n = strlen(op)};
        if (!at(l, l->p, op)) continue;
        memcpy(t.op, op, t.n);
        if (strchr("[](){}", *op) != NULL) TRY(balance(l, *op));
        TRY(push(l, t));
        move(l, l->p + t.n);
        return QN_OK;
    }
    if ((unsigned char)*l->p >= 0x80)
        return bad(l, QN_EUNSUPPORTED, "a character beyond ASCII in a tag is not supported");
    return fail(l->d, QN_EFORMAT, "%s: line %u: unexpected character '%c'", l->where, l->line,
                *l->p);
}

static int lex_name(struct lex *l) {
    const char *from = l->p, *p = from;
    while (p < l->end && is_name(*p, false)) p++;
    TRY(push(l, (struct token){
                    .type = TOKEN_NAME, .line = l->line, .p = from, .n = (size_t)(p - from)}));
    move(l, p);
    return QN_OK;
}

/* A tag behind its begin, to behind its end. */
static int lex_tag(struct lex *l, bool block) {
    const char *end = block ? "%}" : "}}";
    l->n_open = 0;
    for (;;) {
        char sign = l->p < l->end ? sign_at(l, l->p) : '\0';
        if (!block && sign == '+') sign = '\0';
        if (l->n_open == 0 && at(l, l->p + (sign != '\0'), end)) {
            TRY(push(l, (struct token){.type = block ? TOKEN_BLOCK_END : TOKEN_VARIABLE_END,
                                       .line = l->line}));
            move(l, behind_end(l, l->p + (sign != '\0'), sign, block));
            return QN_OK;
        }
        const char *p = skip_space(l, l->p);
        if (p > l->p) {
            move(l, p);
            continue;
        }
        if (p == l->end) return bad(l, QN_EFORMAT, "a tag does not end");
        TRY(is_digit(l, p)            ? lex_number(l)
            : is_name(*p, true)       ? lex_name(l)
            : *p == '\'' || *p == '"' ? lex_string(l)
                                      : lex_operator(l));
    }
}

/* Text up to a tag, and the tag. */
static int lex_part(struct lex *l) {
    const char *tag = l->p, *behind;
    while (tag < l->end && !at(l, tag, "{{") && !at(l, tag, "{%") && !at(l, tag, "{#")) tag++;
    if (tag == l->end) {
        TRY(push_data(l, l->p, (size_t)(tag - l->p)));
        move(l, tag);
        return QN_OK;
    }
    char sign = sign_at(l, tag + 2);
    TRY(push_data(l, l->p, text_before(l, l->p, (size_t)(tag - l->p), sign, tag[1] == '{')));
    move(l, tag);
    if (is_raw(l, tag, "raw", &behind) && (at(l, behind, "%}") || at(l, behind, "-%}"))) {
        char end_sign = sign_at(l, behind);
        move(l, behind_end(l, behind + (end_sign != '\0'), end_sign, false));
        return lex_raw(l);
    }
    move(l, tag + 2 + (sign != '\0'));
    if (tag[1] == '#') return lex_comment(l);
    TRY(push(l, (struct token){.type = tag[1] == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_VARIABLE_BEGIN,
                               .line = l->line}));
    return lex_tag(l, tag[1] == '%');
}

int lex_all(struct lex *l, const char *program, size_t n) {
    char *text;
    size_t k = 0;
    TRY(arena_take(l->d, l->arena, n + 1, 1, (void **)&text));
    for (size_t i = 0; i < n; i++) {
        if (program[i] == '\r' && i + 1 < n && program[i + 1] == '\n') continue;
        text[k++] = program[i] == '\r' ? '\n' : program[i];
    }
    if (k > 0 && text[k - 1] == '\n') k--;
    l->start = l->p = text;
    l->end = text + k;
    l->line = 1;
    l->line_starts = true;
    while (l->p < l->end) TRY(lex_part(l));
    return push(l, (struct token){.type = TOKEN_END, .line = l->line});
}
