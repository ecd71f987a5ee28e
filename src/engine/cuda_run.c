/* cuda_run.c - see cuda_run.h. */
#include "engine/cuda_run.h"

#include "runtime/rt_stall.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    LOOKS_PER_QUERY = 8,   /* the driver is asked less often, because all threads share its lock */
    TIMER_SLACK_NS = 1000, /* Linux adds 50 us to every nap otherwise */
    IDLE_NS = 100 * 1000 * 1000,
};
#define GRACE_NS ((uint64_t)5000000000) /* for a kernel to end once it was told to */

static void nap(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static void set_phase(struct cuda_run *r, enum cuda_run_phase phase) {
    __atomic_store_n(&r->phase, (uint32_t)phase, __ATOMIC_RELEASE);
}

static uint32_t phase_of(const struct cuda_run *r) {
    return __atomic_load_n(&r->phase, __ATOMIC_ACQUIRE);
}

static bool closing(const struct cuda_run *r) {
    return __atomic_load_n(&r->closing, __ATOMIC_ACQUIRE) != 0;
}

int cuda_run_status(struct diag *d, const struct cuda_run *r) {
    if (phase_of(r) != CUDA_RUN_BROKEN) return QN_OK;
    return fail(d, r->failure.code, "%s", r->failure.message);
}

uint64_t cuda_run_launches(const struct cuda_run *r) {
    return __atomic_load_n(&r->n_launches, __ATOMIC_ACQUIRE);
}

bool cuda_run_busy(const struct cuda_run *r) {
    return phase_of(r) == CUDA_RUN_LAUNCHED;
}

/* ---- everything below runs on the watcher, with the context current ---- */

static void wake(struct cuda_run *r, uint32_t progress) {
    r->woken = progress;
    rt_host_wake_all(&r->o.readers->progress);
}

static void set_broken(struct cuda_run *r) {
    if (r->failure.code == QN_OK) fail(&r->failure, QN_EDEVICE, "the kernel ended for no reason");
    set_phase(r, CUDA_RUN_BROKEN);
    wake(r, rt_host_load_acquire(&r->o.mail->progress));
}

static cu_pointer address(const void *on_device) {
    return (cu_pointer)(uintptr_t)on_device;
}

static int launch_checked(struct diag *d, struct cuda_run *r, bool again) {
    const struct cuda_api *api = r->o.api;
    struct cuda_args args = *r->o.args;
    void *arguments[] = {&args};
    if (again) {
        rt_memory_relaunch(&r->shared);
        CU(d, api, cuMemcpyHtoDAsync_v2, address(args.rt.shared), &r->shared, sizeof r->shared,
           r->stream);
    }
    if (r->o.trace != NULL) {
        TRY(cuda_trace_switch(d, r->o.trace, r->stream));
        r->o.trace->launched_ns = rt_now_ns();
    }
    CU(d, api, cuLaunchCooperativeKernel, r->o.mega, args.rt.n_workers, 1, 1, CUDA_BLOCK_THREADS, 1,
       1, r->o.shared_bytes, r->stream, arguments);
    CU(d, api, cuEventRecord, r->ended, r->stream);
    return QN_OK;
}

static void launch(struct cuda_run *r) {
    bool again = r->n_launches > 0;
    r->seen_ns = 0;
    /* Both are stored before the launch, so that a reader with a token of it sees its number, and
     * sees it running. */
    __atomic_store_n(&r->n_launches, r->n_launches + 1, __ATOMIC_RELEASE);
    set_phase(r, CUDA_RUN_LAUNCHED);
    if (launch_checked(&r->failure, r, again) != QN_OK) set_broken(r);
}

/* Copies from the device: in r->stream when the kernel has ended, in r->side while it runs. */
static int read_back(struct diag *d, struct cuda_run *r, cu_stream stream, void *to,
                     cu_pointer from, size_t bytes) {
    CU(d, r->o.api, cuMemcpyDtoHAsync_v2, to, from, bytes, stream);
    CU(d, r->o.api, cuStreamSynchronize, stream);
    return QN_OK;
}

static int read_shared(struct diag *d, struct cuda_run *r, cu_stream stream) {
    return read_back(d, r, stream, &r->shared, address(r->o.args->rt.shared), sizeof r->shared);
}

/* Reads the runtime's whole state back and lets rt_stall say what it finds there. */
static void fail_stall(struct diag *d, struct cuda_run *r, cu_stream stream) {
    const struct rt_memory *m = r->o.memory;
    char *state = malloc(m->state_bytes);
    struct rt rt;
    struct rt_batch batch;
    /* Everything in `state` has its offset from `shared`, the first part. */
    cu_pointer base = address(r->o.args->rt.shared) - m->offset[RT_PART_SHARED];
    if (state == NULL) {
        fail_nomem(d, m->state_bytes, "the state of a stalled kernel");
    } else if (read_back(d, r, stream, state, base, m->state_bytes) == QN_OK) {
        rt_memory_bind(m, r->o.program, r->o.program, state, r->o.mail, &rt, &batch);
        rt_stall_fail(d, r->o.program, &rt);
    }
    free(state);
}

static bool commands_left(const struct cuda_run *r) {
    const struct rt_mail *mail = r->o.mail;
    return rt_host_load_acquire(&mail->head) != rt_host_load_acquire(&mail->tail);
}

/* The kernel has ended: learns why. A command that came after its last look starts it again. */
static void finish(struct cuda_run *r) {
    struct diag *d = &r->failure;
    if ((r->o.trace != NULL && cuda_trace_take(d, r->o.trace, r->stream) != QN_OK) ||
        read_shared(d, r, r->stream) != QN_OK) {
        set_broken(r);
        return;
    }
    switch (r->shared.stop) {
    case RT_STOP_IDLE:
        set_phase(r, CUDA_RUN_IDLE);
        wake(r, rt_host_load_acquire(&r->o.mail->progress)); /* for what came after the last look */
        return;
    case RT_STOP_STALL: fail_stall(d, r, r->stream); break;
    case RT_STOP_HOST: fail(d, QN_ECANCELED, "the engine is closing"); break;
    default: break;
    }
    set_broken(r);
}

/* Writes shared->stop while the kernel runs. */
static int tell_stop(struct diag *d, struct cuda_run *r) {
    uint32_t stop = RT_STOP_HOST;
    cu_pointer to = address(r->o.args->rt.shared) + offsetof(struct rt_shared, stop);
    CU(d, r->o.api, cuMemcpyHtoDAsync_v2, to, &stop, sizeof stop, r->side);
    CU(d, r->o.api, cuStreamSynchronize, r->side);
    return QN_OK;
}

/* Tells the kernel to stop and waits for its end; sets r->hung if it does not end. */
static void stop_kernel(struct cuda_run *r) {
    r->hung = tell_stop(NULL, r) != QN_OK;
    uint64_t start = rt_now_ns();
    while (!r->hung && r->o.api->cuEventQuery(r->ended) == CU_ERROR_NOT_READY) {
        r->hung = rt_now_ns() - start > GRACE_NS;
        nap(r->o.look_ns);
    }
}

/* A kernel that does not end may have reported a stall before. */
static void fail_silence(struct cuda_run *r, uint64_t ns) {
    struct diag why = {0};
    if (read_shared(NULL, r, r->side) == QN_OK && r->shared.stop == RT_STOP_STALL)
        fail_stall(&why, r, r->side);
    fail(&r->failure, QN_ESTALL,
         "%s%sthe kernel gave no sign of life for %.1f s in iteration %u and did not stop itself",
         why.message, why.code != QN_OK ? "; then " : "", 1e-9 * (double)ns,
         rt_host_load_acquire(&r->o.mail->heartbeat));
}

/* A kernel whose own deadlines do not work gives no sign of life. */
static void watchdog(struct cuda_run *r, uint32_t progress) {
    uint64_t now = rt_now_ns();
    if (r->seen_ns == 0 || progress != r->seen) {
        r->seen = progress;
        r->seen_ns = now;
    } else if (r->o.silence_ns > 0 && now - r->seen_ns > r->o.silence_ns) {
        fail_silence(r, now - r->seen_ns);
        stop_kernel(r);
        set_broken(r);
    }
}

/* Asks the driver whether the kernel has ended. */
static void query(struct cuda_run *r) {
    cu_result state = r->o.api->cuEventQuery(r->ended);
    if (state == CU_SUCCESS) {
        finish(r);
    } else if (state != CU_ERROR_NOT_READY) {
        cuda_check(&r->failure, r->o.api, "the mega-kernel", state);
        set_broken(r);
    }
}

static void look(struct cuda_run *r, uint32_t n) {
    uint32_t progress = rt_host_load_acquire(&r->o.mail->progress);
    if (progress != r->woken) wake(r, progress);
    if (r->o.trace != NULL && cuda_trace_switch(&r->failure, r->o.trace, r->side) != QN_OK)
        set_broken(r);
    else if (n % LOOKS_PER_QUERY == 0)
        query(r);
    if (phase_of(r) == CUDA_RUN_LAUNCHED) watchdog(r, progress);
}

static void step(struct cuda_run *r, uint32_t n) {
    if (phase_of(r) == CUDA_RUN_LAUNCHED) {
        nap(r->o.look_ns);
        look(r, n);
        return;
    }
    uint32_t tail = rt_host_load_acquire(&r->o.mail->tail);
    if (commands_left(r))
        launch(r);
    else
        rt_host_sleep(&r->o.mail->tail, tail, IDLE_NS);
}

static void *watch(void *run) {
    struct cuda_run *r = run;
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    r->o.api->cuCtxPushCurrent_v2(r->o.context);
    for (uint32_t n = 0; !closing(r) && phase_of(r) != CUDA_RUN_BROKEN; n++) step(r, n);
    if (phase_of(r) == CUDA_RUN_LAUNCHED) {
        stop_kernel(r);
        fail(&r->failure, QN_ECANCELED, "the engine is closing");
        set_broken(r);
    }
    cu_context none;
    r->o.api->cuCtxPopCurrent_v2(&none);
    return NULL;
}

/* ---- open and close ---- */

int cuda_run_open(struct diag *d, const struct cuda_run_options *options, struct cuda_run *r) {
    const struct cuda_api *api = options->api;
    *r = (struct cuda_run){.o = *options, .open = true};
    CU(d, api, cuStreamCreate, &r->stream, CU_STREAM_NON_BLOCKING);
    CU(d, api, cuStreamCreate, &r->side, CU_STREAM_NON_BLOCKING);
    CU(d, api, cuEventCreate, &r->ended, CU_EVENT_DEFAULT);
    if (pthread_create(&r->watcher, NULL, watch, r) != 0)
        return fail(d, QN_ENOMEM, "cannot start the thread that watches the kernel");
    r->watching = true;
    return QN_OK;
}

void cuda_run_close(struct cuda_run *r) {
    if (!r->open) return;
    __atomic_store_n(&r->closing, 1, __ATOMIC_RELEASE);
    rt_host_wake_all(&r->o.mail->tail);
    if (r->watching) pthread_join(r->watcher, NULL);
    if (!r->hung) {
        if (r->ended != NULL) r->o.api->cuEventDestroy_v2(r->ended);
        if (r->side != NULL) r->o.api->cuStreamDestroy_v2(r->side);
        if (r->stream != NULL) r->o.api->cuStreamDestroy_v2(r->stream);
    }
    r->open = false;
}
