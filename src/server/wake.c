/* wake.c - see wake.h. */
#include "server/wake.h"
#include "server/inbox.h"

#include <event2/event.h>

#include <pthread.h>
#include <stdlib.h>

struct wake {
    pthread_mutex_t mutex;
    pthread_t thread;
    int opened;
    qn_engine *engine;
    struct inbox *inbox;
    int (*open)(void *user, qn_engine **engine);
    void *open_user;
    struct event *event;
    void (*output)(void *user);
    void *output_user;
};

static void *run(void *user) {
    struct wake *w = user;
    qn_engine *engine = NULL;
    const int rc = w->open(w->open_user, &engine);
    pthread_mutex_lock(&w->mutex);
    w->opened = rc == QN_OK ? 1 : -1;
    w->engine = engine;
    pthread_mutex_unlock(&w->mutex);
    inbox_nudge(w->inbox);
    return NULL;
}

int wake_start(struct diag *d, struct inbox *inbox, int (*open)(void *user, qn_engine **engine),
               void *user, struct wake **wake) {
    struct wake *w = calloc(1, sizeof *w);
    *wake = NULL;
    if (!w) return fail_nomem(d, sizeof *w, "the engine's thread");
    pthread_mutex_init(&w->mutex, NULL);
    w->inbox = inbox;
    w->open = open;
    w->open_user = user;
    if (pthread_create(&w->thread, NULL, run, w) != 0) {
        free(w);
        return fail_nomem(d, 0, "the engine's thread");
    }
    *wake = w;
    return QN_OK;
}

void wake_stop(struct wake *w) {
    if (!w) return;
    pthread_join(w->thread, NULL);
    if (w->event) event_free(w->event);
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

static void on_readable(evutil_socket_t fd, short what, void *user) {
    struct wake *w = user;
    (void)fd, (void)what;
    w->output(w->output_user);
}

int wake_watch(struct diag *d, struct wake *w, struct event_base *base, void (*output)(void *user),
               void *user) {
    qn_error error;
    const int fd = qn_engine_fd(w->engine, &error);
    if (fd < 0) return fail(d, fd, "%s", error.message);
    w->output = output;
    w->output_user = user;
    w->event = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, w);
    if (!w->event || event_add(w->event, NULL) != 0) return fail_nomem(d, 0, "an event");
    return QN_OK;
}
