#include "grammar/repeat.h"

#include "base/status.h"
#include "grammar/exprs.h"

#include <string.h>

struct counts {
    const char *text, *space;
    size_t n, at;
    struct repeat r;
};

static char peek(const struct counts *c) {
    return c->at < c->n ? c->text[c->at] : '\0';
}

static void skip_space(struct counts *c) {
    while (peek(c) != '\0' && strchr(c->space, peek(c))) c->at++;
}

static bool take(struct counts *c, char wanted) {
    const bool is = peek(c) == wanted;
    c->at += is;
    return is;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Keeps the first error. */
static void refuse(struct counts *c, int code, const char *what) {
    if (c->r.wrong) return;
    c->r.wrong = what;
    c->r.code = code;
}

static uint32_t take_count(struct counts *c) {
    uint32_t n = 0;
    skip_space(c);
    if (!is_digit(peek(c))) refuse(c, QN_EINVAL, "want a count: {m}, {m,} or {m,n}");
    for (; is_digit(peek(c)) && n <= REPEAT_COUNT_MAX; c->at++)
        n = n * 10 + (uint32_t)(peek(c) - '0');
    if (n > REPEAT_COUNT_MAX) refuse(c, QN_ELIMIT, "a count of more than 65535");
    skip_space(c);
    return n;
}

/* Reads the counts behind the '{'. */
static void take_counts(struct counts *c) {
    c->r.least = c->r.most = take_count(c);
    if (take(c, ',')) {
        skip_space(c);
        c->r.most = peek(c) == '}' ? EXPR_NO_LIMIT : take_count(c);
    }
    if (!c->r.wrong && !take(c, '}')) refuse(c, QN_EINVAL, "want '}'");
    if (c->r.most < c->r.least)
        refuse(c, QN_EINVAL, "a count whose end comes before its beginning");
}

struct repeat repeat_read(const char *text, size_t n, const char *space, size_t *at) {
    struct counts c = {.text = text, .space = space, .n = n, .at = *at, .r = {.found = true}};
    c.r.most = EXPR_NO_LIMIT;
    if (take(&c, '+'))
        c.r.least = 1;
    else if (take(&c, '?'))
        c.r.most = 1;
    else if (take(&c, '{'))
        take_counts(&c);
    else
        c.r.found = take(&c, '*');
    *at = c.at;
    return c.r;
}
