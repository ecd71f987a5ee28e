/* session.c - requests: from a prompt to tokens and text.
 *
 * The library has no thread for this: a thread that waits for a token moves all requests' tokens
 * out of the runtime's slots and admits queued requests on the way (pump). A request's memory is
 * taken when it is submitted, so nothing is allocated while tokens arrive, but for text.
 */
#include "engine/engine.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- parameters --------------------------------------------------------------------------- */

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

static int check_range(struct diag *d, const char *name, double x, double low, double high) {
    if (x >= low && x <= high) return QN_OK;
    return fail(d, QN_EINVAL, "%s: want a number from %g to %g, have %g", name, low, high, x);
}

static int check_sampling(struct diag *d, const qn_sampling_params *s) {
    TRY(check_range(d, "temperature", s->temperature, 0, 100));
    TRY(check_range(d, "top_p", s->top_p, 1e-6, 1));
    TRY(check_range(d, "min_p", s->min_p, 0, 1));
    TRY(check_range(d, "top_k", s->top_k, -1, INT32_MAX));
    TRY(check_range(d, "repetition_penalty", s->repetition_penalty, 0.01, 100));
    TRY(check_range(d, "presence_penalty", s->presence_penalty, -2, 2));
    TRY(check_range(d, "frequency_penalty", s->frequency_penalty, -2, 2));
    if (s->n_stop_token_ids > QN_MAX_STOP_TOKEN_IDS)
        return fail(d, QN_ELIMIT, "stop_token_ids: at most %d, have %zu", QN_MAX_STOP_TOKEN_IDS,
                    s->n_stop_token_ids);
    return QN_OK;
}

static int check_prompt(struct diag *d, const struct qn_engine *e, const int32_t *ids, size_t n) {
    if (n == 0) return fail(d, QN_EINVAL, "prompt: empty, want at least one token");
    if (n >= e->info.max_model_len)
        return fail(d, QN_ELIMIT,
                    "prompt: %zu tokens leave no room for output, max_model_len is %u", n,
                    e->info.max_model_len);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->info.vocab)
            return fail(d, QN_EINVAL, "prompt: token %zu is %d, want 0 to %u", i, ids[i],
                        e->info.vocab - 1);
    return QN_OK;
}

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

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int fill_runtime(struct diag *d, struct qn_engine *e, const qn_sampling_params *s,
                        size_t n_prompt, struct rt_request *r) {
    uint32_t room = e->info.max_model_len - (uint32_t)n_prompt;
    *r = (struct rt_request){
        .n_prompt = (uint32_t)n_prompt,
        .max_tokens = s->max_tokens == 0 ? room : MIN(s->max_tokens, room),
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
    return fill_stop_ids(d, e, s, r);
}

/* ---- submit ------------------------------------------------------------------------------- */

static void request_release(struct qn_request *r) {
    token_stream_fini(&r->stream);
    stop_fini(&r->stop);
    strbuf_fini(&r->decoded);
    strbuf_fini(&r->piece);
    free(r->prompt);
    free(r->ids);
    free(r->logprobs);
    free(r->times);
    free(r);
}

/* The prompt's ids in memory of the request. */
static int take_prompt(struct diag *d, const struct qn_engine *e, const qn_prompt *p,
                       struct qn_request *r, size_t *n) {
    struct token_ids ids = {0};
    if (p->ids) {
        TRY(check_prompt(d, e, p->ids, p->n_ids));
        TRY(ARRAY_RESERVE(d, &ids, p->n_ids));
        memcpy(ids.items, p->ids, p->n_ids * sizeof *ids.items);
        ids.n = p->n_ids;
    } else {
        if (!p->text) return fail(d, QN_EINVAL, "prompt: neither ids nor text");
        if (!e->tokenizer)
            return fail(d, QN_EINVAL, "prompt: text, but %s has no tokenizer.json; give token ids",
                        e->info.model);
        size_t n_text = p->n_text ? p->n_text : strlen(p->text);
        int rc = tokenizer_encode(d, e->tokenizer->tokens, p->text, n_text, !p->no_special, &ids);
        if (rc == QN_OK) rc = check_prompt(d, e, ids.items, ids.n);
        if (rc != QN_OK) {
            ARRAY_FINI(&ids);
            return rc;
        }
    }
    r->prompt = ids.items;
    *n = ids.n;
    return QN_OK;
}

static int request_fill(struct diag *d, struct qn_engine *e, const qn_prompt *prompt,
                        const qn_sampling_params *s, struct qn_request *r) {
    size_t n_prompt = 0;
    TRY(check_sampling(d, s));
    TRY(stop_init(d, &r->stop, s->stop, s->n_stop));
    if (s->n_stop && !e->tokenizer)
        return fail(d, QN_EINVAL, "stop: %s has no tokenizer.json, so there is no text to search",
                    e->info.model);
    TRY(take_prompt(d, e, prompt, r, &n_prompt));
    TRY(fill_runtime(d, e, s, n_prompt, &r->runtime));
    size_t n = r->runtime.max_tokens;
    r->ids = malloc(n * sizeof *r->ids);
    r->logprobs = malloc(n * sizeof *r->logprobs);
    r->times = malloc(n * sizeof *r->times);
    if (!r->ids || !r->logprobs || !r->times) return fail_nomem(d, n * 16, "a request");
    if (e->tokenizer)
        token_stream_init(&r->stream, e->tokenizer->tokens, s->skip_special_tokens != 0);
    return QN_OK;
}

static int enqueue(struct diag *d, struct qn_engine *e, struct qn_request *r, bool has_seed) {
    pthread_mutex_lock(&e->mutex);
    if (!has_seed) r->runtime.sampling.seed = mix(e->seed + 0x9e3779b97f4a7c15u * e->n_submitted);
    /* Room in both lists now, so that moving a request later cannot fail. */
    int rc = ARRAY_RESERVE(d, &e->active, e->active.n + e->queue.n + 1);
    if (rc == QN_OK) rc = ARRAY_PUSH(d, &e->queue, (struct place){0, r});
    if (rc == QN_OK) e->n_submitted++;
    pthread_mutex_unlock(&e->mutex);
    return rc;
}

static int pump_locked(struct diag *d, struct qn_engine *e, const struct qn_request *r,
                       bool *ready);

int qn_request_submit(qn_engine *engine, const qn_prompt *prompt,
                      const qn_sampling_params *sampling, qn_request **request, qn_error *error) {
    struct diag d = {0};
    qn_prompt p = {0};
    qn_sampling_params s;
    qn_sampling_params_init(&s, engine);
    *request = NULL;
    int rc = QN_OK;
    if (!api_struct_in(&p, sizeof p, prompt) ||
        (sampling && !api_struct_in(&s, sizeof s, sampling)))
        return api_return(fail(&d, QN_EINVAL, "struct_size is not set"), &d, error);
    struct qn_request *r = calloc(1, sizeof *r);
    if (!r) return api_return(fail_nomem(&d, sizeof *r, "a request"), &d, error);
    r->engine = engine;
    r->seen_ns = now_ns();
    rc = request_fill(&d, engine, &p, &s, r);
    if (rc == QN_OK) rc = enqueue(&d, engine, r, s.has_seed != 0);
    if (rc != QN_OK) {
        request_release(r);
        return api_return(rc, &d, error);
    }
    *request = r;
    rc = pump_locked(&d, engine, NULL, NULL);
    if (rc != QN_OK) {
        qn_request_free(r);
        *request = NULL;
    }
    return api_return(rc, &d, error);
}

/* ---- moving tokens ------------------------------------------------------------------------ */

/* Tokens that are seen at once came one after the other: their times are spread over the time since
 * the token before them (since submission), so that a host that was asleep does not make steps of
 * length zero. */
static void copy_tokens(struct qn_request *r, const struct mailbox_view *view) {
    uint32_t n = MIN(view->n_out, r->runtime.max_tokens), first = r->n_seen;
    uint64_t before = r->seen_ns;
    if (n > first) r->seen_ns = now_ns();
    for (uint32_t i = first; i < n; i++) {
        r->ids[i] = view->tokens[i];
        r->logprobs[i] = view->logprobs[i];
        r->times[i] = before + (r->seen_ns - before) * (i + 1 - first) / (n - first);
    }
    r->n_seen = n;
    if (view->finish != RT_RUNNING) r->state = REQUEST_DONE;
}

/* Copies what the runtime has for one slot; gives the slot back when its request has ended. */
static int drain(struct diag *d, struct qn_engine *e, const struct place *p, bool *ended) {
    struct mailbox_view view;
    TRY(e->backend->poll(d, e->instance, p->slot, &view));
    /* Asked after the tokens were taken: one made from a page that was gone is never given out. */
    if (e->weights && weights_torn(e->weights))
        return fail(d, QN_EIO, "%s: a file of the model shrank while it was in use", e->info.model);
    if (p->request) copy_tokens(p->request, &view);
    *ended = view.finish != RT_RUNNING;
    return *ended ? e->backend->release(d, e->instance, p->slot) : QN_OK;
}

static int admit(struct diag *d, struct qn_engine *e) {
    while (e->queue.n > 0) {
        struct qn_request *r = e->queue.items[0].request;
        diag_clear(&r->refusal);
        int rc = e->backend->submit(&r->refusal, e->instance, &r->runtime, r->prompt, &r->slot);
        if (rc == QN_ESTALL || rc == QN_EDEVICE) return fail(d, rc, "%s", r->refusal.message);
        if (rc == QN_EBUSY) {
            diag_clear(&r->refusal); /* later */
            return QN_OK;
        }
        e->queue.n--;
        memmove(e->queue.items, e->queue.items + 1, e->queue.n * sizeof *e->queue.items);
        r->state =
            rc == QN_OK ? REQUEST_ACTIVE : REQUEST_DONE; /* refused: its own next() says so */
        if (rc != QN_OK) continue;
        /* enqueue has made room */
        e->active.items[e->active.n++] = (struct place){r->slot, r};
    }
    return QN_OK;
}

/* With the mutex held: tokens out of the slots, queued requests into free ones. */
static int pump(struct diag *d, struct qn_engine *e) {
    for (size_t i = 0; i < e->active.n;) {
        bool ended = false;
        TRY(drain(d, e, &e->active.items[i], &ended));
        if (!ended) {
            i++;
            continue;
        }
        e->active.n--;
        memmove(e->active.items + i, e->active.items + i + 1,
                (e->active.n - i) * sizeof *e->active.items);
    }
    return admit(d, e);
}

/* Pump from outside; *ready (may be NULL with r): whether r has something to give. */
static int pump_locked(struct diag *d, struct qn_engine *e, const struct qn_request *r,
                       bool *ready) {
    pthread_mutex_lock(&e->mutex);
    int rc = pump(d, e);
    if (r) *ready = r->n_given < r->n_seen || r->state == REQUEST_DONE;
    pthread_mutex_unlock(&e->mutex);
    return rc;
}

/* ---- next --------------------------------------------------------------------------------- */

static uint64_t deadline_of(int timeout_ms) {
    return timeout_ms < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* A sleep is never longer than this: another thread's pump may have moved our tokens, and what it
 * moved does not wake us. */
static const double NAP_SECONDS = 0.02;

/* Pumps and sleeps until r has something to give. */
static int wait_for(struct diag *d, struct qn_request *r, int timeout_ms) {
    struct qn_engine *e = r->engine;
    uint64_t deadline = deadline_of(timeout_ms);
    for (;;) {
        bool ready;
        TRY(pump_locked(d, e, r, &ready));
        if (ready) return QN_OK;
        uint64_t now = now_ns();
        if (now >= deadline) return fail(d, QN_EBUSY, "nothing within %d ms", timeout_ms);
        double left = (double)(deadline - now) * 1e-9;
        TRY(e->backend->wait(d, e->instance, &r->wait_seen, MIN(left, NAP_SECONDS)));
    }
}

int qn_engine_wait(qn_engine *engine, int timeout_ms, qn_error *error) {
    struct diag d = {0};
    double left = timeout_ms < 0 ? 3600 : timeout_ms * 1e-3;
    pthread_mutex_lock(&engine->mutex);
    uint32_t seen = engine->wait_seen;
    pthread_mutex_unlock(&engine->mutex);
    uint32_t before = seen;
    int rc = engine->backend->wait(&d, engine->instance, &seen, left);
    pthread_mutex_lock(&engine->mutex);
    engine->wait_seen = seen;
    if (rc == QN_OK) rc = pump(&d, engine);
    pthread_mutex_unlock(&engine->mutex);
    if (rc == QN_OK && seen == before) rc = fail(&d, QN_EBUSY, "nothing within %d ms", timeout_ms);
    return api_return(rc, &d, error);
}

static bool is_stop_id(const struct qn_request *r, int32_t id) {
    for (uint32_t i = 0; i < r->runtime.n_stop; i++)
        if (r->runtime.stop[i] == id) return true;
    return false;
}

/* The text that a token (-1: none) makes certain, into r->piece. A stop token's own text is not
 * part of the output. */
static int add_text(struct diag *d, struct qn_request *r, int32_t id, bool last,
                    const char **stop) {
    if (!r->engine->tokenizer) return QN_OK;
    strbuf_clear(&r->decoded);
    if (id >= 0 && !is_stop_id(r, id) && id < tokenizer_n_vocab(r->engine->tokenizer->tokens))
        TRY(token_stream_push(d, &r->stream, id, &r->decoded));
    if (last) TRY(token_stream_flush(d, &r->stream, &r->decoded));
    *stop = stop_push(&r->stop, strbuf_text(&r->decoded), r->decoded.n, &r->piece);
    if (last && !*stop) stop_flush(&r->stop, &r->piece);
    TRY(strbuf_status(d, &r->decoded));
    TRY(strbuf_status(d, &r->stop.held));
    return strbuf_status(d, &r->piece);
}

/* How a token ends its request, QN_RUNNING if it does not. The runtime decides alike, but may say
 * so a moment after the token is there; the user gets both at once. */
static int finish_of_token(const struct qn_request *r, uint32_t index) {
    if (is_stop_id(r, r->ids[index])) return QN_FINISH_STOP;
    return index + 1 == r->runtime.max_tokens ? QN_FINISH_LENGTH : QN_RUNNING;
}

/* The next token of a request that is ready. */
static int give_token(struct diag *d, struct qn_request *r, qn_output *out) {
    pthread_mutex_lock(&r->engine->mutex);
    bool has_token = r->n_given < r->n_seen && !r->canceled;
    bool over = r->state == REQUEST_DONE && (r->n_given + 1 >= r->n_seen || r->canceled);
    pthread_mutex_unlock(&r->engine->mutex);
    int finish = QN_RUNNING;
    if (r->refusal.code != QN_OK && over) return fail(d, r->refusal.code, "%s", r->refusal.message);
    if (has_token) {
        uint32_t i = r->n_given++;
        out->id = r->ids[i];
        out->logprob = r->logprobs[i];
        out->time_ns = r->times[i];
        finish = finish_of_token(r, i);
    }
    if (over && finish == QN_RUNNING) finish = QN_FINISH_ABORT;
    TRY(add_text(d, r, out->id, finish != QN_RUNNING, &out->stop));
    r->finish_reason = out->stop ? QN_FINISH_STOP : finish;
    return QN_OK;
}

static int give(struct diag *d, struct qn_request *r, qn_output *out) {
    strbuf_clear(&r->piece);
    if (r->finish_reason == QN_RUNNING) TRY(give_token(d, r, out));
    out->text = strbuf_text(&r->piece);
    out->n_text = r->piece.n;
    out->finish_reason = r->finish_reason;
    return QN_OK;
}

int qn_request_next(qn_request *request, int timeout_ms, qn_output *out, qn_error *error) {
    struct diag d = {0};
    qn_output full = {.id = -1, .logprob = 0, .text = "", .finish_reason = request->finish_reason};
    int rc = QN_OK;
    if (request->finish_reason == QN_RUNNING) rc = wait_for(&d, request, timeout_ms);
    if (rc == QN_OK) rc = give(&d, request, &full);
    if (full.stop) qn_request_cancel(request); /* the runtime need not go on */
    api_struct_out(out, &full, sizeof full);
    return api_return(rc, &d, error);
}

/* ---- ends --------------------------------------------------------------------------------- */

static void unlist(struct qn_engine *e, const struct qn_request *r) {
    for (size_t i = 0; i < e->queue.n; i++) {
        if (e->queue.items[i].request != r) continue;
        e->queue.n--;
        memmove(e->queue.items + i, e->queue.items + i + 1,
                (e->queue.n - i) * sizeof *e->queue.items);
        return;
    }
}

void qn_request_cancel(qn_request *request) {
    struct qn_engine *e = request->engine;
    pthread_mutex_lock(&e->mutex);
    if (request->state == REQUEST_ACTIVE)
        (void)e->backend->cancel(NULL, e->instance, request->slot);
    if (request->state == REQUEST_QUEUED) {
        unlist(e, request);
        request->state = REQUEST_DONE;
    }
    request->canceled = true;
    pthread_mutex_unlock(&e->mutex);
}

int qn_request_finish_reason(const qn_request *request) {
    return request->finish_reason;
}

const int32_t *qn_request_prompt_ids(const qn_request *request, size_t *n) {
    *n = request->runtime.n_prompt;
    return request->prompt;
}

void qn_request_free(qn_request *request) {
    if (!request) return;
    struct qn_engine *e = request->engine;
    qn_request_cancel(request);
    pthread_mutex_lock(&e->mutex);
    for (size_t i = 0; i < e->active.n; i++) /* the slot stays the runtime's until it is done */
        if (e->active.items[i].request == request) e->active.items[i].request = NULL;
    pthread_mutex_unlock(&e->mutex);
    request_release(request);
}

/* Requests whose user still waits for tokens; the others only have to leave their slots. */
static size_t count_busy(struct qn_engine *e, size_t *leaving) {
    size_t n = e->queue.n;
    *leaving = 0;
    for (size_t i = 0; i < e->active.n; i++) {
        const struct qn_request *r = e->active.items[i].request;
        bool over = !r || r->canceled || r->n_seen == r->runtime.max_tokens ||
                    (r->n_seen > 0 && is_stop_id(r, r->ids[r->n_seen - 1]));
        if (over)
            ++*leaving;
        else
            n++;
    }
    return n;
}

int session_busy(struct diag *d, struct qn_engine *e, size_t *n) {
    uint32_t seen = 0;
    for (;;) {
        size_t leaving;
        pthread_mutex_lock(&e->mutex);
        int rc = pump(d, e);
        *n = count_busy(e, &leaving);
        pthread_mutex_unlock(&e->mutex);
        if (rc != QN_OK || leaving == 0 || *n > 0) return rc;
        TRY(e->backend->wait(d, e->instance, &seen, NAP_SECONDS));
    }
}

void session_end(struct qn_engine *e) {
    ARRAY_FINI(&e->active);
    ARRAY_FINI(&e->queue);
}
