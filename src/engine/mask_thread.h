/* mask_thread.h - the thread that makes the masks of structured outputs (runtime/rt_mask.h).
 *
 * An engine's first guided request starts it. Whenever the runtime has come further, it reads the
 * new tokens of each guide, makes the mask of the tokens that may come next, and puts it into the
 * slot's place in the mailbox, while the runtime computes that token's logits.
 *
 * It takes no lock, and no thread waits for it: while it is stopped, requests without a grammar go
 * on, and are submitted and ended as ever. A guide comes over by mask_thread_add, and is given back
 * by mask_thread_let_go; the slot of a request that ends while the thread is at its guide stays
 * taken until it is done.
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
/* Ends it; what was added stays. */
void mask_thread_stop(struct mask_thread *t);
/* Frees all guides that it has. */
void mask_thread_fini(struct mask_thread *t);

/* The guide of a request that was handed to the runtime, with slot and max_tokens. */
void mask_thread_add(struct mask_thread *t, struct guide *g);
/* Its request is over. Whether the slot may be given back; if so, g is no longer the caller's. */
bool mask_thread_let_go(struct guide *g);
/* Whether no more masks come, since the grammar cannot go on: g->failure says why. */
bool mask_thread_failed(const struct guide *g);

#endif
