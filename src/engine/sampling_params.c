#include "engine/sampling_params.h"

#include "base/checked.h"
#include "base/sampling.h"

#include <stdlib.h>

/* Where qn_sampling_params has each parameter, and where a list's length. */
static const struct {
    size_t at, n_at;
} places[N_SAMPLING_PARAMS] = {
#define SAMPLING(ID, name, ...)      {offsetof(qn_sampling_params, name), 0},
#define SAMPLING_LIST(ID, name, ...) {0, offsetof(qn_sampling_params, n_##name)},
#include "base/sampling.def"
};

static bool is_number(const struct sampling_row *row) {
    return row->kind <= SAMPLING_OPTIONAL || row->kind == SAMPLING_FLAG;
}

void qn_sampling_params_init(qn_sampling_params *params, const qn_engine *engine) {
    *params = (qn_sampling_params){.struct_size = sizeof *params};
    for (int i = 0; i < N_SAMPLING_PARAMS; i++) {
        const struct sampling_row *row = &sampling_table[i];
        const bool told = engine && engine->model && row->model;
        if (is_number(row))
            sampling_set(row, (char *)params + places[i].at,
                         told ? engine->model->generation.sampling[i] : row->neutral);
    }
}

/* ---- ranges ------------------------------------------------------------------------------- */

static int check_param(struct diag *d, const qn_sampling_params *s, int param) {
    const struct sampling_row *row = &sampling_table[param];
    const char *at = (const char *)s + places[param].at;
    size_t n;
    switch (row->kind) {
    case SAMPLING_NUMBER:
    case SAMPLING_ABOVE:
    case SAMPLING_INT: return sampling_check_range(d, row, sampling_get(row, at));
    case SAMPLING_COUNT:
    case SAMPLING_OPTIONAL: return sampling_check_most(d, row, (size_t)sampling_get(row, at));
    case SAMPLING_TEXTS:
    case SAMPLING_IDS:
    case SAMPLING_BIAS:
        memcpy(&n, (const char *)s + places[param].n_at, sizeof n);
        return sampling_check_most(d, row, n);
    default: return QN_OK;
    }
}

static int check_bias(struct diag *d, float bias) {
    if (bias >= -100 && bias <= 100) return QN_OK;
    return fail(d, QN_EINVAL, "logit_bias: want a number from -100 to 100, have %.9g",
                (double)bias);
}

int sampling_params_check(struct diag *d, const qn_sampling_params *s) {
    for (int i = 0; i < N_SAMPLING_PARAMS; i++) TRY(check_param(d, s, i));
    for (size_t i = 0; i < s->n_logit_bias; i++) TRY(check_bias(d, s->logit_bias[i].bias));
    if (s->max_tokens > 0 && s->min_tokens > s->max_tokens)
        return fail(d, QN_EINVAL, "min_tokens: %u is more than max_tokens, %u", s->min_tokens,
                    s->max_tokens);
    return QN_OK;
}

int qn_sampling_params_check(const qn_sampling_params *params, qn_error *error) {
    struct diag d = {0};
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    int rc = api_struct_in(&s, sizeof s, params)
                 ? sampling_params_check(&d, &s)
                 : fail(&d, QN_EINVAL, "qn_sampling_params: struct_size is not set");
    if (rc == QN_OK) rc = guide_check(&d, &s);
    return api_return(rc, &d, error);
}

/* ---- to the runtime ----------------------------------------------------------------------- */

/* Stop ids: the model's own unless ignore_eos, then the user's. */
static int fill_stop_ids(struct diag *d, const struct qn_engine *e, const qn_sampling_params *s,
                         struct rt_request *r) {
    const struct model_spec *spec = &e->model->spec;
    _Static_assert(SPEC_MAX_EOS + QN_MAX_STOP_TOKEN_IDS <= RT_MAX_STOP_IDS, "all stop ids fit");
    for (uint32_t i = 0; i < spec->n_eos && !s->ignore_eos; i++)
        r->stop[r->n_stop++] = spec->eos[i];
    for (size_t i = 0; i < s->n_stop_token_ids; i++) {
        int32_t id = s->stop_token_ids[i];
        if (id < 0 || (uint32_t)id >= spec->vocab)
            return fail(d, QN_EINVAL, "stop_token_ids: %d, want 0 to %u", id, spec->vocab - 1);
        r->stop[r->n_stop++] = id;
    }
    return QN_OK;
}

static int fill_biases(struct diag *d, const struct qn_engine *e, const qn_sampling_params *s,
                       struct rt_request *r, struct rt_token_value **biases) {
    _Static_assert((int)QN_MAX_LOGIT_BIAS <= (int)RT_MAX_BIASES, "all biases fit");
    *biases = NULL;
    if (s->n_logit_bias == 0) return QN_OK;
    struct rt_token_value *to = calloc(s->n_logit_bias, sizeof *to);
    if (!to) return fail_nomem(d, s->n_logit_bias * sizeof *to, "logit_bias");
    *biases = to;
    r->n_biases = (uint16_t)s->n_logit_bias;
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        const qn_logit_bias *from = &s->logit_bias[i];
        if (from->id < 0 || (uint32_t)from->id >= e->info.vocab)
            return fail(d, QN_EINVAL, "logit_bias: token %d, want 0 to %u", from->id,
                        e->info.vocab - 1);
        to[i] = (struct rt_token_value){.id = from->id, .value = from->bias};
    }
    return QN_OK;
}

/* Refuses what the backend does not support, and what the engine was not opened for. */
static int check_lists(struct diag *d, const struct qn_engine *e, const qn_sampling_params *s) {
    const uint32_t n_prompt_top = s->has_prompt_logprobs ? s->prompt_logprobs : 0;
    const struct {
        const char *name;
        bool asked;
        uint32_t n; /* most likely tokens */
    } wanted[] = {{"logprobs", s->logprobs > 0, s->logprobs},
                  {"prompt_logprobs: most likely tokens", n_prompt_top > 0, n_prompt_top},
                  {"logit_bias", s->n_logit_bias > 0, 0}};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        if (wanted[i].asked && !e->backend->lists_top)
            return fail(d, QN_EUNSUPPORTED, "%s: the %s backend has no kernels for it; use cpu",
                        wanted[i].name, e->backend->name);
        if (wanted[i].n > e->info.vocab)
            return fail(d, QN_ELIMIT, "%s: want at most the vocabulary's %u, have %u",
                        wanted[i].name, e->info.vocab, wanted[i].n);
        if (wanted[i].asked && wanted[i].n > e->max_logprobs)
            return fail(d, QN_ELIMIT,
                        "%s: %u, but the engine was opened with max_logprobs %u: open it with more",
                        wanted[i].name, wanted[i].n, e->max_logprobs);
    }
    return QN_OK;
}

/* ignore_eos stays 0: fill_stop_ids leaves the model's own ids out, and the user's ids count. */
static struct rt_sampling draw_of(const qn_sampling_params *s) {
    return (struct rt_sampling){
#define SAMPLING(...)
#define SAMPLING_LIST(...)
#define SAMPLING_DRAW(ID, name, ...) .name = s->name,
#include "base/sampling.def"
        .seed = s->seed,
    };
}

int sampling_params_to_runtime(struct diag *d, const struct qn_engine *e,
                               const qn_sampling_params *s, size_t n_prompt, struct rt_request *r,
                               struct rt_token_value **biases) {
    const uint32_t room = e->info.max_model_len - (uint32_t)n_prompt;
    TRY(check_lists(d, e, s));
    const uint32_t n_prompt_top = s->has_prompt_logprobs ? s->prompt_logprobs : 0;
    *r = (struct rt_request){
        .n_prompt = (uint32_t)n_prompt,
        .max_tokens = s->max_tokens == 0 ? room : MIN(s->max_tokens, room),
        .n_scored = s->has_prompt_logprobs ? (uint32_t)n_prompt - 1 : 0,
        .min_tokens = s->min_tokens,
        .guided = s->structured_kind != QN_STRUCTURED_NONE,
        .n_top = (uint8_t)MAX(s->logprobs, n_prompt_top),
        .sampling = draw_of(s),
    };
    TRY(fill_stop_ids(d, e, s, r));
    return fill_biases(d, e, s, r, biases);
}
