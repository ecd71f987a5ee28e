#include "model/jinja/call.h"
#include "base/checked.h"
#include "model/jinja/exec.h"
#include "model/jinja/text.h"

#include <stdio.h>
#include <string.h>

static bool optional(const char *parameter) {
    return *parameter == '?';
}

static const char *bare(const char *parameter) {
    return parameter + optional(parameter);
}

static int bind_named(struct run *r, const struct call_row *row, const struct args *args,
                      struct call *c) {
    for (size_t i = 0; args->named != NULL && i < args->named->n; i++) {
        struct value key = args->named->keys[i];
        int k = 0;
        while (k < CALL_MAX_PARAMETERS && row->parameters.names[k] != NULL &&
               !value_is_text(key, bare(row->parameters.names[k])))
            k++;
        if (k == CALL_MAX_PARAMETERS || row->parameters.names[k] == NULL)
            return run_fail(r, QN_EINVAL, "%s has no argument '%.*s'", row->name,
                            (int)MIN(key.text->n, 60u), key.text->p);
        if (c->v[k + 1].type != VALUE_MISSING)
            return run_fail(r, QN_EINVAL, "%s got '%s' twice", row->name,
                            bare(row->parameters.names[k]));
        c->v[k + 1] = args->named->values[i];
    }
    return QN_OK;
}

int call_row(struct run *r, const struct call_row *row, struct value self, const struct args *args,
             struct value *out) {
    struct call c = {.v = {self}, .args = args};
    size_t n = 0;
    const char *const *names = row->parameters.names;
    TRY(run_enter(r));
    if (names[0] == NULL || *names[0] != '*') {
        while (n < CALL_MAX_PARAMETERS && names[n] != NULL) n++;
        if (args->n > n)
            return run_fail(r, QN_EINVAL, "%s takes at most %zu arguments", row->name, n);
        for (size_t i = 0; i < args->n; i++) c.v[i + 1] = args->items[i];
        TRY(bind_named(r, row, args, &c));
        for (size_t i = 0; i < n; i++)
            if (c.v[i + 1].type == VALUE_MISSING && !optional(names[i]))
                return run_fail(r, QN_EINVAL, "%s wants an argument '%s'", row->name,
                                names[i] + (*names[i] == '-'));
    }
    TRY(row->run(r, &c, out));
    run_leave(r);
    return QN_OK;
}

int call_integer(struct run *r, const struct call *c, int i, const char *what, int64_t fallback,
                 int64_t *out) {
    *out = fallback;
    return c->v[i].type == VALUE_MISSING ? QN_OK : value_integer(r, c->v[i], what, out);
}

int call_truth(struct run *r, const struct call *c, int i, bool fallback, bool *out) {
    *out = fallback;
    return c->v[i].type == VALUE_MISSING ? QN_OK : value_truth(r, c->v[i], out);
}

static int unknown(struct run *r, const char *what, struct value name) {
    if (name.type != VALUE_TEXT)
        return run_fail(r, QN_EINVAL, "a %s is no name of a %s", value_type_name(name), what);
    return run_fail(r, QN_EUNSUPPORTED, "no %s is named '%.*s'", what, (int)MIN(name.text->n, 60u),
                    name.text->p);
}

int call_filter(struct run *r, struct value name, struct value self, const struct args *args,
                struct value *out) {
    const struct call_row *row = name.type == VALUE_TEXT ? filter_find(name.text) : NULL;
    return row == NULL ? unknown(r, "filter", name) : call_row(r, row, self, args, out);
}

int call_test(struct run *r, struct value name, struct value self, const struct args *args,
              bool *yes) {
    const struct call_row *row = name.type == VALUE_TEXT ? test_find(name.text) : NULL;
    struct value v;
    if (row == NULL) return unknown(r, "test", name);
    TRY(call_row(r, row, self, args, &v));
    return value_truth(r, v, yes);
}

int call_value(struct run *r, struct value callee, const struct args *args, struct value *out) {
    struct value none = {0};
    switch ((enum value_type)callee.type) {
    case VALUE_MACRO: return macro_call(r, callee.macro, args, out);
    case VALUE_FUNCTION: return call_row(r, &callee.function->row, none, args, out);
    case VALUE_METHOD:
        if (callee.method->self.type == VALUE_TEXT && callee.method->self.flag)
            return run_fail(r, QN_EUNSUPPORTED, "a method of markup (safe, escape)");
        return call_row(r, &callee.method->row->row, callee.method->self, args, out);
    case VALUE_UNDEFINED: return run_fail(r, QN_EINVAL, "%s", callee.why);
    case VALUE_LOOP: return run_fail(r, QN_EUNSUPPORTED, "a recursive loop");
    default: return run_fail(r, QN_EINVAL, "a %s cannot be called", value_type_name(callee));
    }
}

/* Global functions. */

static int run_range(struct run *r, const struct call *c, struct value *out) {
    int64_t v[3] = {0, 0, 1}, span;
    size_t n = c->args->n;
    if (n < 1 || n > 3 || (c->args->named != NULL && c->args->named->n > 0))
        return run_fail(r, QN_EINVAL, "range takes one to three numbers");
    for (size_t i = 0; i < n; i++)
        TRY(value_integer(r, c->args->items[i], "range", &v[n == 1 ? 1 : i]));
    if (v[2] == 0) return run_fail(r, QN_EINVAL, "range with a step of 0");
    bool empty = v[2] > 0 ? v[0] >= v[1] : v[0] <= v[1];
    if (__builtin_sub_overflow(v[1], v[0], &span) || v[2] == INT64_MIN)
        return run_fail(r, QN_EINVAL, "the range is too big");
    span = span < 0 ? -span : span;
    int64_t step = v[2] < 0 ? -v[2] : v[2];
    int64_t items = empty ? 0 : (span - 1) / step + 1;
    if (items > 100000) return run_fail(r, QN_EINVAL, "a range of more than 100000 numbers");
    *out = (struct value){.type = VALUE_RANGE};
    TRY(RUN_NEW(r, &out->range, 1));
    *out->range = (struct range){v[0], v[1], v[2], items};
    return QN_OK;
}

/* The items of a dict, or the pairs of a list. */
static int add_pairs(struct run *r, struct value from, struct dict *to) {
    struct value item, pair;
    struct iter *it;
    bool more;
    if (from.type == VALUE_DICT) {
        for (size_t i = 0; i < from.dict->n; i++)
            TRY(value_put(r, to, from.dict->keys[i], from.dict->values[i]));
        return QN_OK;
    }
    if (from.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", from.why);
    TRY(value_iter(r, from, &it));
    for (;;) {
        TRY(value_next(r, it, &item, &more));
        if (!more) return QN_OK;
        TRY(value_to_list(r, item, &pair));
        if (pair.list->n != 2) return run_fail(r, QN_EINVAL, "dict wants pairs");
        TRY(value_put(r, to, pair.list->items[0], pair.list->items[1]));
    }
}

static int run_dict(struct run *r, const struct call *c, struct value *out) {
    TRY(value_dict(r, 8, out));
    if (c->args->n > 1) return run_fail(r, QN_EINVAL, "dict takes at most one argument");
    if (c->args->n == 1) TRY(add_pairs(r, c->args->items[0], out->dict));
    for (size_t i = 0; c->args->named != NULL && i < c->args->named->n; i++)
        TRY(value_put(r, out->dict, c->args->named->keys[i], c->args->named->values[i]));
    return QN_OK;
}

static int run_namespace(struct run *r, const struct call *c, struct value *out) {
    TRY(run_dict(r, c, out));
    for (size_t i = 0; i < out->dict->n; i++) {
        struct value key = out->dict->keys[i];
        if (key.type == VALUE_TEXT && key.text->n > 0 && key.text->p[0] == '_')
            return run_fail(r, QN_EINVAL, "a namespace takes no name that begins with _");
    }
    out->type = VALUE_NAMESPACE;
    return QN_OK;
}

static int run_raise_exception(struct run *r, const struct call *c, struct value *out) {
    struct value text;
    (void)out;
    TRY(show_text(r, c->v[1], &text));
    return run_fail(r, QN_EINVAL, "the template says: %.*s", (int)MIN(text.text->n, 500u),
                    text.text->p);
}

/* One conversion of strftime. Python has %f and leaves %z and %Z empty; the others are C's. */
static int add_time(struct out *o, const struct tm *day, const char *p, size_t n) {
    char format[8] = "%", text[200];
    if (*p == 'z' || *p == 'Z') return QN_OK;
    if (*p == 'f') return out_str(o, "000000"), QN_OK;
    if (strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%", *p) == NULL)
        return run_fail(o->r, QN_EUNSUPPORTED, "strftime_now: %%%c is not supported", *p);
    memcpy(format + 1, p, n);
    out_add(o, text, strftime(text, sizeof text, format, day));
    return QN_OK;
}

static int run_strftime_now(struct run *r, const struct call *c, struct value *out) {
    const struct text *format;
    struct out o = {.r = r};
    struct tm day;
    TRY(value_need_text(r, c->v[1], "strftime_now", &format));
    if (localtime_r(&r->now, &day) == NULL) return run_fail(r, QN_EINVAL, "no local time");
    for (size_t i = 0; i < format->n; i++) {
        if (format->p[i] != '%') {
            out_add(&o, format->p + i, 1);
            continue;
        }
        if (++i == format->n) return run_fail(r, QN_EUNSUPPORTED, "strftime_now: a %% at the end");
        size_t dash = format->p[i] == '-' && i + 1 < format->n; /* %-d: without a zero in front */
        if (dash == 0) {
            TRY(add_time(&o, &day, format->p + i, 1));
        } else {
            char two[3] = {'-', format->p[++i], '\0'};
            struct out plain = {.r = r};
            TRY(add_time(&plain, &day, two + 1, 1));
            size_t skip = 0;
            if (strchr("dmHIMSjyeklUWVgu", two[1]) != NULL)
                while (skip + 1 < plain.n && (plain.p[skip] == '0' || plain.p[skip] == ' ')) skip++;
            out_add(&o, plain.p + skip, plain.n - skip);
        }
    }
    return out_value(&o, out);
}

static int run_refused(struct run *r, const struct call *c, struct value *out) {
    (void)c;
    (void)out;
    return run_fail(r, QN_EUNSUPPORTED, "cycler, joiner and lipsum are not supported");
}

const struct function *function_find(const struct text *name) {
    static const struct function functions[] = {
        {{"range", run_range, {{"*"}}}},
        {{"dict", run_dict, {{"*"}}}},
        {{"namespace", run_namespace, {{"*"}}}},
        {{"raise_exception", run_raise_exception, {{"message"}}}},
        {{"strftime_now", run_strftime_now, {{"format"}}}},
        {{"cycler", run_refused, {{"*"}}}},
        {{"joiner", run_refused, {{"*"}}}},
        {{"lipsum", run_refused, {{"*"}}}},
    };
    for (size_t i = 0; i < COUNT_OF(functions); i++)
        if (strlen(functions[i].row.name) == name->n &&
            memcmp(functions[i].row.name, name->p, name->n) == 0)
            return &functions[i];
    return NULL;
}
