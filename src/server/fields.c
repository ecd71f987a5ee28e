/* fields.c - see fields.h. */
#include "server/fields.h"

#include "base/checked.h"
#include "base/jsonio.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct field_row field_table[N_FIELDS] = {
#define FIELD(ID, name, kind, low, high, use, apis, neutral, about)                                \
    [F_##ID] = {name, FIELD_##kind, low, high, USE_##use, apis, neutral, about},
#include "server/fields.def"
#undef FIELD
};

struct reader {
    struct problem *p;
    const json_t *object;
    const struct field_limits *limits;
    struct strbuf *ignored;
};

/* Not so NaN, Infinity and numbers beyond the reals, which are nulls, too (jsonio.h). */
static bool is_absent(const json_t *v) {
    double x;
    return json_is_null(v) && !jsonio_non_finite(v, &x);
}

typedef int field_check(struct reader *r, const struct field_row *row, const json_t *v);

/* ---- one value ------------------------------------------------------------------------------ */

/* A JSON integer, or a real number without a fraction. */
static bool whole(const json_t *v, double *x) {
    *x = json_number_value(v);
    return json_is_integer(v) || (json_is_real(v) && floor(*x) == *x && fabs(*x) < 9e15);
}

static int wrong_type(struct reader *r, const struct field_row *row, const char *want) {
    return problem_set(r->p, PROBLEM_TYPE, row->name, "%s: want %s", row->name, want);
}

static int in_range(struct reader *r, const struct field_row *row, double x, double high) {
    const bool open = row->kind == FIELD_ABOVE;
    if (x <= high && (open ? x > row->low : x >= row->low)) return QN_OK;
    return problem_set(r->p, PROBLEM_VALUE, row->name, "%s: want %s %.12g up to %.12g, have %.12g",
                       row->name, open ? "above" : "from", row->low, high, x);
}

static int check_bool(struct reader *r, const struct field_row *row, const json_t *v) {
    return json_is_boolean(v) ? QN_OK : wrong_type(r, row, "true or false");
}

static int check_int(struct reader *r, const struct field_row *row, const json_t *v) {
    double x, high = row->high;
    if (jsonio_non_finite(v, &x)) return wrong_type(r, row, "a finite number");
    if (!whole(v, &x)) return wrong_type(r, row, "a whole number of 64 bits");
    if (row == &field_table[F_LOGPROBS] || row == &field_table[F_TOP_LOGPROBS])
        high = MIN(high, (double)r->limits->max_logprobs);
    return in_range(r, row, x, high);
}

static int check_number(struct reader *r, const struct field_row *row, const json_t *v) {
    if (!json_is_number(v)) return wrong_type(r, row, "a finite number");
    return in_range(r, row, json_number_value(v), row->high);
}

/* Counts code points, like JSON Schema. */
static size_t characters(const json_t *text) {
    const char *bytes = json_string_value(text);
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(text); i++) n += (bytes[i] & 0xc0) != 0x80;
    return n;
}

static int check_text(struct reader *r, const struct field_row *row, const json_t *v) {
    if (!json_is_string(v)) return wrong_type(r, row, "a string");
    const bool is_said = row == &field_table[F_TEXT_PROMPT] || row == &field_table[F_INSTRUCTIONS];
    if (!is_said && memchr(json_string_value(v), '\0', json_string_length(v)))
        return problem_set(r->p, PROBLEM_VALUE, row->name,
                           "%s: has a zero byte (U+0000); send it without", row->name);
    if ((double)characters(v) <= row->high) return QN_OK;
    return problem_set(r->p, PROBLEM_VALUE, row->name, "%s: longer than %.0f characters", row->name,
                       row->high);
}

static int check_stop(struct reader *r, const struct field_row *row, const json_t *v) {
    if (!json_is_string(v)) return wrong_type(r, row, "a string or an array of strings");
    const size_t n = json_string_length(v);
    if (n == 0 || strlen(json_string_value(v)) != n)
        return problem_set(r->p, PROBLEM_VALUE, row->name, "%s: a text is empty or has a zero byte",
                           row->name);
    return QN_OK;
}

static int too_many(struct reader *r, const struct field_row *row, size_t n) {
    if ((double)n <= row->high) return QN_OK;
    return problem_set(r->p, PROBLEM_VALUE, row->name, "%s: want at most %.0f elements, have %zu",
                       row->name, row->high, n);
}

static int check_stops(struct reader *r, const struct field_row *row, const json_t *v) {
    if (!json_is_array(v)) return check_stop(r, row, v);
    TRY(too_many(r, row, json_array_size(v)));
    for (size_t i = 0; i < json_array_size(v); i++) TRY(check_stop(r, row, json_array_get(v, i)));
    return QN_OK;
}

static int check_id(struct reader *r, const struct field_row *row, double id) {
    const int64_t n = r->limits->n_vocab;
    if (id >= 0 && id < (double)(n ? n : INT32_MAX)) return QN_OK;
    return problem_set(r->p, PROBLEM_VALUE, row->name,
                       "%s: %.12g is no token id; the vocabulary has %lld", row->name, id,
                       (long long)n);
}

static int check_ids(struct reader *r, const struct field_row *row, const json_t *v) {
    double id;
    if (!json_is_array(v)) return wrong_type(r, row, "an array of token ids");
    TRY(too_many(r, row, json_array_size(v)));
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (!whole(json_array_get(v, i), &id)) return wrong_type(r, row, "an array of token ids");
        TRY(check_id(r, row, id));
    }
    return QN_OK;
}

static int check_bias(struct reader *r, const struct field_row *row, const json_t *v) {
    const char *key;
    json_t *bias;
    if (!json_is_object(v)) return wrong_type(r, row, "an object {\"token id\": number}");
    TRY(too_many(r, row, json_object_size(v)));
    json_object_foreach((json_t *)v, key, bias) {
        const size_t digits = strspn(key, "0123456789");
        const double x = json_number_value(bias);
        if (digits == 0 || digits > 10 || key[digits])
            return problem_set(r->p, PROBLEM_VALUE, row->name, "%s: '%.40s' is no token id",
                               row->name, key);
        TRY(check_id(r, row, strtod(key, NULL)));
        if (!json_is_number(bias) || !(x >= -100 && x <= 100))
            return problem_set(r->p, PROBLEM_VALUE, row->name,
                               "%s: token %s: want a number from -100 to 100", row->name, key);
    }
    return QN_OK;
}

static int check_prompt(struct reader *r, const struct field_row *row, const json_t *v) {
    static const char want[] = "a string, or an array of strings, of token ids or of arrays of "
                               "token ids";
    const struct field_row ids = {.name = row->name, .kind = FIELD_IDS, .high = 16777216};
    const json_t *first = json_array_get(v, 0);
    if (json_is_string(v)) return QN_OK;
    if (!first) return wrong_type(r, row, want);
    if (json_is_number(first)) return check_ids(r, &ids, v);
    TRY(too_many(r, row, json_array_size(v)));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *each = json_array_get(v, i);
        if (json_typeof(each) != json_typeof(first)) return wrong_type(r, row, want);
        if (!json_is_string(each)) TRY(check_ids(r, &ids, each));
    }
    return QN_OK;
}

static int check_content(struct reader *r, const struct field_row *row, const json_t *v) {
    return json_is_string(v) || json_is_array(v) ? QN_OK
                                                 : wrong_type(r, row, "a string or an array");
}

static int check_array(struct reader *r, const struct field_row *row, const json_t *v) {
    if (!json_is_array(v)) return wrong_type(r, row, "an array");
    if ((double)json_array_size(v) >= row->low) return QN_OK;
    return problem_set(r->p, PROBLEM_VALUE, row->name, "%s: want at least %.0f element", row->name,
                       row->low);
}

static int check_object(struct reader *r, const struct field_row *row, const json_t *v) {
    return json_is_object(v) ? QN_OK : wrong_type(r, row, "an object");
}

static int unknown(struct reader *r, const char *name) {
    if (r->limits->strict)
        return problem_set(r->p, PROBLEM_UNKNOWN, name, "%.80s: unknown field", name);
    if (r->ignored->n < 512) { /* to fit into a header's line */
        strbuf_printf(r->ignored, "%s%.40s", r->ignored->n ? ", " : "", name);
        status_one_line(r->ignored->text);
        for (char *at = r->ignored->text; at && *at; at++)
            if (*at & 0x80) *at = '?';
    }
    return QN_OK;
}

static int check_options(struct reader *r, const struct field_row *row, const json_t *v) {
    static const char *const known[] = {"include_usage", "continuous_usage_stats",
                                        "include_obfuscation"};
    const char *key;
    json_t *value;
    char name[80];
    TRY(check_object(r, row, v));
    json_object_foreach((json_t *)v, key, value) {
        bool is_known = false;
        for (size_t i = 0; i < COUNT_OF(known); i++) is_known |= strcmp(known[i], key) == 0;
        snprintf(name, sizeof name, "%s.%.40s", row->name, key);
        if (!is_known)
            TRY(unknown(r, name));
        else if (!json_is_boolean(value) && !is_absent(value))
            return wrong_type(r, row, "true or false in its fields");
    }
    return QN_OK;
}

static int check_tools(struct reader *r, const struct field_row *row, const json_t *v) {
    if (!json_is_array(v)) return wrong_type(r, row, "an array of tools");
    return too_many(r, row, json_array_size(v));
}

static int check_choice(struct reader *r, const struct field_row *row, const json_t *v) {
    return json_is_string(v) || json_is_object(v) ? QN_OK
                                                  : wrong_type(r, row, "a string or an object");
}

/* Whether `best_of` is `n`, so that it selects nothing. */
static bool is_n(const struct reader *r, const json_t *v) {
    const json_t *n = json_object_get(r->object, "n");
    double best, all = 1;
    return whole(v, &best) && (!n || json_is_null(n) || whole(n, &all)) && best == all;
}

static bool is_neutral(const struct reader *r, const struct field_row *row, const json_t *v) {
    if (row == &field_table[F_BEST_OF]) return is_n(r, v);
    json_t *allowed = json_loads(row->neutral, 0, NULL);
    bool yes = false;
    for (size_t i = 0; i < json_array_size(allowed); i++)
        yes |= json_equal(json_array_get(allowed, i), v);
    json_decref(allowed);
    return yes;
}

static int check_any(struct reader *r, const struct field_row *row, const json_t *v) {
    if (is_neutral(r, row, v)) return QN_OK;
    if (row == &field_table[F_BEST_OF])
        return problem_set(r->p, PROBLEM_UNSUPPORTED, row->name,
                           "%s: not supported; leave it out, or give the value of n", row->name);
    if (strcmp(row->neutral, "[]") == 0)
        return problem_set(r->p, PROBLEM_UNSUPPORTED, row->name, "%s: not supported; leave it out",
                           row->name);
    return problem_set(r->p, PROBLEM_UNSUPPORTED, row->name,
                       "%s: not supported; leave it out, or one of %s", row->name, row->neutral);
}

static field_check *const checks[] = {
    [FIELD_BOOL] = check_bool,       [FIELD_INT] = check_int,     [FIELD_NUMBER] = check_number,
    [FIELD_ABOVE] = check_number,    [FIELD_TEXT] = check_text,   [FIELD_STOPS] = check_stops,
    [FIELD_IDS] = check_ids,         [FIELD_BIAS] = check_bias,   [FIELD_PROMPT] = check_prompt,
    [FIELD_CONTENT] = check_content, [FIELD_ARRAY] = check_array, [FIELD_OBJECT] = check_object,
    [FIELD_OPTIONS] = check_options, [FIELD_ANY] = check_any,     [FIELD_TOOLS] = check_tools,
    [FIELD_CHOICE] = check_choice,
};

/* ---- all of them ---------------------------------------------------------------------------- */

static int find(const char *name, uint32_t api) {
    for (int i = 0; i < N_FIELDS; i++)
        if (field_table[i].apis & api && strcmp(field_table[i].name, name) == 0) return i;
    return -1;
}

static int read_one(struct reader *r, const char *name, const json_t *v, uint32_t api,
                    struct fields *f) {
    const int field = find(name, api);
    if (field < 0) return unknown(r, name);
    if (is_absent(v)) return QN_OK;
    TRY(checks[field_table[field].kind](r, &field_table[field], v));
    f->value[field] = v;
    return QN_OK;
}

int fields_read(struct problem *p, const json_t *object, uint32_t api,
                const struct field_limits *limits, struct fields *f, struct strbuf *ignored) {
    struct reader r = {p, object, limits, ignored};
    const char *name;
    json_t *value;
    *f = (struct fields){0};
    if (!json_is_object(object))
        return problem_set(p, PROBLEM_JSON, NULL, "the body is not a JSON object");
    json_object_foreach((json_t *)object, name, value) TRY(read_one(&r, name, value, api, f));
    for (int i = 0; i < N_FIELDS; i++)
        if (field_table[i].apis & api && field_table[i].use == USE_NEEDED && !f->value[i])
            return problem_set(p, PROBLEM_MISSING, field_table[i].name, "%s: is missing",
                               field_table[i].name);
    return QN_OK;
}

int64_t fields_int(const struct fields *f, enum field field, int64_t fallback) {
    const json_t *v = f->value[field];
    if (json_is_integer(v)) return json_integer_value(v);
    return v ? (int64_t)json_real_value(v) : fallback;
}

double fields_number(const struct fields *f, enum field field, double fallback) {
    return f->value[field] ? json_number_value(f->value[field]) : fallback;
}

bool fields_bool(const struct fields *f, enum field field, bool fallback) {
    return f->value[field] ? json_is_true(f->value[field]) : fallback;
}

const char *fields_text(const struct fields *f, enum field field, const char *fallback) {
    return f->value[field] ? json_string_value(f->value[field]) : fallback;
}
