#include "model/latent.h"

#include "base/checked.h"

#include <math.h>

/* Defaults of transformers' DeepseekV2Config. */
enum { DEFAULT_Q_RANK = 1536, DEFAULT_KV_RANK = 512, DEFAULT_NOPE = 128, DEFAULT_ROPE = 64 };

struct reader {
    struct diag *d;
    const char *file;
    const json_t *root;
};

static int number(const struct reader *r, const char *key, uint32_t low, uint32_t high,
                  uint32_t fallback, uint32_t *out) {
    int64_t n;
    TRY(jsonio_int(r->d, r->file, r->root, key, low, high, fallback, &n));
    *out = (uint32_t)n;
    return QN_OK;
}

/* Reads a field that is null if the queries have no latent. */
static int read_q_rank(const struct reader *r, uint32_t *out) {
    *out = 0;
    if (json_is_null(json_object_get(r->root, "q_lora_rank"))) return QN_OK;
    return number(r, "q_lora_rank", 1, SPEC_MAX_HIDDEN, DEFAULT_Q_RANK, out);
}

/* All heads share the latent. A config.json with fewer KV heads describes another attention. */
static int refuse_groups(const struct reader *r, const struct model_spec *s) {
    if (s->n_kv_heads == s->n_heads) return QN_OK;
    return fail(r->d, QN_EUNSUPPORTED,
                "%s: num_key_value_heads: want num_attention_heads (%u), as latent attention has "
                "it, have %u",
                r->file, s->n_heads, s->n_kv_heads);
}

int latent_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
                struct model_spec *s) {
    const struct reader r = {d, file, root};
    struct latent_spec *l = &s->latent;
    uint32_t nope;
    if (!family->latent) return QN_OK;
    TRY(refuse_groups(&r, s));
    TRY(read_q_rank(&r, &l->q_rank));
    TRY(number(&r, "kv_lora_rank", 1, SPEC_MAX_HIDDEN, DEFAULT_KV_RANK, &l->kv_rank));
    TRY(number(&r, "qk_nope_head_dim", 1, SPEC_MAX_HEAD_DIM, DEFAULT_NOPE, &nope));
    TRY(number(&r, "qk_rope_head_dim", 2, SPEC_MAX_HEAD_DIM, DEFAULT_ROPE, &l->rope));
    TRY(number(&r, "v_head_dim", 1, SPEC_MAX_HEAD_DIM, DEFAULT_NOPE, &l->v_dim));
    s->head_dim = nope + l->rope;
    s->n_kv_heads = 1;
    l->scale = 1.0f / sqrtf((float)s->head_dim);
    return QN_OK;
}
