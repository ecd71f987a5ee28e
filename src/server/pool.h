/* pool.h - threads that do a call's work off the loop, and return the call through the inbox. */
#ifndef QN_SERVER_POOL_H
#define QN_SERVER_POOL_H

#include "server/state.h"

struct pool;

/* work(call) runs on one of the pool's threads. */
int pool_open(struct diag *d, struct inbox *inbox, void (*work)(struct call *c),
              struct pool **pool);
/* Finishes the queued work first. NULL is allowed. */
void pool_close(struct pool *p);
void pool_put(struct pool *p, struct call *c);

#endif
