/* jsonio.h - reading JSON from untrusted files, into jansson's values.
 *
 * Python's json module wrote most of them, so its rules hold: NaN, Infinity and -Infinity are
 * numbers, an integer may have any size, and of a repeated key the last value counts. jansson has
 * no values for these. An integer beyond 64 bits becomes the nearest real number; a number beyond
 * the reals, or NaN, becomes a null that jsonio_non_finite() recognizes. The getters below refuse
 * both where they need a number; nothing else refuses them.
 *
 * Every getter takes the file's name and a field path for its message and checks type and range:
 *     "models/x/config.json: num_hidden_layers: want an integer from 1 to 1000, have 'many'"
 * Objects are jansson's; the root is owned by the caller (json_decref), everything else is
 * borrowed.
 */
#ifndef QN_BASE_JSONIO_H
#define QN_BASE_JSONIO_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses a file of at most max_bytes and 2048 levels. Errors: mapfile_open's, QN_EFORMAT with line
 * and column. */
int jsonio_load(struct diag *d, const char *path, uint64_t max_bytes, json_t **root);
/* The same for text in memory; `name` stands for the path in messages. */
int jsonio_parse(struct diag *d, const char *name, const char *text, size_t n, json_t **root);
/* The same, but a repeated key is an error. */
int jsonio_parse_unique(struct diag *d, const char *name, const char *text, size_t n,
                        json_t **root);

/* Whether v was read from a NaN or a number beyond the reals; *number is its value as a double. */
bool jsonio_non_finite(const json_t *v, double *number);
/* The field, NULL where it is missing or null. */
json_t *jsonio_field(const json_t *o, const char *key);

/* The field `key` of object `o`. A missing field or null gives the fallback; the `need_` forms
 * fail instead. Errors: QN_EFORMAT. */
int jsonio_int(struct diag *d, const char *file, const json_t *o, const char *key, int64_t low,
               int64_t high, int64_t fallback, int64_t *out);
int jsonio_need_int(struct diag *d, const char *file, const json_t *o, const char *key, int64_t low,
                    int64_t high, int64_t *out);
int jsonio_double(struct diag *d, const char *file, const json_t *o, const char *key,
                  double fallback, double *out);
/* A number in [low, high]; with NAN as fallback the field is required. */
int jsonio_range(struct diag *d, const char *file, const json_t *o, const char *key, double low,
                 double high, double fallback, double *out);
int jsonio_bool(struct diag *d, const char *file, const json_t *o, const char *key, bool fallback,
                bool *out);
/* The string is borrowed from o; fallback may be NULL. */
int jsonio_string(struct diag *d, const char *file, const json_t *o, const char *key,
                  const char *fallback, const char **out);
/* An object or array field; NULL when it is missing or null. */
int jsonio_object(struct diag *d, const char *file, const json_t *o, const char *key, json_t **out);
int jsonio_array(struct diag *d, const char *file, const json_t *o, const char *key, json_t **out);

#endif
