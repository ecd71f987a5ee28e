#include "model/rope.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

struct reader {
    struct diag *d;
    const char *file; /* "config.json: rope_scaling" */
    const json_t *o;
    struct model_spec *s;
    int64_t max_position; /* of config.json; s->max_position may have been cut */
    int64_t original;     /* original_max_position_embeddings, where the type has it */
};

static int number(const struct reader *r, const char *key, double low, double high, double fallback,
                  double *out) {
    return jsonio_range(r->d, r->file, r->o, key, low, high, fallback, out);
}

static int read_factor(const struct reader *r) {
    double factor;
    TRY(number(r, "factor", 1, 1e6, NAN, &factor));
    r->s->rope_factor = (float)factor;
    return QN_OK;
}

/* Raises max_position to n, the longest context that the model is for. */
static void stretch(const struct reader *r, double n) {
    const double most = MIN(n, (double)SPEC_MAX_MODEL_LEN);
    r->s->max_position = MAX(r->s->max_position, (uint32_t)most);
}

static int read_default(struct reader *r) {
    (void)r;
    return QN_OK;
}

static int read_linear(struct reader *r) {
    r->s->rope_kind = ROPE_LINEAR;
    TRY(read_factor(r));
    stretch(r, (double)r->max_position * (double)r->s->rope_factor);
    return QN_OK;
}

static int read_llama3(struct reader *r) {
    double low, high;
    r->s->rope_kind = ROPE_LLAMA3;
    TRY(read_factor(r));
    TRY(number(r, "low_freq_factor", 1e-6, 1e6, NAN, &low));
    TRY(number(r, "high_freq_factor", 1e-6, 1e6, NAN, &high));
    if (high <= low)
        return fail(r->d, QN_EFORMAT,
                    "%s: high_freq_factor: want more than low_freq_factor (%g), "
                    "have %g",
                    r->file, low, high);
    r->s->rope_low_freq_factor = (float)low;
    r->s->rope_high_freq_factor = (float)high;
    r->s->rope_original_max = (uint32_t)r->original;
    return QN_OK;
}

/* The base grows with the context, from max_position_embeddings on. */
static int read_dynamic(struct reader *r) {
    r->s->rope_kind = ROPE_DYNAMIC;
    r->s->rope_original_max = (uint32_t)r->max_position;
    TRY(read_factor(r));
    if (spec_rope_dim(r->s) <= 2)
        return fail(r->d, QN_EUNSUPPORTED, "%s: dynamic: want a head_dim above 2", r->file);
    stretch(r, (double)r->max_position * (double)r->s->rope_factor);
    return QN_OK;
}

/* theta ^ (2 i / head_dim) */
static float power(const struct model_spec *s, uint32_t i) {
    const float exponent = (float)(2 * i) / (float)spec_rope_dim(s);
    return (float)pow((double)s->rope_theta, (double)exponent);
}

/* ---- yarn ---- */

static double yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Latent attention: if RoPE is scaled at all, mscale_all_dim scales scores, too. */
static int read_score_scale(const struct reader *r) {
    double factor, all;
    TRY(number(r, "factor", 0, 1e6, (double)r->max_position / (double)r->original, &factor));
    TRY(number(r, "mscale_all_dim", 0, 1e6, 0, &all));
    const double m = all != 0 ? yarn_scale(factor, all) : 1;
    r->s->latent.scale *= (float)(m * m);
    return QN_OK;
}

static int read_yarn_scale(const struct reader *r, double factor) {
    double given, mscale, all;
    TRY(number(r, "attention_factor", 0, 1e6, -1, &given));
    TRY(number(r, "mscale", 0, 1e6, 0, &mscale));
    TRY(number(r, "mscale_all_dim", 0, 1e6, 0, &all));
    if (given < 0)
        given = mscale != 0 && all != 0 ? yarn_scale(factor, mscale) / yarn_scale(factor, all)
                                        : yarn_scale(factor, 1);
    r->s->rope_scale = (float)given;
    return QN_OK;
}

/* The pair of dimensions that turns `rotations` times within the original length. */
static double yarn_pair(const struct reader *r, double rotations) {
    const double turns = (double)r->original / (rotations * 2 * PI);
    return (double)spec_rope_dim(r->s) * log(turns) / (2 * log((double)r->s->rope_theta));
}

/* Pairs up to `low` are kept; pairs from `high` on are divided by the factor. */
static int read_yarn_bounds(const struct reader *r, double *low, double *high) {
    double fast, slow;
    bool truncate;
    TRY(number(r, "beta_fast", 0, 1e6, 0, &fast));
    TRY(number(r, "beta_slow", 0, 1e6, 0, &slow));
    TRY(jsonio_bool(r->d, r->file, r->o, "truncate", true, &truncate));
    *low = yarn_pair(r, fast != 0 ? fast : 32);
    *high = yarn_pair(r, slow != 0 ? slow : 1);
    if (truncate) *low = floor(*low), *high = ceil(*high);
    *low = MAX(*low, 0);
    *high = MIN(*high, (double)spec_rope_dim(r->s) - 1);
    if (*low == *high) *high += 0.001;
    return QN_OK;
}

static int read_yarn(struct reader *r) {
    struct model_spec *s = r->s;
    double factor, low, high;
    s->rope_kind = ROPE_GIVEN;
    TRY(number(r, "factor", 1, 1e6, (double)r->max_position / (double)r->original, &factor));
    TRY(read_yarn_scale(r, factor));
    TRY(read_yarn_bounds(r, &low, &high));
    for (uint32_t i = 0; i < spec_rope_dim(s) / 2; i++) {
        const float keep = 1 / power(s, i), stretched = 1 / ((float)factor * power(s, i));
        const float ramp = ((float)i - (float)low) / (float)(high - low);
        const float kept = 1 - MIN(MAX(ramp, 0.0f), 1.0f);
        s->rope_given[0][i] = stretched * (1 - kept) + keep * kept;
    }
    stretch(r, (double)r->original * factor);
    return QN_OK;
}

/* ---- longrope ---- */

static int read_divisors(const struct reader *r, const char *key, float *frequencies) {
    const uint32_t n = spec_rope_dim(r->s) / 2;
    json_t *list;
    TRY(jsonio_array(r->d, r->file, r->o, key, &list));
    if (json_array_size(list) != n)
        return fail(r->d, QN_EFORMAT, "%s: %s: want %u numbers (head_dim / 2), have %zu", r->file,
                    key, n, json_array_size(list));
    for (uint32_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const double divisor = json_number_value(v);
        if (!json_is_number(v) || divisor < 1e-6 || divisor > 1e6)
            return fail(r->d, QN_EFORMAT, "%s: %s[%u]: want a number from 1e-06 to 1e+06", r->file,
                        key, i);
        frequencies[i] = 1 / ((float)divisor * power(r->s, i));
    }
    return QN_OK;
}

static int read_longrope(struct reader *r) {
    struct model_spec *s = r->s;
    double factor, scale;
    s->rope_kind = ROPE_GIVEN;
    s->rope_original_max = (uint32_t)r->original;
    TRY(read_divisors(r, "short_factor", s->rope_given[0]));
    TRY(read_divisors(r, "long_factor", s->rope_given[1]));
    TRY(number(r, "factor", 0, 1e6, (double)r->max_position / (double)r->original, &factor));
    scale = factor <= 1 || r->original <= 1 ? 1 : sqrt(1 + log(factor) / log((double)r->original));
    TRY(number(r, "attention_factor", 0, 1e6, scale, &scale));
    s->rope_scale = (float)scale;
    return QN_OK;
}

/* ---- types ---- */

static const struct {
    const char *name;
    int (*read)(struct reader *r);
} types[] = {
    /* the types that scale nothing come first */
    {"default", read_default}, {"linear", read_linear},     {"llama3", read_llama3},
    {"yarn", read_yarn},       {"longrope", read_longrope}, {"su", read_longrope},
    {"dynamic", read_dynamic},
};

static int read_type(struct reader *r) {
    const char *key = jsonio_field(r->o, "rope_type") != NULL ? "rope_type" : "type", *type;
    double rotary;
    TRY(jsonio_string(r->d, r->file, r->o, key, "default", &type));
    TRY(jsonio_double(r->d, r->file, r->o, "partial_rotary_factor", 1, &rotary));
    if (rotary != 1)
        return fail(r->d, QN_EUNSUPPORTED, "%s: partial_rotary_factor: want 1, have %g", r->file,
                    rotary);
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (strcmp(types[i].name, type) == 0) {
            if (spec_is_latent(r->s) && i > 0) TRY(read_score_scale(r));
            return types[i].read(r);
        }
    return fail(r->d, QN_EUNSUPPORTED,
                "%s: %s: want default, linear, dynamic, yarn, longrope or llama3, have '%s'",
                r->file, key, type);
}

/* rope_parameters keyed by kind of layer (several RoPEs in one model) would be read as empty. */
static int refuse_nested(struct diag *d, const char *file, const json_t *o) {
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        if (json_is_object(v))
            return fail(d, QN_EUNSUPPORTED, "%s.%s: want one RoPE for all layers, have an object",
                        file, key);
    }
    return QN_OK;
}

/* The model's training length: original_max_position_embeddings beside the RoPE object (Phi 3),
 * else in it, else max_position. */
static int read_original(struct reader *r, const char *file, const json_t *root) {
    static const char key[] = "original_max_position_embeddings";
    TRY(jsonio_int(r->d, r->file, r->o, key, 1, INT32_MAX, r->max_position, &r->original));
    return jsonio_int(r->d, file, root, key, 1, INT32_MAX, r->original, &r->original);
}

/* rope_scaling wins over rope_parameters where a file has both, as in transformers. */
int rope_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
              struct model_spec *s) {
    json_t *scaling, *parameters;
    const json_t *theta_at = root;
    char name[600];
    double theta;
    struct reader r = {.d = d, .file = name, .s = s};
    s->rope_factor = 1;
    TRY(jsonio_object(d, file, root, "rope_scaling", &scaling));
    TRY(jsonio_object(d, file, root, "rope_parameters", &parameters));
    const char *field = json_object_size(scaling) > 0 ? "rope_scaling" : "rope_parameters";
    r.o = json_object_size(scaling) > 0 ? scaling : parameters;
    snprintf(name, sizeof name, "%s: %s", file, field);
    TRY(refuse_nested(d, name, r.o));
    if (jsonio_field(r.o, "rope_theta") != NULL) theta_at = r.o;
    TRY(jsonio_range(d, file, theta_at, "rope_theta", 1, 1e15, family->rope_theta, &theta));
    s->rope_theta = (float)theta;
    if (r.o == NULL) return QN_OK;
    TRY(jsonio_int(d, file, root, "max_position_embeddings", 1, INT32_MAX, family->max_position,
                   &r.max_position));
    TRY(read_original(&r, file, root));
    return read_type(&r);
}
