/* method.c - methods of texts, dicts, lists and loops. Parameters that Python takes by position
 * only have a '-' in front of their names. */
#include "base/checked.h"
#include "model/jinja/exec.h"
#include "model/jinja/filter.h"

#include <string.h>

#define METHOD(name) static int name(struct run *r, const struct call *c, struct value *out)

/* The text of argument i. */
static int text_at(struct run *r, const struct call *c, int i, const struct text **text) {
    return value_need_text(r, c->v[i], "argument", text);
}

/* Arguments i and i + 1 as the bounds of a part of the self, in bytes; *n < 0: there is no such
 * part. */
static int part(struct run *r, const struct call *c, int i, int64_t *start, int64_t *n) {
    const struct text *t = c->v[0].text;
    int64_t chars = (int64_t)t->chars, bounds[2] = {0, chars};
    for (int k = 0; k < 2; k++) {
        struct value v = c->v[i + k];
        if (v.type == VALUE_MISSING || v.type == VALUE_NONE) continue;
        TRY(value_integer(r, v, "bound", &bounds[k]));
        if (bounds[k] < 0) bounds[k] = MAX(bounds[k] + chars, 0);
    }
    bounds[1] = MIN(bounds[1], chars);
    *start = (int64_t)text_offset(t, (size_t)MIN(bounds[0], chars));
    *n = bounds[0] > bounds[1] ? -1 : (int64_t)text_offset(t, (size_t)bounds[1]) - *start;
    return QN_OK;
}

/* Cases and classes. */

static int plain_filter(struct run *r, const struct call *c, const char *name, struct value *out) {
    struct text t = {name, strlen(name), strlen(name)};
    struct args none = {0};
    return call_row(r, filter_find(&t), c->v[0], &none, out);
}
METHOD(text_lower) {
    return plain_filter(r, c, "lower", out);
}
METHOD(text_upper) {
    return plain_filter(r, c, "upper", out);
}
METHOD(text_capitalize) {
    return plain_filter(r, c, "capitalize", out);
}

/* A letter begins a word where no letter stands before it. */
METHOD(text_title) {
    const struct text *t = c->v[0].text;
    struct out o = {.r = r};
    bool inside = false;
    for (size_t i = 0; i < t->n;) {
        struct text one = {t->p + i, 0, 1};
        bool lower, upper;
        text_next(t->p, &i);
        one.n = (size_t)(t->p + i - one.p);
        TRY(text_is(r, TEXT_LOWER, &one, &lower));
        TRY(text_is(r, TEXT_UPPER, &one, &upper));
        TRY(text_case(&o, inside ? TEXT_TO_LOWER : TEXT_TO_TITLE, one.p, one.n));
        inside = lower || upper;
    }
    return out_value(&o, out);
}

static int is_class(struct run *r, const struct call *c, enum text_class class, struct value *out) {
    bool is;
    TRY(text_is(r, class, c->v[0].text, &is));
    *out = value_bool(is);
    return QN_OK;
}
METHOD(text_isalpha) {
    return is_class(r, c, TEXT_ALPHA, out);
}
METHOD(text_isdigit) {
    return is_class(r, c, TEXT_DIGIT, out);
}
METHOD(text_isalnum) {
    return is_class(r, c, TEXT_ALNUM, out);
}
METHOD(text_isspace) {
    return is_class(r, c, TEXT_SPACE, out);
}
METHOD(text_islower) {
    return is_class(r, c, TEXT_LOWER, out);
}
METHOD(text_isupper) {
    return is_class(r, c, TEXT_UPPER, out);
}
METHOD(text_isascii) {
    (void)r;
    *out = value_bool(c->v[0].text->n == c->v[0].text->chars);
    return QN_OK;
}

/* Stripping and padding. */

static int strip(struct run *r, const struct call *c, bool left, bool right, struct value *out) {
    const struct text *t = c->v[0].text, *chars = NULL;
    size_t start, end;
    if (c->v[1].type != VALUE_MISSING && c->v[1].type != VALUE_NONE) TRY(text_at(r, c, 1, &chars));
    text_strip(t->p, t->n, chars, left, right, &start, &end);
    return value_borrow(r, t->p + start, end - start, out);
}
METHOD(text_strip_both) {
    return strip(r, c, true, true, out);
}
METHOD(text_lstrip) {
    return strip(r, c, true, false, out);
}
METHOD(text_rstrip) {
    return strip(r, c, false, true, out);
}

static int pad(struct run *r, const struct call *c, int side, struct value *out) {
    const struct text *fill = NULL;
    int64_t width;
    size_t i = 0;
    TRY(value_integer(r, c->v[1], "width", &width));
    if (c->v[2].type != VALUE_MISSING) TRY(text_at(r, c, 2, &fill));
    if (fill != NULL && fill->chars != 1)
        return run_fail(r, QN_EINVAL, "the fill character is one character");
    return filter_pad(r, c->v[0].text, width, side, fill == NULL ? ' ' : text_next(fill->p, &i),
                      out);
}
METHOD(text_center) {
    return pad(r, c, 0, out);
}
METHOD(text_ljust) {
    return pad(r, c, -1, out);
}
METHOD(text_rjust) {
    return pad(r, c, 1, out);
}

METHOD(text_zfill) {
    const struct text *t = c->v[0].text;
    struct value rest;
    int64_t width;
    TRY(value_integer(r, c->v[1], "width", &width));
    bool sign = t->n > 0 && (*t->p == '-' || *t->p == '+');
    TRY(value_borrow(r, t->p + sign, t->n - sign, &rest));
    TRY(filter_pad(r, rest.text, width - sign, 1, '0', &rest));
    struct out o = {.r = r};
    out_add(&o, t->p, sign);
    out_add(&o, rest.text->p, rest.text->n);
    return out_value(&o, out);
}

static int remove_affix(struct run *r, const struct call *c, bool prefix, struct value *out) {
    const struct text *t = c->v[0].text, *what;
    TRY(text_at(r, c, 1, &what));
    bool has =
        what->n <= t->n && memcmp(prefix ? t->p : t->p + t->n - what->n, what->p, what->n) == 0;
    size_t n = has ? what->n : 0;
    return value_borrow(r, t->p + (prefix ? n : 0), t->n - n, out);
}
METHOD(text_removeprefix) {
    return remove_affix(r, c, true, out);
}
METHOD(text_removesuffix) {
    return remove_affix(r, c, false, out);
}

/* Finding. */

static int affix_of(struct run *r, const char *p, size_t n, struct value what, bool prefix,
                    bool *has) {
    const struct text *t;
    TRY(value_need_text(r, what, prefix ? "startswith" : "endswith", &t));
    *has = t->n <= n && memcmp(prefix ? p : p + n - t->n, t->p, t->n) == 0;
    return QN_OK;
}

static int has_affix(struct run *r, const struct call *c, bool prefix, struct value *out) {
    struct value what = c->v[1];
    int64_t start, n;
    bool has = false;
    TRY(part(r, c, 2, &start, &n));
    const char *p = c->v[0].text->p + start;
    size_t several = what.type == VALUE_TUPLE ? what.list->n : 1;
    for (size_t i = 0; !has && i < several; i++) {
        TRY(affix_of(r, p, n < 0 ? 0 : (size_t)n,
                     what.type == VALUE_TUPLE ? what.list->items[i] : what, prefix, &has));
        has = has && n >= 0;
    }
    *out = value_bool(has);
    return QN_OK;
}
METHOD(text_startswith) {
    return has_affix(r, c, true, out);
}
METHOD(text_endswith) {
    return has_affix(r, c, false, out);
}

/* The place of argument 1, in characters; -1: nowhere. */
static int find(struct run *r, const struct call *c, bool last, struct value *out) {
    const struct text *t = c->v[0].text, *what;
    int64_t start, n;
    TRY(text_at(r, c, 1, &what));
    TRY(part(r, c, 2, &start, &n));
    TRY(run_step(r, t->n / 64));
    int64_t hit = n < 0 ? -1 : text_find(t->p + start, (size_t)n, what, last);
    *out = value_int(hit < 0 ? -1 : (int64_t)text_chars(t->p, (size_t)(start + hit)));
    return QN_OK;
}
METHOD(text_find_first) {
    return find(r, c, false, out);
}
METHOD(text_rfind) {
    return find(r, c, true, out);
}
METHOD(text_index) {
    TRY(find(r, c, false, out));
    return out->integer < 0 ? run_fail(r, QN_EINVAL, "substring not found") : QN_OK;
}
METHOD(text_rindex) {
    TRY(find(r, c, true, out));
    return out->integer < 0 ? run_fail(r, QN_EINVAL, "substring not found") : QN_OK;
}

METHOD(text_count) {
    const struct text *what;
    int64_t start, n, count = 0;
    TRY(text_at(r, c, 1, &what));
    TRY(part(r, c, 2, &start, &n));
    const char *p = c->v[0].text->p + start;
    if (what->n == 0) {
        count = n < 0 ? 0 : (int64_t)text_chars(p, (size_t)n) + 1;
        return *out = value_int(count), QN_OK;
    }
    for (int64_t hit; n >= 0 && (hit = text_find(p, (size_t)n, what, false)) >= 0; count++) {
        TRY(run_step(r, 1));
        p += hit + (int64_t)what->n;
        n -= hit + (int64_t)what->n;
    }
    *out = value_int(count);
    return QN_OK;
}

METHOD(text_replace) {
    const struct text *old, *new;
    int64_t count;
    TRY(text_at(r, c, 1, &old));
    TRY(text_at(r, c, 2, &new));
    TRY(call_integer(r, c, 3, "count", -1, &count));
    return filter_replace_text(r, c->v[0].text, old, new, count, out);
}

/* Splitting and joining. */

static int append_part(struct run *r, struct value list, const char *p, size_t n) {
    struct value item;
    TRY(value_borrow(r, p, n, &item));
    return value_append(r, list, item);
}

/* At runs of white space. */
static int split_space(struct run *r, const struct text *t, int64_t most, struct value *out) {
    size_t i = 0, end;
    text_strip(t->p, t->n, NULL, true, false, &i, &end);
    while (i < t->n) {
        size_t from = i, next = i;
        if (most-- == 0) {
            text_strip(t->p + i, t->n - i, NULL, false, true, &from, &end);
            return append_part(r, *out, t->p + i, end);
        }
        while (i < t->n && !text_is_space(text_next(t->p, &next))) i = next;
        TRY(append_part(r, *out, t->p + from, i - from));
        text_strip(t->p + i, t->n - i, NULL, true, false, &from, &end);
        i += from;
    }
    return QN_OK;
}

static int split_at(struct run *r, const struct text *t, const struct text *at, int64_t most,
                    struct value *out) {
    size_t from = 0;
    for (; most != 0; most--) {
        int64_t hit = text_find(t->p + from, t->n - from, at, false);
        if (hit < 0) break;
        TRY(append_part(r, *out, t->p + from, (size_t)hit));
        from += (size_t)hit + at->n;
    }
    return append_part(r, *out, t->p + from, t->n - from);
}

/* From the back; the parts come in reverse order. */
static int rsplit_at(struct run *r, const struct text *t, const struct text *at, int64_t most,
                     struct value *out) {
    size_t end = t->n;
    for (; most != 0; most--) {
        int64_t hit = text_find(t->p, end, at, true);
        if (hit < 0) break;
        TRY(run_step(r, (end - (size_t)hit) / 64));
        TRY(append_part(r, *out, t->p + hit + at->n, end - (size_t)hit - at->n));
        end = (size_t)hit;
    }
    return append_part(r, *out, t->p, end);
}

static int rsplit_space(struct run *r, const struct text *t, int64_t most, struct value *out) {
    size_t start, end;
    text_strip(t->p, t->n, NULL, false, true, &start, &end);
    while (end > 0) {
        size_t from = end, left;
        if (most-- == 0) {
            text_strip(t->p, end, NULL, true, false, &start, &left);
            return append_part(r, *out, t->p + start, end - start);
        }
        for (;;) { /* back to the white space in front of the word */
            size_t stripped;
            text_strip(t->p, from, NULL, false, true, &start, &stripped);
            if (from == 0 || stripped < from) break;
            do from--;
            while (from > 0 && ((unsigned char)t->p[from] & 0xC0) == 0x80);
        }
        TRY(append_part(r, *out, t->p + from, end - from));
        text_strip(t->p, from, NULL, false, true, &start, &end);
    }
    return QN_OK;
}

static int split(struct run *r, const struct call *c, bool back, struct value *out) {
    const struct text *t = c->v[0].text, *at = NULL;
    int64_t most;
    struct value back_list, parts;
    TRY(value_list(r, 8, &parts));
    TRY(call_integer(r, c, 2, "maxsplit", -1, &most));
    if (most < 0) most = -1;
    if (c->v[1].type != VALUE_MISSING && c->v[1].type != VALUE_NONE) TRY(text_at(r, c, 1, &at));
    if (at != NULL && at->n == 0) return run_fail(r, QN_EINVAL, "split at an empty text");
    if (!back) {
        *out = parts;
        return at == NULL ? split_space(r, t, most, out) : split_at(r, t, at, most, out);
    }
    TRY(at == NULL ? rsplit_space(r, t, most, &parts) : rsplit_at(r, t, at, most, &parts));
    TRY(value_reversed(r, parts, &back_list));
    return value_to_list(r, back_list, out);
}
METHOD(text_split) {
    return split(r, c, false, out);
}
METHOD(text_rsplit) {
    return split(r, c, true, out);
}

METHOD(text_splitlines) {
    const struct text *t = c->v[0].text;
    bool keeps;
    TRY(call_truth(r, c, 1, false, &keeps));
    TRY(value_list(r, 8, out));
    for (size_t from = 0, i = 0; from < t->n;) {
        size_t next = i;
        int32_t k = '\n';
        if (i < t->n && !text_is_line_end(k = text_next(t->p, &next))) {
            i = next;
            continue;
        }
        if (k == '\r' && next < t->n && t->p[next] == '\n') next++;
        TRY(append_part(r, *out, t->p + from, (keeps ? next : i) - from));
        from = i = next;
    }
    return QN_OK;
}

static int partition(struct run *r, const struct call *c, bool last, struct value *out) {
    const struct text *t = c->v[0].text, *at;
    TRY(text_at(r, c, 1, &at));
    if (at->n == 0) return run_fail(r, QN_EINVAL, "partition at an empty text");
    TRY(value_list(r, 3, out));
    out->type = VALUE_TUPLE;
    int64_t hit = text_find(t->p, t->n, at, last);
    if (hit < 0 && last) {
        TRY(append_part(r, *out, "", 0));
        TRY(append_part(r, *out, "", 0));
    }
    TRY(append_part(r, *out, t->p, hit < 0 ? t->n : (size_t)hit));
    if (hit >= 0) {
        TRY(append_part(r, *out, at->p, at->n));
        return append_part(r, *out, t->p + hit + at->n, t->n - (size_t)hit - at->n);
    }
    if (last) return QN_OK;
    TRY(append_part(r, *out, "", 0));
    return append_part(r, *out, "", 0);
}
METHOD(text_partition) {
    return partition(r, c, false, out);
}
METHOD(text_rpartition) {
    return partition(r, c, true, out);
}

METHOD(text_join) {
    struct value list;
    TRY(value_to_list(r, c->v[1], &list));
    return filter_join_items(r, list, c->v[0].text, true, out);
}

METHOD(text_format) {
    return format_braces(r, c->v[0].text, c->args, out);
}

/* Dicts, lists, loops. */

static int view(const struct call *c, enum value_view which, struct value *out) {
    *out = c->v[0];
    out->type = VALUE_VIEW;
    out->flag = (uint8_t)which;
    return QN_OK;
}
METHOD(dict_keys) {
    (void)r;
    return view(c, VIEW_KEYS, out);
}
METHOD(dict_values) {
    (void)r;
    return view(c, VIEW_VALUES, out);
}
METHOD(dict_items) {
    (void)r;
    return view(c, VIEW_ITEMS, out);
}
METHOD(dict_get) {
    TRY(value_find(r, c->v[0].dict, c->v[1], out));
    if (out->type != VALUE_MISSING) return QN_OK;
    *out = c->v[2].type == VALUE_MISSING ? value_none() : c->v[2];
    return QN_OK;
}

METHOD(any_copy) {
    (void)r;
    *out = c->v[0]; /* nothing can change either */
    return QN_OK;
}

METHOD(list_count) {
    int64_t count = 0;
    for (size_t i = 0; i < c->v[0].list->n; i++) {
        bool equal;
        TRY(value_equal(r, c->v[0].list->items[i], c->v[1], &equal));
        count += equal;
    }
    *out = value_int(count);
    return QN_OK;
}

METHOD(list_index) {
    if (c->v[2].type != VALUE_MISSING)
        return run_fail(r, QN_EUNSUPPORTED, "index with bounds is not supported");
    for (size_t i = 0; i < c->v[0].list->n; i++) {
        bool equal;
        TRY(value_equal(r, c->v[0].list->items[i], c->v[1], &equal));
        if (equal) return *out = value_int((int64_t)i), QN_OK;
    }
    return run_fail(r, QN_EINVAL, "index: the item is not in the list");
}

static int positional(struct run *r, const struct call *c) {
    return c->args->named != NULL && c->args->named->n > 0
               ? run_fail(r, QN_EINVAL, "this takes no named arguments")
               : QN_OK;
}

METHOD(loop_cycle) {
    TRY(positional(r, c));
    if (c->args->n == 0) return run_fail(r, QN_EINVAL, "no items for cycling given");
    *out = c->args->items[(size_t)c->v[0].loop->index0 % c->args->n];
    return QN_OK;
}

METHOD(loop_changed) {
    struct loop *loop = c->v[0].loop;
    struct value now;
    bool same = false;
    TRY(positional(r, c));
    TRY(value_list(r, c->args->n, &now));
    for (size_t i = 0; i < c->args->n; i++) TRY(value_append(r, now, c->args->items[i]));
    if (loop->changed.type != VALUE_MISSING) TRY(value_equal(r, loop->changed, now, &same));
    loop->changed = now;
    *out = value_bool(!same);
    return QN_OK;
}

int method_find(struct run *r, struct value self, const struct text *name, struct value *out) {
    static const struct method_row rows[] = {
        {{"capitalize", text_capitalize, {{NULL}}}, VALUE_TEXT},
        {{"center", text_center, {{"-width", "?-fill"}}}, VALUE_TEXT},
        {{"count", text_count, {{"-sub", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"endswith", text_endswith, {{"-suffix", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"find", text_find_first, {{"-sub", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"format", text_format, {{"*"}}}, VALUE_TEXT},
        {{"index", text_index, {{"-sub", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"isalnum", text_isalnum, {{NULL}}}, VALUE_TEXT},
        {{"isalpha", text_isalpha, {{NULL}}}, VALUE_TEXT},
        {{"isascii", text_isascii, {{NULL}}}, VALUE_TEXT},
        {{"isdigit", text_isdigit, {{NULL}}}, VALUE_TEXT},
        {{"islower", text_islower, {{NULL}}}, VALUE_TEXT},
        {{"isspace", text_isspace, {{NULL}}}, VALUE_TEXT},
        {{"isupper", text_isupper, {{NULL}}}, VALUE_TEXT},
        {{"join", text_join, {{"-iterable"}}}, VALUE_TEXT},
        {{"ljust", text_ljust, {{"-width", "?-fill"}}}, VALUE_TEXT},
        {{"lower", text_lower, {{NULL}}}, VALUE_TEXT},
        {{"lstrip", text_lstrip, {{"?-chars"}}}, VALUE_TEXT},
        {{"partition", text_partition, {{"-sep"}}}, VALUE_TEXT},
        {{"removeprefix", text_removeprefix, {{"-prefix"}}}, VALUE_TEXT},
        {{"removesuffix", text_removesuffix, {{"-suffix"}}}, VALUE_TEXT},
        {{"replace", text_replace, {{"-old", "-new", "?-count"}}}, VALUE_TEXT},
        {{"rfind", text_rfind, {{"-sub", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"rindex", text_rindex, {{"-sub", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"rjust", text_rjust, {{"-width", "?-fill"}}}, VALUE_TEXT},
        {{"rpartition", text_rpartition, {{"-sep"}}}, VALUE_TEXT},
        {{"rsplit", text_rsplit, {{"?sep", "?maxsplit"}}}, VALUE_TEXT},
        {{"rstrip", text_rstrip, {{"?-chars"}}}, VALUE_TEXT},
        {{"split", text_split, {{"?sep", "?maxsplit"}}}, VALUE_TEXT},
        {{"splitlines", text_splitlines, {{"?keepends"}}}, VALUE_TEXT},
        {{"startswith", text_startswith, {{"-prefix", "?-start", "?-end"}}}, VALUE_TEXT},
        {{"strip", text_strip_both, {{"?-chars"}}}, VALUE_TEXT},
        {{"title", text_title, {{NULL}}}, VALUE_TEXT},
        {{"upper", text_upper, {{NULL}}}, VALUE_TEXT},
        {{"zfill", text_zfill, {{"-width"}}}, VALUE_TEXT},
        {{"copy", any_copy, {{NULL}}}, VALUE_DICT},
        {{"get", dict_get, {{"-key", "?-default"}}}, VALUE_DICT},
        {{"items", dict_items, {{NULL}}}, VALUE_DICT},
        {{"keys", dict_keys, {{NULL}}}, VALUE_DICT},
        {{"values", dict_values, {{NULL}}}, VALUE_DICT},
        {{"copy", any_copy, {{NULL}}}, VALUE_LIST},
        {{"count", list_count, {{"-value"}}}, VALUE_LIST},
        {{"count", list_count, {{"-value"}}}, VALUE_TUPLE},
        {{"index", list_index, {{"-value", "?-start", "?-stop"}}}, VALUE_LIST},
        {{"index", list_index, {{"-value", "?-start", "?-stop"}}}, VALUE_TUPLE},
        {{"cycle", loop_cycle, {{"*"}}}, VALUE_LOOP},
        {{"changed", loop_changed, {{"*"}}}, VALUE_LOOP},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *text = rows[i].row.name;
        if (rows[i].type != self.type || strlen(text) != name->n ||
            memcmp(text, name->p, name->n) != 0)
            continue;
        *out = (struct value){.type = VALUE_METHOD};
        TRY(RUN_NEW(r, &out->method, 1));
        *out->method = (struct method){&rows[i], self};
        return QN_OK;
    }
    *out = (struct value){.type = VALUE_MISSING};
    return QN_OK;
}
