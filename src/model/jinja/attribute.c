/* attribute.c - object.name, object[key] and object[start:stop:step].
 *
 * Python's attributes come before a dict's keys with a dot and after them with brackets: so
 * schema.items is the method even where the schema has a key "items".
 */
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/exec.h"
#include "model/jinja/text.h"

#include <string.h>

/* Names that Python's types have. unsafe: the sandbox hides them; else not known here. */
static const struct {
    uint8_t type;
    bool unsafe;
    const char *names; /* with blanks around each */
} attributes[] = {
    {VALUE_LIST, true, " append clear extend insert pop remove reverse sort "},
    {VALUE_DICT, true, " clear pop popitem setdefault update "},
    {VALUE_DICT, false, " fromkeys "},
    {VALUE_TEXT, false,
     " casefold encode expandtabs format_map isdecimal isidentifier isnumeric isprintable istitle "
     "maketrans swapcase translate "},
    {VALUE_BOOL, false,
     " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real "
     "to_bytes "},
    {VALUE_INT, false,
     " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real "
     "to_bytes "},
    {VALUE_BIG, false,
     " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real "
     "to_bytes "},
    {VALUE_FLOAT, false, " as_integer_ratio conjugate fromhex hex imag is_integer real "},
    {VALUE_RANGE, false, " count index start step stop "},
    {VALUE_VIEW, false, " isdisjoint mapping "},
    {VALUE_ITER, false, " close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw "},
    {VALUE_MACRO, false, " arguments caller catch_kwargs catch_varargs explicit_caller name "},
};

static bool has_word(const char *words, const struct text *word) {
    const char *p = words;
    while ((p = memmem(p, strlen(p), word->p, word->n)) != NULL) {
        if (word->n > 0 && p[-1] == ' ' && p[word->n] == ' ') return true;
        p++;
    }
    return false;
}

static int refuse(struct run *r, struct value object, const struct text *name) {
    return run_fail(r, QN_EUNSUPPORTED, "the attribute '%.*s' of a %s is not supported",
                    (int)MIN(name->n, 60u), name->p, value_type_name(object));
}

/* Python's getattr; VALUE_MISSING: there is none. */
static int python_attribute(struct run *r, struct value object, const struct text *name,
                            struct value *out) {
    *out = (struct value){.type = VALUE_MISSING};
    if (object.type == VALUE_FUNCTION) return refuse(r, object, name);
    if (name->n >= 2 && memcmp(name->p, "__", 2) == 0 && object.type != VALUE_NAMESPACE)
        return refuse(r, object, name);
    if (object.type == VALUE_LOOP) return loop_attribute(r, object.loop, name, out);
    if (object.type == VALUE_NAMESPACE)
        return value_find(r, object.dict, (struct value){.type = VALUE_TEXT, .text = name}, out);
    if (object.type == VALUE_TEXT && object.flag && has_word(" escape striptags unescape ", name))
        return refuse(r, object, name);
    TRY(method_find(r, object, name, out));
    for (size_t i = 0; out->type == VALUE_MISSING && i < COUNT_OF(attributes); i++) {
        if (attributes[i].type != object.type || !has_word(attributes[i].names, name)) continue;
        if (!attributes[i].unsafe) return refuse(r, object, name);
        return value_undefined_text(r, out, "access to attribute '%.*s' of '%s' object is unsafe",
                                    (int)name->n, name->p, value_type_name(object));
    }
    return QN_OK;
}

static int no_attribute(struct run *r, struct value object, struct value key, struct value *out) {
    if (key.type != VALUE_TEXT)
        return value_undefined_text(r, out, "%s object has no such element",
                                    value_type_name(object));
    return value_undefined_text(r, out, "'%s object' has no attribute '%.*s'",
                                value_type_name(object), (int)MIN(key.text->n, 100u), key.text->p);
}

int attribute_get(struct run *r, struct value object, struct value name, struct value *out) {
    if (object.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", object.why);
    TRY(python_attribute(r, object, name.text, out));
    if (out->type == VALUE_MISSING && object.type == VALUE_DICT)
        TRY(value_find(r, object.dict, name, out));
    return out->type == VALUE_MISSING ? no_attribute(r, object, name, out) : QN_OK;
}

static bool hashable(struct value v) {
    bool is = v.type != VALUE_LIST && v.type != VALUE_DICT && v.type != VALUE_VIEW;
    for (size_t i = 0; is && v.type == VALUE_TUPLE && i < v.list->n; i++)
        is = v.list->items[i].type != VALUE_TUPLE && hashable(v.list->items[i]);
    return is;
}

static bool is_sequence(struct value v) {
    return v.type == VALUE_TEXT || v.type == VALUE_LIST || v.type == VALUE_TUPLE ||
           v.type == VALUE_RANGE;
}

/* object[key]; VALUE_MISSING: there is none. */
static int python_item(struct run *r, struct value object, struct value key, struct value *out) {
    int64_t i, n;
    *out = (struct value){.type = VALUE_MISSING};
    if (object.type == VALUE_DICT)
        return hashable(key) ? value_find(r, object.dict, key, out) : QN_OK;
    if (!is_sequence(object) || (key.type != VALUE_INT && key.type != VALUE_BOOL)) return QN_OK;
    TRY(value_integer(r, key, "index", &i));
    TRY(value_length(r, object, &n));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return QN_OK;
    TRY(value_at(r, object, i, out));
    if (object.type == VALUE_TEXT) out->flag = object.flag;
    return QN_OK;
}

int attribute_item(struct run *r, struct value object, struct value key, struct value *out) {
    if (object.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", object.why);
    TRY(python_item(r, object, key, out));
    if (out->type == VALUE_MISSING && key.type == VALUE_TEXT)
        TRY(python_attribute(r, object, key.text, out));
    return out->type == VALUE_MISSING ? no_attribute(r, object, key, out) : QN_OK;
}

/* Slices. */

/* jinja2 raises an exception, but for constants gives an undefined value. */
static int no_slice(struct run *r, struct value v) {
    return run_fail(r, QN_EUNSUPPORTED, "a slice of or with a %s is not supported",
                    value_type_name(v));
}

/* A bound of a slice, as Python clips it. */
static int slice_bound(struct run *r, struct value v, int64_t n, int64_t step, int64_t fallback,
                       int64_t *out) {
    *out = fallback;
    if (v.type == VALUE_NONE) return QN_OK;
    if (v.type == VALUE_BIG) return run_fail(r, QN_EUNSUPPORTED, "an index beyond 64 bits");
    if (v.type != VALUE_INT && v.type != VALUE_BOOL) return no_slice(r, v);
    TRY(value_integer(r, v, "slice", out));
    if (*out < 0) *out += n;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    *out = *out < low ? low : *out > high ? high : *out;
    return QN_OK;
}

static int slice_step(struct run *r, struct value v, int64_t *step) {
    if (v.type != VALUE_INT && v.type != VALUE_BOOL) return no_slice(r, v);
    TRY(value_integer(r, v, "slice", step));
    *step = *step < -INT32_MAX ? -INT32_MAX : *step > INT32_MAX ? INT32_MAX : *step;
    return QN_OK;
}

static int slice_text(struct run *r, const struct text *t, int64_t start, int64_t step,
                      int64_t count, struct value *out) {
    struct out o = {.r = r};
    if (step == 1) {
        size_t from = text_offset(t, (size_t)start), to = text_offset(t, (size_t)(start + count));
        return value_borrow(r, t->p + from, to - from, out);
    }
    size_t *offsets;
    TRY(RUN_NEW(r, &offsets, t->chars + 1));
    for (size_t i = 0, at = 0; i < t->chars; offsets[++i] = at) text_next(t->p, &at);
    for (int64_t i = 0; i < count; i++) {
        size_t at = (size_t)(start + i * step);
        out_add(&o, t->p + offsets[at], offsets[at + 1] - offsets[at]);
    }
    return out_value(&o, out);
}

static int slice_range(struct run *r, const struct range *range, int64_t start, int64_t stop,
                       int64_t step, int64_t count, struct value *out) {
    int64_t whole;
    if (__builtin_mul_overflow(range->step, step, &whole))
        return run_fail(r, QN_EUNSUPPORTED, "a step beyond 64 bits");
    *out = (struct value){.type = VALUE_RANGE};
    TRY(RUN_NEW(r, &out->range, 1));
    *out->range = (struct range){range->start + start * range->step,
                                 range->start + stop * range->step, whole, count};
    return QN_OK;
}

int attribute_slice(struct run *r, struct value object, const struct value bounds[3],
                    struct value *out) {
    int64_t n, start, stop, step = 1;
    struct value item;
    if (object.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", object.why);
    if (!is_sequence(object)) return no_slice(r, object);
    TRY(value_length(r, object, &n));
    if (bounds[2].type != VALUE_NONE) TRY(slice_step(r, bounds[2], &step));
    if (step == 0) return run_fail(r, QN_EINVAL, "a slice with a step of 0");
    TRY(slice_bound(r, bounds[0], n, step, step < 0 ? n - 1 : 0, &start));
    TRY(slice_bound(r, bounds[1], n, step, step < 0 ? -1 : n, &stop));
    int64_t span = step > 0 ? stop - start : start - stop, size = step > 0 ? step : -step;
    int64_t count = span <= 0 ? 0 : (span - 1) / size + 1;
    TRY(run_step(r, (uint64_t)count / 16));
    if (object.type == VALUE_RANGE)
        return slice_range(r, object.range, start, stop, step, count, out);
    if (object.type == VALUE_TEXT) {
        TRY(slice_text(r, object.text, start, step, count, out));
        out->flag = object.flag;
        return QN_OK;
    }
    TRY(value_list(r, (size_t)count, out));
    out->type = object.type;
    for (int64_t i = 0; i < count; i++) {
        TRY(value_at(r, object, start + i * step, &item));
        TRY(value_append(r, *out, item));
    }
    return QN_OK;
}
