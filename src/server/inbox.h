/* inbox.h - calls that other threads pass to the event loop, in the order of arrival. */
#ifndef QN_SERVER_INBOX_H
#define QN_SERVER_INBOX_H

#include "server/state.h"

struct inbox;

/* take(user, call) runs on the loop for each call put in; call is NULL for a nudge. */
int inbox_open(struct diag *d, struct event_base *base, void (*take)(void *user, struct call *c),
               void *user, struct inbox **inbox);
void inbox_close(struct inbox *i);
void inbox_put(struct inbox *i, struct call *c); /* from any thread */
/* From any thread: take(user, NULL) runs on the loop, once for nudges that come close together. */
void inbox_nudge(struct inbox *i);

#endif
