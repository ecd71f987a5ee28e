/* filter.c - what may stand behind |, except for what works on lists (filter_list.c). */
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/filter.h"
#include "model/jinja/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The input as a text; markup stays markup. */
static int soft(struct run *r, struct value v, struct value *text) {
    if (v.type == VALUE_TEXT) return *text = v, QN_OK;
    return show_text(r, v, text);
}

/* Texts. */

static int to_case(struct run *r, const struct call *c, enum text_case to, struct value *out) {
    struct out o = {.r = r};
    struct value text;
    TRY(soft(r, c->v[0], &text));
    TRY(text_case(&o, to, text.text->p, text.text->n));
    TRY(out_value(&o, out));
    out->flag = text.flag;
    return QN_OK;
}
static FILTER(filter_lower) {
    return to_case(r, c, TEXT_TO_LOWER, out);
}
static FILTER(filter_upper) {
    return to_case(r, c, TEXT_TO_UPPER, out);
}

int filter_capital(struct out *o, enum text_case first, const char *p, size_t n) {
    size_t i = 0;
    if (n == 0) return QN_OK;
    text_next(p, &i);
    TRY(text_case(o, first, p, i));
    return text_case(o, TEXT_TO_LOWER, p + i, n - i);
}

static FILTER(filter_capitalize) {
    struct out o = {.r = r};
    struct value text;
    TRY(soft(r, c->v[0], &text));
    TRY(filter_capital(&o, TEXT_TO_TITLE, text.text->p, text.text->n));
    TRY(out_value(&o, out));
    out->flag = text.flag;
    return QN_OK;
}

static FILTER(filter_title) {
    struct out o = {.r = r};
    struct value text;
    TRY(soft(r, c->v[0], &text));
    const struct text *t = text.text;
    for (size_t i = 0, from = 0; i <= t->n;) {
        size_t next = i;
        int32_t k = i < t->n ? text_next(t->p, &next) : ' ';
        bool separates = i == t->n || text_is_space(k) || (k < 0x80 && strchr("-({[<", k) != NULL);
        if (separates) {
            TRY(filter_capital(&o, TEXT_TO_UPPER, t->p + from, i - from));
            out_add(&o, t->p + i, next - i);
            from = next;
        }
        if (i == t->n) break;
        i = next;
    }
    return out_value(&o, out);
}

static FILTER(filter_trim) {
    struct value text;
    const struct text *chars = NULL;
    size_t start, end;
    TRY(soft(r, c->v[0], &text));
    if (c->v[1].type != VALUE_MISSING && c->v[1].type != VALUE_NONE)
        TRY(value_need_text(r, c->v[1], "trim", &chars));
    text_strip(text.text->p, text.text->n, chars, true, true, &start, &end);
    TRY(value_borrow(r, text.text->p + start, end - start, out));
    out->flag = text.flag;
    return QN_OK;
}

static FILTER(filter_string) {
    return soft(r, c->v[0], out);
}

static FILTER(filter_safe) {
    TRY(show_text(r, c->v[0], out));
    out->flag = 1;
    return QN_OK;
}

static FILTER(filter_escape) {
    struct value empty, text;
    TRY(soft(r, c->v[0], &text));
    TRY(value_borrow(r, "", 0, &empty));
    empty.flag = 1;
    return operator_add(r, empty, text, out);
}

static FILTER(filter_replace) {
    struct value text, old, new;
    int64_t count = -1;
    TRY(show_text(r, c->v[0], &text));
    TRY(show_text(r, c->v[1], &old));
    TRY(show_text(r, c->v[2], &new));
    if (c->v[3].type != VALUE_NONE) TRY(call_integer(r, c, 3, "replace", -1, &count));
    return filter_replace_text(r, text.text, old.text, new.text, count, out);
}

int filter_replace_text(struct run *r, const struct text *t, const struct text *old,
                        const struct text *new, int64_t count, struct value *out) {
    struct out o = {.r = r};
    size_t at = 0;
    while (count != 0) {
        int64_t hit = text_find(t->p + at, t->n - at, old, false);
        if (hit < 0) break;
        out_add(&o, t->p + at, (size_t)hit);
        out_add(&o, new->p, new->n);
        at += (size_t)hit + old->n;
        count--;
        TRY(run_step(r, 1));
        if (old->n > 0) continue;
        if (at == t->n) break;
        size_t next = at;
        text_next(t->p, &next);
        out_add(&o, t->p + at, next - at);
        at = next;
    }
    out_add(&o, t->p + at, t->n - at);
    return out_value(&o, out);
}

static FILTER(filter_center) {
    struct value text;
    int64_t width;
    TRY(soft(r, c->v[0], &text));
    TRY(call_integer(r, c, 1, "center", 80, &width));
    TRY(filter_pad(r, text.text, width, 0, ' ', out));
    out->flag = text.flag;
    return QN_OK;
}

int filter_pad(struct run *r, const struct text *t, int64_t width, int side, int32_t fill,
               struct value *out) {
    struct out o = {.r = r};
    int64_t missing = width - (int64_t)t->chars;
    missing = missing < 0 ? 0 : missing;
    int64_t left = side == 0 ? missing / 2 + (missing & width & 1) : side < 0 ? 0 : missing;
    for (int64_t i = 0; i < left && o.rc == QN_OK; i++) out_char(&o, fill);
    out_add(&o, t->p, t->n);
    for (int64_t i = left; i < missing && o.rc == QN_OK; i++) out_char(&o, fill);
    return out_value(&o, out);
}

/* Every line of t behind `by`: the first one if `first`, empty ones if `blank`. */
static void add_indented(struct out *o, const struct text *t, const struct text *by, bool first,
                         bool blank) {
    bool begin = true;
    for (size_t i = 0, from = 0;; begin = false) {
        int32_t c = '\n';
        size_t next = i;
        while (i < t->n && !text_is_line_end(c = text_next(t->p, &next))) i = next;
        if (i == t->n && i > 0 && t->p[i - 1] == '\r') return; /* with the \n that jinja2 adds */
        if (!begin) out_char(o, '\n');
        if (begin ? first : blank || i > from) out_add(o, by->p, by->n);
        out_add(o, t->p + from, i - from);
        if (i == t->n) return;
        from = i = next + (c == '\r' && next < t->n && t->p[next] == '\n');
    }
}

static FILTER(filter_indent) {
    struct value text, by;
    struct out o = {.r = r};
    bool first, blank;
    if (c->v[0].type != VALUE_TEXT || c->v[0].flag)
        return run_fail(r, c->v[0].flag ? QN_EUNSUPPORTED : QN_EINVAL, "indent wants a str");
    text = c->v[0];
    TRY(value_borrow(r, " ", 1, &by));
    if (c->v[1].type == VALUE_TEXT)
        by = c->v[1];
    else
        TRY(operator_apply(r, OP_MULTIPLY, by,
                           c->v[1].type == VALUE_MISSING ? value_int(4) : c->v[1], &by));
    TRY(call_truth(r, c, 2, false, &first));
    TRY(call_truth(r, c, 3, false, &blank));
    add_indented(&o, text.text, by.text, first, blank);
    return out_value(&o, out);
}

static FILTER(filter_truncate) {
    struct value text, end;
    int64_t length, leeway;
    bool kill;
    if (c->v[0].type != VALUE_TEXT)
        return run_fail(r, QN_EUNSUPPORTED, "truncate of a %s", value_type_name(c->v[0]));
    TRY(call_integer(r, c, 1, "truncate", 255, &length));
    TRY(call_truth(r, c, 2, false, &kill));
    TRY(value_borrow(r, "...", 3, &end));
    if (c->v[3].type != VALUE_MISSING) end = c->v[3];
    TRY(call_integer(r, c, 4, "truncate", 5, &leeway));
    text = c->v[0];
    if (end.type != VALUE_TEXT || length < (int64_t)end.text->chars || leeway < 0)
        return run_fail(r, QN_EINVAL, "truncate: the length is below that of the end");
    if ((int64_t)text.text->chars <= length + leeway) return *out = text, QN_OK;
    struct out o = {.r = r};
    size_t cut = text_offset(text.text, (size_t)length - end.text->chars), last = cut;
    while (!kill && last > 0 && text.text->p[last - 1] != ' ') last--;
    if (!kill && last > 0) cut = last - 1;
    out_add(&o, text.text->p, cut);
    out_add(&o, end.text->p, end.text->n);
    return out_value(&o, out);
}

static FILTER(filter_urlencode) {
    static const char hex[] = "0123456789ABCDEF";
    struct out o = {.r = r};
    struct value text;
    if (value_iterable(c->v[0]) && c->v[0].type != VALUE_TEXT)
        return run_fail(r, QN_EUNSUPPORTED, "urlencode of a %s", value_type_name(c->v[0]));
    TRY(show_text(r, c->v[0], &text));
    for (size_t i = 0; i < text.text->n; i++) {
        unsigned char k = (unsigned char)text.text->p[i];
        bool plain = (k >= '0' && k <= '9') || (k >= 'a' && k <= 'z') || (k >= 'A' && k <= 'Z') ||
                     (k != '\0' && strchr("_.-~/", k) != NULL);
        if (plain) {
            out_char(&o, k);
        } else {
            char code[3] = {'%', hex[k >> 4], hex[k & 15]};
            out_add(&o, code, 3);
        }
    }
    return out_value(&o, out);
}

static FILTER(filter_format) {
    struct value text, values;
    TRY(soft(r, c->v[0], &text));
    bool named = c->args->named != NULL && c->args->named->n > 0;
    if (text.flag) return run_fail(r, QN_EUNSUPPORTED, "format of markup");
    if (named && c->args->n > 0) return run_fail(r, QN_EINVAL, "format: both kinds of arguments");
    TRY(value_list(r, c->args->n, &values));
    values.type = VALUE_TUPLE;
    for (size_t i = 0; i < c->args->n; i++) TRY(value_append(r, values, c->args->items[i]));
    if (named) {
        TRY(value_dict(r, 4, &values));
        *values.dict = *c->args->named;
    }
    return format_percent(r, text.text, values, out);
}

/* Numbers. */

static int from_float(struct run *r, double number, struct value *out, bool *ok) {
    *ok = isfinite(number);
    if (!*ok) return QN_OK;
    number = trunc(number);
    if (number >= 9223372036854775808.0 || number < -9223372036854775808.0)
        return run_fail(r, QN_EUNSUPPORTED, "an integer beyond 64 bits");
    *out = value_int((int64_t)number);
    return QN_OK;
}

static FILTER(filter_int) {
    struct value v = c->v[0];
    int64_t base, integer;
    double number;
    bool big = false, ok = false;
    TRY(call_integer(r, c, 2, "int", 10, &base));
    *out = c->v[1].type == VALUE_MISSING ? value_int(0) : c->v[1];
    if (v.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", v.why);
    if (v.type == VALUE_INT || v.type == VALUE_BIG) return *out = v, QN_OK;
    if (v.type == VALUE_BOOL) return *out = value_int(v.truth), QN_OK;
    if (v.type == VALUE_FLOAT) {
        if (isinf(v.number)) return run_fail(r, QN_EINVAL, "int of infinity");
        return from_float(r, v.number, out, &ok);
    }
    if (v.type != VALUE_TEXT) return QN_OK;
    if (v.text->chars != v.text->n) return run_fail(r, QN_EUNSUPPORTED, "int of text beyond ASCII");
    if ((base != 0 && base < 2) || base > 36) return run_fail(r, QN_EUNSUPPORTED, "int: the base");
    if (text_to_int(v.text, (int)base, &integer, &big)) {
        if (big || (base == 0 && v.text->n > 1))
            return run_fail(r, QN_EUNSUPPORTED, "int: an integer beyond 64 bits, or base 0");
        *out = value_int(integer);
        return QN_OK;
    }
    return text_to_float(v.text, &number) ? from_float(r, number, out, &ok) : QN_OK;
}

static FILTER(filter_float) {
    struct value v = c->v[0];
    *out = c->v[1].type == VALUE_MISSING ? value_float(0) : c->v[1];
    if (v.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", v.why);
    if (v.type == VALUE_FLOAT) return *out = v, QN_OK;
    if (v.type == VALUE_INT) return *out = value_float((double)v.integer), QN_OK;
    if (v.type == VALUE_BOOL) return *out = value_float(v.truth), QN_OK;
    if (v.type == VALUE_BIG) return run_fail(r, QN_EUNSUPPORTED, "an integer beyond 64 bits");
    if (v.type != VALUE_TEXT) return QN_OK;
    if (v.text->chars != v.text->n)
        return run_fail(r, QN_EUNSUPPORTED, "float of text beyond ASCII");
    double number;
    if (text_to_float(v.text, &number)) *out = value_float(number);
    return QN_OK;
}

static FILTER(filter_abs) {
    struct value v = c->v[0];
    if (v.type == VALUE_FLOAT) return *out = value_float(fabs(v.number)), QN_OK;
    if (v.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", v.why);
    int64_t integer;
    TRY(value_integer(r, v, "abs", &integer));
    return integer < 0 ? operator_unary(r, OP_NEGATE, v, out) : (*out = value_int(integer), QN_OK);
}

static FILTER(filter_round) {
    struct value v = c->v[0], method;
    int64_t precision;
    char text[400];
    TRY(call_integer(r, c, 1, "round", 0, &precision));
    TRY(value_borrow(r, "common", 6, &method));
    if (c->v[2].type != VALUE_MISSING) method = c->v[2];
    bool up = value_is_text(method, "ceil"), down = value_is_text(method, "floor");
    if (!up && !down && !value_is_text(method, "common"))
        return run_fail(r, QN_EINVAL, "round: the method is common, ceil or floor");
    if (!value_is_number(v)) return run_fail(r, QN_EINVAL, "round of a %s", value_type_name(v));
    if (precision < 0 || precision > 15)
        return run_fail(r, QN_EUNSUPPORTED, "round: want 0 to 15 digits");
    if (v.type != VALUE_FLOAT && !up && !down)
        return *out = value_int(v.type == VALUE_INT ? v.integer : v.truth), QN_OK;
    if (v.type == VALUE_FLOAT && !up && !down) {
        if (!isfinite(v.number)) return *out = v, QN_OK;
        snprintf(text, sizeof text, "%.*f", (int)precision, v.number);
        *out = value_float(strtod(text, NULL));
        return QN_OK;
    }
    double scale = 1;
    for (int64_t i = 0; i < precision; i++) scale *= 10;
    double number = v.type == VALUE_FLOAT ? v.number
                    : v.type == VALUE_INT ? (double)v.integer
                                          : (double)v.truth;
    if (!isfinite(number) || fabs(number * scale) > 9007199254740992.0)
        return run_fail(r, QN_EUNSUPPORTED, "round of a number beyond 53 bits");
    *out = value_float((up ? ceil(number * scale) : floor(number * scale)) / scale);
    return QN_OK;
}

/* Any value. */

static FILTER(filter_default) {
    bool by_truth, truth = true;
    TRY(call_truth(r, c, 2, false, &by_truth));
    if (by_truth) TRY(value_truth(r, c->v[0], &truth));
    if (c->v[0].type != VALUE_UNDEFINED && truth) return *out = c->v[0], QN_OK;
    if (c->v[1].type == VALUE_MISSING) return value_borrow(r, "", 0, out);
    *out = c->v[1];
    return QN_OK;
}

static FILTER(filter_length) {
    int64_t n;
    TRY(value_length(r, c->v[0], &n));
    *out = value_int(n);
    return QN_OK;
}

/* A str or, as json.dumps takes it for indent, a number of blanks. */
static int indent_text(struct run *r, struct value v, const struct text **text) {
    struct value blank;
    if (v.type != VALUE_TEXT) {
        TRY(value_borrow(r, " ", 1, &blank));
        if (v.type != VALUE_INT && v.type != VALUE_BOOL)
            return run_fail(r, QN_EINVAL, "tojson: indent: a %s", value_type_name(v));
        TRY(operator_apply(r, OP_MULTIPLY, blank, v, &v));
    }
    *text = v.text;
    return QN_OK;
}

static int separators(struct run *r, struct value v, struct tojson *how) {
    struct value list;
    TRY(value_to_list(r, v, &list));
    if (list.list->n != 2) return run_fail(r, QN_EINVAL, "tojson: want two separators");
    TRY(value_need_text(r, list.list->items[0], "tojson: separators", &how->item_separator));
    return value_need_text(r, list.list->items[1], "tojson: separators", &how->key_separator);
}

static FILTER(filter_tojson) {
    static const struct text comma = {",", 1, 1}, comma_blank = {", ", 2, 2}, colon = {": ", 2, 2};
    struct tojson how = {.key_separator = &colon};
    struct out o = {.r = r};
    TRY(call_truth(r, c, 1, false, &how.ascii));
    how.has_indent = c->v[2].type != VALUE_MISSING && c->v[2].type != VALUE_NONE;
    how.item_separator = how.has_indent ? &comma : &comma_blank;
    if (how.has_indent) TRY(indent_text(r, c->v[2], &how.indent));
    if (c->v[3].type != VALUE_MISSING && c->v[3].type != VALUE_NONE)
        TRY(separators(r, c->v[3], &how));
    TRY(call_truth(r, c, 4, false, &how.sort_keys));
    TRY(show_json(&o, &how, c->v[0]));
    return out_value(&o, out);
}

const struct call_row *filter_find(const struct text *name) {
    static const struct call_row rows[] = {
        {"abs", filter_abs, {{NULL}}},
        {"batch", filter_batch, {{"linecount", "?fill_with"}}},
        {"capitalize", filter_capitalize, {{NULL}}},
        {"center", filter_center, {{"?width"}}},
        {"count", filter_length, {{NULL}}},
        {"d", filter_default, {{"?default_value", "?boolean"}}},
        {"default", filter_default, {{"?default_value", "?boolean"}}},
        {"dictsort", filter_dictsort, {{"?case_sensitive", "?by", "?reverse"}}},
        {"e", filter_escape, {{NULL}}},
        {"escape", filter_escape, {{NULL}}},
        {"first", filter_first, {{NULL}}},
        {"float", filter_float, {{"?default"}}},
        {"format", filter_format, {{"*"}}},
        {"indent", filter_indent, {{"?width", "?first", "?blank"}}},
        {"int", filter_int, {{"?default", "?base"}}},
        {"items", filter_items, {{NULL}}},
        {"join", filter_join, {{"?d", "?attribute"}}},
        {"last", filter_last, {{NULL}}},
        {"length", filter_length, {{NULL}}},
        {"list", filter_list, {{NULL}}},
        {"lower", filter_lower, {{NULL}}},
        {"map", filter_map, {{"*"}}},
        {"max", filter_max, {{"?case_sensitive", "?attribute"}}},
        {"min", filter_min, {{"?case_sensitive", "?attribute"}}},
        {"reject", filter_reject, {{"*"}}},
        {"rejectattr", filter_rejectattr, {{"*"}}},
        {"replace", filter_replace, {{"old", "new", "?count"}}},
        {"reverse", filter_reverse, {{NULL}}},
        {"round", filter_round, {{"?precision", "?method"}}},
        {"safe", filter_safe, {{NULL}}},
        {"select", filter_select, {{"*"}}},
        {"selectattr", filter_selectattr, {{"*"}}},
        {"slice", filter_slice, {{"slices", "?fill_with"}}},
        {"sort", filter_sort, {{"?reverse", "?case_sensitive", "?attribute"}}},
        {"string", filter_string, {{NULL}}},
        {"sum", filter_sum, {{"?attribute", "?start"}}},
        {"title", filter_title, {{NULL}}},
        {"tojson", filter_tojson, {{"?ensure_ascii", "?indent", "?separators", "?sort_keys"}}},
        {"trim", filter_trim, {{"?chars"}}},
        {"truncate", filter_truncate, {{"?length", "?killwords", "?end", "?leeway"}}},
        {"unique", filter_unique, {{"?case_sensitive", "?attribute"}}},
        {"upper", filter_upper, {{NULL}}},
        {"urlencode", filter_urlencode, {{NULL}}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strlen(rows[i].name) == name->n && memcmp(rows[i].name, name->p, name->n) == 0)
            return &rows[i];
    return NULL;
}

bool filter_exists(const struct text *name) {
    static const char *const others[] = {"attr",      "filesizeformat", "forceescape", "groupby",
                                         "pprint",    "random",         "striptags",   "urlize",
                                         "wordcount", "wordwrap",       "xmlattr"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (strlen(others[i]) == name->n && memcmp(others[i], name->p, name->n) == 0) return true;
    return filter_find(name) != NULL;
}
