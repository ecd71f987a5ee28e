/* schema.h - turns JSON Schemas into expressions. docs/structured-outputs.md lists the keywords.
 * Any other keyword is refused with its place in the schema, as a JSON pointer:
 *
 *     schema: #/properties/age/multipleOf: this keyword is not known here
 *
 *   schema.c         the walk: references, alternatives, types
 *   schema_merge.c   one schema from two that must both hold
 *   schema_types.c   objects, arrays, strings, numbers
 */
#ifndef QN_GRAMMAR_SCHEMA_H
#define QN_GRAMMAR_SCHEMA_H

#include "grammar/json_text.h"

#include "base/map.h"

enum {
    SCHEMA_MAX = 64 << 10,    /* bytes */
    SCHEMA_DEPTH = 32,        /* depth of nested values */
    SCHEMA_NODES = 4096,      /* values in all */
    SCHEMA_VISITS = 16384,    /* schemas read; merged ones and their parts count again */
    SCHEMA_BRANCHES = 256,    /* of one anyOf or oneOf */
    SCHEMA_PROPERTIES = 1000, /* of one object */
};

/* Defines rule 0 of x: texts that are a JSON value of the schema. Errors, in x->rc too: QN_EFORMAT
 * (not JSON), QN_ELIMIT, QN_EINVAL and QN_EUNSUPPORTED with the place. */
int schema_read(struct exprs *x, const char *text, size_t n);
/* Does the same with a new rule, which it returns. *n_visits: schemas read so far for the grammar,
 * at most SCHEMA_VISITS. */
uint32_t schema_rule(struct exprs *x, const char *text, size_t n, uint32_t *n_visits);

/* ---- between the files above ---- */

struct schema {
    struct exprs *x;
    struct json_text json;
    const json_t *root;
    json_t *made;             /* array of the schemas that merging has made */
    struct map refs;          /* target's address -> rule */
    ARRAY(uintptr_t) targets; /* the keys of refs */
    uint32_t n_visits, depth;
    char place[512]; /* a JSON pointer */
    size_t n_place;
};

/* Refuses the value at `key` (may be NULL) of the present place. Returns 0. */
uint32_t schema_refuse(struct schema *s, int code, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Goes to a part of the present place; schema_leave with the returned number goes back. */
size_t schema_enter(struct schema *s, const char *key, size_t index, bool has_index);
void schema_leave(struct schema *s, size_t n_place);

/* The expression of a schema at the present place. */
uint32_t schema_expr(struct schema *s, const json_t *schema);
/* The same at a part of the present place. */
uint32_t schema_at(struct schema *s, const char *key, const char *sub, const json_t *schema);

/* Whether the schema has constraints beside the keyword `but`. */
bool schema_has_others(const json_t *schema, const char *but);
/* Makes a schema that holds where both do; NULL: refused. Owned by s. */
const json_t *schema_merge(struct schema *s, const json_t *a, const json_t *b);
/* The schema that a reference points to; NULL: refused. */
const json_t *schema_target(struct schema *s, const json_t *ref);
/* The value of `key` as a whole number from 0 on; `fallback` if it is absent. */
uint32_t schema_count(struct schema *s, const json_t *schema, const char *key, uint32_t fallback);

/* The expression for values of one type: "object", "array" ... */
uint32_t schema_type(struct schema *s, const json_t *schema, const char *type);

#endif
