#include "base/jsonio.h"
#include "base/mapfile.h"

#include <math.h>

int jsonio_load(struct diag *d, const char *path, uint64_t max_bytes, json_t **root) {
    struct mapfile f;
    TRY(mapfile_open(d, path, max_bytes, &f));
    int rc = jsonio_parse(d, path, (const char *)f.data, f.bytes, root);
    mapfile_close(&f);
    return rc;
}

json_t *jsonio_field(const json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    double number;
    return json_is_null(v) && !jsonio_non_finite(v, &number) ? NULL : v;
}

static int wrong_type(struct diag *d, const char *file, const char *key, const char *want,
                      const json_t *have) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    double number;
    if (jsonio_non_finite(have, &number))
        return fail(d, QN_EFORMAT, "%s: %s: want %s, have a number that is not finite", file, key,
                    want);
    return fail(d, QN_EFORMAT, "%s: %s: want %s, have %s", file, key, want,
                have == NULL ? "nothing" : names[json_typeof(have)]);
}

int jsonio_need_int(struct diag *d, const char *file, const json_t *o, const char *key, int64_t low,
                    int64_t high, int64_t *out) {
    const json_t *v = jsonio_field(o, key);
    if (json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63)
        return fail(d, QN_EFORMAT, "%s: %s: want an integer from %lld to %lld, have %g", file, key,
                    (long long)low, (long long)high, json_real_value(v));
    if (!json_is_integer(v)) return wrong_type(d, file, key, "an integer", v);
    *out = json_integer_value(v);
    if (*out < low || *out > high)
        return fail(d, QN_EFORMAT, "%s: %s: want an integer from %lld to %lld, have %lld", file,
                    key, (long long)low, (long long)high, (long long)*out);
    return QN_OK;
}

int jsonio_int(struct diag *d, const char *file, const json_t *o, const char *key, int64_t low,
               int64_t high, int64_t fallback, int64_t *out) {
    *out = fallback;
    return jsonio_field(o, key) == NULL ? QN_OK : jsonio_need_int(d, file, o, key, low, high, out);
}

int jsonio_double(struct diag *d, const char *file, const json_t *o, const char *key,
                  double fallback, double *out) {
    const json_t *v = jsonio_field(o, key);
    *out = fallback;
    if (v == NULL) return QN_OK;
    if (!json_is_number(v)) return wrong_type(d, file, key, "a number", v);
    *out = json_number_value(v);
    return QN_OK;
}

int jsonio_range(struct diag *d, const char *file, const json_t *o, const char *key, double low,
                 double high, double fallback, double *out) {
    TRY(jsonio_double(d, file, o, key, fallback, out));
    if (jsonio_field(o, key) == NULL && !isnan(fallback)) return QN_OK;
    if (isnan(*out)) return wrong_type(d, file, key, "a number", NULL);
    if (*out < low || *out > high)
        return fail(d, QN_EFORMAT, "%s: %s: want a number from %g to %g, have %g", file, key, low,
                    high, *out);
    return QN_OK;
}

int jsonio_bool(struct diag *d, const char *file, const json_t *o, const char *key, bool fallback,
                bool *out) {
    const json_t *v = jsonio_field(o, key);
    *out = fallback;
    if (v == NULL) return QN_OK;
    if (!json_is_boolean(v)) return wrong_type(d, file, key, "true or false", v);
    *out = json_boolean_value(v);
    return QN_OK;
}

int jsonio_string(struct diag *d, const char *file, const json_t *o, const char *key,
                  const char *fallback, const char **out) {
    const json_t *v = jsonio_field(o, key);
    *out = fallback;
    if (v == NULL) return QN_OK;
    if (!json_is_string(v)) return wrong_type(d, file, key, "a string", v);
    *out = json_string_value(v);
    return QN_OK;
}

int jsonio_object(struct diag *d, const char *file, const json_t *o, const char *key,
                  json_t **out) {
    *out = jsonio_field(o, key);
    if (*out != NULL && !json_is_object(*out)) return wrong_type(d, file, key, "an object", *out);
    return QN_OK;
}

int jsonio_array(struct diag *d, const char *file, const json_t *o, const char *key, json_t **out) {
    *out = jsonio_field(o, key);
    if (*out != NULL && !json_is_array(*out)) return wrong_type(d, file, key, "an array", *out);
    return QN_OK;
}
