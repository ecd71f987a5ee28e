#include "model/experts.h"

#include <string.h>

/* One config.json while it is read. */
struct reader {
    struct diag *d;
    const char *file;
    const json_t *root;
};

static int number(const struct reader *r, const char *key, int64_t low, int64_t high,
                  int64_t fallback, uint32_t *out) {
    int64_t n;
    TRY(jsonio_int(r->d, r->file, r->root, key, low, high, fallback, &n));
    *out = (uint32_t)n;
    return QN_OK;
}

static int flag(const struct reader *r, const char *key, uint32_t *out) {
    bool b;
    TRY(jsonio_bool(r->d, r->file, r->root, key, false, &b));
    *out = b;
    return QN_OK;
}

static void make_dense(struct experts_spec *e, uint32_t layer) {
    e->dense[layer / 32] |= 1u << layer % 32;
}

/* Makes the layers in mlp_only_layers dense, and all but every decoder_sparse_step-th one. */
static int read_steps(const struct reader *r, struct model_spec *s) {
    json_t *list;
    uint32_t step;
    TRY(number(r, "decoder_sparse_step", 1, SPEC_MAX_LAYERS, 1, &step));
    for (uint32_t i = 0; i < s->n_layers; i++)
        if ((i + 1) % step != 0) make_dense(&s->experts, i);
    TRY(jsonio_array(r->d, r->file, r->root, "mlp_only_layers", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v))
            return fail(r->d, QN_EFORMAT, "%s: mlp_only_layers: want a list of layers", r->file);
        const json_int_t layer = json_integer_value(v);
        if (layer >= 0 && layer < (json_int_t)s->n_layers) make_dense(&s->experts, (uint32_t)layer);
    }
    return QN_OK;
}

/* Layers before the field's number are dense; if all are, there are no experts. */
static int read_dense(const struct reader *r, const char *key, struct model_spec *s) {
    uint32_t n;
    TRY(number(r, key, 0, INT32_MAX, 0, &n));
    for (uint32_t i = 0; i < n && i < s->n_layers; i++) make_dense(&s->experts, i);
    if (n >= s->n_layers) s->experts = (struct experts_spec){0};
    return QN_OK;
}

static int unsupported(const struct reader *r, const char *key, const char *want,
                       const char *have) {
    return fail(r->d, QN_EUNSUPPORTED, "%s: %s: want %s, have '%s'", r->file, key, want, have);
}

/* DeepSeek-V2: a token chooses among all or some groups of experts; weights are unchanged
 * softmaxes. */
static int read_groups(const struct reader *r, struct experts_spec *e) {
    const char *method, *scores;
    double scale;
    TRY(jsonio_string(r->d, r->file, r->root, "topk_method", "greedy", &method));
    TRY(jsonio_string(r->d, r->file, r->root, "scoring_func", "softmax", &scores));
    TRY(jsonio_range(r->d, r->file, r->root, "routed_scaling_factor", 1e-6, 1e6, 1, &scale));
    TRY(flag(r, "norm_topk_prob", &e->normed));
    e->scale = (float)scale;
    if (e->normed) return unsupported(r, "norm_topk_prob", "false", "true");
    if (strcmp(scores, "softmax") != 0) return unsupported(r, "scoring_func", "softmax", scores);
    if (strcmp(method, "greedy") == 0) return QN_OK;
    if (strcmp(method, "group_limited_greedy") != 0)
        return unsupported(r, "topk_method", "greedy or group_limited_greedy", method);
    TRY(number(r, "n_group", 1, e->n, 0, &e->groups));
    TRY(number(r, "topk_group", 1, e->n, 0, &e->top_groups));
    if (e->groups == 0 || e->top_groups == 0)
        return fail(r->d, QN_EFORMAT, "%s: %s: want a number, as topk_method is %s", r->file,
                    e->groups == 0 ? "n_group" : "topk_group", method);
    return QN_OK;
}

/* Shared experts are one MLP that is as wide as all of them. */
static int read_n_shared(const struct reader *r, const struct expert_fields *f,
                         struct experts_spec *e) {
    uint32_t n;
    TRY(number(r, f->n_shared, 0, SPEC_MAX_EXPERTS, f->shared_default, &n));
    e->shared_width = n * e->width;
    return QN_OK;
}

/* Reads the number of experts: from the field that is present, or the default. */
static int read_count(const struct reader *r, const struct expert_fields *f, uint32_t *n) {
    const bool other =
        jsonio_field(r->root, f->n) == NULL && jsonio_field(r->root, f->n_too) != NULL;
    return number(r, other ? f->n_too : f->n, 0, SPEC_MAX_EXPERTS, f->n_default, n);
}

int experts_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
                 struct model_spec *s) {
    const struct reader r = {d, file, root};
    const struct expert_fields *f = family->experts;
    struct experts_spec *e = &s->experts;
    if (f == NULL) return QN_OK;
    TRY(read_count(&r, f, &e->n));
    if (f->n_dense != NULL) TRY(read_dense(&r, f->n_dense, s));
    if (e->n == 0) return QN_OK;
    TRY(number(&r, "num_experts_per_tok", 1, e->n, f->top_k_default, &e->top_k));
    TRY(number(&r, f->width, 1, SPEC_MAX_HIDDEN, f->width_default, &e->width));
    e->normed = f->normed == NULL && !f->groups;
    if (f->normed != NULL) TRY(flag(&r, f->normed, &e->normed));
    if (f->shared != NULL)
        TRY(number(&r, f->shared, 1, SPEC_MAX_HIDDEN, f->shared_default, &e->shared_width));
    if (f->n_shared != NULL) TRY(read_n_shared(&r, f, e));
    if (f->groups) TRY(read_groups(&r, e));
    e->shared_gate = e->shared_width != 0 && family->weights->shared_router != NULL;
    return f->steps ? read_steps(&r, s) : QN_OK;
}
