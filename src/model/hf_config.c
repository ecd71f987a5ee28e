#include "model/hf_config.h"

#include "base/checked.h"
#include "base/jsonio.h"
#include "model/experts.h"
#include "model/latent.h"
#include "model/rope.h"

#include <assert.h>
#include <string.h>

/* One config.json while it is read: the state that every getter below needs. */
struct reader {
    struct diag *d;
    const char *file;
    const json_t *root;
    const struct family *family;
    struct model_spec *s;
};

static int unsupported(const struct reader *r, const char *field, const char *want,
                       const char *have) {
    return fail(r->d, QN_EUNSUPPORTED, "%s: %s: want %s, have '%s'", r->file, field, want, have);
}

/* ---- the family ---- */

static int unknown_family(const struct reader *r, const char *field, const char *have) {
    struct strbuf list = {0};
    family_list(&list);
    int rc = fail(r->d, QN_EUNSUPPORTED, "%s: %s: '%s' is not supported; supported are %s", r->file,
                  field, have, strbuf_text(&list));
    strbuf_fini(&list);
    return rc;
}

/* The first known name in `architectures`; without that field, model_type. */
static int find_family(struct reader *r) {
    json_t *list;
    const char *type;
    TRY(jsonio_array(r->d, r->file, r->root, "architectures", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *name = json_array_get(list, i);
        if (!json_is_string(name))
            return fail(r->d, QN_EFORMAT, "%s: architectures: want a list of strings", r->file);
        r->family = family_find(json_string_value(name));
        if (r->family != NULL) return QN_OK;
    }
    if (json_array_size(list) > 0)
        return unknown_family(r, "architectures", json_string_value(json_array_get(list, 0)));
    TRY(jsonio_string(r->d, r->file, r->root, "model_type", NULL, &type));
    if (type == NULL)
        return fail(r->d, QN_EFORMAT, "%s: architectures: want a list of strings, have nothing",
                    r->file);
    r->family = family_find(type);
    return r->family != NULL ? QN_OK : unknown_family(r, "model_type", type);
}

/* ---- numbers ---- */

static int need(const struct reader *r, const char *key, int64_t low, int64_t high, uint32_t *out) {
    int64_t n;
    TRY(jsonio_need_int(r->d, r->file, r->root, key, low, high, &n));
    *out = (uint32_t)n;
    return QN_OK;
}

static int optional(const struct reader *r, const char *key, int64_t low, int64_t high,
                    int64_t fallback, uint32_t *out) {
    int64_t n;
    TRY(jsonio_int(r->d, r->file, r->root, key, low, high, fallback, &n));
    *out = (uint32_t)n;
    return QN_OK;
}

static int flag(const struct reader *r, const char *key, bool fallback, uint32_t *out) {
    bool b;
    TRY(jsonio_bool(r->d, r->file, r->root, key, fallback, &b));
    *out = b;
    return QN_OK;
}

static int read_sizes(const struct reader *r) {
    struct model_spec *s = r->s;
    double eps;
    TRY(need(r, "num_hidden_layers", 1, SPEC_MAX_LAYERS, &s->n_layers));
    TRY(need(r, "hidden_size", 2, SPEC_MAX_HIDDEN, &s->hidden));
    TRY(need(r, "intermediate_size", 1, SPEC_MAX_HIDDEN, &s->intermediate));
    TRY(need(r, "vocab_size", 1, SPEC_MAX_VOCAB, &s->vocab));
    TRY(need(r, "num_attention_heads", 1, SPEC_MAX_HEADS, &s->n_heads));
    TRY(optional(r, "num_key_value_heads", 1, s->n_heads, s->n_heads, &s->n_kv_heads));
    TRY(optional(r, "head_dim", 2, SPEC_MAX_HEAD_DIM, r->family->head_dim, &s->head_dim));
    if (s->head_dim == 0) {
        if (s->hidden % s->n_heads != 0)
            return fail(r->d, QN_ESHAPE,
                        "%s: hidden_size: want a multiple of num_attention_heads (%u) where "
                        "head_dim is not given, have %u",
                        r->file, s->n_heads, s->hidden);
        s->head_dim = s->hidden / s->n_heads;
    }
    /* Contexts longer than SPEC_MAX_MODEL_LEN are cut, not refused: callers may use shorter ones.
     */
    TRY(optional(r, "max_position_embeddings", 1, INT32_MAX, r->family->max_position,
                 &s->max_position));
    s->max_position = MIN(s->max_position, (uint32_t)SPEC_MAX_MODEL_LEN);
    TRY(jsonio_range(r->d, r->file, r->root, "rms_norm_eps", 0, 0.5, r->family->rms_eps, &eps));
    s->rms_eps = (float)eps;
    return QN_OK;
}

static int read_features(const struct reader *r) {
    const struct family *f = r->family;
    struct model_spec *s = r->s;
    uint32_t attention_bias = 0;
    if (f->reads_attention_bias) TRY(flag(r, "attention_bias", false, &attention_bias));
    if (f->reads_mlp_bias) TRY(flag(r, "mlp_bias", false, &s->mlp_bias));
    s->qkv_bias = f->qkv_bias || attention_bias;
    if (f->reads_qkv_bias) TRY(flag(r, "qkv_bias", f->qkv_bias, &s->qkv_bias));
    s->o_bias = attention_bias;
    s->qk_norm = f->qk_norm;
    return flag(r, "tie_word_embeddings", false, &s->tied);
}

/* ---- what we cannot compute is refused ---- */

static const char NOT_QUANTIZED[] = "a checkpoint in bfloat16, float16 or float32";

static int refuse_unknown(const struct reader *r) {
    const char *act;
    const json_t *quantization;
    json_t *o;
    double rotary;
    TRY(jsonio_string(r->d, r->file, r->root, "hidden_act", "silu", &act));
    if (strcmp(act, "silu") != 0) return unsupported(r, "hidden_act", "silu", act);
    TRY(jsonio_object(r->d, r->file, r->root, "quantization_config", &o));
    if (o != NULL) {
        quantization = jsonio_field(o, "quant_method");
        if (json_is_string(quantization))
            return unsupported(r, "quantization_config.quant_method", NOT_QUANTIZED,
                               json_string_value(quantization));
        return fail(r->d, QN_EUNSUPPORTED, "%s: quantization_config: want %s", r->file,
                    NOT_QUANTIZED);
    }
    if (jsonio_field(r->root, "quantization") != NULL)
        return fail(r->d, QN_EUNSUPPORTED, "%s: quantization: want %s, have one quantized by MLX",
                    r->file, NOT_QUANTIZED);
    TRY(jsonio_double(r->d, r->file, r->root, "partial_rotary_factor", 1, &rotary));
    if (rotary != 1)
        return fail(r->d, QN_EUNSUPPORTED, "%s: partial_rotary_factor: want 1, have %g", r->file,
                    rotary);
    return QN_OK;
}

/* ---- sliding window ---- */

/* A layer of layer_types; "attention" is the older name. */
static int read_layer_type(const struct reader *r, const json_t *v, bool *slides) {
    const char *type = json_string_value(v);
    if (type == NULL)
        return fail(r->d, QN_EFORMAT, "%s: layer_types: want a list of strings", r->file);
    *slides = strcmp(type, "sliding_attention") == 0;
    if (*slides || strcmp(type, "full_attention") == 0 || strcmp(type, "attention") == 0)
        return QN_OK;
    return unsupported(r, "layer_types", "full_attention or sliding_attention", type);
}

/* Fills slides[n_layers] from layer_types; without the field it stays unchanged. */
static int read_layer_types(const struct reader *r, bool *slides) {
    json_t *types;
    TRY(jsonio_array(r->d, r->file, r->root, "layer_types", &types));
    if (types == NULL) return QN_OK;
    if (json_array_size(types) != r->s->n_layers)
        return fail(r->d, QN_EFORMAT, "%s: layer_types: want %u entries, have %zu", r->file,
                    r->s->n_layers, json_array_size(types));
    for (size_t i = 0; i < json_array_size(types); i++)
        TRY(read_layer_type(r, json_array_get(types, i), &slides[i]));
    return QN_OK;
}

/* Layers without `slides` attend to the whole context; without a window no layer may slide. */
static int set_windows(const struct reader *r, const bool *slides, const char *want) {
    struct model_spec *s = r->s;
    uint32_t n_sliding = 0;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        n_sliding += slides[i];
        if (slides[i] && s->sliding_window == 0)
            return fail(r->d, QN_EFORMAT, "%s: layer_types: layer %u is sliding_attention: want %s",
                        r->file, i, want);
        if (!slides[i]) s->sees_all[i / 32] |= 1u << i % 32;
    }
    if (n_sliding > 0) return QN_OK;
    s->sliding_window = 0;
    memset(s->sees_all, 0, sizeof s->sees_all);
    return QN_OK;
}

/* The field, unless it is null. */
static int read_sliding_window(const struct reader *r) {
    if (json_is_null(json_object_get(r->root, "sliding_window"))) return QN_OK;
    return optional(r, "sliding_window", 1, INT32_MAX, r->family->sliding_window,
                    &r->s->sliding_window);
}

/* Qwen: with use_sliding_window, the layers from max_window_layers on slide, or (WINDOW_BEFORE)
 * every other layer before it; layer_types overrides this. Fields that use_sliding_window switches
 * off are not read. */
static int read_window_switch(const struct reader *r) {
    bool slides[SPEC_MAX_LAYERS] = {false};
    uint32_t use;
    int64_t first;
    TRY(flag(r, "use_sliding_window", false, &use));
    if (use) {
        TRY(read_sliding_window(r));
        TRY(jsonio_int(r->d, r->file, r->root, "max_window_layers", INT64_MIN, INT64_MAX, 28,
                       &first));
        for (uint32_t i = 0; i < r->s->n_layers && r->s->sliding_window != 0; i++)
            slides[i] = r->family->window == WINDOW_BEFORE ? i % 2 == 0 && (int64_t)i < first
                                                           : (int64_t)i >= first;
    }
    TRY(read_layer_types(r, slides));
    return set_windows(r, slides, "use_sliding_window true and a sliding_window");
}

/* Qwen3-MoE: every layer slides if use_sliding_window is set. */
static int read_window_all(const struct reader *r) {
    uint32_t use;
    TRY(flag(r, "use_sliding_window", false, &use));
    return use ? read_sliding_window(r) : QN_OK;
}

/* Mistral: every layer slides, unless the field is null; layer_types overrides this. */
static int read_window_field(const struct reader *r) {
    bool slides[SPEC_MAX_LAYERS];
    TRY(read_sliding_window(r));
    for (uint32_t i = 0; i < r->s->n_layers; i++) slides[i] = r->s->sliding_window != 0;
    TRY(read_layer_types(r, slides));
    return set_windows(r, slides, "a sliding_window");
}

static int read_window(const struct reader *r) {
    switch (r->family->window) {
    case WINDOW_SWITCH: return read_window_switch(r);
    case WINDOW_FIELD: return read_window_field(r);
    case WINDOW_BEFORE: return read_window_switch(r);
    case WINDOW_ALL: return read_window_all(r);
    case WINDOW_NONE: break;
    }
    return QN_OK;
}

/* ---- token ids, dtype ---- */

static int add_id(struct diag *d, const char *file, const char *key, const json_t *v,
                  uint32_t vocab, int32_t eos[SPEC_MAX_EOS], uint32_t *n) {
    if (!json_is_integer(v))
        return fail(d, QN_EFORMAT, "%s: %s: want a token id or a list of token ids", file, key);
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= (json_int_t)vocab) return QN_OK; /* never sampled: it ends nothing */
    for (uint32_t i = 0; i < *n; i++)
        if (eos[i] == (int32_t)id) return QN_OK;
    if (*n == SPEC_MAX_EOS)
        return fail(d, QN_EFORMAT, "%s: %s: want at most %d ids", file, key, SPEC_MAX_EOS);
    eos[(*n)++] = (int32_t)id;
    return QN_OK;
}

int hf_config_token_ids(struct diag *d, const char *file, const struct json_t *root,
                        const char *key, uint32_t vocab, int32_t eos[SPEC_MAX_EOS], uint32_t *n) {
    const json_t *v = jsonio_field(root, key);
    if (v == NULL) return QN_OK;
    if (!json_is_array(v)) return add_id(d, file, key, v, vocab, eos, n);
    for (size_t i = 0; i < json_array_size(v); i++)
        TRY(add_id(d, file, key, json_array_get(v, i), vocab, eos, n));
    return QN_OK;
}

static int read_token_ids(const struct reader *r) {
    struct model_spec *s = r->s;
    int64_t bos;
    TRY(hf_config_token_ids(r->d, r->file, r->root, "eos_token_id", s->vocab, s->eos, &s->n_eos));
    if (json_object_get(r->root, "eos_token_id") == NULL && r->family->eos >= 0 &&
        r->family->eos < (int)s->vocab)
        s->eos[s->n_eos++] = r->family->eos;
    bool absent = json_object_get(r->root, "bos_token_id") == NULL;
    TRY(jsonio_int(r->d, r->file, r->root, "bos_token_id", INT64_MIN, INT64_MAX, -1, &bos));
    if (absent) bos = r->family->bos;
    s->bos = bos >= 0 && bos < (int64_t)s->vocab ? (int32_t)bos : -1;
    return QN_OK;
}

static int read_dtype(const struct reader *r, bool *given) {
    const char *key = jsonio_field(r->root, "torch_dtype") != NULL ? "torch_dtype" : "dtype", *name;
    enum dtype dtype = DTYPE_BF16;
    TRY(jsonio_string(r->d, r->file, r->root, key, NULL, &name));
    *given = name != NULL;
    if (name != NULL && !dtype_from_hf(name, &dtype))
        return unsupported(r, key, "bfloat16, float16 or float32", name);
    r->s->weight_dtype = dtype;
    return QN_OK;
}

static int parse(struct diag *d, const char *file, const json_t *root, struct hf_config *c) {
    struct reader r = {.d = d, .file = file, .root = root, .s = &c->spec};
    if (!json_is_object(root)) return fail(d, QN_EFORMAT, "%s: want a JSON object", file);
    TRY(find_family(&r));
    assert(r.family != NULL);
    c->family = r.family;
    c->tied_given = jsonio_field(root, "tie_word_embeddings") != NULL;
    TRY(refuse_unknown(&r));
    TRY(read_sizes(&r));
    TRY(read_features(&r));
    TRY(read_window(&r));
    TRY(latent_read(d, file, root, c->family, &c->spec));
    TRY(experts_read(d, file, root, c->family, &c->spec));
    TRY(rope_read(d, file, root, c->family, &c->spec));
    TRY(read_token_ids(&r));
    TRY(read_dtype(&r, &c->dtype_given));
    return model_spec_verify(d, file, &c->spec);
}

int hf_config_parse(struct diag *d, const char *file, const char *text, size_t n,
                    struct hf_config *c) {
    json_t *root;
    *c = (struct hf_config){0};
    TRY(jsonio_parse(d, file, text, n, &root));
    int rc = parse(d, file, root, c);
    json_decref(root);
    return rc;
}

int hf_config_load(struct diag *d, const char *path, struct hf_config *c) {
    json_t *root;
    *c = (struct hf_config){0};
    TRY(jsonio_load(d, path, HF_CONFIG_MAX_BYTES, &root));
    int rc = parse(d, path, root, c);
    json_decref(root);
    return rc;
}
