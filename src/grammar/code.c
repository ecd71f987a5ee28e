#include "grammar/code.h"

#include "base/checked.h"

#include <assert.h>
#include <string.h>

/* Marks an instruction that has not been made. */
enum { NOT_MADE = UINT32_MAX };

struct maker {
    struct exprs *x;
    struct code *code;
    uint32_t *entry; /* [rules] */
    uint32_t depth;
};

void code_fini(struct code *code) {
    ARRAY_FINI(&code->items);
}

static uint32_t put(struct maker *m, struct instruction i) {
    struct exprs *x = m->x;
    if (m->code->items.n >= CODE_MAX)
        exprs_fail(x, QN_ELIMIT, "more than %d instructions: a smaller schema or grammar is wanted",
                   CODE_MAX);
    if (x->rc == QN_OK) x->rc = ARRAY_PUSH(x->d, &m->code->items, i);
    return x->rc == QN_OK ? (uint32_t)m->code->items.n - 1 : 0;
}

static uint32_t put_range(struct maker *m, uint32_t low, uint32_t high, uint32_t next) {
    return put(m,
               (struct instruction){
                   .kind = CODE_RANGE, .low = (uint8_t)low, .high = (uint8_t)high, .next = next});
}

static uint32_t put_split(struct maker *m, uint32_t next, uint32_t other) {
    return put(m, (struct instruction){.kind = CODE_SPLIT, .next = next, .other = other});
}

/* ---- code points -------------------------------------------------------------------------- */

/* A class while it is made: its alternatives so far, and tails[n]: n continuation bytes before
 * `next`. */
struct class_maker {
    struct maker *m;
    uint32_t all; /* NOT_MADE: none yet */
    uint32_t tails[4];
};

static uint32_t tail_of(struct class_maker *c, uint32_t n) {
    for (uint32_t i = 1; i <= n; i++)
        if (c->tails[i] == NOT_MADE) c->tails[i] = put_range(c->m, 0x80, 0xbf, c->tails[i - 1]);
    return c->tails[n];
}

static uint32_t either(struct maker *m, uint32_t a, uint32_t b) {
    return a == NOT_MADE ? b : b == NOT_MADE ? a : put_split(m, a, b);
}

/* Makes bytes [at, n) of the encodings from `low` to `high`, which have n bytes and agree before
 * byte `at`. */
static uint32_t between(struct class_maker *c, const uint8_t *low, const uint8_t *high, uint32_t at,
                        uint32_t n) {
    static const uint8_t least[] = {0x80, 0x80, 0x80, 0x80}, most[] = {0xbf, 0xbf, 0xbf, 0xbf};
    struct maker *m = c->m;
    if (at == n) return c->tails[0];
    assert(at < n && n <= 4);
    const uint32_t left = n - at - 1;
    const bool whole_low = memcmp(low + at + 1, least, left) == 0;
    const bool whole_high = memcmp(high + at + 1, most, left) == 0;
    if (low[at] == high[at] && !(whole_low && whole_high))
        return put_range(m, low[at], high[at], between(c, low, high, at + 1, n));
    const uint32_t first = low[at] + !whole_low, end = high[at] + whole_high; /* bytes between */
    uint32_t all = NOT_MADE;
    if (first < end) all = put_range(m, first, end - 1, tail_of(c, left));
    if (!whole_low)
        all = either(m, put_range(m, low[at], low[at], between(c, low, most, at + 1, n)), all);
    if (!whole_high)
        all = either(m, put_range(m, high[at], high[at], between(c, least, high, at + 1, n)), all);
    return all;
}

/* Ranges of code points whose encodings have one length. Surrogates have no encoding. */
static const struct char_range parts[] = {
    {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, CHAR_LAST}};

static uint32_t make_class(struct maker *m, const struct expr *e, uint32_t next) {
    struct class_maker c = {.m = m, .all = NOT_MADE, .tails = {next, NOT_MADE, NOT_MADE, NOT_MADE}};
    for (uint32_t i = 0; i < e->n; i++)
        for (size_t k = 0; k < COUNT_OF(parts); k++) {
            const struct char_range r = m->x->ranges.items[e->first + i];
            const uint32_t low = MAX(r.low, parts[k].low), high = MIN(r.high, parts[k].high);
            uint8_t first[4], last[4];
            if (low > high) continue;
            const uint32_t n = char_write(low, first);
            char_write(high, last);
            c.all = either(m, between(&c, first, last, 0, n), c.all);
        }
    return c.all == NOT_MADE ? put(m, (struct instruction){.kind = CODE_FAIL}) : c.all;
}

/* ---- expressions, from their ends --------------------------------------------------------- */

static uint32_t make(struct maker *m, uint32_t expr, uint32_t next);

static uint32_t make_bytes(struct maker *m, const struct expr *e, uint32_t next) {
    for (uint32_t i = e->n; i-- > 0;) {
        const uint8_t byte = (uint8_t)m->x->bytes.items[e->first + i];
        next = put_range(m, byte, byte, next);
    }
    return next;
}

static uint32_t make_alt(struct maker *m, const struct expr *e, uint32_t next) {
    uint32_t all = NOT_MADE;
    for (uint32_t i = e->n; i-- > 0;)
        all = either(m, make(m, m->x->children.items[e->first + i], next), all);
    return all == NOT_MADE ? put(m, (struct instruction){.kind = CODE_FAIL}) : all;
}

/* Repeats the child any number of times: it is `next` of a SPLIT, and leads back to the SPLIT. */
static uint32_t make_star(struct maker *m, uint32_t child, uint32_t next, uint32_t *body) {
    const uint32_t split = put_split(m, 0, next);
    *body = make(m, child, split);
    if (m->x->rc == QN_OK) m->code->items.items[split].next = *body;
    return split;
}

/* Repeats the child by a REPEAT with BOUNDS. */
static uint32_t make_counted(struct maker *m, const struct expr *e, uint32_t child, uint32_t next) {
    const uint32_t end = put(m, (struct instruction){.kind = CODE_RETURN});
    const uint32_t body = make(m, child, end);
    const uint32_t repeat =
        put(m, (struct instruction){.kind = CODE_REPEAT, .next = next, .other = body});
    put(m, (struct instruction){.kind = CODE_BOUNDS,
                                .low = expr_is_nullable(m->x, child),
                                .next = e->least,
                                .other = e->most});
    return repeat;
}

static uint32_t make_repeat(struct maker *m, const struct expr *e, uint32_t next) {
    const uint32_t child = m->x->children.items[e->first];
    uint32_t body;
    if (e->most == 0) return next;
    if (e->least == 0 && e->most == EXPR_NO_LIMIT) return make_star(m, child, next, &body);
    if (e->least == 1 && e->most == EXPR_NO_LIMIT) {
        make_star(m, child, next, &body);
        return body;
    }
    if (e->most == 1) {
        body = make(m, child, next);
        return e->least == 1 ? body : put_split(m, body, next);
    }
    return make_counted(m, e, child, next);
}

static uint32_t make(struct maker *m, uint32_t expr, uint32_t next) {
    const struct expr e = m->x->items.items[expr];
    if (m->x->rc != QN_OK || ++m->depth > EXPR_DEPTH_MAX) {
        exprs_fail(m->x, QN_ELIMIT, "expressions inside each other more than %d deep",
                   EXPR_DEPTH_MAX);
        return 0;
    }
    switch (e.kind) {
    case EXPR_BYTES: next = make_bytes(m, &e, next); break;
    case EXPR_CLASS: next = make_class(m, &e, next); break;
    case EXPR_ALT: next = make_alt(m, &e, next); break;
    case EXPR_REPEAT: next = make_repeat(m, &e, next); break;
    case EXPR_CALL:
        next = put(m, (struct instruction){.kind = CODE_RULE, .next = next, .other = e.first});
        break;
    case EXPR_SEQ:
        for (uint32_t i = e.n; i-- > 0;) next = make(m, m->x->children.items[e.first + i], next);
    }
    m->depth--;
    return next;
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* Makes each CODE_RULE a CALL of the rule's first instruction. */
static void link(struct maker *m) {
    for (size_t i = 0; i < m->code->items.n; i++) {
        struct instruction *at = &m->code->items.items[i];
        if (at->kind != CODE_RULE) continue;
        at->kind = CODE_CALL;
        at->other = m->entry[at->other];
    }
}

/* Bytes are of one class unless a RANGE begins or ends between them. */
static void classify(struct code *code) {
    bool begins[257] = {true};
    for (size_t i = 0; i < code->items.n; i++) {
        const struct instruction *at = &code->items.items[i];
        if (at->kind == CODE_RANGE) begins[at->low] = begins[at->high + 1] = true;
    }
    code->n_classes = 0;
    for (uint32_t b = 0; b < 256; b++) {
        if (begins[b]) code->byte_of[code->n_classes++] = (uint8_t)b;
        code->class_of[b] = (uint8_t)(code->n_classes - 1);
    }
}

int code_make(struct exprs *x, struct code *code) {
    struct maker m = {.x = x, .code = code};
    *code = (struct code){0};
    m.entry = calloc(x->rules.n + 1, sizeof *m.entry);
    if (!m.entry) return x->rc = fail_nomem(x->d, x->rules.n * sizeof *m.entry, "a grammar");
    const uint32_t end = put(&m, (struct instruction){.kind = CODE_RETURN});
    for (size_t i = 0; i < x->rules.n && x->rc == QN_OK; i++)
        m.entry[i] = make(&m, x->rules.items[i].expr, end);
    if (x->rc == QN_OK) {
        link(&m);
        classify(code);
        code->start = m.entry[0];
    }
    free(m.entry);
    if (x->rc != QN_OK) code_fini(code);
    return x->rc;
}
