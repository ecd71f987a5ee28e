/* run_all.c - independent pieces of work on several threads. */
#include "base/checked.h"
#include "search/candidate.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_THREADS = 64 };

struct crew {
    atomic_uint next;
    uint32_t n;
    int (*work)(struct diag *, void *, uint32_t);
    void *context;
    pthread_mutex_t lock; /* of what follows */
    uint32_t failed;      /* index */
    struct diag diag;
    int rc;
};

static void *take_work(void *arg) {
    struct crew *c = arg;
    for (uint32_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;) {
        struct diag d = {0};
        const int rc = c->work(&d, c->context, i);
        if (rc == QN_OK) continue;
        pthread_mutex_lock(&c->lock);
        if (c->rc == QN_OK || i < c->failed) {
            c->failed = i;
            c->diag = d;
            c->rc = rc;
        }
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

int run_all(struct diag *d, uint32_t n_threads, uint32_t n,
            int (*work)(struct diag *d, void *context, uint32_t i), void *context) {
    struct crew c = {.n = n, .work = work, .context = context};
    pthread_t threads[MAX_THREADS];
    uint32_t started = 0;
    pthread_mutex_init(&c.lock, NULL);
    while (started + 1 < MIN(n_threads, MAX_THREADS) &&
           pthread_create(&threads[started], NULL, take_work, &c) == 0)
        started++;
    take_work(&c);
    while (started > 0) pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&c.lock);
    return c.rc == QN_OK ? QN_OK : fail(d, c.rc, "%s", c.diag.message);
}
