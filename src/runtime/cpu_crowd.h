/* cpu_crowd.h - how many of the worker threads run where other processes want their CPUs.
 *
 * A thread whose CPU another process wants stands still for milliseconds at a time, and all workers
 * wait for its task. Two threads on two CPUs of which one is taken are slower than one thread. So
 * each thread reads for how long it was ready to run and did not run (the system's run delay), and
 * thread 0 adds these delays up. Where they are most of the wall time, the active thread of the
 * highest index parks:
 *
 *   active   ── delayed ──▶  one less  ── patience ──▶  one more, on trial
 *      ▲                        ▲                          │
 *      └───────── not delayed ──┼──────────────────────────┤
 *                               └── delayed: twice the patience
 *
 * A thread parks between two steps of its worker (rt_worker_next), and releases the worker:
 *
 *   role.held   1: a thread holds the worker, its own or for a step; 0: free, its thread is parked
 *
 * A thread whose own worker waits takes a step of each free worker, so that no worker depends on a
 * thread that stands still. The runtime's protocol does not change: a worker's steps stay in order,
 * whichever threads take them, because `held` is taken by an acquire and released by a release.
 * Results do not depend on which worker runs what.
 *
 * Thread 0 never parks; it alone decides. In programs with gangs no thread parks, because members
 * of a gang wait for each other inside their tasks.
 */
#ifndef QN_RUNTIME_CPU_CROWD_H
#define QN_RUNTIME_CPU_CROWD_H

#include "runtime/cpu_core.h"
#include "runtime/rt_worker.h"

/* A worker, and what its thread measures. */
struct cpu_role {
    struct rt_worker worker;
    uint32_t held;
    uint32_t turns;  /* of its thread's loop; the thread's own, like `looked` */
    uint64_t looked; /* when it last read its delay */
    uint64_t delay;  /* ns in all; written by the thread, read by thread 0 */
    int file;        /* the thread's own: where its delay is read, -1: none */
} __attribute__((aligned(128)));

struct cpu_crowd {
    uint32_t active; /* threads that run: those of lower index; changed by thread 0 */
    uint32_t pad0[31];
    const struct cpu_core *core;
    struct cpu_role *roles; /* [n] */
    uint32_t n;
    uint32_t fixed; /* 1: all run, whatever happens */
    /* Thread 0's own. */
    uint64_t since, seen; /* when the window began; the sum of delays then */
    uint64_t hurry;       /* times are divided by it */
    uint64_t patience_ns, trial_at;
    bool on_trial;
};

/* Measured with two threads on two CPUs, in windows of 100 ms: a busy loop on one of the CPUs costs
 * 100 ms of delay (50 to 150), a load that makes tokens 15 % slower 20 ms. */
enum {
    CPU_CROWD_TURNS = 64,               /* of a thread's loop between two looks at the clock */
    CPU_CROWD_READ_NS = 1000000,        /* between two readings of a delay, which takes 1 us */
    CPU_CROWD_WINDOW_NS = 100000000,    /* over which delays are added up */
    CPU_CROWD_LOST_NS = 75000000,       /* per window: from here on one thread less is faster */
    CPU_CROWD_TRIAL_LOST_NS = 30000000, /* per trial's window, which ends at once */
    CPU_CROWD_PATIENCE_NS = 200000000,  /* before the first trial */
    CPU_CROWD_PATIENT_NS = 1600000000,  /* before any trial, at most */
};

int cpu_crowd_open(struct diag *d, struct cpu_crowd *c, const struct cpu_core *core);
void cpu_crowd_close(struct cpu_crowd *c);

/* Runs thread `index` in a launch, until the runtime stops: takes the steps of its own worker and,
 * while other threads are parked, of their workers. All threads of the launch call it. */
void cpu_crowd_run(struct cpu_crowd *c, uint32_t index);

#endif
