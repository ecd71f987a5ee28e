#include "model/jinja/value.h"
#include "base/checked.h"
#include "model/jinja/jinja.h"
#include "model/jinja/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The run. */

int(run_fail)(struct run *r, int code, const char *fmt, ...) {
    char message[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return fail(r->d, code, "%s: line %u: %s", r->where, r->line, message);
}

/* Of this thread, so that a busy machine changes no result. */
static uint64_t processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int run_step(struct run *r, uint64_t n) {
    uint64_t before = r->steps;
    r->steps += n;
    if (r->steps > JINJA_MAX_STEPS)
        return run_fail(r, QN_ELIMIT, "more than %d steps", JINJA_MAX_STEPS);
    if (before / 1024 == r->steps / 1024) return QN_OK;
    uint64_t now = processor_time();
    if (r->deadline == 0) r->deadline = now + JINJA_MAX_MS * 1000000ull;
    if (now > r->deadline)
        return run_fail(r, QN_ELIMIT, "the template took more than %d ms", JINJA_MAX_MS);
    return QN_OK;
}

int run_enter(struct run *r) {
    if (r->depth >= JINJA_MAX_DEPTH)
        return run_fail(r, QN_ELIMIT, "nested more than %d levels deep", JINJA_MAX_DEPTH);
    r->depth++;
    return QN_OK;
}

int run_take(struct run *r, uint64_t n, size_t size, void **out) {
    uint64_t bytes;
    if (!checked_mul(n, size, &bytes) || bytes > JINJA_MAX_MEMORY ||
        r->arena.total_bytes > JINJA_MAX_MEMORY - bytes)
        return run_fail(r, QN_ELIMIT, "more than %d MiB of values", JINJA_MAX_MEMORY >> 20);
    TRY(run_step(r, bytes / 256));
    return arena_take(r->d, &r->arena, n, size, out);
}

/* Texts. */

int out_new(struct run *r, struct out **o) {
    TRY(RUN_NEW(r, o, 1));
    (*o)->r = r;
    return QN_OK;
}

void out_add(struct out *o, const char *p, size_t n) {
    if (o->rc != QN_OK) return;
    if (n > JINJA_MAX_OUTPUT - o->n) {
        o->rc = run_fail(o->r, QN_ELIMIT, "a text of more than %d MiB", JINJA_MAX_OUTPUT >> 20);
        return;
    }
    if (n > o->capacity - o->n) {
        size_t capacity = MAX(o->capacity * 2, o->n + n + 32);
        char *text;
        o->rc = RUN_NEW(o->r, &text, capacity);
        if (o->rc != QN_OK) return;
        if (o->n > 0) memcpy(text, o->p, o->n);
        o->p = text;
        o->capacity = capacity;
    }
    if (n > 0) memcpy(o->p + o->n, p, n);
    o->n += n;
}

void out_str(struct out *o, const char *text) {
    out_add(o, text, strlen(text));
}

void out_char(struct out *o, int32_t c) {
    char bytes[4];
    out_add(o, bytes, text_put(c, bytes));
}

int out_value(struct out *o, struct value *text) {
    if (o->rc != QN_OK) return o->rc;
    return value_borrow(o->r, o->p == NULL ? "" : o->p, o->n, text);
}

int value_borrow(struct run *r, const char *p, size_t n, struct value *out) {
    struct text *t;
    TRY(RUN_NEW(r, &t, 1));
    *t = (struct text){p, n, text_chars(p, n)};
    *out = (struct value){.type = VALUE_TEXT, .text = t};
    return QN_OK;
}

int value_copy(struct run *r, const char *p, size_t n, struct value *out) {
    char *copy;
    TRY(RUN_NEW(r, &copy, n + 1));
    if (n > 0) memcpy(copy, p, n);
    return value_borrow(r, copy, n, out);
}

int value_undefined_text(struct run *r, struct value *out, const char *fmt, ...) {
    char text[300], *copy;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    TRY(RUN_NEW(r, &copy, strlen(text) + 1));
    memcpy(copy, text, strlen(text) + 1);
    *out = value_undefined(copy);
    return QN_OK;
}

bool value_is_text(struct value v, const char *text) {
    return v.type == VALUE_TEXT && v.text->n == strlen(text) &&
           memcmp(v.text->p, text, v.text->n) == 0;
}

/* Lists and dicts. */

int value_list(struct run *r, size_t capacity, struct value *out) {
    struct list *l;
    TRY(RUN_NEW(r, &l, 1));
    TRY(RUN_NEW(r, &l->items, capacity));
    l->capacity = capacity;
    *out = (struct value){.type = VALUE_LIST, .list = l};
    return QN_OK;
}

int value_append(struct run *r, struct value list, struct value item) {
    struct list *l = list.list;
    if (l->n == l->capacity) {
        size_t capacity = MAX(l->capacity * 2, (size_t)8);
        struct value *items;
        TRY(RUN_NEW(r, &items, capacity));
        if (l->n > 0) memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = item;
    return QN_OK;
}

int value_pair(struct run *r, struct value a, struct value b, struct value *tuple) {
    TRY(value_list(r, 2, tuple));
    tuple->type = VALUE_TUPLE;
    TRY(value_append(r, *tuple, a));
    return value_append(r, *tuple, b);
}

int value_dict(struct run *r, size_t capacity, struct value *out) {
    struct dict *d;
    TRY(RUN_NEW(r, &d, 1));
    TRY(RUN_NEW(r, &d->keys, capacity));
    TRY(RUN_NEW(r, &d->values, capacity));
    d->capacity = capacity;
    *out = (struct value){.type = VALUE_DICT, .dict = d};
    return QN_OK;
}

static int check_hashable(struct run *r, struct value key) {
    if (key.type == VALUE_LIST || key.type == VALUE_DICT || key.type == VALUE_VIEW)
        return run_fail(r, QN_EINVAL, "a %s cannot be a key", value_type_name(key));
    for (size_t i = 0; key.type == VALUE_TUPLE && i < key.list->n; i++) {
        TRY(run_enter(r));
        TRY(check_hashable(r, key.list->items[i]));
        run_leave(r);
    }
    return QN_OK;
}

static int find(struct run *r, const struct dict *d, struct value key, size_t *at) {
    TRY(run_step(r, d->n / 16));
    for (*at = 0; *at < d->n; ++*at) {
        struct value k = d->keys[*at];
        bool equal;
        if (k.type == VALUE_TEXT && key.type == VALUE_TEXT) {
            equal = k.text->n == key.text->n && memcmp(k.text->p, key.text->p, k.text->n) == 0;
        } else {
            TRY(value_equal(r, k, key, &equal));
        }
        if (equal) return QN_OK;
    }
    return QN_OK;
}

int value_put(struct run *r, struct dict *d, struct value key, struct value item) {
    size_t at;
    TRY(check_hashable(r, key));
    TRY(find(r, d, key, &at));
    if (at == d->n && d->n == d->capacity) {
        size_t capacity = MAX(d->capacity * 2, (size_t)8);
        struct value *keys, *values;
        TRY(RUN_NEW(r, &keys, capacity));
        TRY(RUN_NEW(r, &values, capacity));
        if (d->n > 0) memcpy(keys, d->keys, d->n * sizeof *keys);
        if (d->n > 0) memcpy(values, d->values, d->n * sizeof *values);
        d->keys = keys;
        d->values = values;
        d->capacity = capacity;
    }
    if (at == d->n) d->keys[d->n++] = key;
    d->values[at] = item;
    return QN_OK;
}

int value_find(struct run *r, const struct dict *d, struct value key, struct value *item) {
    size_t at;
    *item = (struct value){.type = VALUE_MISSING};
    TRY(check_hashable(r, key));
    TRY(find(r, d, key, &at));
    if (at < d->n) *item = d->values[at];
    return QN_OK;
}

const struct value *value_field(const struct dict *d, const char *key) {
    for (size_t i = 0; i < d->n; i++)
        if (value_is_text(d->keys[i], key)) return &d->values[i];
    return NULL;
}

/* What Python asks of values. */

const char *value_type_name(struct value v) {
    static const char *const names[] = {
        [VALUE_MISSING] = "missing",
        [VALUE_UNDEFINED] = "undefined value",
        [VALUE_NONE] = "None",
        [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",
        [VALUE_BIG] = "int",
        [VALUE_FLOAT] = "float",
        [VALUE_TEXT] = "str",
        [VALUE_LIST] = "list",
        [VALUE_TUPLE] = "tuple",
        [VALUE_DICT] = "dict",
        [VALUE_VIEW] = "dict view",
        [VALUE_RANGE] = "range",
        [VALUE_ITER] = "generator",
        [VALUE_NAMESPACE] = "namespace",
        [VALUE_MACRO] = "macro",
        [VALUE_METHOD] = "method",
        [VALUE_FUNCTION] = "function",
        [VALUE_LOOP] = "loop",
    };
    return names[v.type];
}

bool value_is_number(struct value v) {
    return v.type == VALUE_BOOL || v.type == VALUE_INT || v.type == VALUE_FLOAT;
}

int value_truth(struct run *r, struct value v, bool *truth) {
    int64_t n;
    *truth = true;
    switch ((enum value_type)v.type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE: *truth = false; break;
    case VALUE_BOOL: *truth = v.truth; break;
    case VALUE_INT: *truth = v.integer != 0; break;
    case VALUE_FLOAT: *truth = v.number != 0; break;
    default:
        if (!value_has_length(v)) break;
        TRY(value_length(r, v, &n));
        *truth = n != 0;
    }
    return QN_OK;
}

static long double exact(struct value v) {
    return v.type == VALUE_FLOAT ? (long double)v.number
           : v.type == VALUE_INT ? (long double)v.integer
                                 : (long double)v.truth;
}

static int equal_lists(struct run *r, const struct list *a, const struct list *b, bool *equal) {
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++)
        TRY(value_equal(r, a->items[i], b->items[i], equal));
    return QN_OK;
}

static int equal_dicts(struct run *r, const struct dict *a, const struct dict *b, bool *equal) {
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        size_t at;
        TRY(find(r, b, a->keys[i], &at));
        *equal = at < b->n;
        if (*equal) TRY(value_equal(r, a->values[i], b->values[at], equal));
    }
    return QN_OK;
}

static bool equal_ranges(const struct range *a, const struct range *b) {
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static int equal_same_type(struct run *r, struct value a, struct value b, bool *equal) {
    switch ((enum value_type)a.type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE: *equal = true; return QN_OK;
    case VALUE_BIG:
    case VALUE_TEXT:
        TRY(run_step(r, a.text->n / 256));
        *equal = a.text->n == b.text->n && memcmp(a.text->p, b.text->p, a.text->n) == 0;
        return QN_OK;
    case VALUE_LIST:
    case VALUE_TUPLE: return equal_lists(r, a.list, b.list, equal);
    case VALUE_DICT: return equal_dicts(r, a.dict, b.dict, equal);
    case VALUE_RANGE: *equal = equal_ranges(a.range, b.range); return QN_OK;
    case VALUE_VIEW:
    case VALUE_METHOD:
        return run_fail(r, QN_EUNSUPPORTED, "comparing a %s is not supported", value_type_name(a));
    default: *equal = a.dict == b.dict; return QN_OK;
    }
}

int value_equal(struct run *r, struct value a, struct value b, bool *equal) {
    *equal = false;
    TRY(run_step(r, 1));
    if (value_is_number(a) && value_is_number(b)) {
        *equal = exact(a) == exact(b);
        return QN_OK;
    }
    if ((a.type == VALUE_BIG && b.type == VALUE_FLOAT) ||
        (a.type == VALUE_FLOAT && b.type == VALUE_BIG))
        return run_fail(r, QN_EUNSUPPORTED, "comparing an integer beyond 64 bits");
    if (a.type != b.type) return QN_OK;
    TRY(run_enter(r));
    TRY(equal_same_type(r, a, b, equal));
    run_leave(r);
    return QN_OK;
}

static int less_lists(struct run *r, const struct list *a, const struct list *b, bool *less) {
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal;
        TRY(value_equal(r, a->items[i], b->items[i], &equal));
        if (!equal) return value_less(r, a->items[i], b->items[i], less);
    }
    *less = a->n < b->n;
    return QN_OK;
}

int value_less(struct run *r, struct value a, struct value b, bool *less) {
    *less = false;
    TRY(run_step(r, 1));
    if (value_is_number(a) && value_is_number(b)) {
        *less = exact(a) < exact(b);
        return QN_OK;
    }
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        return run_fail(r, QN_EINVAL, "%s", a.type == VALUE_UNDEFINED ? a.why : b.why);
    if (a.type == VALUE_BIG || b.type == VALUE_BIG)
        return run_fail(r, QN_EUNSUPPORTED, "comparing an integer beyond 64 bits");
    if (a.type == VALUE_TEXT && b.type == VALUE_TEXT) {
        int c = memcmp(a.text->p, b.text->p, MIN(a.text->n, b.text->n));
        *less = c < 0 || (c == 0 && a.text->n < b.text->n);
        return QN_OK;
    }
    if (a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE)) {
        TRY(run_enter(r));
        TRY(less_lists(r, a.list, b.list, less));
        run_leave(r);
        return QN_OK;
    }
    return run_fail(r, a.type == VALUE_VIEW ? QN_EUNSUPPORTED : QN_EINVAL,
                    "%s and %s have no order", value_type_name(a), value_type_name(b));
}

int value_contains(struct run *r, struct value holder, struct value item, bool *in) {
    struct iter *it;
    struct value next;
    bool more = true;
    *in = false;
    if (holder.type == VALUE_TEXT) {
        if (item.type != VALUE_TEXT)
            return run_fail(r, QN_EINVAL, "'in' of a str wants a str, not a %s",
                            value_type_name(item));
        TRY(run_step(r, holder.text->n / 64));
        *in = text_find(holder.text->p, holder.text->n, item.text, false) >= 0;
        return QN_OK;
    }
    if (holder.type == VALUE_DICT || (holder.type == VALUE_VIEW && holder.flag == VIEW_KEYS)) {
        TRY(value_find(r, holder.dict, item, &next));
        *in = next.type != VALUE_MISSING;
        return QN_OK;
    }
    TRY(value_iter(r, holder, &it));
    for (;;) {
        TRY(value_next(r, it, &next, &more));
        if (!more) return QN_OK;
        TRY(value_equal(r, next, item, in));
        if (*in) return QN_OK;
    }
}

bool value_has_length(struct value v) {
    return v.type == VALUE_UNDEFINED || (v.type >= VALUE_TEXT && v.type <= VALUE_RANGE) ||
           v.type == VALUE_LOOP;
}

int value_integer(struct run *r, struct value v, const char *what, int64_t *integer) {
    if (v.type != VALUE_INT && v.type != VALUE_BOOL)
        return run_fail(r, QN_EINVAL, "%s: want an integer, have a %s", what, value_type_name(v));
    *integer = v.type == VALUE_INT ? v.integer : v.truth;
    return QN_OK;
}

int value_need_text(struct run *r, struct value v, const char *what, const struct text **text) {
    if (v.type != VALUE_TEXT)
        return run_fail(r, QN_EINVAL, "%s: want a str, have a %s", what, value_type_name(v));
    *text = v.text;
    return QN_OK;
}
