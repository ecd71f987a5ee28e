/* cpu_backend.h - runs a program on threads: one per worker that the program was placed for, each
 * in the protocol's worker loop (rt_worker.h). A product of its own, and the proof of the protocol
 * that the GPU backend runs as well.
 *
 * Two ways to use it:
 *   run until idle   submit requests, cpu_backend_run, poll: the threads sleep outside of run
 *   serve            submit at any time, cpu_backend_wait for progress, poll; the threads sleep
 *                    when there is no work
 *
 * Everything is fixed at open: the iteration path allocates nothing and takes no lock. All
 * functions may be called from any thread, except open, run and close.
 */
#ifndef QN_RUNTIME_CPU_BACKEND_H
#define QN_RUNTIME_CPU_BACKEND_H

#include "runtime/cpu_core.h"

struct cpu_backend;

struct cpu_backend_stats {
    uint64_t n_iterations;
    uint64_t n_rows; /* token rows computed */
    uint32_t n_threads, n_cpus;
    const char *isa; /* name; NULL without kernels */
};

/* What open would take. Errors: QN_EINVAL, QN_ELIMIT. */
int cpu_backend_plan(struct diag *d, const struct cpu_config *config, struct cpu_plan *plan);

/* CPUs that this process may use, by its affinity and by the quota of its control groups. */
uint32_t cpu_backend_cpus(void);

/* Takes the memory and starts the threads. Program and weights must outlive the backend. */
int cpu_backend_open(struct diag *d, const struct cpu_config *config, struct cpu_backend **out);
/* Stops the threads after the tasks that they are in, and releases everything. NULL is allowed. */
void cpu_backend_close(struct cpu_backend *b);

/* mailbox.h says what these do. After a stall the two submits return QN_ESTALL with the report. */
int cpu_backend_submit_with(struct diag *d, struct cpu_backend *b, const struct rt_request *request,
                            const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot);
int cpu_backend_submit(struct diag *d, struct cpu_backend *b, const struct rt_request *request,
                       const int32_t *prompt, uint32_t *slot);
int cpu_backend_cancel(struct diag *d, struct cpu_backend *b, uint32_t slot);
int cpu_backend_poll(struct diag *d, struct cpu_backend *b, uint32_t slot,
                     struct mailbox_view *view);
int cpu_backend_release(struct diag *d, struct cpu_backend *b, uint32_t slot);

/* The mailbox itself, for code that serves several backends. */
struct mailbox *cpu_backend_mailbox(struct cpu_backend *b);

/* Waits until there may be something new to poll: until the number that *seen holds from an earlier
 * call (0 at first) changes, at most timeout_s seconds; updates *seen. Errors: QN_ESTALL. */
int cpu_backend_wait(struct diag *d, struct cpu_backend *b, uint32_t *seen, double timeout_s);

/* Until-idle mode only: one launch that runs until no request is left. Errors: QN_ESTALL with the
 * report; after that the backend only closes. */
int cpu_backend_run(struct diag *d, struct cpu_backend *b);

/* Counts iterations begun; stands still when the engine is idle or stuck. */
uint32_t cpu_backend_heartbeat(const struct cpu_backend *b);
/* Exact while nothing runs. */
void cpu_backend_stats(const struct cpu_backend *b, struct cpu_backend_stats *stats);
/* May be called at any time. */
void cpu_backend_reads(const struct cpu_backend *b, struct rt_reads *reads);
/* After run: cpu_core_check. */
int cpu_backend_check(struct diag *d, const struct cpu_backend *b);

#endif
