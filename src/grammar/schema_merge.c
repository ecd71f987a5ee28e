#include "grammar/schema.h"

#include "base/checked.h"

#include <string.h>

/* Makes the merged value of a keyword from its values in two schemas. */
struct merge;
typedef json_t *merge_values(struct schema *s, const struct merge *m, json_t *a, json_t *b);

struct merge {
    const char *key;
    merge_values *values;
};

static json_t *refuse(struct schema *s, const char *key, const char *what) {
    schema_refuse(s, QN_EUNSUPPORTED, key, "%s", what);
    return NULL;
}

/* ---- keyword by keyword ------------------------------------------------------------------- */

/* Either value if they are equal, or an allOf of both. What the values mean is for schema_expr. */
static json_t *both(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    (void)s;
    (void)m;
    return json_equal(a, b) ? json_incref(a) : json_pack("{s:[O, O]}", "allOf", a, b);
}

static json_t *first(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    (void)s;
    (void)m;
    (void)b;
    return json_incref(a);
}

static json_t *equal(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    if (json_equal(a, b)) return json_incref(a);
    return refuse(s, m->key, "two schemas that must both hold have different ones");
}

static json_t *larger(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    (void)s;
    (void)m;
    return json_incref(json_number_value(a) < json_number_value(b) ? b : a);
}

static json_t *smaller(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    (void)s;
    (void)m;
    return json_incref(json_number_value(a) > json_number_value(b) ? b : a);
}

static bool holds(const json_t *list, const json_t *v) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), v)) return true;
    return false;
}

static json_t *listed_by_both(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        if (holds(b, json_array_get(a, i))) json_array_append(out, json_array_get(a, i));
    if (json_array_size(out) > 0) return out;
    json_decref(out);
    return refuse(s, m->key, "no value is left by two schemas that must both hold");
}

static json_t *as_list(json_t *v) {
    return json_is_array(v) ? json_copy(v) : json_pack("[O]", v);
}

/* An integer is a number. */
static json_t *types_of_both(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    json_t *x = as_list(a), *y = as_list(b), *integer = json_string("integer"),
           *number = json_string("number");
    if (holds(x, number) && holds(y, integer) && !holds(y, number)) json_array_append(x, integer);
    if (holds(y, number) && holds(x, integer) && !holds(x, number)) json_array_append(y, integer);
    json_t *out = listed_by_both(s, m, x, y);
    json_decref(x);
    json_decref(y);
    json_decref(integer);
    json_decref(number);
    return out;
}

static json_t *names_of_either(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    json_t *out = json_copy(a);
    (void)s;
    (void)m;
    for (size_t i = 0; i < json_array_size(b); i++)
        if (!holds(out, json_array_get(b, i))) json_array_append(out, json_array_get(b, i));
    return out;
}

static json_t *properties_of_either(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    json_t *out = json_copy(a), *property;
    const char *name;
    json_object_foreach(b, name, property) {
        json_t *other = json_object_get(a, name);
        json_object_set_new(out, name, other ? both(s, m, other, property) : json_incref(property));
    }
    return out;
}

static json_t *alternatives(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    if (json_equal(a, b)) return json_incref(a);
    return refuse(s, m->key, "two schemas that must both hold have one each");
}

static json_t *closed_by_either(struct schema *s, const struct merge *m, json_t *a, json_t *b) {
    if (json_is_false(a) || json_is_false(b)) return json_false();
    return both(s, m, a, b);
}

/* Rows are tried in this order. Keywords without a row are annotations. */
static const struct merge merges[] = {
    {"type", types_of_both},
    {"properties", properties_of_either},
    {"required", names_of_either},
    {"additionalProperties", closed_by_either},
    {"items", closed_by_either},
    {"prefixItems", equal},
    {"minItems", larger},
    {"maxItems", smaller},
    {"minLength", larger},
    {"maxLength", smaller},
    {"minimum", larger},
    {"maximum", smaller},
    {"exclusiveMinimum", larger},
    {"exclusiveMaximum", smaller},
    {"pattern", equal},
    {"format", equal},
    {"enum", listed_by_both},
    {"const", equal},
    {"anyOf", alternatives},
    {"oneOf", alternatives},
    {"allOf", names_of_either},
};

/* ---- the whole ---------------------------------------------------------------------------- */

/* Whether `other` names properties that fall under the additionalProperties of `closed`. */
static bool is_closed_against(const json_t *closed, const json_t *other) {
    const char *name;
    json_t *property;
    const json_t *additional = json_object_get(closed, "additionalProperties");
    if (!additional || json_is_true(additional)) return false;
    json_object_foreach(json_object_get(other, "properties"), name, property) {
        (void)property;
        if (!json_object_get(json_object_get(closed, "properties"), name)) return true;
    }
    return false;
}

static const struct merge *find_merge(const char *key) {
    static const struct merge annotation = {"", first};
    for (size_t i = 0; i < COUNT_OF(merges); i++)
        if (strcmp(merges[i].key, key) == 0) return &merges[i];
    return &annotation;
}

/* Follows the references of a schema. Constraints beside a $ref are refused. */
static const json_t *resolve(struct schema *s, const json_t *schema) {
    for (uint32_t i = 0; schema && json_object_get(schema, "$ref"); i++) {
        if (i == SCHEMA_DEPTH || schema_has_others(schema, "$ref")) {
            refuse(s, "$ref",
                   i == SCHEMA_DEPTH ? "references that lead nowhere"
                                     : "beside $ref nothing is known inside allOf");
            return NULL;
        }
        schema = schema_target(s, json_object_get(schema, "$ref"));
    }
    return schema;
}

const json_t *schema_merge(struct schema *s, const json_t *a, const json_t *b) {
    const char *key;
    json_t *value;
    a = resolve(s, a);
    b = resolve(s, b);
    if (!a || !b) return NULL;
    if (json_is_true(a)) return b;
    if (json_is_true(b)) return a;
    if (!json_is_object(a) || !json_is_object(b))
        return refuse(s, NULL, "no value is valid here, or a schema is no object");
    if (is_closed_against(a, b) || is_closed_against(b, a))
        return refuse(s, "additionalProperties",
                      "another schema that must hold, too, names further properties");
    json_t *out = json_copy((json_t *)a);
    if (!out || json_array_append_new(s->made, out) != 0) return refuse(s, NULL, "out of memory");
    json_object_foreach((json_t *)b, key, value) {
        const struct merge *m = find_merge(key);
        json_t *own = json_object_get(out, key);
        json_t *merged = own ? m->values(s, m, own, value) : json_incref(value);
        if (s->x->rc == QN_OK && json_object_set_new(out, key, json_incref(merged)) != 0)
            schema_refuse(s, QN_ENOMEM, key, "out of memory");
        json_decref(merged);
        if (s->x->rc != QN_OK) return NULL;
    }
    return out;
}
