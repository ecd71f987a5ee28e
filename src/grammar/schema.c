#include "grammar/schema.h"

#include "base/checked.h"
#include "base/jsonio.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- places ------------------------------------------------------------------------------- */

uint32_t schema_refuse(struct schema *s, int code, const char *key, const char *fmt, ...) {
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    exprs_fail(s->x, code, "schema: %s%s%s: %s", s->place, key ? "/" : "", key ? key : "", message);
    return 0;
}

size_t schema_enter(struct schema *s, const char *key, size_t index, bool has_index) {
    const size_t before = s->n_place, room = sizeof s->place - before;
    int n = has_index ? snprintf(s->place + before, room, "/%s/%zu", key, index)
                      : snprintf(s->place + before, room, "/%s", key);
    s->n_place = before + MIN((size_t)n, room - 1);
    return before;
}

void schema_leave(struct schema *s, size_t n_place) {
    s->n_place = n_place;
    s->place[n_place] = '\0';
}

uint32_t schema_at(struct schema *s, const char *key, const char *sub, const json_t *schema) {
    const size_t before = schema_enter(s, key, 0, false);
    if (sub) schema_enter(s, sub, 0, false);
    const uint32_t e = schema_expr(s, schema);
    schema_leave(s, before);
    return e;
}

/* ---- keywords ----------------------------------------------------------------------------- */

/* Keywords that restrict no value. The functions below read all other known keywords. */
static const char *const annotations[] = {
    "$comment",       "$schema",    "$defs",       "$id",           "default",
    "definitions",    "deprecated", "description", "discriminator", "example",
    "examples",       "readOnly",   "title",       "writeOnly",     "contentMediaType",
    "contentEncoding"};

/* Keywords that restrict values. An enum, a const or a $ref stands alone if none of the others is
 * beside it. */
static const char *const constraints[] = {"type",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "items",
                                          "prefixItems",
                                          "minItems",
                                          "maxItems",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum",
                                          "enum",
                                          "const",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "$ref"};

static bool is_among(const char *key, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, words[i]) == 0) return true;
    return false;
}

static bool check_keywords(struct schema *s, const json_t *schema) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        (void)value;
        if (!is_among(key, annotations, COUNT_OF(annotations)) &&
            !is_among(key, constraints, COUNT_OF(constraints)))
            schema_refuse(s, QN_EUNSUPPORTED, key, "this keyword is not known here");
    }
    return s->x->rc == QN_OK;
}

bool schema_has_others(const json_t *schema, const char *but) {
    for (size_t i = 0; i < COUNT_OF(constraints); i++)
        if (strcmp(constraints[i], but) != 0 && json_object_get(schema, constraints[i]))
            return true;
    return false;
}

/* A copy of the schema without one keyword. */
static const json_t *without(struct schema *s, const json_t *schema, const char *key) {
    json_t *copy = json_copy((json_t *)schema);
    if (!copy || json_array_append_new(s->made, copy) != 0) {
        schema_refuse(s, QN_ENOMEM, NULL, "out of memory");
        return schema;
    }
    json_object_del(copy, key);
    return copy;
}

/* ---- references --------------------------------------------------------------------------- */

/* One step of a JSON pointer: the part of `at` that text[0, n) names. ~0 and ~1 are decoded, %25 is
 * not. */
static const json_t *pointed(const json_t *at, const char *text, size_t n) {
    char key[256];
    size_t length = 0;
    for (size_t i = 0; i < n && length < sizeof key - 1; i++) {
        const bool escaped = text[i] == '~' && i + 1 < n;
        key[length++] = escaped ? (text[++i] == '1' ? '/' : '~') : text[i];
    }
    key[length] = '\0';
    if (json_is_array(at)) {
        char *end;
        const unsigned long index = strtoul(key, &end, 10);
        return length > 0 && *end == '\0' ? json_array_get(at, index) : NULL;
    }
    return json_object_get(at, key);
}

const json_t *schema_target(struct schema *s, const json_t *ref) {
    const char *text = json_string_value(ref);
    const json_t *at = s->root;
    if (!text || text[0] != '#' || (text[1] != '\0' && text[1] != '/')) {
        schema_refuse(s, QN_EUNSUPPORTED, "$ref", "want a place in this schema, as #/$defs/name");
        return NULL;
    }
    for (text++; at && *text == '/';) {
        const size_t n = strcspn(text + 1, "/");
        at = pointed(at, text + 1, n);
        text += 1 + n;
    }
    if (!at) schema_refuse(s, QN_EINVAL, "$ref", "nothing is at '%.100s'", json_string_value(ref));
    return at;
}

/* The target of a reference becomes a rule, which is made once. */
static uint32_t ref_expr(struct schema *s, const json_t *schema) {
    const json_t *target = schema_target(s, json_object_get(schema, "$ref"));
    const uintptr_t key = (uintptr_t)target;
    uint64_t rule;
    if (!target) return 0;
    if (schema_has_others(schema, "$ref")) {
        const json_t *merged = schema_merge(s, target, without(s, schema, "$ref"));
        return merged ? schema_expr(s, merged) : 0;
    }
    if (map_find(&s->refs, &key, sizeof key, &rule)) return expr_call(s->x, (uint32_t)rule);
    rule = expr_rule_new(s->x, json_string_value(json_object_get(schema, "$ref")));
    if (s->x->rc != QN_OK) return 0;
    s->targets.items[s->targets.n] = key; /* read_root has made room */
    s->x->rc =
        map_put(s->x->d, &s->refs, &s->targets.items[s->targets.n++], sizeof key, rule, NULL);
    const size_t before = s->n_place;
    char kept[sizeof s->place];
    memcpy(kept, s->place, sizeof kept);
    snprintf(s->place, sizeof s->place, "%.500s",
             json_string_value(json_object_get(schema, "$ref")));
    s->n_place = strlen(s->place);
    expr_rule_define(s->x, (uint32_t)rule, schema_expr(s, target));
    memcpy(s->place, kept, sizeof kept);
    s->n_place = before;
    return expr_call(s->x, (uint32_t)rule);
}

/* ---- alternatives ------------------------------------------------------------------------- */

/* Follows the references of a schema, for comparing; NULL: refused. */
static const json_t *behind(struct schema *s, const json_t *schema) {
    for (uint32_t i = 0; json_object_get(schema, "$ref") && i < SCHEMA_DEPTH; i++) {
        schema = schema_target(s, json_object_get(schema, "$ref"));
        if (!schema) return NULL;
    }
    return schema;
}

/* Bits for the types that a value's first byte tells apart. An integer is a number. */
enum {
    T_STRING = 1,
    T_NUMBER = 2,
    T_OBJECT = 4,
    T_ARRAY = 8,
    T_TRUE = 16,
    T_FALSE = 32,
    T_NULL = 64
};

static const struct type_bits {
    const char *name;
    uint32_t bits;
} type_bits[] = {{"string", T_STRING},         {"number", T_NUMBER}, {"integer", T_NUMBER},
                 {"object", T_OBJECT},         {"array", T_ARRAY},   {"null", T_NULL},
                 {"boolean", T_TRUE | T_FALSE}};

static uint32_t bits_of_name(const char *name) {
    for (size_t i = 0; name && i < COUNT_OF(type_bits); i++)
        if (strcmp(name, type_bits[i].name) == 0) return type_bits[i].bits;
    return 0;
}

static uint32_t bits_of_value(const json_t *v) {
    return json_is_string(v)   ? T_STRING
           : json_is_number(v) ? T_NUMBER
           : json_is_object(v) ? T_OBJECT
           : json_is_array(v)  ? T_ARRAY
           : json_is_true(v)   ? T_TRUE
           : json_is_false(v)  ? T_FALSE
                               : T_NULL;
}

/* The values that a schema lists, its const or enum, as an array. The caller owns the array. */
static json_t *listed(const json_t *schema) {
    json_t *one = json_object_get(schema, "const");
    return one ? json_pack("[O]", one) : json_incref(json_object_get(schema, "enum"));
}

/* Types that values of the schema may have, too many rather than too few. */
static uint32_t bits_of(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    json_t *values = listed(schema);
    uint32_t bits = 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        bits |= bits_of_value(json_array_get(values, i));
    if (values) {
        json_decref(values);
        return bits;
    }
    if (!type) return UINT32_MAX;
    for (size_t i = 0; i < json_array_size(type); i++)
        bits |= bits_of_name(json_string_value(json_array_get(type, i)));
    return bits | bits_of_name(json_string_value(type));
}

static bool share_values(const json_t *a, const json_t *b) {
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            if (json_equal(json_array_get(a, i), json_array_get(b, k))) return true;
    return false;
}

static bool is_required(const json_t *schema, const char *name) {
    const json_t *required = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *one = json_string_value(json_array_get(required, i));
        if (one && strcmp(one, name) == 0) return true;
    }
    return false;
}

/* Whether no value can be of both schemas: by their types, by the values that they list, or by a
 * property that both require and list. Looks `depth` properties deep. */
static bool are_apart(struct schema *s, const json_t *a, const json_t *b, uint32_t depth) {
    const char *name;
    json_t *property;
    a = behind(s, a);
    b = behind(s, b);
    if (!a || !b || (bits_of(a) & bits_of(b)) == 0) return true;
    json_t *values_a = listed(a), *values_b = listed(b);
    const bool both = values_a && values_b, shared = both && share_values(values_a, values_b);
    json_decref(values_a);
    json_decref(values_b);
    if (both) return !shared;
    if (depth == 0 || bits_of(a) != T_OBJECT || bits_of(b) != T_OBJECT) return false;
    json_object_foreach(json_object_get(a, "properties"), name, property) {
        const json_t *other = json_object_get(json_object_get(b, "properties"), name);
        if (other && is_required(a, name) && is_required(b, name) &&
            are_apart(s, property, other, depth - 1))
            return true;
    }
    return false;
}

static void check_apart(struct schema *s, const json_t *branches) {
    for (size_t i = 0; i < json_array_size(branches); i++)
        for (size_t k = 0; k < i && s->x->rc == QN_OK; k++)
            if (!are_apart(s, json_array_get(branches, k), json_array_get(branches, i), 2))
                schema_refuse(s, QN_EUNSUPPORTED, "oneOf",
                              "a value may be of branch %zu and %zu: want types, or a required "
                              "property with a const, that tell them apart; or anyOf",
                              k, i);
}

static uint32_t branches_expr(struct schema *s, const json_t *schema, const char *key) {
    const json_t *branches = json_object_get(schema, key);
    const json_t *base = schema_has_others(schema, key) ? without(s, schema, key) : NULL;
    const size_t n = json_array_size(branches);
    uint32_t list[SCHEMA_BRANCHES];
    if (n == 0 || n > SCHEMA_BRANCHES)
        return schema_refuse(s, n ? QN_ELIMIT : QN_EINVAL, key, "want 1 to %d schemas, have %zu",
                             SCHEMA_BRANCHES, n);
    if (strcmp(key, "oneOf") == 0) check_apart(s, branches);
    for (size_t i = 0; i < n && s->x->rc == QN_OK; i++) {
        const size_t before = schema_enter(s, key, i, true);
        const json_t *branch = json_array_get(branches, i);
        if (base) branch = schema_merge(s, branch, base);
        list[i] = branch ? schema_expr(s, branch) : 0;
        schema_leave(s, before);
    }
    return s->x->rc == QN_OK ? expr_list(s->x, EXPR_ALT, list, n) : 0;
}

static uint32_t all_expr(struct schema *s, const json_t *schema) {
    const json_t *parts = json_object_get(schema, "allOf");
    const json_t *all = without(s, schema, "allOf");
    const size_t n = json_array_size(parts);
    if (n == 0) return schema_refuse(s, QN_EINVAL, "allOf", "want an array of schemas");
    if (n == 1 && !schema_has_others(all, "")) return schema_expr(s, json_array_get(parts, 0));
    for (size_t i = 0; i < n && all; i++) {
        const size_t before = schema_enter(s, "allOf", i, true);
        all = schema_merge(s, all, json_array_get(parts, i));
        schema_leave(s, before);
    }
    return all ? schema_expr(s, all) : 0;
}

/* ---- listed values ------------------------------------------------------------------------ */

static bool has_type(const json_t *v, const char *type) {
    if (strcmp(type, "integer") == 0) return json_is_integer(v);
    return (bits_of_value(v) & bits_of_name(type)) != 0;
}

static bool fits_type(const json_t *v, const json_t *type) {
    bool fits = type == NULL || (json_is_string(type) && has_type(v, json_string_value(type)));
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        fits |= one && has_type(v, one);
    }
    return fits;
}

static uint32_t listed_expr(struct schema *s, const json_t *schema) {
    static const char *const alone[] = {"type", "enum", "const"};
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    uint32_t all = expr_list(s->x, EXPR_ALT, NULL, 0), n = 0;
    for (size_t i = 0; i < COUNT_OF(constraints); i++)
        if (json_object_get(schema, constraints[i]) &&
            !is_among(constraints[i], alone, COUNT_OF(alone)))
            return schema_refuse(s, QN_EUNSUPPORTED, constraints[i],
                                 "beside enum or const only type is known");
    if (list && !json_is_array(list)) return schema_refuse(s, QN_EINVAL, "enum", "want an array");
    ARRAY(uint32_t) exprs = {0};
    for (size_t i = 0; i < (list ? json_array_size(list) : 1) && s->x->rc == QN_OK; i++) {
        const json_t *v = list ? json_array_get(list, i) : one;
        if (!fits_type(v, json_object_get(schema, "type")) || (one && !json_equal(v, one)))
            continue;
        const int rc = ARRAY_PUSH(s->x->d, &exprs, json_literal(&s->json, v));
        if (s->x->rc == QN_OK) s->x->rc = rc;
        n++;
    }
    if (s->x->rc == QN_OK && n > 0) all = expr_list(s->x, EXPR_ALT, exprs.items, exprs.n);
    ARRAY_FINI(&exprs);
    if (n > 0) return all;
    return schema_refuse(s, QN_EINVAL, list ? "enum" : "const", "no value is left to choose");
}

/* ---- types -------------------------------------------------------------------------------- */

static uint32_t types_expr(struct schema *s, const json_t *schema) {
    static const char *const every[] = {"string", "number", "object", "array", "boolean", "null"};
    const json_t *type = json_object_get(schema, "type");
    uint32_t list[16], n = 0;
    if (type && !json_is_string(type) &&
        !(json_is_array(type) && json_array_size(type) > 0 && json_array_size(type) <= 7))
        return schema_refuse(s, QN_EINVAL, "type", "want a name or an array of names");
    if (!type && !schema_has_others(schema, "")) return json_rule(&s->json, TEXT_VALUE);
    for (size_t i = 0; i < (type ? json_array_size(type) : COUNT_OF(every)); i++) {
        const char *name = type ? json_string_value(json_array_get(type, i)) : every[i];
        list[n++] = schema_type(s, schema, name);
    }
    if (json_is_string(type)) list[n++] = schema_type(s, schema, json_string_value(type));
    return s->x->rc == QN_OK ? expr_list(s->x, EXPR_ALT, list, n) : 0;
}

static uint32_t object_expr(struct schema *s, const json_t *schema) {
    if (!check_keywords(s, schema)) return 0;
    if (json_object_get(schema, "$ref")) return ref_expr(s, schema);
    if (json_object_get(schema, "allOf")) return all_expr(s, schema);
    if (json_object_get(schema, "anyOf")) return branches_expr(s, schema, "anyOf");
    if (json_object_get(schema, "oneOf")) return branches_expr(s, schema, "oneOf");
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return listed_expr(s, schema);
    return types_expr(s, schema);
}

uint32_t schema_expr(struct schema *s, const json_t *schema) {
    uint32_t e = 0;
    if (s->x->rc != QN_OK) return 0;
    if (++s->n_visits > SCHEMA_VISITS)
        return schema_refuse(s, QN_ELIMIT, NULL, "merging makes more than %d schemas",
                             SCHEMA_VISITS);
    if (++s->depth > 4 * SCHEMA_DEPTH)
        return schema_refuse(s, QN_ELIMIT, NULL, "references and merged schemas more than %d deep",
                             4 * SCHEMA_DEPTH);
    if (json_is_true(schema))
        e = json_rule(&s->json, TEXT_VALUE);
    else if (json_is_false(schema))
        schema_refuse(s, QN_EINVAL, NULL, "no value is valid here");
    else if (json_is_object(schema))
        e = object_expr(s, schema);
    else
        schema_refuse(s, QN_EINVAL, NULL, "want an object, true or false");
    s->depth--;
    return e;
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* Depth of nested brackets outside of strings. It is known before any bracket is parsed. */
static size_t depth_of(const char *text, size_t n) {
    size_t depth = 0, most = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && (text[i] == '{' || text[i] == '['))
            depth++;
        else if (!in_string && (text[i] == '}' || text[i] == ']'))
            depth -= depth > 0;
        most = MAX(most, depth);
    }
    return most;
}

static size_t count_values(const json_t *v) {
    const char *key;
    json_t *member;
    size_t n = 1;
    for (size_t i = 0; i < json_array_size(v); i++) n += count_values(json_array_get(v, i));
    json_object_foreach((json_t *)v, key, member) n += count_values(member);
    return n;
}

static int check_size(struct exprs *x, const char *text, size_t n) {
    if (n > SCHEMA_MAX)
        return exprs_fail(x, QN_ELIMIT, "schema: at most %d bytes, have %zu", SCHEMA_MAX, n);
    const size_t depth = depth_of(text, n);
    if (depth > SCHEMA_DEPTH)
        return exprs_fail(x, QN_ELIMIT, "schema: at most %d values inside each other, have %zu",
                          SCHEMA_DEPTH, depth);
    return x->rc;
}

static uint32_t read_root(struct schema *s) {
    const size_t n = count_values(s->root);
    if (n > SCHEMA_NODES) {
        exprs_fail(s->x, QN_ELIMIT, "schema: at most %d values, have %zu", SCHEMA_NODES, n);
        return 0;
    }
    s->made = json_array();
    s->x->rc = s->made ? ARRAY_RESERVE(s->x->d, &s->targets, SCHEMA_NODES)
                       : fail_nomem(s->x->d, 64, "a schema");
    const uint32_t root = expr_rule_new(s->x, "#");
    expr_rule_define(s->x, root, schema_expr(s, s->root));
    return root;
}

uint32_t schema_rule(struct exprs *x, const char *text, size_t n, uint32_t *n_visits) {
    struct schema s = {.x = x, .json = {.x = x}, .n_visits = *n_visits, .place = "#", .n_place = 1};
    json_t *root = NULL;
    uint32_t rule = 0;
    if (check_size(x, text, n) != QN_OK) return 0;
    x->rc = jsonio_parse(x->d, "schema", text, n, &root);
    s.root = root;
    if (x->rc == QN_OK) rule = read_root(&s);
    *n_visits = s.n_visits;
    json_decref(root);
    json_decref(s.made);
    map_fini(&s.refs);
    ARRAY_FINI(&s.targets);
    return rule;
}

int schema_read(struct exprs *x, const char *text, size_t n) {
    uint32_t n_visits = 0;
    schema_rule(x, text, n, &n_visits);
    return x->rc;
}
