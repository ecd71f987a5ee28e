#include "engine/sampling_params.h"

#include "base/checked.h"

#include <stdlib.h>

void qn_sampling_params_init(qn_sampling_params *params, const qn_engine *engine) {
    *params = (qn_sampling_params){.struct_size = sizeof *params,
                                   .temperature = 1,
                                   .top_p = 1,
                                   .repetition_penalty = 1,
                                   .skip_special_tokens = 1};
    if (!engine || !engine->model) return;
    const struct generation_config *g = &engine->model->generation;
    params->temperature = g->temperature;
    params->top_p = g->top_p;
    params->min_p = g->min_p;
    params->top_k = g->top_k;
    params->repetition_penalty = g->repetition_penalty;
}

/* ---- ranges ------------------------------------------------------------------------------- */

/* As it is checked, so it is printed. */
static int check_range(struct diag *d, const char *name, double x, double low, double high) {
    if (x >= low && x <= high) return QN_OK;
    return fail(d, QN_EINVAL, "%s: want a number from %g to %g, have %.9g", name, low, high, x);
}

/* `low` itself is outside. */
static int check_above(struct diag *d, const char *name, double x, double low, double high) {
    if (x > low && x <= high) return QN_OK;
    return fail(d, QN_EINVAL, "%s: want a number above %g and up to %g, have %.9g", name, low, high,
                x);
}

static int check_most(struct diag *d, const char *name, size_t n, size_t most) {
    if (n <= most) return QN_OK;
    return fail(d, QN_ELIMIT, "%s: at most %zu, have %zu", name, most, n);
}

int sampling_params_check(struct diag *d, const qn_sampling_params *s) {
    TRY(check_range(d, "temperature", s->temperature, 0, 100));
    TRY(check_above(d, "top_p", s->top_p, 0, 1));
    TRY(check_range(d, "min_p", s->min_p, 0, 1));
    TRY(check_range(d, "top_k", s->top_k, -1, INT32_MAX));
    TRY(check_above(d, "repetition_penalty", s->repetition_penalty, 0, 100));
    TRY(check_range(d, "presence_penalty", s->presence_penalty, -2, 2));
    TRY(check_range(d, "frequency_penalty", s->frequency_penalty, -2, 2));
    TRY(check_most(d, "stop_token_ids", s->n_stop_token_ids, QN_MAX_STOP_TOKEN_IDS));
    TRY(check_most(d, "logprobs", s->logprobs, QN_MAX_LOGPROBS));
    TRY(check_most(d, "prompt_logprobs", s->prompt_logprobs, QN_MAX_LOGPROBS));
    TRY(check_most(d, "logit_bias", s->n_logit_bias, QN_MAX_LOGIT_BIAS));
    for (size_t i = 0; i < s->n_logit_bias; i++)
        TRY(check_range(d, "logit_bias", s->logit_bias[i].bias, -100, 100));
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

/* What only some backends have, and what the engine was not opened for. */
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
        .sampling = {.temperature = s->temperature,
                     .top_p = s->top_p,
                     .min_p = s->min_p,
                     .top_k = s->top_k,
                     .repetition_penalty = s->repetition_penalty,
                     .presence_penalty = s->presence_penalty,
                     .frequency_penalty = s->frequency_penalty,
                     .ignore_eos = 0, /* fill_stop_ids leaves the eos out; the user's ids count */
                     .seed = s->seed},
    };
    TRY(fill_stop_ids(d, e, s, r));
    return fill_biases(d, e, s, r, biases);
}
