/* iter.c - going through values: lengths, items, iterators. */
#include "model/jinja/exec.h"
#include "model/jinja/text.h"
#include "model/jinja/value.h"

#include <string.h>

int value_length(struct run *r, struct value v, int64_t *n) {
    switch ((enum value_type)v.type) {
    case VALUE_UNDEFINED: *n = 0; return QN_OK;
    case VALUE_TEXT: *n = (int64_t)v.text->chars; return QN_OK;
    case VALUE_LIST:
    case VALUE_TUPLE: *n = (int64_t)v.list->n; return QN_OK;
    case VALUE_DICT:
    case VALUE_VIEW: *n = (int64_t)v.dict->n; return QN_OK;
    case VALUE_RANGE: *n = v.range->n; return QN_OK;
    case VALUE_LOOP: return loop_length(r, v.loop, n);
    default: return run_fail(r, QN_EINVAL, "a %s has no length", value_type_name(v));
    }
}

int value_at(struct run *r, struct value v, int64_t i, struct value *item) {
    size_t at = (size_t)i;
    switch ((enum value_type)v.type) {
    case VALUE_LIST:
    case VALUE_TUPLE: *item = v.list->items[at]; return QN_OK;
    case VALUE_DICT: *item = v.dict->keys[at]; return QN_OK;
    case VALUE_VIEW:
        if (v.flag == VIEW_ITEMS) return value_pair(r, v.dict->keys[at], v.dict->values[at], item);
        *item = v.flag == VIEW_KEYS ? v.dict->keys[at] : v.dict->values[at];
        return QN_OK;
    case VALUE_RANGE: *item = value_int(v.range->start + i * v.range->step); return QN_OK;
    default: break;
    }
    size_t start = text_offset(v.text, at), end = start;
    TRY(run_step(r, start / 256));
    text_next(v.text->p, &end);
    return value_borrow(r, v.text->p + start, end - start, item);
}

bool value_iterable(struct value v) {
    return v.type == VALUE_UNDEFINED || (v.type >= VALUE_TEXT && v.type <= VALUE_ITER) ||
           v.type == VALUE_LOOP;
}

static int next_item(struct run *r, struct iter *it, struct value *item, bool *more) {
    int64_t n;
    TRY(value_length(r, it->source, &n));
    *more = it->i < (uint64_t)n;
    if (!*more) return QN_OK;
    return value_at(r, it->source, (int64_t)it->i++, item);
}

/* Of a text: step is the byte offset, so that the whole is linear. */
static int next_char(struct run *r, struct iter *it, struct value *item, bool *more) {
    const struct text *t = it->source.text;
    *more = it->step < t->n;
    if (!*more) return QN_OK;
    size_t start = it->step;
    text_next(t->p, &it->step);
    return value_borrow(r, t->p + start, it->step - start, item);
}

static int next_back(struct run *r, struct iter *it, struct value *item, bool *more) {
    *more = it->i > 0;
    return *more ? value_at(r, it->source, (int64_t)--it->i, item) : QN_OK;
}

int value_iter(struct run *r, struct value v, struct iter **it) {
    if (v.type == VALUE_ITER) {
        *it = v.iter;
        return QN_OK;
    }
    if (v.type == VALUE_LOOP)
        return run_fail(r, QN_EUNSUPPORTED, "going through the loop variable is not supported");
    if (!value_iterable(v))
        return run_fail(r, QN_EINVAL, "a %s has no items to go through", value_type_name(v));
    TRY(RUN_NEW(r, it, 1));
    (*it)->source = v;
    (*it)->next = v.type == VALUE_TEXT ? next_char : next_item;
    return QN_OK;
}

int value_next(struct run *r, struct iter *it, struct value *item, bool *more) {
    TRY(run_step(r, 1));
    TRY(run_enter(r));
    TRY(it->next(r, it, item, more));
    run_leave(r);
    return QN_OK;
}

int value_to_list(struct run *r, struct value v, struct value *list) {
    struct iter *it;
    struct value item;
    bool more;
    TRY(value_iter(r, v, &it));
    TRY(value_list(r, 8, list));
    for (;;) {
        TRY(value_next(r, it, &item, &more));
        if (!more) return QN_OK;
        TRY(value_append(r, *list, item));
    }
}

int value_reversed(struct run *r, struct value v, struct value *iter) {
    int64_t n = 0;
    if (v.type != VALUE_UNDEFINED && !(v.type >= VALUE_TEXT && v.type <= VALUE_RANGE))
        return run_fail(r, QN_EINVAL, "a %s cannot be reversed", value_type_name(v));
    TRY(value_length(r, v, &n));
    *iter = (struct value){.type = VALUE_ITER};
    TRY(RUN_NEW(r, &iter->iter, 1));
    iter->iter->source = v;
    iter->iter->i = (size_t)n;
    iter->iter->next = next_back;
    return QN_OK;
}
