/* wake.c - see wake.h. */
#include "server/wake.h"
#include "server/inbox.h"

#include <pthread.h>
#include <stdlib.h>

enum { WAIT_MS = 100 }; /* how late wake_stop may be heeded, and a freed request noticed */

struct wake {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool armed, stopping;
    int opened;
    qn_engine *engine;
    struct inbox *inbox;
    int (*open)(void *user, qn_engine **engine);
    void *user;
};

static bool wait_armed(struct wake *w) {
    pthread_mutex_lock(&w->mutex);
    while (!w->armed && !w->stopping) pthread_cond_wait(&w->changed, &w->mutex);
    w->armed = false;
    const bool go_on = !w->stopping;
    pthread_mutex_unlock(&w->mutex);
    return go_on;
}

static void *run(void *user) {
    struct wake *w = user;
    qn_engine *engine = NULL;
    const int rc = w->open(w->user, &engine);
    pthread_mutex_lock(&w->mutex);
    w->opened = rc == QN_OK ? 1 : -1;
    w->engine = engine;
    pthread_mutex_unlock(&w->mutex);
    inbox_nudge(w->inbox);
    while (rc == QN_OK && wait_armed(w)) {
        qn_engine_wait(engine, WAIT_MS, NULL); /* the loop sees errors when it asks itself */
        inbox_nudge(w->inbox);
    }
    return NULL;
}

int wake_start(struct diag *d, struct inbox *inbox, int (*open)(void *user, qn_engine **engine),
               void *user, struct wake **wake) {
    struct wake *w = calloc(1, sizeof *w);
    *wake = NULL;
    if (!w) return fail_nomem(d, sizeof *w, "the engine's thread");
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->inbox = inbox;
    w->open = open;
    w->user = user;
    if (pthread_create(&w->thread, NULL, run, w) != 0) {
        free(w);
        return fail_nomem(d, 0, "the engine's thread");
    }
    *wake = w;
    return QN_OK;
}

void wake_stop(struct wake *w) {
    if (!w) return;
    pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

int wake_opened(struct wake *w, qn_engine **engine) {
    pthread_mutex_lock(&w->mutex);
    const int opened = w->opened;
    *engine = w->engine;
    pthread_mutex_unlock(&w->mutex);
    return opened;
}

void wake_arm(struct wake *w) {
    pthread_mutex_lock(&w->mutex);
    w->armed = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}
