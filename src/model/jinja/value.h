/* value.h - what a template computes with: Python's values, as far as templates can make them, and
 * the run that owns them.
 *
 * A value is 16 bytes; what it points to lives in the run's arena and dies with it. Texts, lists,
 * tuples and dicts never change once they are made: the sandbox of transformers forbids it. Only
 * namespaces and iterators have a state.
 *
 * Every function that can fail takes the run first and returns a status code; the message begins
 * with the template's name and the line that the run is at.
 */
#ifndef QN_MODEL_JINJA_VALUE_H
#define QN_MODEL_JINJA_VALUE_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum value_type {
    VALUE_MISSING, /* an empty slot; never the result of an expression */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIG, /* an integer beyond 64 bits: its digits */
    VALUE_FLOAT,
    VALUE_TEXT,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_VIEW, /* keys(), values() or items() of a dict */
    VALUE_RANGE,
    VALUE_ITER, /* a generator: gives its items once */
    VALUE_NAMESPACE,
    VALUE_MACRO,
    VALUE_METHOD,   /* text.strip and its like, not called yet */
    VALUE_FUNCTION, /* range, dict, raise_exception ... */
    VALUE_LOOP,
};

struct run;
struct out;

enum value_view { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct value {
    uint8_t type;
    uint8_t flag; /* TEXT: it is markup; VIEW: enum value_view */
    union {
        bool truth;
        int64_t integer;
        double number;
        const char *why;         /* UNDEFINED: what using it says */
        const struct text *text; /* TEXT, BIG */
        struct list *list;       /* LIST, TUPLE */
        struct dict *dict;       /* DICT, VIEW, NAMESPACE */
        struct range *range;
        struct iter *iter;
        struct macro *macro;
        struct method *method;
        const struct function *function;
        struct loop *loop;
    };
};

struct text {
    const char *p; /* [n] UTF-8 */
    size_t n;
    size_t chars;
};

struct list {
    struct value *items;
    size_t n, capacity;
};

struct dict {
    struct value *keys, *values; /* in order of insertion */
    size_t n, capacity;
};

struct range {
    int64_t start, stop, step, n;
};

/* next sets *more to false at the end. */
struct iter {
    int (*next)(struct run *r, struct iter *it, struct value *item, bool *more);
    struct value source;
    struct iter *inner;
    size_t i, step;
    void *data;
};

struct method {
    const struct method_row *row;
    struct value self;
};

/* What a call passes. */
struct args {
    struct value *items;
    size_t n;
    struct dict *named; /* NULL: none */
};

/* One rendering. */
struct run {
    struct diag *d;
    const char *where; /* the template, in messages */
    struct arena arena;
    uint32_t line;
    uint32_t depth;            /* of evaluation and of values that hold values */
    uint64_t steps;            /* so far */
    uint64_t deadline;         /* of the thread's processor time, ns; 0: not set yet */
    time_t now;                /* what strftime_now says */
    const struct dict *vars;   /* the variables of the conversation */
    const struct name *caller; /* the name "caller" */
    struct frame *frame;
    struct out *out; /* what is being written */
    int signal;      /* a break or continue on its way to its loop */
};

/* Fails with the template's name and the line in front. */
int run_fail(struct run *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#ifdef __clang_analyzer__ /* it sees one file at a time: that what comes back is no QN_OK */
#define run_fail(r, code, ...) (run_fail(r, code, __VA_ARGS__), (code))
#endif
/* Counts work; fails when there was too much of it or when it took too long. */
int run_step(struct run *r, uint64_t n);
int run_enter(struct run *r); /* one level deeper */
static inline void run_leave(struct run *r) {
    r->depth--;
}
int run_take(struct run *r, uint64_t n, size_t size, void **out);
#define RUN_NEW(r, out, n) run_take((r), (n), sizeof **(out), (void **)(out))

/* A text being written. The first failure sticks; out_value tells it. */
struct out {
    struct run *r;
    char *p;
    size_t n, capacity;
    int rc;
};
int out_new(struct run *r, struct out **o); /* one that lives as long as the run */
void out_add(struct out *o, const char *p, size_t n);
void out_str(struct out *o, const char *text);
void out_char(struct out *o, int32_t c); /* a code point */
int out_value(struct out *o, struct value *text);

/* Values. */
static inline struct value value_none(void) {
    return (struct value){.type = VALUE_NONE};
}
static inline struct value value_bool(bool truth) {
    return (struct value){.type = VALUE_BOOL, .truth = truth};
}
static inline struct value value_int(int64_t integer) {
    return (struct value){.type = VALUE_INT, .integer = integer};
}
static inline struct value value_float(double number) {
    return (struct value){.type = VALUE_FLOAT, .number = number};
}
static inline struct value value_undefined(const char *why) {
    return (struct value){.type = VALUE_UNDEFINED, .why = why};
}
/* A value of `text` that says what it is that is not there. */
int value_undefined_text(struct run *r, struct value *out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Text that outlives the run's arena is borrowed. */
int value_borrow(struct run *r, const char *p, size_t n, struct value *out);
int value_copy(struct run *r, const char *p, size_t n, struct value *out);
bool value_is_text(struct value v, const char *text);

int value_list(struct run *r, size_t capacity, struct value *out);
int value_append(struct run *r, struct value list, struct value item);
int value_pair(struct run *r, struct value a, struct value b, struct value *tuple);
int value_dict(struct run *r, size_t capacity, struct value *out);
/* Sets a key; keys that Python could not hash fail. */
int value_put(struct run *r, struct dict *d, struct value key, struct value item);
/* *item is VALUE_MISSING where there is no such key. */
int value_find(struct run *r, const struct dict *d, struct value key, struct value *item);
const struct value *value_field(const struct dict *d, const char *key); /* NULL: none */

const char *value_type_name(struct value v); /* Python's */
bool value_is_number(struct value v);        /* BOOL, INT or FLOAT */
int value_truth(struct run *r, struct value v, bool *truth);
int value_equal(struct run *r, struct value a, struct value b, bool *equal);
int value_less(struct run *r, struct value a, struct value b, bool *less);
int value_contains(struct run *r, struct value holder, struct value item, bool *in);
bool value_has_length(struct value v);
int value_length(struct run *r, struct value v, int64_t *n);
/* An INT or BOOL as a number; else fails, calling it `what`. */
int value_integer(struct run *r, struct value v, const char *what, int64_t *integer);
int value_need_text(struct run *r, struct value v, const char *what, const struct text **text);

bool value_iterable(struct value v);
int value_iter(struct run *r, struct value v, struct iter **it);
int value_next(struct run *r, struct iter *it, struct value *item, bool *more);
int value_to_list(struct run *r, struct value v, struct value *list);
/* Item i of a LIST, TUPLE, TEXT, RANGE, DICT or VIEW; i is inside. */
int value_at(struct run *r, struct value v, int64_t i, struct value *item);
int value_reversed(struct run *r, struct value v, struct value *iter);

/* The forms of a value, appended to o. */
int show_str(struct out *o, struct value v);
int show_repr(struct out *o, struct value v);
int show_text(struct run *r, struct value v, struct value *text); /* Python's str() */

struct tojson {
    bool ascii, sort_keys, has_indent;
    const struct text *indent; /* one level's */
    const struct text *item_separator, *key_separator;
};
int show_json(struct out *o, const struct tojson *how, struct value v);

/* Python's json.loads. `name` stands for the text in messages. */
int json_read(struct run *r, const char *name, const char *p, size_t n, struct value *out);

#endif
