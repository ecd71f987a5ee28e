#include "grammar/schema.h"

#include "base/checked.h"
#include "base/jsonio.h"
#include "grammar/regex.h"
#include "grammar/repeat.h"

#include <math.h>
#include <string.h>

uint32_t schema_count(struct schema *s, const json_t *schema, const char *key, uint32_t fallback) {
    const json_t *v = json_object_get(schema, key);
    const double n = json_number_value(v);
    if (!v) return fallback;
    if (!json_is_number(v) || n < 0 || n != floor(n) || jsonio_non_finite(v, NULL))
        return schema_refuse(s, QN_EINVAL, key, "want a whole number from 0 on");
    if (n > REPEAT_COUNT_MAX)
        return schema_refuse(s, QN_ELIMIT, key, "want at most %d, have %g", REPEAT_COUNT_MAX, n);
    return (uint32_t)n;
}

static bool counts(struct schema *s, const json_t *schema, const char *least_key,
                   const char *most_key, uint32_t *least, uint32_t *most) {
    *least = schema_count(s, schema, least_key, 0);
    *most = schema_count(s, schema, most_key, EXPR_NO_LIMIT);
    if (s->x->rc == QN_OK && *least > *most)
        schema_refuse(s, QN_EINVAL, least_key, "%u is more than %s, %u", *least, most_key, *most);
    return s->x->rc == QN_OK;
}

/* ---- strings ------------------------------------------------------------------------------ */

/* Formats of strings in the forms that this engine writes. Shorter and longer forms that the
 * standards also allow are left out. */
#define DATE                                                                                       \
    "[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|"             \
    "[12][0-9]|30)|[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9]"  \
    ")"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"

static const struct format {
    const char *name, *regex;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", "(" DATE ")[tT]" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"ipv4", BYTE "(\\." BYTE "){3}"},
    {"hostname", LABEL "(\\." LABEL ")*"},
    {"email", "[0-9A-Za-z_+-]+(\\.[0-9A-Za-z_+-]+)*@" LABEL "(\\." LABEL ")+"},
    {"uri", "[A-Za-z][0-9A-Za-z+-]*://" LABEL "(\\." LABEL ")*(:[0-9]{1,5})?"
            "(/[0-9A-Za-z._~!$&'()*+,;=:@-]*)*(\\?[0-9A-Za-z._~!$&'()*+,;=:@/?-]*)?"
            "(#[0-9A-Za-z._~!$&'()*+,;=:@/?-]*)?"},
};

static uint32_t quoted(struct schema *s, uint32_t inside) {
    const uint32_t quote = expr_text(s->x, "\"");
    return EXPR_SEQ_OF(s->x, quote, inside, quote);
}

static uint32_t regex_string(struct schema *s, const char *key, const char *text, size_t n,
                             bool anywhere) {
    char name[sizeof s->place + 64];
    snprintf(name, sizeof name, "schema: %s/%s", s->place, key);
    const struct regex_form form = {.in_json = true, .anywhere = anywhere, .name = name};
    uint32_t e;
    regex_read(s->x, text, n, &form, &e);
    return quoted(s, e);
}

static uint32_t format_string(struct schema *s, const char *name) {
    for (size_t i = 0; name && i < COUNT_OF(formats); i++)
        if (strcmp(name, formats[i].name) == 0)
            return regex_string(s, "format", formats[i].regex, strlen(formats[i].regex), false);
    return schema_refuse(s, QN_EUNSUPPORTED, "format",
                         "want date, time, date-time, uuid, ipv4, hostname, email or uri; leave "
                         "it out for any string");
}

static uint32_t string_expr(struct schema *s, const json_t *schema) {
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    uint32_t least, most;
    if (!counts(s, schema, "minLength", "maxLength", &least, &most)) return 0;
    const bool counted = least > 0 || most != EXPR_NO_LIMIT;
    if (!!pattern + !!format + counted > 1)
        return schema_refuse(
            s, QN_EUNSUPPORTED, pattern ? "pattern" : "format",
            "of pattern, format and minLength or maxLength one is known at a time; "
            "a pattern can count: ^[a-z]{1,8}$");
    if (pattern && !json_is_string(pattern))
        return schema_refuse(s, QN_EINVAL, "pattern", "want a string");
    if (pattern)
        return regex_string(s, "pattern", json_string_value(pattern), json_string_length(pattern),
                            true);
    if (format) return format_string(s, json_string_value(format));
    if (!counted) return json_rule(&s->json, TEXT_STRING);
    return quoted(s, expr_repeat(s->x, json_rule(&s->json, TEXT_CHAR), least, most));
}

/* ---- numbers ------------------------------------------------------------------------------ */

/* Reads one bound, the stricter one of its two keywords. */
static bool bound(struct schema *s, const json_t *schema, const char *key,
                  const char *exclusive_key, bool is_low, int64_t *value, bool *excluded) {
    const json_t *v = json_object_get(schema, key), *w = json_object_get(schema, exclusive_key);
    const char *const keys[] = {key, exclusive_key};
    bool has = false;
    for (int i = 0; i < 2; i++) {
        const json_t *one = i ? w : v;
        const double number = json_number_value(one);
        if (!one) continue;
        if (!json_is_number(one) || number != floor(number) || fabs(number) > 1e15)
            return schema_refuse(s, QN_EUNSUPPORTED, keys[i],
                                 "want a whole number from -10^15 to 10^15");
        const int64_t n = (int64_t)number;
        if (has && (is_low ? n < *value : n > *value)) continue;
        *value = n;
        *excluded = i == 1;
        has = true;
    }
    return has;
}

static struct json_bounds bounds_of(struct schema *s, const json_t *schema) {
    struct json_bounds b = {0};
    b.has_low = bound(s, schema, "minimum", "exclusiveMinimum", true, &b.low, &b.above);
    b.has_high = bound(s, schema, "maximum", "exclusiveMaximum", false, &b.high, &b.below);
    if (b.has_low && b.has_high && b.low > b.high)
        schema_refuse(s, QN_EINVAL, "minimum", "is more than the maximum");
    return b;
}

static uint32_t integer_expr(struct schema *s, const json_t *schema) {
    return json_integers(&s->json, bounds_of(s, schema));
}

static uint32_t number_expr(struct schema *s, const json_t *schema) {
    return json_numbers(&s->json, bounds_of(s, schema));
}

/* ---- arrays ------------------------------------------------------------------------------- */

/* Item i of prefixItems, as a rule. */
static uint32_t prefix_item(struct schema *s, const json_t *prefix, size_t i) {
    const size_t before = schema_enter(s, "prefixItems", i, true);
    const uint32_t e = expr_shared(s->x, schema_expr(s, json_array_get(prefix, i)));
    schema_leave(s, before);
    return e;
}

/* The items after the first n, n >= 1, with a comma before each. has_item false: there are no
 * more. */
static uint32_t more_items(struct schema *s, uint32_t item, bool has_item, uint32_t n,
                           uint32_t least, uint32_t most) {
    struct exprs *x = s->x;
    if (!has_item || most <= n) return expr_text(x, "");
    const uint32_t next = EXPR_SEQ_OF(x, json_sign(&s->json, ","), item);
    return expr_repeat(x, next, least > n ? least - n : 0, most == EXPR_NO_LIMIT ? most : most - n);
}

/* All items: those of `prefix`, then `item`s. */
static uint32_t all_items(struct schema *s, const json_t *prefix, uint32_t item, bool has_item,
                          uint32_t least, uint32_t most) {
    struct exprs *x = s->x;
    const uint32_t n = (uint32_t)MIN(json_array_size(prefix), (size_t)most);
    uint32_t all = more_items(s, item, has_item, MAX(n, 1u), least, most);
    for (uint32_t i = n; i-- > 0 && x->rc == QN_OK;) {
        const uint32_t one = prefix_item(s, prefix, i);
        all = i > 0 ? EXPR_SEQ_OF(x, json_sign(&s->json, ","), one, all) : EXPR_SEQ_OF(x, one, all);
        if (i > 0 && i >= least) all = expr_repeat(x, all, 0, 1);
    }
    return n > 0 ? all : EXPR_SEQ_OF(x, item, all);
}

static uint32_t array_expr(struct schema *s, const json_t *schema) {
    struct exprs *x = s->x;
    const json_t *items = json_object_get(schema, "items");
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const bool closed = json_is_false(items);
    uint32_t least, most, item = 0;
    if (!counts(s, schema, "minItems", "maxItems", &least, &most)) return 0;
    if (prefix && !json_is_array(prefix))
        return schema_refuse(s, QN_EINVAL, "prefixItems", "want an array of schemas");
    if (closed) most = MIN(most, (uint32_t)json_array_size(prefix));
    if (least > most)
        return schema_refuse(s, QN_EINVAL, "minItems", "more than there may be, %u", most);
    if (!closed && items) item = expr_shared(x, schema_at(s, "items", NULL, items));
    if (!closed && !items) item = json_rule(&s->json, TEXT_VALUE);
    const uint32_t space = json_rule(&s->json, TEXT_SPACE);
    uint32_t all = expr_text(x, "");
    if (most > 0) all = EXPR_SEQ_OF(x, all_items(s, prefix, item, !closed, least, most), space);
    if (least == 0) all = expr_repeat(x, all, 0, 1);
    return EXPR_SEQ_OF(x, expr_text(x, "["), space, all, expr_text(x, "]"));
}

/* ---- objects ------------------------------------------------------------------------------ */

struct property {
    const char *name;
    uint32_t pair; /* "name": value; a rule */
    bool required;
};

struct object {
    ARRAY(struct property) items; /* in the schema's order, then those that are required only */
    ARRAY(const char *) names;    /* names that other pairs cannot have */
    uint32_t other;               /* any other pair; a rule */
    bool has_other;
};

static bool is_named(const struct object *o, const char *name) {
    for (size_t i = 0; i < o->names.n; i++)
        if (strcmp(o->names.items[i], name) == 0) return true;
    return false;
}

/* `schema` NULL: the property may have any value. */
static void add_property(struct schema *s, struct object *o, const char *name, const json_t *schema,
                         bool required) {
    struct exprs *x = s->x;
    int rc = ARRAY_PUSH(x->d, &o->names, name);
    if (x->rc == QN_OK) x->rc = rc;
    if (json_is_false(schema) && !required) return;
    if (o->items.n >= SCHEMA_PROPERTIES)
        schema_refuse(s, QN_ELIMIT, "properties", "more than %d", SCHEMA_PROPERTIES);
    const uint32_t value =
        schema ? schema_at(s, "properties", name, schema) : json_rule(&s->json, TEXT_VALUE);
    const uint32_t pair =
        expr_shared(x, EXPR_SEQ_OF(x, json_key(&s->json, name, strlen(name)), value));
    if (x->rc != QN_OK) return;
    x->rc = ARRAY_PUSH(x->d, &o->items, (struct property){name, pair, required});
}

static bool in_list(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && strcmp(one, name) == 0) return true;
    }
    return false;
}

static void add_properties(struct schema *s, struct object *o, const json_t *schema) {
    const json_t *required = json_object_get(schema, "required");
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    const char *name;
    json_t *property;
    if (properties && !json_is_object(properties))
        schema_refuse(s, QN_EINVAL, "properties", "want an object of schemas");
    if (required && !json_is_array(required))
        schema_refuse(s, QN_EINVAL, "required", "want an array of names");
    json_object_foreach((json_t *)properties, name, property) {
        if (s->x->rc != QN_OK) return;
        add_property(s, o, name, property, in_list(required, name));
    }
    for (size_t i = 0; i < json_array_size(required) && s->x->rc == QN_OK; i++) {
        name = json_string_value(json_array_get(required, i));
        if (!name) schema_refuse(s, QN_EINVAL, "required", "want an array of names");
        if (!name || is_named(o, name)) continue;
        if (json_is_false(additional))
            schema_refuse(s, QN_EINVAL, "required",
                          "'%.64s' is no property, and additionalProperties is false", name);
        add_property(s, o, name, json_is_object(additional) ? additional : NULL, true);
    }
}

static void add_other(struct schema *s, struct object *o, const json_t *schema) {
    struct exprs *x = s->x;
    const json_t *additional = json_object_get(schema, "additionalProperties");
    o->has_other = !json_is_false(additional);
    if (!o->has_other || x->rc != QN_OK) return;
    const uint32_t value = additional ? schema_at(s, "additionalProperties", NULL, additional)
                                      : json_rule(&s->json, TEXT_VALUE);
    o->other = expr_shared(x, EXPR_SEQ_OF(x, json_other_key(&s->json, o->names.items, o->names.n),
                                          json_sign(&s->json, ":"), value));
}

/* rests[i]: what may follow a pair when properties [i, n) are left. */
static void make_rests(struct schema *s, const struct object *o, uint32_t *rests) {
    struct exprs *x = s->x;
    const uint32_t comma = json_sign(&s->json, ",");
    rests[o->items.n] = expr_text(x, "");
    if (o->has_other)
        rests[o->items.n] =
            expr_shared(x, expr_repeat(x, EXPR_SEQ_OF(x, comma, o->other), 0, EXPR_NO_LIMIT));
    for (size_t i = o->items.n; i-- > 0 && x->rc == QN_OK;) {
        const uint32_t next = EXPR_SEQ_OF(x, comma, o->items.items[i].pair);
        const uint32_t here = o->items.items[i].required ? next : expr_repeat(x, next, 0, 1);
        rests[i] = expr_shared(x, EXPR_SEQ_OF(x, here, rests[i + 1]));
    }
}

/* The pairs of an object. The first pair is one of those up to the first required one. `rests` and
 * `firsts` are scratch, n + 1 numbers each. */
static uint32_t pairs_in(struct schema *s, const struct object *o, uint32_t *rests,
                         uint32_t *firsts) {
    struct exprs *x = s->x;
    const size_t n = o->items.n;
    uint32_t n_firsts = 0;
    bool needed = false;
    make_rests(s, o, rests);
    const uint32_t space = json_rule(&s->json, TEXT_SPACE);
    for (size_t i = 0; i < n && !needed && x->rc == QN_OK; i++) {
        firsts[n_firsts++] = EXPR_SEQ_OF(x, o->items.items[i].pair, rests[i + 1], space);
        needed = o->items.items[i].required;
    }
    if (!needed && o->has_other) firsts[n_firsts++] = EXPR_SEQ_OF(x, o->other, rests[n], space);
    if (n_firsts == 0) return expr_text(x, "");
    const uint32_t all = expr_list(x, EXPR_ALT, firsts, n_firsts);
    return needed ? all : expr_repeat(x, all, 0, 1);
}

static uint32_t pairs_expr(struct schema *s, const struct object *o) {
    uint32_t *rests = calloc(o->items.n + 1, sizeof *rests);
    uint32_t *firsts = calloc(o->items.n + 1, sizeof *firsts);
    uint32_t all = 0;
    if (rests && firsts)
        all = pairs_in(s, o, rests, firsts);
    else
        exprs_fail(s->x, QN_ENOMEM, "the properties of a schema");
    free(rests);
    free(firsts);
    return all;
}

static uint32_t object_expr(struct schema *s, const json_t *schema) {
    struct exprs *x = s->x;
    struct object o = {0};
    add_properties(s, &o, schema);
    add_other(s, &o, schema);
    uint32_t pairs = x->rc == QN_OK ? pairs_expr(s, &o) : 0;
    ARRAY_FINI(&o.items);
    ARRAY_FINI(&o.names);
    return EXPR_SEQ_OF(x, expr_text(x, "{"), json_rule(&s->json, TEXT_SPACE), pairs,
                       expr_text(x, "}"));
}

/* ---- the table ---------------------------------------------------------------------------- */

static uint32_t boolean_expr(struct schema *s, const json_t *schema) {
    (void)schema;
    return EXPR_ALT_OF(s->x, expr_text(s->x, "true"), expr_text(s->x, "false"));
}

static uint32_t null_expr(struct schema *s, const json_t *schema) {
    (void)schema;
    return expr_text(s->x, "null");
}

static const struct type {
    const char *name;
    uint32_t (*expr)(struct schema *s, const json_t *schema);
} types[] = {{"object", object_expr},   {"array", array_expr},   {"string", string_expr},
             {"integer", integer_expr}, {"number", number_expr}, {"boolean", boolean_expr},
             {"null", null_expr}};

uint32_t schema_type(struct schema *s, const json_t *schema, const char *type) {
    if (s->x->rc != QN_OK) return 0;
    for (size_t i = 0; type && i < COUNT_OF(types); i++)
        if (strcmp(types[i].name, type) == 0) return types[i].expr(s, schema);
    return schema_refuse(s, QN_EINVAL, "type",
                         "want object, array, string, integer, number, boolean or null");
}
