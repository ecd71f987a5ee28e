/* inbox.c - see inbox.h. */
#include "server/inbox.h"

#include <event2/event.h>

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct inbox {
    pthread_mutex_t mutex;
    struct call *first, **end;
    bool nudged;
    int fd;
    struct event *event;
    void (*take)(void *user, struct call *c);
    void *user;
};

static void on_event(evutil_socket_t fd, short what, void *user) {
    struct inbox *i = user;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) < 0) return;
    pthread_mutex_lock(&i->mutex);
    struct call *c = i->first;
    const bool nudged = i->nudged;
    i->first = NULL;
    i->end = &i->first;
    i->nudged = false;
    pthread_mutex_unlock(&i->mutex);
    for (struct call *next; c; c = next) {
        next = c->next;
        i->take(i->user, c);
    }
    if (nudged) i->take(i->user, NULL);
}

static void wake(struct inbox *i) {
    (void)!write(i->fd, &(uint64_t){1}, sizeof(uint64_t));
}

void inbox_put(struct inbox *i, struct call *c) {
    c->next = NULL;
    pthread_mutex_lock(&i->mutex);
    *i->end = c;
    i->end = &c->next;
    pthread_mutex_unlock(&i->mutex);
    wake(i);
}

void inbox_nudge(struct inbox *i) {
    pthread_mutex_lock(&i->mutex);
    i->nudged = true;
    pthread_mutex_unlock(&i->mutex);
    wake(i);
}

int inbox_open(struct diag *d, struct event_base *base, void (*take)(void *user, struct call *c),
               void *user, struct inbox **inbox) {
    struct inbox *i = calloc(1, sizeof *i);
    *inbox = i;
    if (!i) return fail_nomem(d, sizeof *i, "the inbox");
    pthread_mutex_init(&i->mutex, NULL);
    i->end = &i->first;
    i->take = take;
    i->user = user;
    i->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (i->fd >= 0) i->event = event_new(base, i->fd, EV_READ | EV_PERSIST, on_event, i);
    if (!i->event || event_add(i->event, NULL) != 0) return fail_nomem(d, 0, "the inbox");
    return QN_OK;
}

void inbox_close(struct inbox *i) {
    if (!i) return;
    if (i->event) event_free(i->event);
    if (i->fd >= 0) close(i->fd);
    pthread_mutex_destroy(&i->mutex);
    free(i);
}
