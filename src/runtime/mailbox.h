/* mailbox.h - the host's side of the mailbox: hands requests to a running engine, watches their
 * tokens arrive. Any thread may call; a mutex orders the callers among themselves, and no runtime
 * thread ever takes it. The same for every backend.
 */
#ifndef QN_RUNTIME_MAILBOX_H
#define QN_RUNTIME_MAILBOX_H

#include "base/status.h"
#include "runtime/rt_state.h"

#include <pthread.h>
#include <stdbool.h>

struct mailbox {
    /* Bound to the host's view; only their mailbox fields are used. Each rank gets all commands in
     * the same order. Tokens are read from rank 0. */
    const struct rt *ranks[PROG_MAX_RANKS];
    uint32_t n_ranks;
    struct rt_batch limits; /* only its numbers are used */
    uint32_t vocab;
    pthread_mutex_t mutex;
    uint32_t posted; /* commands, = mail.tail */
    uint32_t n_free;
    uint32_t *free_slots; /* [n_slots] stack */
    uint8_t *state;       /* [n_slots] enum mailbox_state */
};

/* What a request has produced so far. The arrays are the runtime's and stay valid until the slot is
 * released; only the first n_out entries may be read. */
struct mailbox_view {
    uint32_t n_out;
    uint32_t finish;                /* enum rt_finish */
    uint32_t n_cached, n_preempted; /* as struct rt_post has them */
    const int32_t *tokens;
    const float *logprobs; /* natural log */
    uint32_t n_scored;
    const float *scored; /* [n_scored] the prompt's last tokens' logprobs, once n_out > 0 */
    uint32_t n_top;      /* rt_lists.n_top */
    const struct rt_token_value *tops; /* [][n_top] beside `tokens`; the first rt_request.n_top of
                                        * each are valid */
    const struct rt_token_value *scored_tops; /* [n_scored][n_top] likewise */
    uint32_t n_routed;      /* positions whose experts are known: of all tokens but the newest one;
                             * 0 before the first output token, and where routes are not kept */
    const uint16_t *routes; /* [n_routed][rt_batch.route_stride] */
};

/* `rt` and the memory behind it must outlive the mailbox. Errors: QN_ENOMEM. */
int mailbox_open(struct diag *d, struct mailbox *m, const struct rt *rt,
                 const struct rt_batch *limits, uint32_t vocab);
/* ... of several ranks with the same limits, which run the same program each for itself. */
int mailbox_open_ranks(struct diag *d, struct mailbox *m, const struct rt *const *ranks,
                       uint32_t n_ranks, const struct rt_batch *limits, uint32_t vocab);
void mailbox_close(struct mailbox *m);

/* Hands over a request with its prompt of request->n_prompt tokens; sets *slot, which is the
 * caller's name for it until mailbox_release. Errors: QN_EINVAL and QN_ELIMIT naming the field,
 * QN_EBUSY when all slots are taken. */
int mailbox_submit(struct diag *d, struct mailbox *m, const struct rt_request *request,
                   const int32_t *prompt, uint32_t *slot);
/* The same for a request with extras; NULL: none. */
int mailbox_submit_with(struct diag *d, struct mailbox *m, const struct rt_request *request,
                        const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot);

/* Asks for a request to end at the next iteration boundary; it then finishes with RT_FINISH_ABORT
 * unless it was done before. Asking again does nothing. Errors: QN_EINVAL for a slot not in use. */
int mailbox_cancel(struct diag *d, struct mailbox *m, uint32_t slot);

/* Tokens are rank 0's; the request has finished when it has on all ranks. Errors: QN_EINVAL for a
 * slot not in use. */
int mailbox_poll(struct diag *d, struct mailbox *m, uint32_t slot, struct mailbox_view *view);

/* Rank 0's counts; may be called at any time. */
void mailbox_counts(const struct mailbox *m, struct rt_counts *counts);

/* The next two are for the mask thread (rt_mask.h), for a slot in use. Neither takes the mutex, so
 * a thread that is stopped in one of them holds up no other thread. mailbox_given: the output
 * tokens that have arrived on all ranks, and where they lie. These tokens do not change. */
uint32_t mailbox_given(const struct mailbox *m, uint32_t slot, const int32_t **tokens);
/* Hands over the mask of the tokens that may come after n_out tokens, one bit per token of the
 * vocabulary: once for each n_out > 0, when mailbox_given has reached it. */
void mailbox_mask(const struct mailbox *m, uint32_t slot, uint32_t n_out, const uint32_t *mask);

/* Releases a finished slot. Errors: QN_EINVAL for a slot not in use, QN_EBUSY when the request has
 * not finished. */
int mailbox_release(struct diag *d, struct mailbox *m, uint32_t slot);

/* mailbox_progress changes whenever there may be something new to poll. mailbox_wait sleeps until
 * it differs from `seen`, at most timeout_ns. The sleep ends early for any wake-up of
 * mail.progress, including one that belongs to an earlier change. On the CPU the runtime's threads
 * wake the sleepers; beside a GPU the backend's watcher does. */
uint32_t mailbox_progress(const struct mailbox *m);
void mailbox_wait(struct mailbox *m, uint32_t seen, uint64_t timeout_ns);

/* Wakes an idle runtime without a request, after the host has changed rt_shared.stop. */
void mailbox_ring(struct mailbox *m);

#endif
