/* filter_list.c - filters of lists. Those that are generators in Python are iterators here: nothing
 * happens before an item is asked for. */
#include "base/checked.h"
#include "model/jinja/filter.h"

#include <string.h>

static int new_iter(struct run *r, struct value source,
                    int (*next)(struct run *, struct iter *, struct value *, bool *), void *data,
                    struct value *out) {
    *out = (struct value){.type = VALUE_ITER};
    TRY(RUN_NEW(r, &out->iter, 1));
    *out->iter = (struct iter){.next = next, .source = source, .data = data};
    return QN_OK;
}

/* The next item of what an iterator reads. One that is false has none, as jinja2's have it. */
static int pull(struct run *r, struct iter *it, bool by_truth, struct value *item, bool *more) {
    bool truth = true;
    if (it->inner == NULL) {
        if (by_truth) TRY(value_truth(r, it->source, &truth));
        if (!truth) return *more = false, QN_OK;
        TRY(value_iter(r, it->source, &it->inner));
    }
    return value_next(r, it->inner, item, more);
}

/* Attributes: "a.b.0" or a number. */

struct path {
    struct value parts; /* a list */
    struct value fallback;
    bool lower; /* texts in lower case */
};

static bool all_digits(const struct text *t) {
    bool digits = t->n > 0;
    for (size_t i = 0; i < t->n; i++) digits = digits && t->p[i] >= '0' && t->p[i] <= '9';
    return digits;
}

static int path_parts(struct run *r, struct value attribute, struct value *parts) {
    TRY(value_list(r, 4, parts));
    if (attribute.type == VALUE_MISSING || attribute.type == VALUE_NONE) return QN_OK;
    if (attribute.type != VALUE_TEXT) return value_append(r, *parts, attribute);
    const struct text *t = attribute.text;
    for (size_t from = 0; from <= t->n;) {
        const char *dot = memchr(t->p + from, '.', t->n - from);
        size_t end = dot == NULL ? t->n : (size_t)(dot - t->p);
        struct value part;
        int64_t integer;
        bool big;
        TRY(value_borrow(r, t->p + from, end - from, &part));
        if (all_digits(part.text) && text_to_int(part.text, 10, &integer, &big) && !big)
            part = value_int(integer);
        TRY(value_append(r, *parts, part));
        from = end + 1;
    }
    return QN_OK;
}

static int make_path(struct run *r, struct value attribute, bool lower, struct path *path) {
    *path = (struct path){.lower = lower};
    return path_parts(r, attribute, &path->parts);
}

static int follow(struct run *r, const struct path *path, struct value item, struct value *out) {
    for (size_t i = 0; i < path->parts.list->n; i++) {
        TRY(attribute_item(r, item, path->parts.list->items[i], &item));
        if (path->fallback.type != VALUE_MISSING && item.type == VALUE_UNDEFINED)
            item = path->fallback;
    }
    *out = item;
    if (!path->lower || item.type != VALUE_TEXT) return QN_OK;
    struct out o = {.r = r};
    TRY(text_case(&o, TEXT_TO_LOWER, item.text->p, item.text->n));
    return out_value(&o, out);
}

/* list, first, last, reverse, items, batch, slice */

FILTER(filter_list) {
    return value_to_list(r, c->v[0], out);
}

FILTER(filter_first) {
    struct iter *it;
    bool more;
    TRY(value_iter(r, c->v[0], &it));
    TRY(value_next(r, it, out, &more));
    if (!more) *out = value_undefined("No first item, sequence was empty.");
    return QN_OK;
}

FILTER(filter_last) {
    struct value back;
    bool more;
    TRY(value_reversed(r, c->v[0], &back));
    TRY(value_next(r, back.iter, out, &more));
    if (!more) *out = value_undefined("No last item, sequence was empty.");
    return QN_OK;
}

FILTER(filter_reverse) {
    struct value list, back, bounds[3] = {value_none(), value_none(), value_int(-1)};
    if (c->v[0].type == VALUE_TEXT) return attribute_slice(r, c->v[0], bounds, out);
    if (c->v[0].type != VALUE_ITER) return value_reversed(r, c->v[0], out);
    TRY(value_to_list(r, c->v[0], &list));
    TRY(value_reversed(r, list, &back));
    return value_to_list(r, back, out);
}

static int next_pair(struct run *r, struct iter *it, struct value *item, bool *more) {
    struct value v = it->source;
    if (v.type == VALUE_UNDEFINED) return *more = false, QN_OK;
    if (v.type != VALUE_DICT) return run_fail(r, QN_EINVAL, "items of a %s", value_type_name(v));
    *more = it->i < v.dict->n;
    if (!*more) return QN_OK;
    it->i++;
    return value_pair(r, v.dict->keys[it->i - 1], v.dict->values[it->i - 1], item);
}
FILTER(filter_items) {
    return new_iter(r, c->v[0], next_pair, NULL, out);
}

struct rows {
    int64_t n; /* items in a batch; slices */
    struct value fill, list;
};

static int next_batch(struct run *r, struct iter *it, struct value *item, bool *more) {
    const struct rows *rows = it->data;
    struct value v;
    TRY(value_list(r, 8, item));
    while (item->list->n == 0 || (int64_t)item->list->n != rows->n) {
        TRY(pull(r, it, false, &v, more));
        if (!*more) break;
        TRY(value_append(r, *item, v));
    }
    *more = item->list->n > 0;
    bool fills = rows->fill.type != VALUE_MISSING && rows->fill.type != VALUE_NONE;
    while (*more && fills && (int64_t)item->list->n < rows->n)
        TRY(value_append(r, *item, rows->fill));
    return QN_OK;
}

static int next_slice(struct run *r, struct iter *it, struct value *item, bool *more) {
    struct rows *rows = it->data;
    struct value v;
    if (rows->list.type == VALUE_MISSING) {
        TRY(value_to_list(r, it->source, &rows->list));
        if (rows->n == 0) return run_fail(r, QN_EINVAL, "slice into no slices");
    }
    *more = (int64_t)it->i < rows->n;
    if (!*more) return QN_OK;
    int64_t length = (int64_t)rows->list.list->n, each = length / rows->n;
    int64_t longer = length % rows->n, k = (int64_t)it->i++;
    int64_t start = k * each + MIN(k, longer), end = start + each + (k < longer);
    TRY(value_list(r, 8, item));
    for (; start < end; start++) {
        TRY(value_at(r, rows->list, start, &v));
        TRY(value_append(r, *item, v));
    }
    bool fills = rows->fill.type != VALUE_MISSING && rows->fill.type != VALUE_NONE;
    return fills && k >= longer ? value_append(r, *item, rows->fill) : QN_OK;
}

static int new_rows(struct run *r, const struct call *c, bool slices, struct value *out) {
    struct rows *rows;
    TRY(RUN_NEW(r, &rows, 1));
    TRY(value_integer(r, c->v[1], slices ? "slice" : "batch", &rows->n));
    if (rows->n < 1)
        return run_fail(r, QN_EUNSUPPORTED, "%s of fewer than 1", slices ? "slice" : "batch");
    rows->fill = c->v[2];
    return new_iter(r, c->v[0], slices ? next_slice : next_batch, rows, out);
}
FILTER(filter_batch) {
    return new_rows(r, c, false, out);
}
FILTER(filter_slice) {
    return new_rows(r, c, true, out);
}

/* join, sum */

int filter_join_items(struct run *r, struct value list, const struct text *between, bool strict,
                      struct value *out) {
    struct out o = {.r = r};
    for (size_t i = 0; i < list.list->n; i++) {
        struct value item = list.list->items[i];
        if (i > 0) out_add(&o, between->p, between->n);
        if (strict && item.type != VALUE_TEXT)
            return run_fail(r, QN_EINVAL, "join wants texts, item %zu is a %s", i,
                            value_type_name(item));
        TRY(show_str(&o, item));
    }
    return out_value(&o, out);
}

/* The items of v[0], each replaced by its attribute. */
static int attributes(struct run *r, struct value v, struct value attribute, struct value *out) {
    struct path path;
    struct value list, item;
    TRY(value_to_list(r, v, &list));
    TRY(make_path(r, attribute, false, &path));
    TRY(value_list(r, list.list->n, out));
    for (size_t i = 0; i < list.list->n; i++) {
        TRY(follow(r, &path, list.list->items[i], &item));
        TRY(value_append(r, *out, item));
    }
    return QN_OK;
}

FILTER(filter_join) {
    struct value items, between;
    TRY(value_borrow(r, "", 0, &between));
    if (c->v[1].type != VALUE_MISSING) TRY(show_text(r, c->v[1], &between));
    TRY(attributes(r, c->v[0], c->v[2], &items));
    return filter_join_items(r, items, between.text, false, out);
}

FILTER(filter_sum) {
    struct value items;
    TRY(attributes(r, c->v[0], c->v[1], &items));
    *out = c->v[2].type == VALUE_MISSING ? value_int(0) : c->v[2];
    if (out->type == VALUE_TEXT) return run_fail(r, QN_EINVAL, "sum of texts");
    for (size_t i = 0; i < items.list->n; i++)
        TRY(operator_add(r, *out, items.list->items[i], out));
    return QN_OK;
}

/* sort, dictsort, min, max, unique */

struct order {
    bool reverse, plain; /* plain: keys are values, not lists of values */
    struct value *keys;  /* [n] */
    size_t *from, *to;   /* [n] indices */
};

static int before(struct run *r, const struct order *o, size_t a, size_t b, bool *less) {
    return o->reverse ? value_less(r, o->keys[b], o->keys[a], less)
                      : value_less(r, o->keys[a], o->keys[b], less);
}

/* Merges from[start, middle) and from[middle, end) into to; equal ones stay in their order. */
static int merge(struct run *r, struct order *o, size_t start, size_t middle, size_t end) {
    size_t a = start, b = middle;
    for (size_t i = start; i < end; i++) {
        bool second = a == middle;
        if (a < middle && b < end) TRY(before(r, o, o->from[b], o->from[a], &second));
        o->to[i] = second ? o->from[b++] : o->from[a++];
    }
    return QN_OK;
}

/* The items of `list` in the order of keys. */
static int sorted(struct run *r, struct value list, struct value *keys, bool reverse,
                  struct value *out) {
    size_t n = list.list->n;
    struct order o = {.reverse = reverse, .keys = keys};
    TRY(RUN_NEW(r, &o.from, n));
    TRY(RUN_NEW(r, &o.to, n));
    for (size_t i = 0; i < n; i++) o.from[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t i = 0; i < n; i += 2 * width)
            TRY(merge(r, &o, i, MIN(i + width, n), MIN(i + 2 * width, n)));
        size_t *swap = o.from;
        o.from = o.to;
        o.to = swap;
    }
    TRY(value_list(r, n, out));
    for (size_t i = 0; i < n; i++) TRY(value_append(r, *out, list.list->items[o.from[i]]));
    return QN_OK;
}

FILTER(filter_sort) {
    struct value list, *keys, attribute = c->v[3], names;
    struct path path;
    bool reverse, sensitive;
    TRY(call_truth(r, c, 1, false, &reverse));
    TRY(call_truth(r, c, 2, false, &sensitive));
    TRY(value_to_list(r, c->v[0], &list));
    TRY(RUN_NEW(r, &keys, list.list->n));
    TRY(value_list(r, 2, &names)); /* "a,b" */
    bool several = attribute.type == VALUE_TEXT;
    for (size_t from = 0; several && from <= attribute.text->n;) {
        const char *comma = memchr(attribute.text->p + from, ',', attribute.text->n - from);
        size_t end = comma == NULL ? attribute.text->n : (size_t)(comma - attribute.text->p);
        struct value name;
        TRY(value_borrow(r, attribute.text->p + from, end - from, &name));
        TRY(value_append(r, names, name));
        from = end + 1;
    }
    if (!several) TRY(value_append(r, names, attribute));
    for (size_t i = 0; i < list.list->n; i++) {
        TRY(value_list(r, names.list->n, &keys[i]));
        for (size_t k = 0; k < names.list->n; k++) {
            struct value key;
            TRY(make_path(r, names.list->items[k], !sensitive, &path));
            TRY(follow(r, &path, list.list->items[i], &key));
            TRY(value_append(r, keys[i], key));
        }
    }
    return sorted(r, list, keys, reverse, out);
}

FILTER(filter_dictsort) {
    struct value pairs, *keys, view = c->v[0];
    struct path path;
    bool reverse, sensitive;
    if (view.type != VALUE_DICT)
        return run_fail(r, QN_EINVAL, "dictsort of a %s", value_type_name(view));
    bool by_key = c->v[2].type == VALUE_MISSING || value_is_text(c->v[2], "key");
    if (!by_key && !value_is_text(c->v[2], "value"))
        return run_fail(r, QN_EINVAL, "dictsort: by is key or value");
    TRY(call_truth(r, c, 1, false, &sensitive));
    TRY(call_truth(r, c, 3, false, &reverse));
    view.type = VALUE_VIEW;
    view.flag = VIEW_ITEMS;
    TRY(value_to_list(r, view, &pairs));
    TRY(RUN_NEW(r, &keys, pairs.list->n));
    TRY(make_path(r, (struct value){.type = VALUE_MISSING}, !sensitive, &path));
    for (size_t i = 0; i < pairs.list->n; i++)
        TRY(follow(r, &path, pairs.list->items[i].list->items[!by_key], &keys[i]));
    return sorted(r, pairs, keys, reverse, out);
}

static int extreme(struct run *r, const struct call *c, bool greatest, struct value *out) {
    struct value list, key, best = value_none();
    struct path path;
    bool sensitive, better = true;
    TRY(call_truth(r, c, 1, false, &sensitive));
    TRY(value_to_list(r, c->v[0], &list));
    TRY(make_path(r, c->v[2], !sensitive, &path));
    *out = value_undefined("No aggregated item, sequence was empty.");
    for (size_t i = 0; i < list.list->n; i++) {
        TRY(follow(r, &path, list.list->items[i], &key));
        if (i > 0)
            TRY(greatest ? value_less(r, best, key, &better) : value_less(r, key, best, &better));
        if (!better) continue;
        best = key;
        *out = list.list->items[i];
    }
    return QN_OK;
}
FILTER(filter_max) {
    return extreme(r, c, true, out);
}
FILTER(filter_min) {
    return extreme(r, c, false, out);
}

struct unique {
    struct path path;
    struct value seen; /* a dict */
};

static int next_unique(struct run *r, struct iter *it, struct value *item, bool *more) {
    struct unique *u = it->data;
    struct value key, had;
    do {
        TRY(pull(r, it, false, item, more));
        if (!*more) return QN_OK;
        TRY(follow(r, &u->path, *item, &key));
        TRY(value_find(r, u->seen.dict, key, &had));
    } while (had.type != VALUE_MISSING);
    return value_put(r, u->seen.dict, key, value_none());
}

FILTER(filter_unique) {
    struct unique *u;
    bool sensitive;
    TRY(RUN_NEW(r, &u, 1));
    TRY(call_truth(r, c, 1, false, &sensitive));
    TRY(make_path(r, c->v[2], !sensitive, &u->path));
    TRY(value_dict(r, 8, &u->seen));
    return new_iter(r, c->v[0], next_unique, u, out);
}

/* map, select, reject, selectattr, rejectattr: the arguments are looked at with the first item. */

struct applied {
    struct args args;  /* behind the name */
    struct value name; /* of the filter or test; VALUE_MISSING: none */
    struct path path;
    bool by_attribute, reject, ready;
};

static const struct value *named(const struct args *args, const char *name) {
    return args->named == NULL ? NULL : value_field(args->named, name);
}

static int ready_map(struct run *r, struct applied *a) {
    const struct value *attribute = named(&a->args, "attribute");
    a->ready = true;
    if (a->args.n == 0 && attribute != NULL) {
        const struct value *fallback = named(&a->args, "default");
        if (a->args.named->n > (fallback != NULL ? 2u : 1u))
            return run_fail(r, QN_EINVAL, "map takes an attribute and a default");
        a->by_attribute = true;
        TRY(make_path(r, *attribute, false, &a->path));
        if (fallback != NULL && fallback->type != VALUE_NONE) a->path.fallback = *fallback;
        return QN_OK;
    }
    if (a->args.n == 0) return run_fail(r, QN_EINVAL, "map wants a filter's name");
    a->name = *a->args.items++;
    a->args.n--;
    return QN_OK;
}

static int next_mapped(struct run *r, struct iter *it, struct value *item, bool *more) {
    struct applied *a = it->data;
    TRY(pull(r, it, true, item, more));
    if (!*more) return QN_OK;
    if (!a->ready) TRY(ready_map(r, a));
    if (a->by_attribute) return follow(r, &a->path, *item, item);
    return call_filter(r, a->name, *item, &a->args, item);
}

static int ready_select(struct run *r, struct applied *a) {
    a->ready = true;
    if (a->by_attribute) {
        if (a->args.n == 0) return run_fail(r, QN_EINVAL, "selectattr wants an attribute's name");
        TRY(make_path(r, *a->args.items++, false, &a->path));
        a->args.n--;
    }
    if (a->args.n == 0) return QN_OK;
    a->name = *a->args.items++;
    a->args.n--;
    return QN_OK;
}

static int next_selected(struct run *r, struct iter *it, struct value *item, bool *more) {
    struct applied *a = it->data;
    bool yes = false;
    do {
        struct value v;
        TRY(pull(r, it, true, item, more));
        if (!*more) return QN_OK;
        if (!a->ready) TRY(ready_select(r, a));
        v = *item;
        if (a->by_attribute) TRY(follow(r, &a->path, v, &v));
        TRY(a->name.type == VALUE_MISSING ? value_truth(r, v, &yes)
                                          : call_test(r, a->name, v, &a->args, &yes));
    } while (yes == a->reject);
    return QN_OK;
}

static int new_applied(struct run *r, const struct call *c, bool map, bool by_attribute,
                       bool reject, struct value *out) {
    struct applied *a;
    TRY(RUN_NEW(r, &a, 1));
    a->args = *c->args;
    a->by_attribute = by_attribute;
    a->reject = reject;
    return new_iter(r, c->v[0], map ? next_mapped : next_selected, a, out);
}
FILTER(filter_map) {
    return new_applied(r, c, true, false, false, out);
}
FILTER(filter_select) {
    return new_applied(r, c, false, false, false, out);
}
FILTER(filter_reject) {
    return new_applied(r, c, false, false, true, out);
}
FILTER(filter_selectattr) {
    return new_applied(r, c, false, true, false, out);
}
FILTER(filter_rejectattr) {
    return new_applied(r, c, false, true, true, out);
}
