/* pool.c - see pool.h. */
#include "server/pool.h"
#include "server/inbox.h"

#include <pthread.h>
#include <stdlib.h>

enum { N_THREADS = 2 };

struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct call *first, **end;
    bool closing;
    pthread_t threads[N_THREADS];
    int n_threads;
    struct inbox *inbox;
    void (*work)(struct call *c);
};

static struct call *take(struct pool *p) {
    pthread_mutex_lock(&p->mutex);
    while (!p->first && !p->closing) pthread_cond_wait(&p->changed, &p->mutex);
    struct call *c = p->first;
    if (c) p->first = c->next;
    if (!p->first) p->end = &p->first;
    pthread_mutex_unlock(&p->mutex);
    return c;
}

static void *run(void *user) {
    struct pool *p = user;
    for (struct call *c; (c = take(p)) != NULL;) {
        p->work(c);
        inbox_put(p->inbox, c);
    }
    return NULL;
}

void pool_put(struct pool *p, struct call *c) {
    c->next = NULL;
    pthread_mutex_lock(&p->mutex);
    *p->end = c;
    p->end = &c->next;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

int pool_open(struct diag *d, struct inbox *inbox, void (*work)(struct call *c),
              struct pool **pool) {
    struct pool *p = calloc(1, sizeof *p);
    *pool = p;
    if (!p) return fail_nomem(d, sizeof *p, "the work threads");
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->end = &p->first;
    p->inbox = inbox;
    p->work = work;
    for (; p->n_threads < N_THREADS; p->n_threads++)
        if (pthread_create(&p->threads[p->n_threads], NULL, run, p) != 0)
            return fail_nomem(d, 0, "a work thread");
    return QN_OK;
}

void pool_close(struct pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->closing = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}
