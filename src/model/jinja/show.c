/* show.c - values as text: Python's str and repr, and json.dumps. */
#include "base/checked.h"
#include "model/jinja/exec.h"
#include "model/jinja/text.h"
#include "model/jinja/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void add_int(struct out *o, int64_t integer) {
    char digits[32];
    snprintf(digits, sizeof digits, "%" PRId64, integer);
    out_str(o, digits);
}

static void add_float(struct out *o, double number) {
    char digits[TEXT_FLOAT_BYTES];
    text_float(number, digits);
    out_str(o, digits);
}

static void repr_char(struct out *o, int32_t c, char quote) {
    char code[16];
    if (c == quote || c == '\\') {
        out_char(o, '\\');
        out_char(o, c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
        out_str(o, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (text_is_printable(c)) {
        out_char(o, c);
    } else {
        snprintf(code, sizeof code,
                 c < 0x100     ? "\\x%02x"
                 : c < 0x10000 ? "\\u%04x"
                               : "\\U%08x",
                 (unsigned)c);
        out_str(o, code);
    }
}

static void repr_text(struct out *o, const struct text *t) {
    bool single = memchr(t->p, '\'', t->n) != NULL, twice = memchr(t->p, '"', t->n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    out_char(o, quote);
    for (size_t i = 0; i < t->n;) repr_char(o, text_next(t->p, &i), quote);
    out_char(o, quote);
}

static int repr_items(struct out *o, const struct list *l, const char *open, const char *close) {
    out_str(o, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) out_str(o, ", ");
        TRY(show_repr(o, l->items[i]));
    }
    if (*close == ')' && l->n == 1) out_char(o, ',');
    out_str(o, close);
    return QN_OK;
}

static int repr_dict(struct out *o, const struct dict *d) {
    out_char(o, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) out_str(o, ", ");
        TRY(show_repr(o, d->keys[i]));
        out_str(o, ": ");
        TRY(show_repr(o, d->values[i]));
    }
    out_char(o, '}');
    return QN_OK;
}

static int repr_view(struct out *o, struct value v) {
    static const char *const names[] = {"dict_keys(", "dict_values(", "dict_items("};
    struct value list;
    TRY(value_to_list(o->r, v, &list));
    out_str(o, names[v.flag]);
    TRY(repr_items(o, list.list, "[", "]"));
    out_char(o, ')');
    return QN_OK;
}

static void repr_range(struct out *o, const struct range *range) {
    char text[100];
    int n = snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, range->start, range->stop);
    if (range->step != 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64, range->step);
    out_add(o, text, (size_t)n);
    out_char(o, ')');
}

static int repr_loop(struct out *o, struct loop *loop) {
    int64_t n;
    TRY(loop_length(o->r, loop, &n));
    out_str(o, "<LoopContext ");
    add_int(o, loop->index0 + 1);
    out_char(o, '/');
    add_int(o, n);
    out_char(o, '>');
    return QN_OK;
}

static int repr_holder(struct out *o, struct value v) {
    switch ((enum value_type)v.type) {
    case VALUE_LIST: return repr_items(o, v.list, "[", "]");
    case VALUE_TUPLE: return repr_items(o, v.list, "(", ")");
    case VALUE_DICT: return repr_dict(o, v.dict);
    case VALUE_VIEW: return repr_view(o, v);
    case VALUE_NAMESPACE:
        out_str(o, "<Namespace ");
        TRY(repr_dict(o, v.dict));
        out_char(o, '>');
        return QN_OK;
    default: return repr_loop(o, v.loop);
    }
}

int show_repr(struct out *o, struct value v) {
    TRY(run_step(o->r, 1));
    switch ((enum value_type)v.type) {
    case VALUE_UNDEFINED: out_str(o, "Undefined"); break;
    case VALUE_NONE: out_str(o, "None"); break;
    case VALUE_BOOL: out_str(o, v.truth ? "True" : "False"); break;
    case VALUE_INT: add_int(o, v.integer); break;
    case VALUE_BIG: out_add(o, v.text->p, v.text->n); break;
    case VALUE_FLOAT: add_float(o, v.number); break;
    case VALUE_TEXT:
        if (v.flag) out_str(o, "Markup(");
        repr_text(o, v.text);
        if (v.flag) out_char(o, ')');
        break;
    case VALUE_RANGE: repr_range(o, v.range); break;
    case VALUE_MACRO: return macro_repr(o, v.macro);
    case VALUE_MISSING:
    case VALUE_ITER:
    case VALUE_METHOD:
    case VALUE_FUNCTION:
        return run_fail(o->r, QN_EUNSUPPORTED,
                        "the text of a %s is an address in Python and is not supported",
                        value_type_name(v));
    default:
        TRY(run_enter(o->r));
        TRY(repr_holder(o, v));
        run_leave(o->r);
    }
    return o->rc;
}

int show_str(struct out *o, struct value v) {
    if (v.type == VALUE_TEXT)
        out_add(o, v.text->p, v.text->n);
    else if (v.type != VALUE_UNDEFINED)
        return show_repr(o, v);
    return o->rc;
}

int show_text(struct run *r, struct value v, struct value *text) {
    struct out o = {.r = r};
    if (v.type == VALUE_TEXT) {
        *text = v;
        text->flag = 0;
        return QN_OK;
    }
    TRY(show_str(&o, v));
    return out_value(&o, text);
}

/* JSON. */

static void json_escape(struct out *o, int32_t c, bool ascii) {
    static const char short_forms[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char code[16];
    for (const char *p = short_forms; *p != '\0'; p += 2)
        if (c == (unsigned char)p[0]) {
            out_char(o, '\\');
            out_char(o, p[1]);
            return;
        }
    if (c >= 0x20 && !(ascii && c >= 0x7F)) {
        out_char(o, c);
        return;
    }
    if (c < 0x10000) {
        snprintf(code, sizeof code, "\\u%04x", (unsigned)c);
    } else {
        unsigned u = (unsigned)c - 0x10000;
        snprintf(code, sizeof code, "\\u%04x\\u%04x", 0xD800 + (u >> 10), 0xDC00 + (u & 0x3FF));
    }
    out_str(o, code);
}

static void json_text(struct out *o, const struct tojson *how, const struct text *t) {
    out_char(o, '"');
    for (size_t i = 0, from = 0; i < t->n;) {
        int32_t c = text_next(t->p, &i);
        bool plain = c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !how->ascii);
        if (plain && i < t->n) continue;
        size_t at = i - (size_t)(c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        out_add(o, t->p + from, (plain ? i : at) - from);
        if (!plain) json_escape(o, c, how->ascii);
        from = i;
    }
    out_char(o, '"');
}

static void json_line(struct out *o, const struct tojson *how, uint32_t level) {
    if (!how->has_indent) return;
    out_char(o, '\n');
    while (level-- > 0) out_add(o, how->indent->p, how->indent->n);
}

static int json_value(struct out *o, const struct tojson *how, struct value v, uint32_t level);

static int json_list(struct out *o, const struct tojson *how, const struct list *l,
                     uint32_t level) {
    out_char(o, '[');
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) out_add(o, how->item_separator->p, how->item_separator->n);
        json_line(o, how, level + 1);
        TRY(json_value(o, how, l->items[i], level + 1));
    }
    if (l->n > 0) json_line(o, how, level);
    out_char(o, ']');
    return QN_OK;
}

static int json_key(struct out *o, const struct tojson *how, struct value key) {
    struct out text = {.r = o->r};
    struct value shown = key;
    if (key.type > VALUE_TEXT || key.type == VALUE_UNDEFINED)
        return run_fail(o->r, QN_EINVAL, "tojson: a %s as a key", value_type_name(key));
    if (key.type != VALUE_TEXT) {
        TRY(json_value(&text, how, key, 0));
        TRY(out_value(&text, &shown));
    }
    json_text(o, how, shown.text);
    return QN_OK;
}

/* The keys in order: sorted[i] is the i-th one's place. */
static int sort_keys(struct run *r, const struct dict *d, size_t *sorted) {
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;
        for (; at > 0; at--) {
            bool less;
            TRY(value_less(r, d->keys[i], d->keys[sorted[at - 1]], &less));
            if (!less) break;
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = i;
    }
    return QN_OK;
}

static int json_dict(struct out *o, const struct tojson *how, const struct dict *d,
                     uint32_t level) {
    size_t *sorted;
    TRY(RUN_NEW(o->r, &sorted, how->sort_keys ? d->n : 0));
    if (how->sort_keys) TRY(sort_keys(o->r, d, sorted));
    out_char(o, '{');
    for (size_t i = 0; i < d->n; i++) {
        size_t at = how->sort_keys ? sorted[i] : i;
        if (i > 0) out_add(o, how->item_separator->p, how->item_separator->n);
        json_line(o, how, level + 1);
        TRY(json_key(o, how, d->keys[at]));
        out_add(o, how->key_separator->p, how->key_separator->n);
        TRY(json_value(o, how, d->values[at], level + 1));
    }
    if (d->n > 0) json_line(o, how, level);
    out_char(o, '}');
    return QN_OK;
}

static int json_value(struct out *o, const struct tojson *how, struct value v, uint32_t level) {
    TRY(run_step(o->r, 1));
    switch ((enum value_type)v.type) {
    case VALUE_NONE: out_str(o, "null"); break;
    case VALUE_BOOL: out_str(o, v.truth ? "true" : "false"); break;
    case VALUE_FLOAT:
        if (isfinite(v.number))
            add_float(o, v.number);
        else
            out_str(o, isnan(v.number) ? "NaN" : v.number > 0 ? "Infinity" : "-Infinity");
        break;
    case VALUE_INT:
    case VALUE_BIG: return show_repr(o, v);
    case VALUE_TEXT: json_text(o, how, v.text); break;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        TRY(run_enter(o->r));
        TRY(v.type == VALUE_DICT ? json_dict(o, how, v.dict, level)
                                 : json_list(o, how, v.list, level));
        run_leave(o->r);
        break;
    default: return run_fail(o->r, QN_EINVAL, "tojson: a %s has no JSON form", value_type_name(v));
    }
    return o->rc;
}

int show_json(struct out *o, const struct tojson *how, struct value v) {
    return json_value(o, how, v, 0);
}
