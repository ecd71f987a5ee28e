/* mask_thread.h - the thread that makes the masks of structured outputs (runtime/rt_mask.h).
 *
 * An engine's first guided request starts it. Whenever the runtime has come further, the thread
 * reads the new tokens of each guide, makes the mask of the tokens that may come next, and writes
 * it to the slot's place in the mailbox. Meanwhile the runtime computes the next token's logits.
 *
 * It takes no lock, and no thread waits for it: while it is stopped, requests without a grammar are
 * submitted, go on and end as ever. mask_thread_add hands a guide to the thread, and
 * mask_thread_let_go takes it back. The slot of a request that ends while the thread works on its
 * guide stays taken until the thread is done.
 */
#ifndef QN_ENGINE_MASK_THREAD_H
#define QN_ENGINE_MASK_THREAD_H

#include "engine/guide.h"
#include "runtime/mailbox.h"

/* Starts as {0}. */
struct mask_thread {
    pthread_t id;
    bool running;
    struct mailbox *mailbox;
    const struct guide_texts *texts;
    struct guide *coming; /* added, and not yet seen by the thread */
    struct guide *guides; /* the thread's */
    uint32_t bell;        /* changes when there is something to look at */
    uint32_t closing;
};

/* Starts the thread, if it does not run. The callers are ordered. Errors: QN_ENOMEM. */
int mask_thread_start(struct diag *d, struct mask_thread *t, struct mailbox *mailbox,
                      const struct guide_texts *texts);
/* Ends the thread; the guides that were added stay. */
void mask_thread_stop(struct mask_thread *t);
/* Frees all guides that the thread has. */
void mask_thread_fini(struct mask_thread *t);

/* Adds the guide of a request that was handed to the runtime, with slot and max_tokens set. */
void mask_thread_add(struct mask_thread *t, struct guide *g);
/* The guide's request is over. Returns whether the slot may be released; if so, g is no longer the
 * caller's. */
bool mask_thread_let_go(struct guide *g);
/* Whether no more masks come, since the grammar cannot go on: g->failure says why. */
bool mask_thread_failed(const struct guide *g);

#endif
