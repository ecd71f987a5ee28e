#include "engine/cuda_image.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum {
    REPORT_NS = 100000000,
    STACK_BYTES = 64 << 20, /* what NVRTC needs is not written down; untouched pages cost nothing */
};

struct job {
    struct diag *d;
    const struct prog_header *program;
    const struct kernel_image_options *o;
    bool cache_off;
    struct kernel_image *image;
    int rc;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done; /* under the mutex */
};

static int make(const struct job *j) {
    struct nvrtc nvrtc;
    struct kernel_cache cache;
    TRY(nvrtc_open(j->d, getenv("QN_NVRTC"), &nvrtc));
    kernel_cache_init(&cache, j->cache_off);
    const int rc = kernel_image_make(j->d, &nvrtc, &cache, j->program, j->o, j->image);
    nvrtc_close(&nvrtc);
    return rc;
}

static void *make_main(void *user) {
    struct job *j = user;
    j->rc = make(j);
    pthread_mutex_lock(&j->mutex);
    j->done = true;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->mutex);
    return NULL;
}

/* Waits REPORT_NS at most; returns whether the image is made. */
static bool wait_a_while(struct job *j) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REPORT_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&j->mutex);
    while (!j->done && pthread_cond_timedwait(&j->changed, &j->mutex, &until) == 0) continue;
    const bool done = j->done;
    pthread_mutex_unlock(&j->mutex);
    return done;
}

/* Starts the thread; false: there is none. */
static bool begin(struct job *j, pthread_t *thread) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return false;
    bool begun = pthread_attr_setstacksize(&attr, STACK_BYTES) == 0 &&
                 pthread_create(thread, &attr, make_main, j) == 0;
    pthread_attr_destroy(&attr);
    return begun;
}

static int open_sync(struct diag *d, struct job *j) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return fail(d, QN_ENOMEM, "no condition variable");
    int code = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (code == 0) code = pthread_cond_init(&j->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (code != 0) return fail(d, QN_ENOMEM, "no condition variable");
    code = pthread_mutex_init(&j->mutex, NULL);
    if (code == 0) return QN_OK;
    pthread_cond_destroy(&j->changed);
    return fail(d, QN_ENOMEM, "no mutex");
}

int cuda_image_make(struct diag *d, const struct prog_header *program,
                    const struct kernel_image_options *o, bool cache_off,
                    const struct backend_config *config, struct kernel_image *image) {
    struct job j = {.d = d, .program = program, .o = o, .cache_off = cache_off, .image = image};
    pthread_t thread;
    *image = (struct kernel_image){0};
    if (config->progress == NULL) return make(&j);
    TRY(open_sync(d, &j));
    config->progress(config->progress_user, "kernels", 0, 0);
    if (begin(&j, &thread)) {
        while (!wait_a_while(&j)) config->progress(config->progress_user, "kernels", 0, 0);
        pthread_join(thread, NULL);
    } else {
        j.rc = make(&j);
    }
    pthread_mutex_destroy(&j.mutex);
    pthread_cond_destroy(&j.changed);
    return j.rc;
}
