#include "runtime/mailbox.h"

#include "base/sampling.h"
#include "runtime/rt_boundary.h"
#include "runtime/rt_mask.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum mailbox_state { MAILBOX_FREE = 0, MAILBOX_USED = 1, MAILBOX_CANCELED = 2 };

int mailbox_open(struct diag *d, struct mailbox *m, const struct rt *rt,
                 const struct rt_batch *limits, uint32_t vocab) {
    return mailbox_open_ranks(d, m, &rt, 1, limits, vocab);
}

int mailbox_open_ranks(struct diag *d, struct mailbox *m, const struct rt *const *ranks,
                       uint32_t n_ranks, const struct rt_batch *limits, uint32_t vocab) {
    uint32_t n = limits->n_slots;
    assert(n_ranks >= 1 && n_ranks <= PROG_MAX_RANKS);
    *m = (struct mailbox){.n_ranks = n_ranks, .limits = *limits, .vocab = vocab, .n_free = n};
    for (uint32_t k = 0; k < n_ranks; k++) m->ranks[k] = ranks[k];
    pthread_mutex_init(&m->mutex, NULL);
    m->free_slots = malloc(n * sizeof *m->free_slots);
    m->state = calloc(n, sizeof *m->state);
    if (m->free_slots == NULL || m->state == NULL) {
        mailbox_close(m);
        return fail_nomem(d, n * sizeof *m->free_slots, "mailbox");
    }
    for (uint32_t i = 0; i < n; i++) m->free_slots[i] = n - 1 - i;
    return QN_OK;
}

void mailbox_close(struct mailbox *m) {
    if (m->n_ranks == 0) return;
    free(m->free_slots);
    free(m->state);
    pthread_mutex_destroy(&m->mutex);
    *m = (struct mailbox){0};
}

/* ---- what a request may say ---- */

static int check_sampling(struct diag *d, const struct rt_sampling *s) {
#define SAMPLING(...)
#define SAMPLING_LIST(...)
#define SAMPLING_DRAW(ID, name, ...)                                                               \
    TRY(sampling_check_range(d, &sampling_table[SAMPLING_PARAM_##ID], (double)s->name));
#include "base/sampling.def"
    return QN_OK;
}

static int check_biases(struct diag *d, const struct mailbox *m,
                        const struct rt_token_value *biases, uint32_t n) {
    if (n == 0) return QN_OK;
    if (m->limits.lists == NULL) return fail(d, QN_EUNSUPPORTED, "biases: the CPU backend's only");
    if (biases == NULL || n > RT_MAX_BIASES)
        return fail(d, QN_ELIMIT, "biases: want at most %d, have %u", RT_MAX_BIASES, n);
    for (uint32_t i = 0; i < n; i++)
        if (biases[i].id < 0 || (uint32_t)biases[i].id >= m->vocab || !isfinite(biases[i].value))
            return fail(d, QN_EINVAL, "biases: want finite ones of tokens below %u, have %g of %d",
                        m->vocab, (double)biases[i].value, biases[i].id);
    return QN_OK;
}

static int check_request(struct diag *d, const struct mailbox *m, const struct rt_request *q,
                         const struct rt_extras *extras, const int32_t *prompt) {
    const struct rt_batch *b = &m->limits;
    if (q->n_prompt == 0) return fail(d, QN_EINVAL, "prompt: want at least one token");
    if (q->max_tokens == 0) return fail(d, QN_EINVAL, "max_tokens: want at least 1");
    uint64_t total = (uint64_t)q->n_prompt + q->max_tokens;
    if (total > b->max_model_len)
        return fail(d, QN_ELIMIT, "prompt of %u tokens plus max_tokens %u exceed the limit of %u",
                    q->n_prompt, q->max_tokens, b->max_model_len);
    if (rt_blocks_needed(b, (uint32_t)total) > b->n_kv_blocks)
        return fail(d, QN_ELIMIT, "prompt plus max_tokens of %u need %u KV blocks, there are %u",
                    (uint32_t)total, rt_blocks_needed(b, (uint32_t)total), b->n_kv_blocks);
    if (q->n_stop > RT_MAX_STOP_IDS)
        return fail(d, QN_ELIMIT, "stop_token_ids: want at most %d, have %u", RT_MAX_STOP_IDS,
                    q->n_stop);
    if (q->n_scored >= q->n_prompt)
        return fail(d, QN_EINVAL, "n_scored: want fewer than the prompt's %u tokens, have %u",
                    q->n_prompt, q->n_scored);
    if (q->cache_space > RT_MAX_CACHE_SPACE)
        return fail(d, QN_EINVAL, "cache_space: want at most %u, have %u",
                    (uint32_t)RT_MAX_CACHE_SPACE, q->cache_space);
    const uint32_t most = b->lists ? b->lists->n_top : 0;
    if (q->n_top > most)
        return fail(d, QN_ELIMIT, "n_top: want at most %u, have %u", most, q->n_top);
    TRY(check_biases(d, m, extras->biases, q->n_biases));
    if (q->guided && extras->mask == NULL)
        return fail(d, QN_EINVAL, "guided: want a mask of the tokens that may come first");
    for (uint32_t i = 0; i < q->n_prompt; i++)
        if (prompt[i] < 0 || (uint32_t)prompt[i] >= m->vocab)
            return fail(d, QN_EINVAL, "prompt: token %d at %u is not in a vocabulary of %u",
                        prompt[i], i, m->vocab);
    return check_sampling(d, &q->sampling);
}

/* ---- commands; the mutex is held ---- */

static bool has_room(const struct mailbox *m) {
    for (uint32_t k = 0; k < m->n_ranks; k++) {
        const struct rt *rt = m->ranks[k];
        if (m->posted - rt_host_load_acquire(&rt->mail->head) > rt->command_mask) return false;
    }
    return true;
}

static void post(struct mailbox *m, uint32_t kind, uint32_t slot) {
    const uint32_t at = m->posted++;
    for (uint32_t k = 0; k < m->n_ranks; k++) {
        const struct rt *rt = m->ranks[k];
        rt->commands[at & rt->command_mask] = (struct rt_command){.kind = kind, .slot = slot};
        rt_host_store_release(&rt->mail->tail, m->posted);
        rt_host_wake_all(&rt->mail->tail);
    }
}

/* How the request ended on all ranks; RT_RUNNING: it has not ended on some rank. */
static uint32_t finish_of(const struct mailbox *m, uint32_t slot) {
    uint32_t finish = rt_host_load_acquire(&m->ranks[0]->posts[slot].finish);
    for (uint32_t k = 1; k < m->n_ranks; k++)
        if (rt_host_load_acquire(&m->ranks[k]->posts[slot].finish) == RT_RUNNING)
            finish = RT_RUNNING;
    return finish;
}

uint32_t mailbox_given(const struct mailbox *m, uint32_t slot, const int32_t **tokens) {
    const struct rt *rt = m->ranks[0];
    uint32_t n = rt_host_load_acquire(&rt->posts[slot].n_out);
    for (uint32_t k = 1; k < m->n_ranks; k++)
        n = rt_min(n, rt_host_load_acquire(&m->ranks[k]->posts[slot].n_out));
    *tokens = (rt->out_tokens ? rt->out_tokens : m->limits.tokens) +
              (uint64_t)slot * m->limits.max_model_len + rt->mail_requests[slot].n_prompt;
    return n;
}

void mailbox_mask(const struct mailbox *m, uint32_t slot, uint32_t n_out, const uint32_t *mask) {
    for (uint32_t k = 0; k < m->n_ranks; k++) {
        uint32_t *place =
            rt_masks_of(m->ranks[k]->posts, m->limits.n_slots) + rt_mask_at(m->vocab, slot);
        memcpy(place + RT_MASK_HEAD, mask, rt_mask_words(m->vocab) * sizeof *mask);
        rt_host_store_release(place, n_out + 1);
    }
}

static int submit_locked(struct diag *d, struct mailbox *m, const struct rt_request *request,
                         const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot) {
    if (m->n_free == 0 || !has_room(m))
        return fail(d, QN_EBUSY, "all %u requests in flight are taken", m->limits.n_slots);
    uint32_t s = m->free_slots[--m->n_free];
    /* The slot is the host's until the command is posted. */
    if (request->n_biases > 0)
        memcpy(m->limits.lists->biases + (uint64_t)s * RT_MAX_BIASES, extras->biases,
               request->n_biases * sizeof *extras->biases);
    if (request->guided) mailbox_mask(m, s, 0, extras->mask);
    for (uint32_t k = 0; k < m->n_ranks; k++) {
        const struct rt *rt = m->ranks[k];
        ((struct rt_request *)rt->mail_requests)[s] = *request;
        memcpy((int32_t *)rt->prompts + (uint64_t)s * m->limits.max_model_len, prompt,
               request->n_prompt * sizeof *prompt);
        rt->posts[s] = (struct rt_post){0};
    }
    m->state[s] = MAILBOX_USED;
    post(m, RT_COMMAND_SUBMIT, s);
    *slot = s;
    return QN_OK;
}

int mailbox_submit(struct diag *d, struct mailbox *m, const struct rt_request *request,
                   const int32_t *prompt, uint32_t *slot) {
    return mailbox_submit_with(d, m, request, NULL, prompt, slot);
}

int mailbox_submit_with(struct diag *d, struct mailbox *m, const struct rt_request *request,
                        const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot) {
    static const struct rt_extras none;
    if (extras == NULL) extras = &none;
    TRY(check_request(d, m, request, extras, prompt));
    pthread_mutex_lock(&m->mutex);
    int rc = submit_locked(d, m, request, extras, prompt, slot);
    pthread_mutex_unlock(&m->mutex);
    return rc;
}

static bool in_use(const struct mailbox *m, uint32_t slot) {
    return slot < m->limits.n_slots && m->state[slot] != MAILBOX_FREE;
}

static int fail_slot(struct diag *d, uint32_t slot) {
    return fail(d, QN_EINVAL, "request %u is not in flight", slot);
}

int mailbox_cancel(struct diag *d, struct mailbox *m, uint32_t slot) {
    int rc = QN_OK;
    pthread_mutex_lock(&m->mutex);
    if (!in_use(m, slot))
        rc = fail_slot(d, slot);
    else if (m->state[slot] == MAILBOX_USED && finish_of(m, slot) == RT_RUNNING) {
        if (has_room(m)) {
            post(m, RT_COMMAND_CANCEL, slot);
            m->state[slot] = MAILBOX_CANCELED;
        } else {
            rc = fail(d, QN_EBUSY, "request %u: too many commands under way", slot);
        }
    }
    pthread_mutex_unlock(&m->mutex);
    return rc;
}

int mailbox_poll(struct diag *d, struct mailbox *m, uint32_t slot, struct mailbox_view *view) {
    const struct rt *rt = m->ranks[0];
    pthread_mutex_lock(&m->mutex);
    bool used = in_use(m, slot);
    pthread_mutex_unlock(&m->mutex);
    if (!used) return fail_slot(d, slot);
    uint64_t first = (uint64_t)slot * m->limits.max_model_len + rt->mail_requests[slot].n_prompt;
    /* finish first: it is stored after n_out, so a finished request shows all its tokens. */
    view->finish = finish_of(m, slot);
    view->n_out = rt_host_load_acquire(&rt->posts[slot].n_out);
    view->n_cached = rt_host_load_acquire(&rt->posts[slot].n_cached);
    view->n_preempted = rt_host_load_acquire(&rt->posts[slot].n_preempted);
    view->tokens = (rt->out_tokens ? rt->out_tokens : m->limits.tokens) + first;
    view->logprobs = (rt->out_logprobs ? rt->out_logprobs : m->limits.logprobs) + first;
    view->n_scored = rt->mail_requests[slot].n_scored;
    view->scored = view->logprobs - view->n_scored;
    const struct rt_lists *lists = m->limits.lists;
    view->n_top = lists ? lists->n_top : 0;
    view->tops = view->n_top > 0 ? lists->tops + first * view->n_top : NULL;
    view->scored_tops =
        view->n_top > 0 ? view->tops - (uint64_t)view->n_scored * view->n_top : NULL;
    const struct rt_batch *b = &m->limits;
    const bool routed = b->routes != NULL && view->n_out > 0;
    view->n_routed = routed ? rt->mail_requests[slot].n_prompt + view->n_out - 1 : 0;
    view->routes = routed ? b->routes + (uint64_t)slot * b->max_model_len * b->route_stride : NULL;
    return QN_OK;
}

void mailbox_counts(const struct mailbox *m, struct rt_counts *counts) {
    const struct rt_counts *from = &m->ranks[0]->mail->counts;
    *counts = (struct rt_counts){.n_free = rt_host_load_acquire(&from->n_free),
                                 .n_cached = rt_host_load_acquire(&from->n_cached),
                                 .n_running = rt_host_load_acquire(&from->n_running),
                                 .n_waiting = rt_host_load_acquire(&from->n_waiting),
                                 .n_preempted = rt_host_load_acquire(&from->n_preempted)};
}

int mailbox_release(struct diag *d, struct mailbox *m, uint32_t slot) {
    int rc = QN_OK;
    pthread_mutex_lock(&m->mutex);
    if (!in_use(m, slot))
        rc = fail_slot(d, slot);
    else if (finish_of(m, slot) == RT_RUNNING)
        rc = fail(d, QN_EBUSY, "request %u has not finished", slot);
    else {
        m->state[slot] = MAILBOX_FREE;
        m->free_slots[m->n_free++] = slot;
    }
    pthread_mutex_unlock(&m->mutex);
    return rc;
}

/* ---- waiting ---- */

uint32_t mailbox_progress(const struct mailbox *m) {
    uint32_t sum = 0;
    for (uint32_t k = 0; k < m->n_ranks; k++)
        sum += rt_host_load_acquire(&m->ranks[k]->mail->progress);
    return sum;
}

void mailbox_wait(struct mailbox *m, uint32_t seen, uint64_t timeout_ns) {
    struct rt_mail *mail = m->ranks[0]->mail;
    rt_host_announce(&mail->host_sleepers, 1);
    const uint32_t word = rt_host_load_acquire(&mail->progress);
    if (mailbox_progress(m) == seen) rt_host_sleep(&mail->progress, word, timeout_ns);
    rt_host_announce(&mail->host_sleepers, -1);
}

void mailbox_ring(struct mailbox *m) {
    pthread_mutex_lock(&m->mutex);
    post(m, 0, 0);
    pthread_mutex_unlock(&m->mutex);
}
