/* session.c - requests: from a prompt to tokens and text.
 *
 * The library has no thread for this unless qn_engine_fd starts one (notifier.h); masks have one
 * (mask_thread.h). A thread that waits for a token moves all requests' tokens out of the runtime's
 * slots and admits queued requests on the way (session_pump). Memory for a request's output is
 * taken when the request gets a slot. So nothing but text is allocated while tokens arrive, and a
 * queued request takes little memory besides its prompt.
 */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/checked.h"
#include "engine/sampling_params.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* What a caller's qn_output has at least: the fields of the first version. */
static const size_t OUTPUT_LEAST = offsetof(qn_output, time_ns) + sizeof(uint64_t);

/* Most tokens that all prompts in the queue may have. */
static const uint64_t MAX_QUEUE_TOKENS = (uint64_t)64 << 20;

/* Errors: QN_EINVAL in a child of fork. The workers are the parent's, and a mutex may be locked for
 * ever: nothing else of the engine may be touched there. */
static int check_process(struct diag *d, const struct qn_engine *e) {
    if (e->process == getpid()) return QN_OK;
    return fail(d, QN_EINVAL,
                "the engine belongs to process %ld, and this is a child of fork: open an engine "
                "here, or fork before qn_engine_open",
                (long)e->process);
}

/* ---- lists of requests; the mutex is held ------------------------------------------------- */

static void list_append(struct qn_engine *e, enum request_list which, struct qn_request *r) {
    struct request_ends *list = &e->lists[which];
    r->links[which] = (struct request_link){.before = list->last, .listed = true};
    if (list->last)
        list->last->links[which].after = r;
    else
        list->first = r;
    list->last = r;
    list->n++;
}

static void list_remove(struct qn_engine *e, enum request_list which, struct qn_request *r) {
    struct request_ends *list = &e->lists[which];
    const struct request_link link = r->links[which];
    if (!link.listed) return;
    *(link.before ? &link.before->links[which].after : &list->first) = link.after;
    *(link.after ? &link.after->links[which].before : &list->last) = link.before;
    r->links[which] = (struct request_link){0};
    list->n--;
}

/* Whether qn_request_next would return at once. */
static bool is_ready(const struct qn_request *r) {
    return r->finish_reason == QN_RUNNING &&
           (r->n_given < r->n_seen || r->state == REQUEST_DONE || r->canceled);
}

/* Keeps the list of ready requests, and the notifier, right after r has changed. */
static void list_if_ready(struct qn_request *r) {
    struct qn_engine *e = r->engine;
    if (!is_ready(r))
        list_remove(e, LIST_READY, r);
    else if (!r->links[LIST_READY].listed)
        list_append(e, LIST_READY, r);
    notifier_show(&e->notifier, e->lists[LIST_READY].n > 0);
}

/* ---- submit ------------------------------------------------------------------------------- */

static int check_prompt(struct diag *d, const struct qn_engine *e, const int32_t *ids, size_t n) {
    if (n == 0) return fail(d, QN_EINVAL, "prompt: empty, want at least one token");
    if (n >= e->info.max_model_len)
        return fail(d, QN_ELIMIT,
                    "prompt: %zu tokens leave no room for output, max_model_len is %u", n,
                    e->info.max_model_len);
    if (e->model->spec.rope_kind == ROPE_DYNAMIC && n > e->model->spec.rope_original_max)
        return fail(d, QN_EUNSUPPORTED,
                    "prompt: %zu tokens, want at most %u: config.json has dynamic RoPE, with which "
                    "all keys of a longer prompt depend on its length; yarn and linear have no "
                    "such bound",
                    n, e->model->spec.rope_original_max);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= e->info.vocab)
            return fail(d, QN_EINVAL, "prompt: token %zu is %d, want 0 to %u", i, ids[i],
                        e->info.vocab - 1);
    return QN_OK;
}

static void request_release(struct qn_request *r) {
    token_stream_fini(&r->stream);
    stop_fini(&r->stop);
    strbuf_fini(&r->decoded);
    strbuf_fini(&r->piece);
    free(r->prompt);
    free(r->ids);
    free(r->logprobs);
    free(r->times);
    free(r->tops);
    free(r->biases);
    guide_free(r->guide);
    free(r->prompt_logprobs);
    free(r->prompt_tops);
    free(r->routes);
    free(r);
}

/* Puts the prompt's ids into memory of the request. */
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

/* Allocates a value for each of n tokens, and n_top most likely tokens beside each. */
static int take_lists(struct diag *d, size_t n, size_t n_top, float **logprobs,
                      qn_token_logprob **tops) {
    *logprobs = calloc(n, sizeof **logprobs);
    *tops = calloc(n * n_top + 1, sizeof **tops);
    if (*logprobs && *tops) return QN_OK;
    return fail_nomem(d, n * (n_top + 1) * sizeof **tops, "a request");
}

/* Allocates the output's memory, once the request gets a slot. */
static int take_outputs(struct diag *d, struct qn_request *r) {
    const size_t n = r->runtime.max_tokens;
    if (r->ids) return QN_OK;
    r->times = malloc(n * sizeof *r->times);
    if (!r->times) return fail_nomem(d, n * sizeof *r->times, "a request");
    TRY(take_lists(d, n, r->n_top, &r->logprobs, &r->tops));
    if (r->scores)
        TRY(take_lists(d, r->runtime.n_prompt, r->n_prompt_top, &r->prompt_logprobs,
                       &r->prompt_tops));
    if (r->engine->route_stride > 0) {
        const size_t bytes =
            (r->runtime.n_prompt + n) * r->engine->route_stride * sizeof *r->routes;
        r->routes = malloc(bytes);
        if (!r->routes) return fail_nomem(d, bytes, "a request");
    }
    r->ids = malloc(n * sizeof *r->ids);
    return r->ids ? QN_OK : fail_nomem(d, n * sizeof *r->ids, "a request");
}

/* Makes the request's guide, if its output has a grammar. */
static int take_guide(struct diag *d, struct qn_engine *e, const qn_sampling_params *s,
                      struct qn_request *r) {
    if (s->structured_kind == QN_STRUCTURED_NONE) return QN_OK;
    if (!e->tokenizer)
        return fail(d, QN_EINVAL,
                    "structured output: %s has no tokenizer.json, so tokens have no "
                    "texts",
                    e->info.model);
    if (!s->ignore_eos && r->n_eos == 0)
        return fail(d, QN_EINVAL,
                    "structured output: the model's config.json and "
                    "generation_config.json name no eos_token_id to end it with");
    TRY(guide_texts_make(d, &e->texts, e->tokenizer->tokens, e->info.vocab, r->runtime.stop,
                         r->n_eos));
    TRY(guide_new(d, &e->texts, s, &r->guide));
    r->guide->max_tokens = r->runtime.max_tokens;
    return QN_OK;
}

static int request_fill(struct diag *d, struct qn_engine *e, const qn_prompt *prompt,
                        const qn_sampling_params *s, struct qn_request *r) {
    size_t n_prompt = 0;
    TRY(sampling_params_check(d, s));
    TRY(stop_init(d, &r->stop, s->stop, s->n_stop, s->include_stop_str_in_output != 0));
    if (s->n_stop && !e->tokenizer)
        return fail(d, QN_EINVAL, "stop: %s has no tokenizer.json, so there is no text to search",
                    e->info.model);
    TRY(take_prompt(d, e, prompt, r, &n_prompt));
    TRY(sampling_params_to_runtime(d, e, s, n_prompt, &r->runtime, &r->biases));
    r->n_eos = r->runtime.n_stop - (uint32_t)s->n_stop_token_ids;
    TRY(take_guide(d, e, s, r));
    r->n_top = s->logprobs;
    r->scores = s->has_prompt_logprobs != 0;
    r->n_prompt_top = r->scores ? s->prompt_logprobs : 0;
    if (prompt->cache_space > QN_MAX_CACHE_SPACE)
        return fail(d, QN_EINVAL, "cache_space: want at most %u, have %u",
                    (uint32_t)QN_MAX_CACHE_SPACE, prompt->cache_space);
    r->runtime.cache_space = prompt->cache_space;
    r->runtime.priority = prompt->priority;
    r->place = (struct fair_place){.priority = prompt->priority,
                                   .space = prompt->cache_space,
                                   .n_prompt = n_prompt,
                                   .n_tokens = n_prompt + r->runtime.max_tokens};
    if (e->tokenizer)
        token_stream_init(&r->stream, e->tokenizer->tokens, s->skip_special_tokens != 0);
    return QN_OK;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int enqueue_locked(struct diag *d, struct qn_engine *e, struct qn_request *r,
                          bool has_seed) {
    const struct fair_queue *q = &e->queue;
    if (!has_seed) r->runtime.sampling.seed = mix(e->seed + 0x9e3779b97f4a7c15u * e->n_submitted);
    if (q->heap.n >= e->max_queue || q->n_prompt + r->place.n_prompt > MAX_QUEUE_TOKENS)
        return fail(d, QN_EBUSY,
                    "the queue is full: %zu requests with prompts of %llu tokens wait; max_queue "
                    "is %u",
                    q->heap.n, (unsigned long long)q->n_prompt, e->max_queue);
    /* Room for all places now, so that admitting a request later cannot fail. */
    TRY(ARRAY_RESERVE(d, &e->active, e->info.max_num_seqs));
    if (r->guide) TRY(mask_thread_start(d, &e->masks, e->backend->mailbox(e->instance), &e->texts));
    TRY(fair_queue_add(d, &e->queue, &r->place));
    e->n_submitted++;
    return QN_OK;
}

static int enqueue(struct diag *d, struct qn_engine *e, struct qn_request *r, bool has_seed) {
    pthread_mutex_lock(&e->mutex);
    int rc = session_pump(d, e); /* places may be free, and then there is room in the queue */
    if (rc == QN_OK) rc = enqueue_locked(d, e, r, has_seed);
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
    int rc = check_process(&d, engine);
    if (rc != QN_OK) return api_return(rc, &d, error);
    if (!api_struct_in(&p, sizeof p, prompt) ||
        (sampling && !api_struct_in(&s, sizeof s, sampling)))
        return api_return(fail(&d, QN_EINVAL, "struct_size is not set"), &d, error);
    struct qn_request *r = calloc(1, sizeof *r);
    if (!r) return api_return(fail_nomem(&d, sizeof *r, "a request"), &d, error);
    r->engine = engine;
    r->seen_ns = clock_ns();
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

/* The first of n log-probabilities that is not a number; n: all are. */
static uint32_t count_sound(const float *logprobs, uint32_t n) {
    uint32_t i = 0;
    while (i < n && !isnan(logprobs[i])) i++;
    return i;
}

static void refuse_logits(struct qn_request *r, const char *what, uint32_t index) {
    fail(&r->refusal, QN_EFORMAT,
         "%s: the logits of %s token %u are not numbers: weights that are not finite, or "
         "activations that overflow %s",
         r->engine->info.model, what, index, r->engine->info.dtype);
}

/* Copies the first n_top entries of each of n lists, which have `stride` entries. */
static void copy_tops(qn_token_logprob *to, uint32_t n_top, const struct rt_token_value *from,
                      uint32_t stride, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_top; k++) {
            const struct rt_token_value *v = &from[(size_t)i * stride + k];
            to[(size_t)i * n_top + k] = (qn_token_logprob){.id = v->id, .logprob = v->value};
        }
}

/* Copies the prompt's scores, which arrive with the first output token. The prompt's first token
 * has none. */
static void copy_scores(struct qn_request *r, const struct mailbox_view *view) {
    const uint32_t n = view->n_scored, n_top = r->n_prompt_top;
    const uint32_t sound = count_sound(view->scored, n);
    if (sound < n) refuse_logits(r, "prompt", sound + 1);
    r->prompt_logprobs[0] = NAN;
    for (uint32_t k = 0; k < n_top; k++)
        r->prompt_tops[k] = (qn_token_logprob){.id = -1, .logprob = NAN};
    memcpy(r->prompt_logprobs + 1, view->scored, n * sizeof *view->scored);
    if (n_top > 0) copy_tops(r->prompt_tops + n_top, n_top, view->scored_tops, view->n_top, n);
}

/* Copies the routes of positions that were computed for output tokens [first, n), and marks the
 * layers that have no experts. */
static void copy_routes(struct qn_request *r, const struct mailbox_view *view, uint32_t first,
                        uint32_t n) {
    const size_t stride = r->engine->route_stride, n_prompt = r->runtime.n_prompt;
    const size_t from = first > 0 ? n_prompt + first - 1 : 0, end = n_prompt + n - 1;
    memcpy(r->routes + from * stride, view->routes + from * stride,
           (end - from) * stride * sizeof *r->routes);
    const struct model_spec *s = &r->engine->model->spec;
    for (size_t at = from * s->n_layers; at < end * s->n_layers; at++)
        for (uint32_t k = 0; k < s->experts.top_k && !spec_is_sparse(s, at % s->n_layers); k++)
            r->routes[at * s->experts.top_k + k] = QN_NO_EXPERT;
}

/* Copies new tokens. Tokens that are seen at once came one after the other, so their times are
 * spread over the time since the token before them, or since submission: a host that was asleep
 * does not make steps of length zero. */
static void copy_tokens(struct qn_request *r, const struct mailbox_view *view) {
    const uint32_t first = r->n_seen, end = MIN(view->n_out, r->runtime.max_tokens);
    uint32_t n = first;
    if (first == 0 && end > 0) {
        r->engine->n_looked_for += r->runtime.n_prompt;
        r->engine->n_found += view->n_cached;
        if (r->scores) copy_scores(r, view);
    }
    if (end > first && r->refusal.code == QN_OK)
        n += count_sound(view->logprobs + first, end - first);
    if (n < end && r->refusal.code == QN_OK) refuse_logits(r, "output", n);
    uint64_t before = r->seen_ns;
    if (n > first) r->seen_ns = clock_ns();
    for (uint32_t i = first; i < n; i++) {
        r->ids[i] = view->tokens[i];
        r->logprobs[i] = view->logprobs[i];
        r->times[i] = before + (r->seen_ns - before) * (i + 1 - first) / (n - first);
    }
    if (n > first && r->n_top > 0)
        copy_tops(r->tops + (size_t)first * r->n_top, r->n_top,
                  view->tops + (size_t)first * view->n_top, view->n_top, n - first);
    if (n > first && view->routes) copy_routes(r, view, first, n);
    r->n_seen = n;
    r->n_cached = view->n_cached;
    r->n_preempted = view->n_preempted;
    if (view->finish != RT_RUNNING || r->refusal.code != QN_OK) r->state = REQUEST_DONE;
    list_if_ready(r);
}

/* The grammar of a request cannot go on. */
static void refuse_guide(struct qn_request *r, const struct guide *g) {
    fail(&r->refusal, g->failure.code, "structured output: after %u tokens: %s", r->n_seen,
         g->failure.message);
    r->state = REQUEST_DONE;
    list_if_ready(r);
}

/* Copies what the runtime has for one slot; releases the slot when its request has ended. */
static int drain(struct diag *d, struct qn_engine *e, struct place *p, bool *ended) {
    struct mailbox_view view;
    TRY(e->backend->poll(d, e->instance, p->slot, &view));
    /* Checked after the tokens were taken, so that no token made from a page that was gone is given
     * out. */
    if (e->weights && weights_torn(e->weights))
        return fail(d, QN_EIO, "%s: a file of the model shrank while it was in use", e->info.model);
    const bool over = view.finish != RT_RUNNING;
    if (p->request) copy_tokens(p->request, &view);
    if (p->request && !over && p->guide && mask_thread_failed(p->guide))
        refuse_guide(p->request, p->guide);
    if (p->request && (over || p->request->refusal.code != QN_OK)) p->request = NULL;
    /* Cancels again each time, because the ring of commands may have been full. */
    if (!p->request || p->request->canceled) (void)e->backend->cancel(NULL, e->instance, p->slot);
    *ended = over && (!p->guide || mask_thread_let_go(p->guide));
    return *ended ? e->backend->release(d, e->instance, p->slot) : QN_OK;
}

/* What is in slots. The slots' order is the runtime's, which knows no spaces: when blocks are
 * short, few requests wait in slots, and the others in the queue. */
struct crowd {
    uint64_t n_blocks;  /* that the requests' known tokens take if none are shared */
    uint32_t n_waiting; /* requests without blocks */
};

static uint64_t blocks_known(const struct qn_request *r) {
    return CEIL_DIV((uint64_t)r->runtime.n_prompt + r->n_seen + 1, r->engine->info.kv_block);
}

static struct crowd crowd_of(const struct qn_engine *e) {
    struct crowd c = {0};
    struct rt_counts counts;
    mailbox_counts(e->backend->mailbox(e->instance), &counts);
    c.n_waiting = (uint32_t)(e->active.n - MIN(counts.n_running, e->active.n));
    for (size_t i = 0; i < e->active.n; i++)
        if (e->active.items[i].request) c.n_blocks += blocks_known(e->active.items[i].request);
    return c;
}

/* Whether a request may have a slot: it has blocks as far as one can say, or few wait for some. */
static bool has_room(const struct qn_engine *e, const struct crowd *c, const struct qn_request *r) {
    const uint32_t few = MIN(MAX(e->info.max_num_seqs / 8, 1u), 32u);
    return c->n_blocks + blocks_known(r) <= e->info.kv_blocks || c->n_waiting < few;
}

static int admit(struct diag *d, struct qn_engine *e) {
    struct fair_place *first = fair_queue_first(&e->queue);
    if (!first) return QN_OK;
    struct crowd crowd = crowd_of(e);
    for (; first && e->active.n < e->info.max_num_seqs; first = fair_queue_first(&e->queue)) {
        struct qn_request *r =
            (struct qn_request *)((char *)first - offsetof(struct qn_request, place));
        if (!has_room(e, &crowd, r)) return QN_OK;
        const struct rt_extras extras = {.biases = r->biases,
                                         .mask = r->guide ? r->guide->rules->first : NULL};
        diag_clear(&r->refusal);
        int rc = take_outputs(&r->refusal, r);
        if (rc == QN_OK)
            rc = e->backend->submit(&r->refusal, e->instance, &r->runtime, &extras, r->prompt,
                                    &r->slot);
        if (rc == QN_ESTALL || rc == QN_EDEVICE) return fail(d, rc, "%s", r->refusal.message);
        if (rc == QN_EBUSY) {
            diag_clear(&r->refusal); /* later */
            return QN_OK;
        }
        fair_queue_take(&e->queue);
        r->state =
            rc == QN_OK ? REQUEST_ACTIVE : REQUEST_DONE; /* refused: its own next() says so */
        list_if_ready(r);
        if (rc != QN_OK) continue;
        crowd.n_blocks += blocks_known(r);
        crowd.n_waiting++;
        /* enqueue has made room */
        e->active.items[e->active.n++] =
            (struct place){.slot = r->slot, .request = r, .guide = r->guide};
        if (r->guide) {
            r->guide->slot = r->slot;
            mask_thread_add(&e->masks, r->guide);
            r->guide = NULL;
        }
    }
    return QN_OK;
}

int session_pump(struct diag *d, struct qn_engine *e) {
    size_t kept = 0;
    int rc = QN_OK;
    for (size_t i = 0; i < e->active.n; i++) {
        bool ended = false;
        if (rc == QN_OK) rc = drain(d, e, &e->active.items[i], &ended);
        if (!ended) e->active.items[kept++] = e->active.items[i];
    }
    e->active.n = kept;
    return rc == QN_OK ? admit(d, e) : rc;
}

/* Takes the mutex and pumps, unless r is ready already: for n ready requests, n pumps of n slots
 * would be most of the work. *ready (may be NULL with r): whether r is ready. */
static int pump_locked(struct diag *d, struct qn_engine *e, const struct qn_request *r,
                       bool *ready) {
    pthread_mutex_lock(&e->mutex);
    int rc = r && is_ready(r) ? QN_OK : session_pump(d, e);
    if (r) *ready = is_ready(r);
    pthread_mutex_unlock(&e->mutex);
    return rc;
}

/* ---- next --------------------------------------------------------------------------------- */

static uint64_t deadline_of(int timeout_ms) {
    return timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* A sleep is never longer than this: another thread's pump may move the tokens of a sleeping
 * thread's request, and that does not wake the sleeping thread. */
static const double NAP_SECONDS = 0.02;

/* Pumps and sleeps until r has something to give. */
static int wait_for(struct diag *d, struct qn_request *r, int timeout_ms) {
    struct qn_engine *e = r->engine;
    uint64_t deadline = deadline_of(timeout_ms);
    for (;;) {
        bool ready;
        TRY(pump_locked(d, e, r, &ready));
        if (ready) return QN_OK;
        uint64_t now = clock_ns();
        if (now >= deadline) return fail(d, QN_EBUSY, "nothing within %d ms", timeout_ms);
        double left = (double)(deadline - now) * 1e-9;
        TRY(e->backend->wait(d, e->instance, &r->wait_seen, MIN(left, NAP_SECONDS)));
    }
}

/* Pumps, then gives the first `capacity` of the ready requests, in the list's order; *n: how many
 * are ready. */
static int ready_locked(struct diag *d, struct qn_engine *e, qn_request **ready, size_t capacity,
                        size_t *n) {
    pthread_mutex_lock(&e->mutex);
    int rc = session_pump(d, e);
    struct qn_request *r = e->lists[LIST_READY].first;
    *n = e->lists[LIST_READY].n;
    for (size_t i = 0; i < capacity && r; i++, r = r->links[LIST_READY].after) ready[i] = r;
    pthread_mutex_unlock(&e->mutex);
    return rc;
}

static int wait_any(struct diag *d, struct qn_engine *e, int timeout_ms, qn_request **ready,
                    size_t capacity, size_t *n) {
    const uint64_t deadline = deadline_of(timeout_ms);
    uint32_t seen = 0;
    TRY(check_process(d, e));
    for (;;) {
        TRY(ready_locked(d, e, ready, capacity, n));
        if (*n > 0) return QN_OK;
        const uint64_t now = clock_ns();
        if (now >= deadline) return fail(d, QN_EBUSY, "nothing within %d ms", timeout_ms);
        const double left = (double)(deadline - now) * 1e-9;
        TRY(e->backend->wait(d, e->instance, &seen, MIN(left, NAP_SECONDS)));
    }
}

int qn_engine_wait_any(qn_engine *engine, int timeout_ms, qn_request **ready, size_t capacity,
                       size_t *n_ready, qn_error *error) {
    struct diag d = {0};
    size_t n = 0;
    int rc = wait_any(&d, engine, timeout_ms, ready, capacity, &n);
    *n_ready = rc == QN_OK ? MIN(n, capacity) : 0;
    return api_return(rc, &d, error);
}

int qn_engine_wait(qn_engine *engine, int timeout_ms, qn_error *error) {
    struct diag d = {0};
    size_t n;
    return api_return(wait_any(&d, engine, timeout_ms, NULL, 0, &n), &d, error);
}

static bool is_stop_id(const struct qn_request *r, int32_t id) {
    for (uint32_t i = 0; i < r->runtime.n_stop; i++)
        if (r->runtime.stop[i] == id) return true;
    return false;
}

/* Appends to r->piece the text that a token (-1: none) makes certain. A stop token's own text is
 * not part of the output unless stop strings are. Stop strings are looked for after min_tokens. */
static int add_text(struct diag *d, struct qn_request *r, int32_t id, bool last,
                    const char **stop) {
    if (!r->engine->tokenizer) return QN_OK;
    strbuf_clear(&r->decoded);
    const bool shown = !is_stop_id(r, id) || r->stop.included;
    if (id >= 0 && shown && id < tokenizer_n_vocab(r->engine->tokenizer->tokens))
        TRY(token_stream_push(d, &r->stream, id, &r->decoded));
    if (last) TRY(token_stream_flush(d, &r->stream, &r->decoded));
    if (r->n_given <= r->runtime.min_tokens)
        strbuf_add(&r->piece, strbuf_text(&r->decoded), r->decoded.n);
    else
        *stop = stop_push(&r->stop, strbuf_text(&r->decoded), r->decoded.n, &r->piece);
    if (last && !*stop) stop_flush(&r->stop, &r->piece);
    TRY(strbuf_status(d, &r->decoded));
    TRY(strbuf_status(d, &r->stop.held));
    return strbuf_status(d, &r->piece);
}

/* Whether the id is one of the user's stop ids; the model's own come first. */
static bool is_own_stop_id(const struct qn_request *r, int32_t id) {
    for (uint32_t i = r->n_eos; i < r->runtime.n_stop; i++)
        if (r->runtime.stop[i] == id) return true;
    return false;
}

/* How a token ends its request, QN_RUNNING if it does not. The runtime decides the same, but may
 * report it a moment after the token arrives; the user gets both at once. */
static int finish_of_token(const struct qn_request *r, uint32_t index) {
    if (is_stop_id(r, r->ids[index])) return QN_FINISH_STOP;
    return index + 1 == r->runtime.max_tokens ? QN_FINISH_LENGTH : QN_RUNNING;
}

/* The next token of a request that is ready, or its end without one; *finish: how it ends. */
static int give_token(struct diag *d, struct qn_request *r, qn_output *out, int *finish) {
    pthread_mutex_lock(&r->engine->mutex);
    const bool canceled = r->canceled, has_token = r->n_given < r->n_seen && !canceled;
    const bool over = r->state == REQUEST_DONE && r->n_given + has_token >= r->n_seen;
    const uint32_t i = r->n_given;
    r->n_given += has_token;
    pthread_mutex_unlock(&r->engine->mutex);
    if (has_token) {
        out->id = r->ids[i];
        out->logprob = r->logprobs[i];
        out->time_ns = r->times[i];
        out->top = r->n_top ? r->tops + (size_t)i * r->n_top : NULL;
        out->n_top = r->n_top;
        *finish = finish_of_token(r, i);
    } else if (!canceled && r->refusal.code != QN_OK) {
        *finish = QN_FINISH_ERROR;
        return fail(d, r->refusal.code, "%s", r->refusal.message);
    }
    if (canceled || (over && *finish == QN_RUNNING && r->refusal.code == QN_OK))
        *finish = QN_FINISH_ABORT;
    TRY(add_text(d, r, out->id, *finish != QN_RUNNING, &out->stop));
    if (out->stop) *finish = QN_FINISH_STOP;
    if (*finish == QN_FINISH_STOP && !out->stop && is_own_stop_id(r, out->id))
        out->stop_token_id = out->id;
    return QN_OK;
}

static int give(struct diag *d, struct qn_request *r, qn_output *out) {
    int finish = r->finish_reason, rc = QN_OK;
    strbuf_clear(&r->piece);
    if (finish == QN_FINISH_ERROR) return fail(d, r->refusal.code, "%s", r->refusal.message);
    if (finish == QN_RUNNING) rc = give_token(d, r, out, &finish);
    pthread_mutex_lock(&r->engine->mutex);
    r->finish_reason = finish;
    list_remove(r->engine, LIST_READY, r); /* to the end: others come before it */
    list_if_ready(r);
    pthread_mutex_unlock(&r->engine->mutex);
    out->text = strbuf_text(&r->piece);
    out->n_text = r->piece.n;
    out->finish_reason = finish;
    return rc;
}

/* The engine is broken: the request ends with the error. */
static void break_request(struct qn_request *r, const struct diag *d) {
    pthread_mutex_lock(&r->engine->mutex);
    r->refusal = *d;
    r->finish_reason = QN_FINISH_ERROR;
    list_if_ready(r);
    pthread_mutex_unlock(&r->engine->mutex);
}

int qn_request_next(qn_request *request, int timeout_ms, qn_output *out, qn_error *error) {
    struct diag d = {0};
    qn_output full = {.id = -1,
                      .logprob = 0,
                      .text = "",
                      .finish_reason = request->finish_reason,
                      .stop_token_id = -1};
    int rc = check_process(&d, request->engine);
    if (rc == QN_OK && !api_struct_fits(out, OUTPUT_LEAST))
        rc = fail(&d, QN_EINVAL, "qn_output: struct_size is not set; want sizeof(qn_output)");
    if (rc != QN_OK) return api_return(rc, &d, error);
    if (request->finish_reason == QN_RUNNING) rc = wait_for(&d, request, timeout_ms);
    if (rc == QN_OK)
        rc = give(&d, request, &full);
    else if (rc != QN_EBUSY)
        break_request(request, &d);
    full.finish_reason = request->finish_reason;
    if (full.stop) qn_request_cancel(request); /* the runtime need not go on */
    api_struct_out(out, &full, sizeof full);
    return api_return(rc, &d, error);
}

/* ---- ends --------------------------------------------------------------------------------- */

void qn_request_cancel(qn_request *request) {
    struct qn_engine *e = request->engine;
    if (check_process(NULL, e) != QN_OK) return;
    pthread_mutex_lock(&e->mutex);
    if (request->state == REQUEST_ACTIVE)
        (void)e->backend->cancel(NULL, e->instance, request->slot);
    if (request->state == REQUEST_QUEUED) {
        fair_queue_remove(&e->queue, &request->place);
        request->state = REQUEST_DONE;
    }
    request->canceled = true;
    list_if_ready(request);
    pthread_mutex_unlock(&e->mutex);
}

int qn_request_finish_reason(const qn_request *request) {
    return request->finish_reason;
}

const int32_t *qn_request_prompt_ids(const qn_request *request, size_t *n) {
    *n = request->runtime.n_prompt;
    return request->prompt;
}

int qn_request_get_stats(const qn_request *request, qn_request_stats *stats) {
    if (!api_struct_fits(stats, sizeof stats->struct_size) ||
        check_process(NULL, request->engine) != QN_OK)
        return QN_EINVAL;
    pthread_mutex_lock(&request->engine->mutex);
    const qn_request_stats full = {.prompt_tokens = request->runtime.n_prompt,
                                   .output_tokens = request->n_given,
                                   .cached_tokens = request->n_cached,
                                   .preemptions = request->n_preempted};
    pthread_mutex_unlock(&request->engine->mutex);
    api_struct_out(stats, &full, sizeof full);
    return QN_OK;
}

int qn_request_prompt_logprobs(qn_request *request, const float **logprobs,
                               const qn_token_logprob **top, size_t *n_top, qn_error *error) {
    struct diag d = {0};
    int rc = QN_OK;
    if (!request->scores)
        rc = fail(&d, QN_EINVAL, "prompt_logprobs: not asked for in qn_sampling_params");
    else if (request->n_given == 0)
        rc = fail(&d, QN_EBUSY, "prompt_logprobs: there with the first token");
    *logprobs = request->prompt_logprobs;
    *top = request->prompt_tops;
    *n_top = request->n_prompt_top;
    return api_return(rc, &d, error);
}

int qn_request_routed_experts(qn_request *request, const uint16_t **experts, size_t *n_positions,
                              qn_error *error) {
    struct diag d = {0};
    int rc = QN_OK;
    if (request->engine->route_stride == 0)
        rc = fail(&d, QN_EINVAL,
                  "routed experts: the engine was opened without enable_return_routed_experts");
    else if (request->finish_reason == QN_RUNNING)
        rc = fail(&d, QN_EBUSY, "routed experts: there when the request has ended");
    *experts = request->routes;
    *n_positions =
        request->n_given > 0 ? request->runtime.n_prompt + (size_t)request->n_given - 1 : 0;
    return api_return(rc, &d, error);
}

void qn_request_free(qn_request *request) {
    if (!request) return;
    struct qn_engine *e = request->engine;
    if (check_process(NULL, e) != QN_OK) return; /* the parent's */
    qn_request_cancel(request);
    pthread_mutex_lock(&e->mutex);
    list_remove(e, LIST_READY, request);
    notifier_show(&e->notifier, e->lists[LIST_READY].n > 0);
    for (size_t i = 0; i < e->active.n; i++) /* the slot stays the runtime's until it is done */
        if (e->active.items[i].request == request) e->active.items[i].request = NULL;
    pthread_mutex_unlock(&e->mutex);
    request_release(request);
}

/* Pumps first, so that ended requests are not counted; a broken engine keeps its last numbers. */
int qn_engine_get_stats(qn_engine *engine, qn_engine_stats *stats) {
    struct rt_counts counts;
    if (!api_struct_fits(stats, sizeof stats->struct_size) || check_process(NULL, engine) != QN_OK)
        return QN_EINVAL;
    pthread_mutex_lock(&engine->mutex);
    (void)session_pump(NULL, engine);
    mailbox_counts(engine->backend->mailbox(engine->instance), &counts);
    const uint32_t n_taken = (uint32_t)engine->active.n, n_running = MIN(counts.n_running, n_taken);
    const qn_engine_stats full = {
        .requests_running = n_running,
        .requests_waiting = n_taken - n_running + (uint32_t)engine->queue.heap.n,
        .kv_blocks_held = engine->info.kv_blocks - counts.n_free,
        .kv_blocks_cached = MIN(counts.n_cached, counts.n_free),
        .kv_blocks_free = counts.n_free - MIN(counts.n_cached, counts.n_free),
        .preemptions = counts.n_preempted,
        .prefix_cache_queries = engine->n_looked_for,
        .prefix_cache_hits = engine->n_found};
    pthread_mutex_unlock(&engine->mutex);
    api_struct_out(stats, &full, sizeof full);
    return QN_OK;
}

/* Requests whose user still waits for tokens; the others only have to leave their slots. */
static size_t count_busy(struct qn_engine *e, size_t *leaving) {
    size_t n = e->queue.heap.n;
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
    TRY(check_process(d, e));
    for (;;) {
        size_t leaving;
        pthread_mutex_lock(&e->mutex);
        int rc = session_pump(d, e);
        *n = count_busy(e, &leaving);
        pthread_mutex_unlock(&e->mutex);
        if (rc != QN_OK || leaving == 0 || *n > 0) return rc;
        TRY(e->backend->wait(d, e->instance, &seen, NAP_SECONDS));
    }
}

void session_end(struct qn_engine *e) {
    fair_queue_fini(&e->queue);
    for (size_t i = 0; i < e->active.n; i++)
        if (e->active.items[i].guide) (void)mask_thread_let_go(e->active.items[i].guide);
    mask_thread_fini(&e->masks);
    ARRAY_FINI(&e->active);
}
