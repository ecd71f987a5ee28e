#include "grammar/json_text.h"

#include "base/checked.h"
#include "grammar/regex.h"

#include <stdio.h>
#include <string.h>

static uint32_t regex(struct exprs *x, const char *text) {
    static const struct regex_form form = {.name = "JSON"};
    uint32_t e;
    regex_read(x, text, strlen(text), &form, &e);
    return e;
}

/* ---- rules -------------------------------------------------------------------------------- */

#define HEX "[0-9a-fA-F]"
#define CHAR_REGEX                                                                                 \
    "[^\"\\\\\\x00-\\x1f\\x7f]|\\\\([\"\\\\/bfnrt]|u([0-9a-ce-fA-CE-F]" HEX "{3}|[dD]([0-7]" HEX   \
    "{2}|[89abAB]" HEX "{2}\\\\u[dD][c-fC-F]" HEX "{2})))"

/* Regexes of the regular rules. An escaped surrogate must come with its other half. */
static const char *const rule_texts[N_TEXT_RULES] = {
    [TEXT_SPACE] = "( |\\r?\\n[ \\t]{0,64})?",
    [TEXT_CHAR] = CHAR_REGEX,
    [TEXT_ESCAPED] = "\\\\([\"\\\\bfnrt]|u00([01][0-9a-f]|7f))",
    [TEXT_INTEGER] = "-?(0|[1-9][0-9]*)",
    [TEXT_NUMBER] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?",
};

static uint32_t list_of(struct json_text *j, uint32_t item, const char *open, const char *close) {
    struct exprs *x = j->x;
    const uint32_t more = expr_repeat(x, EXPR_SEQ_OF(x, json_sign(j, ","), item), 0, EXPR_NO_LIMIT);
    const uint32_t some = EXPR_SEQ_OF(x, item, more, json_rule(j, TEXT_SPACE));
    return EXPR_SEQ_OF(x, expr_text(x, open), json_rule(j, TEXT_SPACE), expr_repeat(x, some, 0, 1),
                       expr_text(x, close));
}

static uint32_t make_rule(struct json_text *j, enum json_rule rule) {
    struct exprs *x = j->x;
    const uint32_t quote = expr_text(x, "\"");
    switch (rule) {
    case TEXT_STRING:
        return EXPR_SEQ_OF(x, quote, expr_repeat(x, json_rule(j, TEXT_CHAR), 0, EXPR_NO_LIMIT),
                           quote);
    case TEXT_ARRAY: return list_of(j, json_rule(j, TEXT_VALUE), "[", "]");
    case TEXT_OBJECT:
        return list_of(
            j,
            EXPR_SEQ_OF(x, json_rule(j, TEXT_STRING), json_sign(j, ":"), json_rule(j, TEXT_VALUE)),
            "{", "}");
    case TEXT_VALUE:
        return EXPR_ALT_OF(x, json_rule(j, TEXT_STRING), json_rule(j, TEXT_NUMBER),
                           json_rule(j, TEXT_ARRAY), json_rule(j, TEXT_OBJECT),
                           expr_text(x, "true"), expr_text(x, "false"), expr_text(x, "null"));
    default: return regex(x, rule_texts[rule]);
    }
}

uint32_t json_rule(struct json_text *j, enum json_rule rule) {
    if (j->rules[rule] == 0) {
        const uint32_t made = expr_rule_new(j->x, NULL);
        j->rules[rule] = made + 1;
        expr_rule_define(j->x, made, make_rule(j, rule));
    }
    return expr_call(j->x, j->rules[rule] - 1);
}

uint32_t json_sign(struct json_text *j, const char *sign) {
    const uint32_t space = json_rule(j, TEXT_SPACE);
    return EXPR_SEQ_OF(j->x, space, expr_text(j->x, sign), space);
}

/* ---- literals ----------------------------------------------------------------------------- */

static uint32_t dumped(struct json_text *j, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return (uint32_t)exprs_fail(j->x, QN_EINVAL, "a value that is no JSON");
    const uint32_t e = expr_text(j->x, text);
    free(text);
    return e;
}

uint32_t json_key(struct json_text *j, const char *name, size_t n) {
    json_t *text = json_stringn_nocheck(name, n);
    if (!text) return (uint32_t)exprs_fail(j->x, QN_ENOMEM, "the name of a property");
    const uint32_t e = EXPR_SEQ_OF(j->x, dumped(j, text), json_sign(j, ":"));
    json_decref(text);
    return e;
}

static uint32_t literal_array(struct json_text *j, const json_t *value) {
    uint32_t e = EXPR_SEQ_OF(j->x, expr_text(j->x, "["), json_rule(j, TEXT_SPACE));
    for (size_t i = 0; i < json_array_size(value) && j->x->rc == QN_OK; i++) {
        if (i > 0) e = EXPR_SEQ_OF(j->x, e, json_sign(j, ","));
        e = EXPR_SEQ_OF(j->x, e, json_literal(j, json_array_get(value, i)));
    }
    return EXPR_SEQ_OF(j->x, e, json_rule(j, TEXT_SPACE), expr_text(j->x, "]"));
}

static uint32_t literal_object(struct json_text *j, const json_t *value) {
    const char *key;
    size_t n_key, i = 0;
    json_t *member;
    uint32_t e = EXPR_SEQ_OF(j->x, expr_text(j->x, "{"), json_rule(j, TEXT_SPACE));
    json_object_keylen_foreach((json_t *)value, key, n_key, member) {
        if (i++ > 0) e = EXPR_SEQ_OF(j->x, e, json_sign(j, ","));
        e = EXPR_SEQ_OF(j->x, e, json_key(j, key, n_key), json_literal(j, member));
    }
    return EXPR_SEQ_OF(j->x, e, json_rule(j, TEXT_SPACE), expr_text(j->x, "}"));
}

uint32_t json_literal(struct json_text *j, const json_t *value) {
    if (j->x->rc != QN_OK) return 0;
    if (json_is_array(value)) return literal_array(j, value);
    if (json_is_object(value)) return literal_object(j, value);
    return dumped(j, value);
}

/* ---- keys that are not taken --------------------------------------------------------------- */

/* Names with the same first `at` bytes: items[0, n), in order. */
struct names {
    const char *const *items;
    size_t n, at;
};

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The rest, with the closing quote, of a string that began like all the names and is none of them.
 * Characters of names are not escaped; others may also be short escapes. A name's character that
 * must be escaped has its own short escape here. */
static uint32_t unlike(struct json_text *j, struct names s);

static uint32_t escape_of(struct json_text *j, uint32_t c) {
    struct charset one = {.items = {{c, c}}, .n = 1};
    return regex_json_class(j->x, &one);
}

/* Adds to `rest` an alternative for each character that a name has next. The alternative goes on
 * with `unlike` for the names that have it. `heads` gets these characters. */
static uint32_t unlike_heads(struct json_text *j, struct names s, struct charset *heads,
                             uint32_t rest) {
    struct exprs *x = j->x;
    uint32_t all = rest;
    for (size_t i = 0; i < s.n && x->rc == QN_OK;) {
        size_t n_bytes, end = i;
        const char *text = s.items[i] + s.at;
        const uint32_t c = char_read(text, strlen(text), &n_bytes);
        while (end < s.n && strncmp(s.items[end] + s.at, text, n_bytes) == 0) end++;
        charset_add(heads, c, c);
        const struct names below = {s.items + i, end - i, s.at + n_bytes};
        all = EXPR_ALT_OF(x, all, EXPR_SEQ_OF(x, escape_of(j, c), unlike(j, below)));
        i = end;
    }
    return all;
}

/* One character that is none of `heads`. */
static uint32_t other_chars(struct json_text *j, struct charset *heads) {
    bool has_special = false;
    for (uint32_t i = 0; i < heads->n; i++) /* each is one character so far */
        has_special |= charset_has(&regex_json_special, heads->items[i].low);
    charset_sort(heads);
    charset_invert(heads);
    if (has_special) return regex_json_class(j->x, heads);
    charset_remove(heads, &regex_json_special);
    return EXPR_ALT_OF(j->x, expr_class(j->x, heads), json_rule(j, TEXT_ESCAPED));
}

static uint32_t unlike(struct json_text *j, struct names s) {
    struct exprs *x = j->x;
    const uint32_t quote = expr_text(x, "\"");
    const bool is_name = s.n > 0 && s.items[0][s.at] == '\0';
    while (s.n > 0 && s.items[0][s.at] == '\0') s.items++, s.n--;
    struct charset *heads = calloc(1, sizeof *heads);
    if (!heads || x->rc != QN_OK || s.at > 1024) {
        free(heads);
        return (uint32_t)exprs_fail(x, heads ? QN_ELIMIT : QN_ENOMEM, "the name of a property");
    }
    uint32_t all = unlike_heads(j, s, heads, expr_list(x, EXPR_ALT, NULL, 0));
    const uint32_t others = other_chars(j, heads);
    const uint32_t any = expr_repeat(x, json_rule(j, TEXT_CHAR), 0, EXPR_NO_LIMIT);
    free(heads);
    all = EXPR_ALT_OF(x, all, EXPR_SEQ_OF(x, others, any, quote));
    return is_name ? all : EXPR_ALT_OF(x, all, quote);
}

uint32_t json_other_key(struct json_text *j, const char *const *names, size_t n) {
    if (n == 0) return json_rule(j, TEXT_STRING);
    const char **sorted = malloc(n * sizeof *sorted);
    if (!sorted) return (uint32_t)exprs_fail(j->x, QN_ENOMEM, "the names of properties");
    memcpy(sorted, names, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_name);
    const uint32_t rest = unlike(j, (struct names){sorted, n, 0});
    free(sorted);
    return EXPR_SEQ_OF(j->x, expr_text(j->x, "\""), rest);
}

/* ---- numbers ------------------------------------------------------------------------------ */

static uint32_t digits(struct json_text *j, uint32_t least, uint32_t most) {
    return expr_repeat(j->x, expr_range(j->x, '0', '9'), least, most);
}

/* Digit strings from `low` to `high`, of one length n. */
static uint32_t same_length(struct json_text *j, const char *low, const char *high, size_t n) {
    struct exprs *x = j->x;
    if (n == 0) return expr_text(x, "");
    const bool from = strspn(low + 1, "0") >= n - 1, to = strspn(high + 1, "9") >= n - 1;
    const uint32_t left = (uint32_t)n - 1;
    static const char zeros[] = "00000000000000000000", nines[] = "99999999999999999999";
    if (low[0] == high[0])
        return EXPR_SEQ_OF(x, expr_range(x, (uint8_t)low[0], (uint8_t)low[0]),
                           same_length(j, low + 1, high + 1, left));
    const uint32_t first = (uint8_t)low[0] + !from, last = (uint8_t)high[0] - !to;
    uint32_t all = expr_list(x, EXPR_ALT, NULL, 0);
    if (first <= last)
        all =
            EXPR_ALT_OF(x, all, EXPR_SEQ_OF(x, expr_range(x, first, last), digits(j, left, left)));
    if (!from)
        all = EXPR_ALT_OF(x, all,
                          EXPR_SEQ_OF(x, expr_range(x, (uint8_t)low[0], (uint8_t)low[0]),
                                      same_length(j, low + 1, nines, left)));
    if (!to)
        all = EXPR_ALT_OF(x, all,
                          EXPR_SEQ_OF(x, expr_range(x, (uint8_t)high[0], (uint8_t)high[0]),
                                      same_length(j, zeros, high + 1, left)));
    return all;
}

/* Whole numbers from low to high without a sign; has_high false: all from low on. */
static uint32_t magnitudes(struct json_text *j, uint64_t low, uint64_t high, bool has_high) {
    struct exprs *x = j->x;
    uint32_t all = expr_list(x, EXPR_ALT, NULL, 0);
    if (has_high && low > high) return all;
    for (;;) {
        char first[32], last[32];
        const size_t n = (size_t)snprintf(first, sizeof first, "%llu", (unsigned long long)low);
        const size_t n_high = (size_t)snprintf(last, sizeof last, "%llu", (unsigned long long)high);
        const bool here = has_high && n == n_high;
        if (!here) memset(last, '9', n);
        all = EXPR_ALT_OF(x, all, same_length(j, first, last, n));
        if (here) return all;
        if (!has_high)
            return EXPR_ALT_OF(
                x, all,
                EXPR_SEQ_OF(x, expr_range(x, '1', '9'), digits(j, (uint32_t)n, EXPR_NO_LIMIT)));
        low = 1;
        for (size_t i = 0; i < n; i++) low *= 10;
    }
}

static uint64_t magnitude(int64_t v) {
    return v < 0 ? -(uint64_t)v : (uint64_t)v;
}

uint32_t json_integers(struct json_text *j, struct json_bounds b) {
    struct exprs *x = j->x;
    if (b.has_low && b.above) b.low += b.low < INT64_MAX;
    if (b.has_high && b.below) b.high -= b.high > INT64_MIN;
    if (!b.has_low && !b.has_high) return json_rule(j, TEXT_INTEGER);
    uint32_t all = expr_list(x, EXPR_ALT, NULL, 0);
    if (b.has_low && b.has_high && b.low > b.high) return all;
    if (!b.has_high || b.high >= 0)
        all = EXPR_ALT_OF(x, all,
                          magnitudes(j, b.has_low && b.low > 0 ? (uint64_t)b.low : 0,
                                     magnitude(b.high), b.has_high));
    if (!b.has_low || b.low < 0)
        all =
            EXPR_ALT_OF(x, all,
                        EXPR_SEQ_OF(x, expr_text(x, "-"),
                                    magnitudes(j, b.has_high && b.high < 0 ? magnitude(b.high) : 1,
                                               magnitude(b.low), b.has_low)));
    return all;
}

/* Numbers from low to high without a sign or an exponent; above, below: the bound is excluded. */
static uint32_t decimals(struct json_text *j, uint64_t low, bool above, uint64_t high, bool below,
                         bool has_high) {
    struct exprs *x = j->x;
    uint32_t all = expr_list(x, EXPR_ALT, NULL, 0);
    if (has_high && low > high) return all;
    const uint32_t any = regex(x, "(\\.[0-9]+)?"), none = regex(x, "(\\.0+)?");
    if (above && (!has_high || low < high))
        all = EXPR_ALT_OF(
            x, all,
            EXPR_SEQ_OF(x, magnitudes(j, low, low, true), regex(x, "\\.[0-9]*[1-9][0-9]*")));
    const uint64_t from = low + above;
    if (!has_high || (high > 0 && from <= high - 1))
        all = EXPR_ALT_OF(x, all, EXPR_SEQ_OF(x, magnitudes(j, from, high - 1, has_high), any));
    if (has_high && !below && from <= high)
        all = EXPR_ALT_OF(x, all, EXPR_SEQ_OF(x, magnitudes(j, high, high, true), none));
    return all;
}

uint32_t json_numbers(struct json_text *j, struct json_bounds b) {
    struct exprs *x = j->x;
    if (!b.has_low && !b.has_high) return json_rule(j, TEXT_NUMBER);
    uint32_t all = expr_list(x, EXPR_ALT, NULL, 0);
    const bool low_counts = b.has_low && b.low >= 0, high_counts = b.has_high && b.high <= 0;
    if (!b.has_high || b.high >= 0)
        all = EXPR_ALT_OF(x, all,
                          decimals(j, low_counts ? (uint64_t)b.low : 0, low_counts && b.above,
                                   magnitude(b.high), b.below, b.has_high));
    if (!b.has_low || b.low < 0)
        all = EXPR_ALT_OF(x, all,
                          EXPR_SEQ_OF(x, expr_text(x, "-"),
                                      decimals(j, high_counts ? magnitude(b.high) : 0,
                                               !high_counts || b.below || b.high == 0,
                                               magnitude(b.low), b.above, b.has_low)));
    return all;
}
