#include "grammar/regex.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "grammar/repeat.h"

#include <stdio.h>
#include <string.h>

struct reader {
    struct exprs *x;
    const struct regex_form *form;
    const char *text;
    size_t n, at;
    uint32_t depth;
};

static int refuse(struct reader *r, int code, const char *what) {
    return exprs_fail(r->x, code, "%s: byte %zu: %s", r->form->name, r->at, what);
}

static bool more(const struct reader *r) {
    return r->at < r->n && r->x->rc == QN_OK;
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

static uint32_t take_char(struct reader *r) {
    size_t n;
    if (r->at == r->n) return (uint32_t)refuse(r, QN_EINVAL, "nothing more");
    const uint32_t c = char_read(r->text + r->at, r->n - r->at, &n);
    r->at += n;
    return c;
}

/* ---- classes ------------------------------------------------------------------------------ */

/* Sets by the letter after a backslash. The capital letter means all other characters. */
static const struct named_set {
    char letter;
    uint32_t n;
    struct char_range items[5];
} named_sets[] = {
    {'d', 1, {{'0', '9'}}},
    {'w', 4, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
    {'s', 2, {{'\t', '\r'}, {' ', ' '}}},
};

/* Characters by the letter after a backslash. */
static const struct named_char {
    char letter, is;
} named_chars[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}};

static bool add_named(struct charset *s, char letter) {
    for (size_t i = 0; i < COUNT_OF(named_sets); i++) {
        struct charset set = {.n = named_sets[i].n};
        memcpy(set.items, named_sets[i].items, sizeof named_sets[i].items);
        if ((letter | 0x20) != named_sets[i].letter) continue;
        if (letter != named_sets[i].letter) charset_invert(&set);
        charset_add_all(s, &set);
        return true;
    }
    return false;
}

static uint32_t take_hex(struct reader *r, uint32_t n_digits) {
    uint32_t c = 0;
    for (uint32_t i = 0; i < n_digits; i++) {
        const char digit = peek(r);
        const char *digits = "0123456789abcdef", *found = strchr(digits, digit | 0x20);
        if (digit >= '0' && digit <= '9') found = digits + (digit - '0');
        if (digit == '\0' || !found) {
            refuse(r, QN_EINVAL, "want a hexadecimal digit");
            return 0;
        }
        c = c << 4 | (uint32_t)(found - digits);
        r->at++;
    }
    return c;
}

/* Reads an escape after its backslash: adds a set to *s (true), or stores one character in *c. */
static bool take_escape(struct reader *r, struct charset *s, uint32_t *c) {
    const char letter = peek(r);
    *c = 0;
    if (r->at == r->n) refuse(r, QN_EINVAL, "nothing after the backslash");
    if (r->x->rc != QN_OK) return false;
    if (add_named(s, letter)) {
        r->at++;
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(named_chars); i++)
        if (letter == named_chars[i].letter) {
            *c = (uint32_t)named_chars[i].is;
            r->at++;
            return false;
        }
    if (take(r, "x")) {
        *c = take_hex(r, 2);
    } else if (take(r, "u")) {
        *c = take_hex(r, 4);
    } else if ((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
               (letter >= 'A' && letter <= 'Z')) {
        refuse(r, QN_EUNSUPPORTED,
               "this escape is not known here: want \\d \\w \\s \\D \\W \\S \\n \\t \\r \\f \\v "
               "\\xHH \\uHHHH or an escaped sign");
    } else {
        *c = take_char(r);
    }
    return false;
}

/* Reads one end of a range in brackets into *c, or adds a set to *s (true). */
static bool take_member(struct reader *r, struct charset *s, uint32_t *c) {
    if (take(r, "[:")) refuse(r, QN_EUNSUPPORTED, "[:name:] is not known here");
    if (take(r, "\\")) {
        if (!take(r, "b")) return take_escape(r, s, c);
        *c = '\b';
        return false;
    }
    *c = take_char(r);
    return false;
}

/* Reads a class after its opening bracket. */
static void take_class(struct reader *r, struct charset *s) {
    const bool inverted = take(r, "^");
    while (more(r) && peek(r) != ']') {
        uint32_t low, high;
        if (take_member(r, s, &low)) continue;
        high = low;
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            if (take_member(r, s, &high)) refuse(r, QN_EINVAL, "a range ends with a set");
        }
        if (high < low) refuse(r, QN_EINVAL, "a range whose end comes before its beginning");
        charset_add(s, low, high);
    }
    if (!take(r, "]")) refuse(r, QN_EINVAL, "want ']'");
    charset_sort(s);
    if (inverted) charset_invert(s);
    if (s->n == 0) refuse(r, QN_EINVAL, "no character is in this class");
}

const struct charset regex_json_special = {
    .items = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x7f}}, .n = 4};

uint32_t regex_json_class(struct exprs *x, const struct charset *set) {
    static const struct {
        char is;
        const char *text;
    } short_forms[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
                       {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
    uint32_t list[40], n = 0;
    struct charset *plain = malloc(sizeof *plain);
    if (!plain) return (uint32_t)exprs_fail(x, QN_ENOMEM, "a class of characters");
    *plain = *set;
    charset_remove(plain, &regex_json_special);
    if (plain->n > 0) list[n++] = expr_class(x, plain);
    free(plain);
    for (uint32_t c = 0; c <= 0x7f; c++) {
        char text[8];
        if (!charset_has(&regex_json_special, c) || !charset_has(set, c)) continue;
        snprintf(text, sizeof text, "\\u%04x", c);
        for (size_t i = 0; i < COUNT_OF(short_forms); i++)
            if ((uint32_t)short_forms[i].is == c)
                snprintf(text, sizeof text, "%s", short_forms[i].text);
        list[n++] = expr_text(x, text);
    }
    return expr_list(x, EXPR_ALT, list, n);
}

static uint32_t class_expr(struct reader *r, struct charset *s) {
    charset_sort(s);
    return r->form->in_json ? regex_json_class(r->x, s) : expr_class(r->x, s);
}

/* ---- parts -------------------------------------------------------------------------------- */

static uint32_t take_choice(struct reader *r);

static uint32_t take_group(struct reader *r) {
    if (take(r, "?")) {
        const bool named =
            take(r, "P<") || (peek(r) == '<' && !take(r, "<=") && !take(r, "<!") && take(r, "<"));
        if (named)
            while (more(r) && r->text[r->at++] != '>') {
            }
        else if (!take(r, ":"))
            refuse(r, QN_EUNSUPPORTED,
                   "want (...), (?:...) or (?P<name>...): looking ahead or "
                   "behind and flags are not known here");
    }
    if (++r->depth > REGEX_DEPTH) refuse(r, QN_ELIMIT, "groups more than 32 deep");
    const uint32_t e = r->x->rc == QN_OK ? take_choice(r) : 0;
    r->depth--;
    if (!take(r, ")")) refuse(r, QN_EINVAL, "want ')'");
    return e;
}

static uint32_t take_atom(struct reader *r) {
    struct charset s = {0};
    uint32_t c;
    if (take(r, "(")) return take_group(r);
    if (take(r, "[")) {
        take_class(r, &s);
    } else if (take(r, ".")) {
        charset_add(&s, '\n', '\n');
        charset_invert(&s);
    } else if (strchr("*+?{", peek(r)) && peek(r) != '\0') {
        refuse(r, QN_EINVAL, "nothing to repeat");
    } else if (strchr("^$", peek(r)) && peek(r) != '\0') {
        refuse(r, QN_EUNSUPPORTED, "^ and $ are known at the two ends only");
    } else if (take(r, "\\")) {
        if (!take_escape(r, &s, &c)) charset_add(&s, c, c);
    } else {
        c = take_char(r);
        charset_add(&s, c, c);
    }
    return r->x->rc == QN_OK ? class_expr(r, &s) : 0;
}

static uint32_t take_piece(struct reader *r) {
    uint32_t e = take_atom(r);
    for (uint32_t n = 0; r->x->rc == QN_OK; n++) {
        const struct repeat times = repeat_read(r->text, r->n, "", &r->at);
        if (times.wrong) refuse(r, times.code, times.wrong);
        if (!times.found) break;
        if (n > 0) refuse(r, QN_EINVAL, "repeated twice: put the first in a group");
        if (take(r, "+")) refuse(r, QN_EUNSUPPORTED, "possessive repetition is not known here");
        take(r, "?"); /* lazy: the same texts match */
        e = expr_repeat(r->x, e, times.least, times.most);
    }
    return e;
}

/* Whether a $ that ends the regex or one of its alternatives is here; only at depth 0. */
static bool at_end(const struct reader *r) {
    return r->depth == 0 && peek(r) == '$' && (r->at + 1 == r->n || r->text[r->at + 1] == '|');
}

static uint32_t take_sequence(struct reader *r) {
    ARRAY(uint32_t) list = {0};
    uint32_t e = 0;
    const bool top = r->depth == 0, open = top && r->form->anywhere;
    struct charset all = {.items = {{0, CHAR_LAST}}, .n = 1};
    const uint32_t any = open ? expr_repeat(r->x, class_expr(r, &all), 0, EXPR_NO_LIMIT) : 0;
    int rc = QN_OK;
    if (!(top && take(r, "^")) && open) rc = ARRAY_PUSH(r->x->d, &list, any);
    while (more(r) && peek(r) != '|' && peek(r) != ')' && !at_end(r) && rc == QN_OK)
        rc = ARRAY_PUSH(r->x->d, &list, take_piece(r));
    if (!(top && take(r, "$")) && open && rc == QN_OK) rc = ARRAY_PUSH(r->x->d, &list, any);
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

int regex_read(struct exprs *x, const char *text, size_t n, const struct regex_form *form,
               uint32_t *expr) {
    struct reader r = {.x = x, .form = form, .text = text, .n = n};
    *expr = 0;
    if (n > REGEX_MAX)
        return exprs_fail(x, QN_ELIMIT, "%s: at most %d bytes, have %zu", form->name, REGEX_MAX, n);
    if (utf8_end(text, n) != n || memchr(text, '\0', n))
        return exprs_fail(x, QN_EINVAL, "%s: want UTF-8 without zero bytes", form->name);
    *expr = take_choice(&r);
    if (r.x->rc == QN_OK && r.at < r.n) refuse(&r, QN_EINVAL, "a ')' without its '('");
    return x->rc;
}
