/* model_spec.c - the bounds of a spec. */
#include "base/checked.h"
#include "graph/kernel_graph.h"
#include "graph/kv_row.h"

#include <math.h>

struct bound {
    const char *field;
    uint64_t value, low, high;
};

static int out_of_bounds(struct diag *d, const char *file, const struct bound *bounds, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bounds[i].value < bounds[i].low || bounds[i].value > bounds[i].high)
            return fail(d, QN_ESHAPE, "%s: %s: want a number from %llu to %llu, have %llu", file,
                        bounds[i].field, (unsigned long long)bounds[i].low,
                        (unsigned long long)bounds[i].high, (unsigned long long)bounds[i].value);
    return QN_OK;
}

uint64_t spec_attention_elements(const struct model_spec *s) {
    const uint64_t q = (uint64_t)s->n_heads * s->head_dim, o = (uint64_t)s->n_heads * spec_v_dim(s);
    const struct latent_spec *l = &s->latent;
    if (!spec_is_latent(s)) return s->hidden * (2 * q + 2ull * s->n_kv_heads * s->head_dim);
    const uint64_t queries = l->q_rank != 0 ? l->q_rank * (s->hidden + q) : s->hidden * q;
    const uint64_t kv_b = (q - (uint64_t)s->n_heads * l->rope + o) * l->kv_rank;
    return queries + (uint64_t)s->hidden * (l->kv_rank + l->rope) + kv_b + s->hidden * o;
}

static int verify_latent(struct diag *d, const char *file, const struct model_spec *s) {
    const struct latent_spec *l = &s->latent;
    const struct bound bounds[] = {
        {"kv_lora_rank + qk_rope_head_dim", (uint64_t)l->kv_rank + l->rope, 1, KV_MAX_WIDTH},
        {"q_lora_rank", l->q_rank, 0, SPEC_MAX_HIDDEN},
        {"qk_rope_head_dim", l->rope, 2, s->head_dim - 1},
        {"v_head_dim", l->v_dim, 1, SPEC_MAX_HEAD_DIM},
        {"num_attention_heads * v_head_dim", (uint64_t)s->n_heads * l->v_dim, 1, SPEC_MAX_HIDDEN},
        {"latents of a position", s->n_kv_heads, 1, 1},
        {"sliding_window", s->sliding_window, 0, 0},
        {"qk norm", s->qk_norm, 0, 0},
    };
    if (!spec_is_latent(s)) return QN_OK;
    TRY(out_of_bounds(d, file, bounds, COUNT_OF(bounds)));
    if (l->rope % 2 != 0)
        return fail(d, QN_ESHAPE, "%s: qk_rope_head_dim: want an even number, have %u", file,
                    l->rope);
    if (!(l->scale > 0 && isfinite(l->scale)))
        return fail(d, QN_ESHAPE, "%s: scale of latent attention: want a positive number", file);
    return QN_OK;
}

static int verify_experts(struct diag *d, const char *file, const struct experts_spec *e) {
    const struct bound bounds[] = {
        {"num_experts", e->n, 1, SPEC_MAX_EXPERTS},
        {"num_experts_per_tok", e->top_k, 1, e->n},
        {"moe_intermediate_size", e->width, 1, SPEC_MAX_HIDDEN},
        {"norm_topk_prob", e->normed, 0, 1},
        {"shared_expert_intermediate_size", e->shared_width, 0, SPEC_MAX_HIDDEN},
        {"shared expert gate", e->shared_gate, 0, e->shared_width != 0},
        {"n_group", e->groups, 0, e->n},
        {"topk_group", e->top_groups, e->groups != 0, e->groups},
    };
    if (e->n == 0) return QN_OK;
    TRY(out_of_bounds(d, file, bounds, COUNT_OF(bounds)));
    if (!(e->scale >= 0 && isfinite(e->scale)))
        return fail(d, QN_ESHAPE, "%s: routed_scaling_factor: want a positive number", file);
    if (e->groups == 0) return QN_OK;
    if (e->n % e->groups != 0)
        return fail(d, QN_ESHAPE,
                    "%s: n_group: want a divisor of the number of experts (%u), have "
                    "%u",
                    file, e->n, e->groups);
    if (e->top_k > (uint64_t)e->top_groups * (e->n / e->groups))
        return fail(d, QN_ESHAPE,
                    "%s: num_experts_per_tok: want at most the experts of topk_group groups (%u), "
                    "have %u",
                    file, e->top_groups * (e->n / e->groups), e->top_k);
    return QN_OK;
}

uint64_t spec_mlp_elements(const struct model_spec *s, uint32_t layer) {
    const struct experts_spec *e = &s->experts;
    if (!spec_is_sparse(s, layer)) return 3ull * s->intermediate * s->hidden;
    return ((uint64_t)e->n * (3ull * e->width + 1) + 3ull * e->shared_width + e->shared_gate) *
           s->hidden;
}

int model_spec_verify(struct diag *d, const char *file, const struct model_spec *s) {
    const struct bound bounds[] = {
        {"num_hidden_layers", s->n_layers, 1, SPEC_MAX_LAYERS},
        {"hidden_size", s->hidden, 2, SPEC_MAX_HIDDEN},
        {"intermediate_size", s->intermediate, 1, SPEC_MAX_HIDDEN},
        {"vocab_size", s->vocab, 1, SPEC_MAX_VOCAB},
        {"num_attention_heads", s->n_heads, 1, SPEC_MAX_HEADS},
        {"num_key_value_heads", s->n_kv_heads, 1, s->n_heads},
        {"head_dim", s->head_dim, 2, SPEC_MAX_HEAD_DIM},
        {"num_attention_heads * head_dim", (uint64_t)s->n_heads * s->head_dim, 1, SPEC_MAX_HIDDEN},
        {"max_position_embeddings", s->max_position, 1, UINT32_MAX},
        {"torch_dtype", s->weight_dtype, DTYPE_F32, DTYPE_F16},
        {"rope type", s->rope_kind, ROPE_DEFAULT, ROPE_DYNAMIC},
        {"eos_token_id (count)", s->n_eos, 0, SPEC_MAX_EOS},
        {"qkv bias", s->qkv_bias, 0, 1},
        {"o bias", s->o_bias, 0, 1},
        {"mlp bias", s->mlp_bias, 0, 1},
        {"qk norm", s->qk_norm, 0, 1},
        {"tie_word_embeddings", s->tied, 0, 1},
    };
    TRY(out_of_bounds(d, file, bounds, COUNT_OF(bounds)));
    TRY(verify_experts(d, file, &s->experts));
    TRY(verify_latent(d, file, s));
    if (s->n_heads % s->n_kv_heads != 0)
        return fail(d, QN_ESHAPE,
                    "%s: num_key_value_heads: want a divisor of num_attention_heads (%u), have %u",
                    file, s->n_heads, s->n_kv_heads);
    if (!spec_is_latent(s) && s->head_dim % 2 != 0)
        return fail(d, QN_ESHAPE, "%s: head_dim: want an even number, have %u", file, s->head_dim);
    if (!(s->rms_eps >= 0 && s->rms_eps < 1))
        return fail(d, QN_ESHAPE, "%s: rms_norm_eps: want a number from 0 to 1", file);
    if (!(s->rope_theta > 0 && isfinite(s->rope_theta)))
        return fail(d, QN_ESHAPE, "%s: rope_theta: want a positive number", file);
    for (uint32_t i = 0; s->rope_kind == ROPE_GIVEN && i < spec_rope_dim(s); i++) {
        const float f = s->rope_given[i & 1][i / 2];
        if (!(isfinite(f) && f >= 0) || !(isfinite(s->rope_scale) && s->rope_scale >= 0))
            return fail(d, QN_ESHAPE, "%s: rope scaling: want finite frequencies", file);
    }
    if (s->rope_kind == ROPE_DYNAMIC && (spec_rope_dim(s) <= 2 || s->rope_original_max == 0))
        return fail(d, QN_ESHAPE, "%s: rope scaling dynamic: want a head_dim above 2 and a length",
                    file);
    if (s->rope_kind != ROPE_DEFAULT && !(s->rope_factor > 0 && isfinite(s->rope_factor)))
        return fail(d, QN_ESHAPE, "%s: rope factor: want a positive number", file);
    if (s->rope_kind == ROPE_LLAMA3 &&
        !(s->rope_low_freq_factor > 0 && s->rope_high_freq_factor > s->rope_low_freq_factor &&
          s->rope_original_max > 0))
        return fail(d, QN_ESHAPE,
                    "%s: rope scaling llama3: want 0 < low_freq_factor < high_freq_factor and a "
                    "positive original_max_position_embeddings",
                    file);
    return QN_OK;
}
