/* wake.h - the engine's thread: opens the engine, then turns "a request has output" into a nudge of
 * the inbox. It is the only file that knows how the loop learns of outputs.
 *
 *   loop                          engine thread
 *   wake_arm ────────────────────► qn_engine_wait ─► inbox_nudge ─► sleeps until it is armed again
 */
#ifndef QN_SERVER_WAKE_H
#define QN_SERVER_WAKE_H

#include "server/state.h"

struct wake;

/* open(user, &engine) runs on the thread first; wake_opened() tells its result after the nudge. */
int wake_start(struct diag *d, struct inbox *inbox, int (*open)(void *user, qn_engine **engine),
               void *user, struct wake **wake);
/* Ends the thread; the engine is the caller's. NULL is allowed. */
void wake_stop(struct wake *w);
/* 0: still opening; 1: *engine is there; -1: it did not open. */
int wake_opened(struct wake *w, qn_engine **engine);
/* From the loop, after all outputs were taken and while requests run: nudges when there are new
 * ones. */
void wake_arm(struct wake *w);

#endif
