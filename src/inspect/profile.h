/* profile.h - the account of an iteration: how its time was spent, which worker waited for which,
 * and the longest chain through it. It is made from a trace; profile_report.c turns it into JSON.
 *
 * Worker time is split without gaps: every worker is, at every moment of an iteration, inside a
 * task, waiting for an event that is not activated yet, or between an event's activation and its
 * next task (hand-over). The first hand-over of the worker that ran the boundary is called wake-up.
 * Divided by the number of workers, the parts add up to the iteration's time.
 */
#ifndef QN_INSPECT_PROFILE_H
#define QN_INSPECT_PROFILE_H

#include "inspect/trace.h"

/* Sums over the iterations of an account. Times are nanoseconds of worker time. */
struct profile_op {
    uint64_t n_tasks, ns, weight_bytes, kv_bytes;
    uint64_t longest_ns;                /* of one task */
    uint64_t waited_ns;                 /* time that workers waited for tasks of this kind */
    uint64_t waited_by[N_OP_KINDS + 1]; /* by the waiting task's kind; last: end of iteration */
    uint64_t *worker_ns;                /* [n_workers] of its tasks */
};

/* One task on the critical path: it began gap_ns after the task that it waited for had ended. */
struct profile_step {
    size_t run;
    uint64_t task_ns, gap_ns;
    bool same_worker; /* it waited for the task before it on its own worker */
};

struct profile {
    const struct trace *trace;
    uint32_t variant;
    size_t first;             /* trace.iters before it are of earlier runs */
    size_t n_iters, typical;  /* iterations in the sums; the median one's index in trace.iters */
    uint64_t ns, boundary_ns; /* wall time from start to start; the part between iterations */
    uint64_t n_boundaries;
    uint64_t wake_ns;                    /* worker time, after a boundary: see profile.c */
    uint64_t hand_over_ns, n_hand_overs; /* worker time */
    struct profile_op ops[N_OP_KINDS];   /* OP_NONE: empty tasks */
    uint64_t *waited_for;                /* [n_workers] worker time that others waited for it */
    uint64_t *worker_ns;                 /* [N_OP_KINDS][n_workers] the memory of ops[].worker_ns */
    ARRAY(struct profile_step) path;     /* of the typical iteration, first task first */
    uint64_t path_task_ns[N_OP_KINDS], path_gap_ns;
    double flying_bytes, pages_free; /* sums over a GPU's workers, averaged over the time */
};

/* Accounts for the decode iterations of the trace that run `batch` requests at once, from
 * iteration index `first` on. Errors: QN_EINVAL when there is no complete one. */
int profile_make(struct diag *d, const struct trace *t, uint32_t batch, size_t first,
                 struct profile *out);
void profile_fini(struct profile *p);

/* Facts for the report that are not in the account. */
struct profile_setting {
    const char *model, *backend, *device;
    uint32_t batch, input_len, output_len;
    double read_rate;           /* bytes per second */
    double experts_read;        /* experts read per layer and iteration, on average; 0: unknown */
    double ms_traced, ms_plain; /* fastest tenth: time per token with and without recording */
    double record_ns;           /* what one record costs; 0: not known (on a GPU) */
    uint64_t weight_bytes, kv_cache_bytes, workspace_bytes, other_bytes;
};

/* The account as JSON text; with `page` also timeline and memory map, for tools/view/profile.html.
 */
int profile_json(struct diag *d, const struct profile *p, const struct profile_setting *s,
                 bool page, struct strbuf *out);

#endif
