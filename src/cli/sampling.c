#include "cli/sampling.h"

#include "base/checked.h"
#include "base/sampling.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ------------------------------------------------------------------------------- */

struct field;
typedef int field_set(struct diag *d, const struct field *f, const json_t *v, struct sampling *s);

struct field {
    const char *name;
    enum option option; /* OPT_NONE: a field of lines only */
    field_set *set;
    const struct sampling_row *row; /* NULL: the field has none */
    size_t offset;                  /* in qn_sampling_params, for a field with a row */
};

static int put(const struct field *f, struct sampling *s, double x) {
    sampling_set(f->row, (char *)&s->params + f->offset, x);
    return QN_OK;
}

static int set_number(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    if (!json_is_number(v)) return fail(d, QN_EINVAL, "%s: want a number", f->name);
    return put(f, s, json_number_value(v));
}

static int whole(struct diag *d, const struct field *f, const json_t *v, int64_t low, int64_t high,
                 int64_t *out) {
    *out = json_integer_value(v);
    if (json_is_integer(v) && *out >= low && *out <= high) return QN_OK;
    return fail(d, QN_EINVAL, "%s: want a whole number from %lld to %lld", f->name, (long long)low,
                (long long)high);
}

static int set_int(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    int64_t n;
    TRY(whole(d, f, v, (int64_t)f->row->low, (int64_t)f->row->high, &n));
    return put(f, s, (double)n);
}

/* The engine checks the upper bound. */
static int set_count(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    int64_t n;
    TRY(whole(d, f, v, 0, UINT32_MAX, &n));
    return put(f, s, (double)n);
}

static int set_n(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    int64_t n;
    TRY(whole(d, f, v, 1, SAMPLING_MAX_N, &n));
    s->n = (uint32_t)n;
    return QN_OK;
}

static int set_flag(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    if (!json_is_boolean(v)) return fail(d, QN_EINVAL, "%s: want true or false", f->name);
    return put(f, s, json_is_true(v));
}

/* Seeds end at 2^64 - 1, jansson's integers at 2^63 - 1: see jsonl.c. A string of digits is a seed,
 * too. */
static int set_seed(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    const char *text = json_string_value(v);
    char *end = NULL;
    s->params.seed = (uint64_t)json_integer_value(v);
    errno = 0;
    if (text && text[0] >= '0' && text[0] <= '9') s->params.seed = strtoull(text, &end, 10);
    if (!json_is_integer(v) && (!end || *end || errno))
        return fail(d, QN_EINVAL, "%s: want a whole number of 64 bits", f->name);
    s->params.has_seed = 1;
    return QN_OK;
}

static int set_texts(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    const size_t n = json_is_string(v) ? 1 : json_array_size(v);
    if (!json_is_string(v) && !json_is_array(v))
        return fail(d, QN_EINVAL, "%s: want a string or an array of strings", f->name);
    if (n > QN_MAX_STOP)
        return fail(d, QN_EINVAL, "%s: want at most %d strings, have %zu", f->name, QN_MAX_STOP, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_string(v) ? v : json_array_get(v, i);
        if (!json_is_string(text) || strlen(json_string_value(text)) != json_string_length(text))
            return fail(d, QN_EINVAL, "%s: string %zu is no string, or has a zero byte", f->name,
                        i + 1);
        if (json_string_length(text) == 0)
            return fail(d, QN_EINVAL, "%s: string %zu is empty", f->name, i + 1);
        s->stop[i] = json_string_value(text);
    }
    s->params.stop = s->stop;
    s->params.n_stop = n;
    return QN_OK;
}

static int set_ids(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    const size_t n = json_array_size(v);
    if (!json_is_array(v) || n > QN_MAX_STOP_TOKEN_IDS)
        return fail(d, QN_EINVAL, "%s: want an array of at most %d token ids", f->name,
                    QN_MAX_STOP_TOKEN_IDS);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        TRY(whole(d, f, json_array_get(v, i), 0, INT32_MAX, &id));
        s->stop_ids[i] = (int32_t)id;
    }
    s->params.stop_token_ids = s->stop_ids;
    s->params.n_stop_token_ids = n;
    return QN_OK;
}

static int set_bias(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    const char *key;
    json_t *bias;
    size_t n = 0;
    if (!json_is_object(v) || json_object_size(v) > QN_MAX_LOGIT_BIAS)
        return fail(d, QN_EINVAL, "%s: want an object {\"token id\": number} of at most %d",
                    f->name, QN_MAX_LOGIT_BIAS);
    json_object_foreach((json_t *)v, key, bias) {
        char *end;
        errno = 0;
        const long long id = strtoll(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || errno || id > INT32_MAX)
            return fail(d, QN_EINVAL, "%s: '%s' is not a token id", f->name, key);
        if (!json_is_number(bias))
            return fail(d, QN_EINVAL, "%s: token %lld: want a number", f->name, id);
        s->bias[n++] = (qn_logit_bias){(int32_t)id, (float)json_number_value(bias)};
    }
    s->params.logit_bias = s->bias;
    s->params.n_logit_bias = n;
    return QN_OK;
}

/* Only prompt_logprobs has this kind. */
static int set_optional(struct diag *d, const struct field *f, const json_t *v,
                        struct sampling *s) {
    TRY(set_count(d, f, v, s));
    s->params.has_prompt_logprobs = 1;
    return QN_OK;
}

/* ---- structured outputs ------------------------------------------------------------------- */

/* The members that structured_outputs of a line may have, and their options. */
static const struct structure {
    const char *name;
    int kind;
    enum option option;
    enum sampling_form wants;
    bool is_file; /* the option's value is a file's name */
} structures[] = {
#define SAMPLING(...)
#define SAMPLING_FORM(ID, name, wants, is_file, ...)                                               \
    {name, QN_STRUCTURED_##ID, OPT_##ID, FORM_##wants, is_file},
#include "base/sampling.def"
};

/* Keeps `text`, a new JSON string, as long as the sampling lives. */
static int keep_structure(struct diag *d, const struct structure *k, json_t *text,
                          struct sampling *s) {
    if (!s->owned) s->owned = json_array();
    if (!text || json_array_append_new(s->owned, text) != 0)
        return fail(d, QN_EINVAL, "%s: want UTF-8", k->name);
    if (strlen(json_string_value(text)) != json_string_length(text))
        return fail(d, QN_EINVAL, "%s: has a zero byte", k->name);
    s->params.structured_kind = k->kind;
    s->params.structured_text = json_string_value(text);
    return QN_OK;
}

/* A string is taken unchanged, unless an array is needed. */
static int set_structure(struct diag *d, const struct structure *k, const json_t *v,
                         struct sampling *s) {
    const bool is_array = k->wants == FORM_TEXTS;
    const bool is_json = k->wants == FORM_JSON && !json_is_string(v);
    if (is_array ? !json_is_array(v) : !is_json && !json_is_string(v))
        return fail(d, QN_EINVAL, "structured_outputs: %s: want %s", k->name,
                    is_array ? "an array of strings" : "a string");
    if (!is_array && !is_json)
        return keep_structure(d, k, json_stringn(json_string_value(v), json_string_length(v)), s);
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    const int rc = keep_structure(d, k, text ? json_string(text) : NULL, s);
    free(text);
    return rc;
}

static int set_structured(struct diag *d, const struct field *f, const json_t *v,
                          struct sampling *s) {
    const char *name;
    json_t *value;
    if (!json_is_object(v) || json_object_size(v) != 1)
        return fail(d, QN_EINVAL, "%s: want an object with one of json, regex, grammar and choice",
                    f->name);
    json_object_foreach((json_t *)v, name,
                        value) for (size_t i = 0; i < COUNT_OF(structures);
                                    i++) if (strcmp(name, structures[i].name) ==
                                             0) return set_structure(d, &structures[i], value, s);
    return fail(d, QN_EINVAL, "%s: '%.64s' is not known; want json, regex, grammar or choice",
                f->name, json_object_iter_key(json_object_iter((json_t *)v)));
}

/* ---- the table ---------------------------------------------------------------------------- */

static int set_param(struct diag *d, const struct field *f, const json_t *v, struct sampling *s) {
    static field_set *const setters[N_SAMPLING_KINDS] = {
        [SAMPLING_NUMBER] = set_number,     [SAMPLING_ABOVE] = set_number,
        [SAMPLING_INT] = set_int,           [SAMPLING_COUNT] = set_count,
        [SAMPLING_OPTIONAL] = set_optional, [SAMPLING_SEED] = set_seed,
        [SAMPLING_FLAG] = set_flag,         [SAMPLING_TEXTS] = set_texts,
        [SAMPLING_IDS] = set_ids,           [SAMPLING_BIAS] = set_bias,
    };
    return setters[f->row->kind](d, f, v, s);
}

static const struct field fields[] = {
#define SAMPLING(ID, name, ...)                                                                    \
    {#name, OPT_##ID, set_param, &sampling_table[SAMPLING_PARAM_##ID],                             \
     offsetof(qn_sampling_params, name)},
#include "base/sampling.def"
    {.name = "n", .option = OPT_N, .set = set_n},
    {.name = "structured_outputs", .option = OPT_NONE, .set = set_structured},
};

static const struct field *find_field(const char *name) {
    for (size_t i = 0; i < COUNT_OF(fields); i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

/* ---- options ------------------------------------------------------------------------------ */

static json_t *array_of(const struct option_value *v) {
    json_t *array = json_array();
    for (size_t i = 0; i < v->n; i++)
        json_array_append_new(array, v->texts ? json_string_nocheck(v->texts[i])
                                              : json_integer(v->integers[i]));
    return array;
}

/* An option's text, or its texts. */
static json_t *value_of_texts(const struct option_value *v) {
    return v->texts ? array_of(v) : json_string(v->text);
}

/* An option's value in the form of a line's value; NULL: it is not valid. */
static json_t *value_of(const struct options *o, enum option option) {
    const struct option_value *v = &o->values[option];
    json_error_t error;
    switch (option_table[option].kind) {
    case KIND_FLAG: return json_true();
    case KIND_NUMBER: return json_real(v->number);
    case KIND_TEXTS:
    case KIND_IDS: return array_of(v);
    case KIND_TEXT: return json_loads(v->text, JSON_REJECT_DUPLICATES, &error);
    default: return json_integer(v->integer);
    }
}

/* Turns a message about a field into one about its option. */
static int usage(const char *message) {
    const size_t n = strcspn(message, ":");
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)MIN(n, sizeof name - 1), message);
    const struct field *f = find_field(name);
    if (!f || f->option == OPT_NONE) return cli_usage("%s", message);
    return cli_usage("--%s%s", option_table[f->option].name, message + n);
}

static int set_option(const struct options *o, const struct field *f, struct sampling *s) {
    struct diag d = {0};
    json_t *value = value_of(o, f->option);
    if (!value || json_array_append_new(s->owned, value) != 0)
        return cli_usage("--%s: want JSON, have '%s'", option_table[f->option].name,
                         o->values[f->option].text);
    return f->set(&d, f, value, s) == QN_OK ? EXIT_OK : usage(d.message);
}

static int structure_option(const struct options *o, const struct structure *k,
                            struct sampling *s) {
    const struct option_value *v = &o->values[k->option];
    struct diag d = {0};
    char *text = NULL;
    size_t n;
    if (s->params.structured_kind != QN_STRUCTURED_NONE)
        return cli_usage("give one of --json-schema, --regex, --grammar and --choice");
    if (k->is_file) {
        int rc = cli_read_file(v->text, &text, &n);
        if (rc != EXIT_OK) return rc;
    }
    json_t *value = k->is_file ? json_stringn(text, n) : value_of_texts(v);
    free(text);
    int rc = value ? set_structure(&d, k, value, s) : fail(&d, QN_EINVAL, "want UTF-8");
    json_decref(value);
    return rc == QN_OK ? EXIT_OK : cli_usage("--%s: %s", option_table[k->option].name, d.message);
}

/* Sets the structured output: reads the options, or takes what `checked` has read. */
static int structure_options(const struct options *o, const struct sampling *checked,
                             struct sampling *s) {
    int rc = EXIT_OK;
    if (checked) {
        s->params.structured_kind = checked->params.structured_kind;
        s->params.structured_text = checked->params.structured_text;
        return EXIT_OK;
    }
    for (size_t i = 0; i < COUNT_OF(structures) && rc == EXIT_OK; i++)
        if (o->values[structures[i].option].given) rc = structure_option(o, &structures[i], s);
    return rc;
}

int sampling_from_options(const struct options *o, const qn_engine *engine, uint32_t max_tokens,
                          const struct sampling *checked, struct sampling *s) {
    qn_error error;
    *s = (struct sampling){.n = 1, .owned = json_array()};
    if (!s->owned) return cli_error("out of memory");
    qn_sampling_params_init(&s->params, engine);
    s->params.max_tokens = max_tokens;
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        if (fields[i].option == OPT_NONE || !o->values[fields[i].option].given) continue;
        int rc = set_option(o, &fields[i], s);
        if (rc != EXIT_OK) return rc;
    }
    int rc = structure_options(o, checked, s);
    if (rc != EXIT_OK) return rc;
    return qn_sampling_params_check(&s->params, &error) == QN_OK ? EXIT_OK : usage(error.message);
}

void sampling_fini(struct sampling *s) {
    json_decref(s->owned);
    s->owned = NULL;
}

void sampling_copy(struct sampling *to, const struct sampling *from) {
    *to = *from;
    to->owned = NULL;
    if (from->params.stop) to->params.stop = to->stop;
    if (from->params.stop_token_ids) to->params.stop_token_ids = to->stop_ids;
    if (from->params.logit_bias) to->params.logit_bias = to->bias;
}

/* ---- lines -------------------------------------------------------------------------------- */

static int unknown_field(struct diag *d, const char *name, const char *const *others, size_t n) {
    const char *nearest = NULL;
    unsigned best = UINT_MAX;
    for (size_t i = 0; i < COUNT_OF(fields) + n; i++) {
        const char *known = i < n ? others[i] : fields[i - n].name;
        const unsigned distance = options_distance(name, known);
        if (distance < best) best = distance, nearest = known;
    }
    if (best <= strlen(name) / 3 + 1)
        return fail(d, QN_EINVAL, "unknown field '%.64s'; did you mean '%s'?", name, nearest);
    return fail(d, QN_EINVAL, "unknown field '%.64s'", name);
}

int sampling_from_line(struct diag *d, const json_t *line, const char *const *others,
                       size_t n_others, struct sampling *s) {
    const char *name;
    json_t *value;
    qn_error error;
    json_object_foreach((json_t *)line, name, value) {
        bool other = false;
        for (size_t i = 0; i < n_others; i++) other |= strcmp(others[i], name) == 0;
        const struct field *f = other ? NULL : find_field(name);
        if (!f && !other) return unknown_field(d, name, others, n_others);
        if (f && !json_is_null(value)) TRY(f->set(d, f, value, s));
    }
    if (qn_sampling_params_check(&s->params, &error) == QN_OK) return QN_OK;
    return fail(d, error.code, "%s", error.message);
}

/* ---- what the engine must be opened for --------------------------------------------------- */

static uint32_t at_most(json_int_t n) {
    return n < 0 ? 0 : (uint32_t)MIN(n, (json_int_t)QN_MAX_LOGPROBS);
}

uint32_t sampling_logprobs_of_options(const struct options *o) {
    const uint32_t a = at_most(options_integer(o, OPT_LOGPROBS, 0));
    const uint32_t b = at_most(options_integer(o, OPT_PROMPT_LOGPROBS, 0));
    return MAX(a, b);
}

uint32_t sampling_logprobs_of_line(const json_t *line) {
    const uint32_t a = at_most(json_integer_value(json_object_get(line, "logprobs")));
    const uint32_t b = at_most(json_integer_value(json_object_get(line, "prompt_logprobs")));
    return MAX(a, b);
}

/* ---- stop strings that cannot be found ---------------------------------------------------- */

/* Whether leaving out special tokens loses a part of the text. */
static bool has_special(const qn_tokenizer *t, const char *text) {
    int32_t *ids = NULL;
    size_t n_ids, n_shown = 0, n_whole = 0;
    char *shown = NULL, *all = NULL;
    bool differ = false;
    if (qn_tokenize(t, text, strlen(text), 0, &ids, &n_ids, NULL) == QN_OK &&
        qn_detokenize(t, ids, n_ids, 1, &shown, &n_shown, NULL) == QN_OK &&
        qn_detokenize(t, ids, n_ids, 0, &all, &n_whole, NULL) == QN_OK)
        differ = n_shown < n_whole;
    qn_free(shown);
    qn_free(all);
    qn_free(ids);
    return differ;
}

void sampling_warn(const struct options *o, const qn_engine *engine, const struct sampling *s) {
    const qn_tokenizer *t = qn_engine_tokenizer(engine);
    for (size_t i = 0; t && s->params.skip_special_tokens && i < s->params.n_stop; i++)
        if (has_special(t, s->params.stop[i]))
            cli_note(o,
                     "stop '%s' can never match: special tokens are not part of the text; give "
                     "their ids to --stop-token-ids",
                     s->params.stop[i]);
}
