/* json_read.c - a conversation's JSON as values, by the rules of Python's json module: integers of
 * any size stay exact, NaN and Infinity are numbers, the last of two equal keys counts. */
#include "model/jinja/text.h"
#include "model/jinja/value.h"
#include "model/tokenizer_text.h"

#include <math.h>
#include <string.h>

struct reader {
    struct run *r;
    const char *name;
    const char *start, *p, *end;
};

static int bad(const struct reader *j, const char *why) {
    size_t line = 1, column = 1;
    for (const char *p = j->start; p < j->p; p++, column++)
        if (*p == '\n') line++, column = 0;
    return fail(j->r->d, QN_EFORMAT, "%s: line %zu, column %zu: %s", j->name, line, column, why);
}

static void skip_space(struct reader *j) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
        j->p++;
}

static bool accept(struct reader *j, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, word, n) != 0) return false;
    j->p += n;
    return true;
}

static bool read_hex(struct reader *j, int32_t *c) {
    *c = 0;
    if (j->end - j->p < 4) return false;
    for (int i = 0; i < 4; i++) {
        char h = *j->p++;
        int digit = h >= '0' && h <= '9'   ? h - '0'
                    : h >= 'a' && h <= 'f' ? h - 'a' + 10
                    : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        *c = *c << 4 | digit;
    }
    return true;
}

/* Behind a backslash. */
static int read_escape(struct reader *j, struct out *o) {
    static const char plain[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    int32_t c, low;
    char e = j->p < j->end ? *j->p++ : '\0';
    for (const char *p = plain; *p != '\0'; p += 2)
        if (*p == e) {
            out_char(o, p[1]);
            return QN_OK;
        }
    if (e != 'u' || !read_hex(j, &c)) return bad(j, "not an escape of JSON");
    if (c >= 0xD800 && c < 0xDC00 && accept(j, "\\u") && read_hex(j, &low) && low >= 0xDC00 &&
        low < 0xE000)
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    if (c >= 0xD800 && c < 0xE000) return bad(j, "half of a surrogate pair is no character");
    out_char(o, c);
    return QN_OK;
}

static int read_text(struct reader *j, struct value *v) {
    struct out o = {.r = j->r};
    for (;;) {
        const char *from = j->p;
        while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (unsigned char)*j->p >= 0x20)
            j->p++;
        if (j->p == j->end) return bad(j, "the text does not end");
        if (*j->p == '"' && o.p == NULL)
            return value_borrow(j->r, from, (size_t)(j->p++ - from), v);
        out_add(&o, from, (size_t)(j->p - from));
        if (*j->p == '"') {
            j->p++;
            return out_value(&o, v);
        }
        if (*j->p != '\\') return bad(j, "a control character in a text");
        j->p++;
        TRY(read_escape(j, &o));
    }
}

static bool digits(struct reader *j) {
    const char *from = j->p;
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9') j->p++;
    return j->p > from;
}

static int read_number(struct reader *j, struct value *v) {
    const char *from = j->p;
    bool real = false, big, minus = accept(j, "-");
    if (minus && accept(j, "Infinity")) return *v = value_float(-INFINITY), QN_OK;
    if (!accept(j, "0") && !digits(j)) return bad(j, "no value of JSON");
    const char *whole = j->p;
    if (accept(j, ".")) {
        if (!digits(j)) return bad(j, "want a digit");
        real = true;
    }
    if (accept(j, "e") || accept(j, "E")) {
        if (!accept(j, "-")) accept(j, "+");
        if (!digits(j)) return bad(j, "want a digit");
        real = true;
    }
    struct text t = {from, (size_t)((real ? j->p : whole) - from), (size_t)(j->p - from)};
    *v = (struct value){.type = VALUE_FLOAT};
    if (real) return text_to_float(&t, &v->number) ? QN_OK : fail_nomem(j->r->d, t.n, "a number");
    v->type = VALUE_INT;
    if (!text_to_int(&t, 10, &v->integer, &big)) return bad(j, "not a number");
    if (!big) return QN_OK;
    TRY(value_copy(j->r, t.p, t.n, v));
    v->type = VALUE_BIG;
    return QN_OK;
}

static int read_value(struct reader *j, struct value *v);

static int read_list(struct reader *j, struct value *v) {
    struct value item = value_none();
    TRY(value_list(j->r, 4, v));
    skip_space(j);
    if (accept(j, "]")) return QN_OK;
    for (;;) {
        TRY(read_value(j, &item));
        TRY(value_append(j->r, *v, item));
        skip_space(j);
        if (accept(j, "]")) return QN_OK;
        if (!accept(j, ",")) return bad(j, "want , or ]");
    }
}

static int read_dict(struct reader *j, struct value *v) {
    struct value key = value_none(), item = key;
    TRY(value_dict(j->r, 4, v));
    skip_space(j);
    if (accept(j, "}")) return QN_OK;
    for (;;) {
        skip_space(j);
        if (!accept(j, "\"")) return bad(j, "want a key in quotes");
        TRY(read_text(j, &key));
        skip_space(j);
        if (!accept(j, ":")) return bad(j, "want :");
        TRY(read_value(j, &item));
        TRY(value_put(j->r, v->dict, key, item));
        skip_space(j);
        if (accept(j, "}")) return QN_OK;
        if (!accept(j, ",")) return bad(j, "want , or }");
    }
}

static int read_value(struct reader *j, struct value *v) {
    TRY(run_step(j->r, 1));
    skip_space(j);
    if (accept(j, "\"")) return read_text(j, v);
    bool list = accept(j, "[");
    if (list || accept(j, "{")) {
        TRY(run_enter(j->r));
        TRY(list ? read_list(j, v) : read_dict(j, v));
        run_leave(j->r);
        return QN_OK;
    }
    if (accept(j, "null")) return *v = value_none(), QN_OK;
    if (accept(j, "true")) return *v = value_bool(true), QN_OK;
    if (accept(j, "false")) return *v = value_bool(false), QN_OK;
    if (accept(j, "NaN")) return *v = value_float(NAN), QN_OK;
    if (accept(j, "Infinity")) return *v = value_float(INFINITY), QN_OK;
    return read_number(j, v);
}

int json_read(struct run *r, const char *name, const char *p, size_t n, struct value *out) {
    struct reader j = {r, name, p, p, p + n};
    if (!tokenizer_text_valid(p, n)) return fail(r->d, QN_EFORMAT, "%s: not UTF-8", name);
    TRY(read_value(&j, out));
    skip_space(&j);
    return j.p == j.end ? QN_OK : bad(&j, "more than one value");
}
