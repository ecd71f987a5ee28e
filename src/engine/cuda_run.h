/* cuda_run.h - launches the mega-kernel and watches it.
 *
 *              a command          commands left: again
 *   ┌──────┐ ─────────► ┌──────────┐ ◄───────┐
 *   │ IDLE │            │ LAUNCHED │ ────────┘
 *   └──────┘ ◄───────── └──────────┘ ─────────► BROKEN (stall, device error, no sign of life)
 *            the kernel found no
 *            work and ended
 *
 * One launch serves everything from the first request until there is nothing left to do: prefill,
 * every decode step, requests that come and go meanwhile. An idle GPU runs no kernel, and an idle
 * engine no thread. Tokens travel through mapped host memory: between submit and the last token
 * there is no copy, and no driver call but the launch and a look at whether the kernel has ended.
 *
 * The watcher thread owns all of this. Other threads use the mailbox: its doorbell wakes the
 * watcher, and the watcher wakes the threads that sleep on the mailbox's progress, since a kernel
 * cannot.
 */
#ifndef QN_ENGINE_CUDA_RUN_H
#define QN_ENGINE_CUDA_RUN_H

#include "codegen/cuda_abi.h"
#include "codegen/cuda_driver.h"
#include "engine/cuda_trace.h"
#include "runtime/mailbox.h"
#include "runtime/rt_memory.h"

enum cuda_run_phase { CUDA_RUN_IDLE, CUDA_RUN_LAUNCHED, CUDA_RUN_BROKEN };

/* What to run. Everything outlives the run. */
struct cuda_run_options {
    const struct cuda_api *api;
    cu_context context;
    cu_function mega;
    uint32_t shared_bytes; /* dynamic, of every block */
    const struct prog_header *program;
    const struct cuda_args *args; /* rt is bound to device addresses */
    const struct rt_memory *memory;
    struct rt_mail *mail;     /* the mailbox's head, as the host sees it */
    struct rt_mail *readers;  /* where threads that wait for progress sleep: rank 0's */
    struct cuda_trace *trace; /* NULL, or open: taken after every launch */
    uint64_t silence_ns;      /* without progress until the host gives up on the kernel; 0: never */
    uint64_t look_ns;         /* between two looks at a running kernel, each of which costs 1 us; a
                                 token reaches its reader half of this late */
};

struct cuda_run {
    struct cuda_run_options o;
    cu_stream stream, side; /* the kernel's; for words written while it runs */
    cu_event ended;
    pthread_t watcher;
    bool open, watching;
    uint32_t closing;        /* atomic */
    uint32_t phase;          /* enum cuda_run_phase, atomic; the watcher writes it */
    uint64_t n_launches;     /* atomic */
    struct rt_shared shared; /* as the last launch left it */
    bool hung;           /* the kernel did not end even when told to: its memory cannot be freed */
    struct diag failure; /* why it is BROKEN */
    uint32_t woken;      /* progress that sleepers were last woken for */
    uint32_t seen;       /* progress that the watchdog saw last, and when */
    uint64_t seen_ns;
};

/* The context is current for open and close. Errors: QN_EDEVICE, QN_ENOMEM; close also after an
 * error. close tells a running kernel to stop; after it r->hung tells whether the device's memory
 * is still in use. */
int cuda_run_open(struct diag *d, const struct cuda_run_options *options, struct cuda_run *r);
void cuda_run_close(struct cuda_run *r);

/* QN_OK, or why it broke: QN_ESTALL, QN_EDEVICE. Any thread. */
int cuda_run_status(struct diag *d, const struct cuda_run *r);
/* Launches of the mega-kernel so far. Any thread. */
uint64_t cuda_run_launches(const struct cuda_run *r);
/* Whether a kernel is running, as far as the watcher knows. Any thread. */
bool cuda_run_busy(const struct cuda_run *r);

#endif
