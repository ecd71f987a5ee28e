/* wake.h - the engine's thread, which opens the engine, and the event for requests with output.
 * Only this file knows how the loop learns of either. */
#ifndef QN_SERVER_WAKE_H
#define QN_SERVER_WAKE_H

#include "server/state.h"

struct wake;

/* open(user, &engine) runs on a thread, and the inbox is nudged after it. */
int wake_start(struct diag *d, struct inbox *inbox, int (*open)(void *user, qn_engine **engine),
               void *user, struct wake **wake);
/* Waits for the thread; the engine passes to the caller. NULL is allowed. */
void wake_stop(struct wake *w);
/* 0: still opening; 1: *engine is open; -1: it did not open. */
int wake_opened(struct wake *w, qn_engine **engine);
/* After the engine is open: output(user) runs on the loop while requests have output. */
int wake_watch(struct diag *d, struct wake *w, struct event_base *base, void (*output)(void *user),
               void *user);

#endif
