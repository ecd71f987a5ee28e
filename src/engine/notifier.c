/* notifier.c - see notifier.h. */
#include "engine/engine.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Between two looks at whether the engine closes. */
static const double LOOK_SECONDS = 0.05;

void notifier_show(struct notifier *n, bool ready) {
    uint64_t number = 1;
    ready |= n->broken;
    if (!n->running || n->shown == ready) return;
    n->shown = ready;
    /* Neither blocks: the number is 0 before it is written, and 1 before it is read. */
    ssize_t done =
        ready ? write(n->fd, &number, sizeof number) : read(n->fd, &number, sizeof number);
    (void)done;
}

static void *watch(void *arg) {
    struct qn_engine *e = arg;
    struct notifier *n = &e->notifier;
    uint32_t seen = 0;
    while (__atomic_load_n(&n->closing, __ATOMIC_ACQUIRE) == 0) {
        int rc = e->backend->wait(NULL, e->instance, &seen, LOOK_SECONDS);
        pthread_mutex_lock(&e->mutex);
        if (rc == QN_OK) rc = session_pump(NULL, e);
        if (rc != QN_OK) { /* waiting calls say so at once */
            n->broken = true;
            notifier_show(n, true);
        }
        pthread_mutex_unlock(&e->mutex);
        if (rc != QN_OK) break;
    }
    return NULL;
}

/* With the mutex held. */
static int open_fd(struct diag *d, struct qn_engine *e) {
    struct notifier *n = &e->notifier;
    if (n->running) return QN_OK;
    n->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->fd < 0) return fail(d, QN_EIO, "eventfd: %s", strerror(errno));
    n->running = true;
    notifier_show(n, e->lists[LIST_READY].n > 0);
    int code = pthread_create(&n->thread, NULL, watch, e);
    if (code == 0) return QN_OK;
    n->running = n->shown = false;
    close(n->fd);
    return fail(d, QN_ENOMEM, "the notifier's thread: %s", strerror(code));
}

int qn_engine_fd(qn_engine *engine, qn_error *error) {
    struct diag d = {0};
    int rc = engine->process == getpid()
                 ? QN_OK
                 : fail(&d, QN_EINVAL, "the engine belongs to another process");
    if (rc == QN_OK) {
        pthread_mutex_lock(&engine->mutex);
        rc = open_fd(&d, engine);
        pthread_mutex_unlock(&engine->mutex);
    }
    rc = api_return(rc, &d, error);
    return rc == QN_OK ? engine->notifier.fd : rc;
}

void notifier_close(struct notifier *n) {
    if (!n->running) return;
    __atomic_store_n(&n->closing, 1, __ATOMIC_RELEASE);
    pthread_join(n->thread, NULL);
    close(n->fd);
    n->running = false;
}
