/* trace.h - the host's side of runtime/rt_trace.h: turns rings of records into iterations, the
 * tasks that ran in them, and the waits.
 *
 *   rings ─ trace_read ─► struct trace ─┬─ trace_perfetto ─► file for ui.perfetto.dev
 *                                       └─ profile.c ─► the account
 */
#ifndef QN_INSPECT_TRACE_H
#define QN_INSPECT_TRACE_H

#include "base/array.h"
#include "base/strbuf.h"
#include "runtime/rt_trace.h"
#include "task/program.h"

/* One task that ran. */
struct trace_run {
    uint32_t task, worker;
    uint32_t iter;              /* index in trace.iters */
    uint64_t ready, begin, end; /* ns; ready: it saw its event, or began to poll its data */
};

/* One iteration: [start, end), its tasks are runs[first_run, first_run + n_runs) in order of begin.
 */
struct trace_iter {
    uint32_t number, variant;
    uint32_t n_rows, n_logit_rows, n_running, n_waiting, n_free_blocks;
    uint32_t by;      /* worker that ran the boundary before it */
    uint64_t context; /* KV positions that its rows attend to, over all rows */
    uint64_t start, end;
    size_t first_run, n_runs;
    bool complete; /* the trace holds all of its tasks and its end */
};

/* A GPU's loader had requested the last page of a task's weights. */
struct trace_pages {
    uint64_t time;
    uint32_t worker, task;
    uint32_t flying_bytes; /* requested and not yet arrived */
    uint32_t n_free;       /* pages that it could still request without waiting */
};

struct trace_stall {
    uint64_t time;
    uint32_t worker, event;
};

struct trace {
    const struct prog_header *program; /* borrowed */
    uint32_t n_workers;
    uint64_t n_records, n_dropped;
    ARRAY(struct trace_iter) iters; /* in order of time */
    ARRAY(struct trace_run) runs;   /* by iteration, then by begin */
    ARRAY(struct trace_stall) stalls;
    ARRAY(struct trace_pages) pages; /* in order of time; none of a CPU */
    uint32_t n_loaders;              /* workers that have such records */
};

/* The page rings of all workers together: sums over each worker's last record. */
struct trace_ring {
    uint64_t flying_bytes, n_free;
    struct trace_pages *last; /* [n_workers] */
    uint32_t n_known;         /* workers that have a record by now, of trace.n_loaders */
};
int trace_ring_new(struct diag *d, const struct trace *t, struct trace_ring *r);
/* Adds t->pages.items[i], for every i in turn. Returns whether all loaders have a record by now. */
bool trace_ring_step(const struct trace *t, size_t i, struct trace_ring *r);
void trace_ring_fini(struct trace_ring *r);

/* Reads the rings. The program may run meanwhile: records that it overwrites are left out and
 * counted as dropped. Errors: QN_ENOMEM. */
int trace_read(struct diag *d, struct rt_trace *rings, const struct prog_header *program,
               struct trace *out);
void trace_fini(struct trace *t);

/* How an iteration's tasks depend on each other: the run of each task of its variant, and for each
 * event the run whose trigger activated it. Indices are relative to the variant's first task and
 * event; SIZE_MAX: none seen. */
struct trace_links {
    size_t *run;       /* [variant n_tasks] index in trace.runs */
    size_t *activator; /* [variant n_events] index in trace.runs */
};
/* trace_links_new makes arrays that are large enough for any variant; trace_links_fill fills them
 * for one iteration. */
int trace_links_new(struct diag *d, const struct prog_header *program, struct trace_links *links);
void trace_links_fill(const struct trace *t, const struct trace_iter *iter,
                      struct trace_links *links);
void trace_links_fini(struct trace_links *links);

/* Appends the trace as Perfetto's protobuf (a sequence of TracePackets): a track per worker for
 * tasks and one for waits, a track of iterations, counters, and flows from the task that activated
 * an event to the tasks that waited for it. Errors: QN_ENOMEM. */
int trace_perfetto(struct diag *d, const struct trace *t, const char *name, struct strbuf *out);
/* Writes the same to a file. Errors: QN_EIO. */
int trace_write(struct diag *d, const struct trace *t, const char *name, const char *path);

/* ---- bytes of a task ---- */

/* The number of experts whose weights trace_weight_bytes counts for an operator of that kind of the
 * variant: as many as its list of experts has room for; 0: it has no such list. */
uint64_t trace_listed(const struct prog_header *p, const struct prog_variant *v, uint32_t kind);

/* Bytes of weights that a task reads, and of KV cache when its iteration's rows attend to `context`
 * positions in all. Activations are left out: they come out of a cache. */
uint64_t trace_weight_bytes(const struct prog_header *p, uint32_t task);
uint64_t trace_kv_bytes(const struct prog_header *p, uint32_t task, uint64_t context);

#endif
