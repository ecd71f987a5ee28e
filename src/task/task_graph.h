/* task_graph.h - the task graph (MPK's tGraph, section 3): tasks and events, alternating.
 *
 * Made by decompose from the kernel graph, changed by the stages below in this order, frozen into a
 * program by task/program_make.c. One graph per variant.
 *
 *   stage        file           from here on
 *   decompose    decompose.c    the computing tasks and their tiles are fixed
 *   memory_plan  memory_plan.c  every activation has its place in the workspace
 *   depend       depend.c       every task knows the tasks that must come before it
 *   event_fuse   event_fuse.c   dependencies are events; no two events have equal in- or out-sets
 *   normalize    normalize.c    a task waits for one event and triggers one; tasks are final
 *   linearize    linearize.c    an event's dependents are a contiguous range; indices are final
 *   place        place.c        every task is JIT or has a worker
 *   transport    transport.c    which events are counters and which ride on the data itself
 */
#ifndef QN_TASK_TASK_GRAPH_H
#define QN_TASK_TASK_GRAPH_H

#include "base/arena.h"
#include "base/array.h"
#include "base/strbuf.h"
#include "graph/kernel_graph.h"
#include "plan/device.h"

enum task_stage {
    STAGE_DECOMPOSE,
    STAGE_MEMORY_PLAN,
    STAGE_DEPEND,
    STAGE_EVENT_FUSE,
    STAGE_NORMALIZE,
    STAGE_LINEARIZE,
    STAGE_PLACE,
    STAGE_TRANSPORT,
    N_TASK_STAGES
};
const char *task_stage_name(enum task_stage stage);

enum { NO_EVENT = -1, NO_WORKER = -1, TASK_MAX_ACCESS = OP_MAX_IN + OP_MAX_OUT };

/* A rectangle of a tensor in its first two dimensions: rows [row0,row1) x columns [col0,col1), with
 * all of any further dimensions. Columns of a state tensor are head units. A slice of a run-time
 * work list (n_slices > 0) covers the whole tensor but shares no element with the other slices of
 * the same operator (prog_slice). */
struct region {
    int32_t tensor;
    uint32_t row0, row1, col0, col1;
    uint32_t slice, n_slices;
    bool write;
};

/* Elements of a region that is no slice; of a state tensor, head units. */
uint64_t region_elements(const struct kgraph *k, const struct region *r);

/* Whether two accesses may touch the same element of one tensor. */
bool region_overlap(const struct region *a, const struct region *b);

struct task {
    enum op_kind kind; /* OP_NONE: a dummy of normalization */
    int32_t op;        /* index in the kernel graph, -1 for dummies */
    uint32_t row0, row1, unit0, unit1;
    int32_t wait, trigger; /* events; set by event_fuse and normalize */
    int32_t worker;        /* set by place; NO_WORKER: JIT */
};

/* Tasks [first, last) as a set. */
struct task_range {
    int32_t first, last;
};

/* The tasks that must be done before one task starts: disjoint ranges, ascending. */
struct task_deps {
    const struct task_range *ranges;
    uint32_t n;
};

/* In- and out-sets of an event, as ranges of tasks. */
struct event {
    struct task_range *in, *out;
    uint32_t n_in, n_out;              /* ranges */
    uint32_t n_triggers, n_dependents; /* tasks in them */
    bool data; /* set by transport: no counter, its dependents poll the data */
};

/* A user's choice of tiles for one operator kind: parallelization degrees (MPK section 4.1). */
struct tile_override {
    uint32_t row_tiles, unit_tiles; /* 0: not overridden */
};

enum launch_policy {
    LAUNCH_HYBRID, /* JIT for operators that depend on data and bring no static weights */
    LAUNCH_PAPER,  /* MPK 5.2: JIT from data-dependent operators down to the next global barrier */
    LAUNCH_ALL_AOT,
    LAUNCH_ALL_JIT,
};

struct task_options {
    struct device device;      /* its workers and abilities decide how operators are cut */
    enum dtype kv_dtype;       /* of the KV cache */
    uint32_t tasks_per_worker; /* tasks of an operator = about this times n_workers */
    enum launch_policy launch;
    bool no_event_fusion; /* ablation: one event per consumer task */
    bool coarse_events;   /* ablation: operators wait for whole operators */
    bool halves;          /* one row: operators around a short LINEAR are for the workers without a
                             task of it */
    struct tile_override tiles[N_OP_KINDS];
    uint64_t
        transport_bytes; /* an event rides on data if no reader polls more than this; 0: none do */
};

/* A gang (kop.gang of n > 1): n consecutive tasks of an operator, in the order of their tiles, that
 * run on n consecutive workers at the same time and may exchange data while they do. They wait for
 * one event and trigger one, so that a task that needs a member needs all of them. The first worker
 * of a gang is a multiple of n, and a gang runs when it is next on all its workers. */
struct tgraph {
    struct arena *arena;
    const struct kgraph *kernel;
    struct task_options options;
    ARRAY(struct task) tasks;
    struct task_range *op_tasks; /* [kernel->ops.n] the tasks of each operator (until linearize) */
    struct task_deps *deps;      /* [tasks.n] from depend until normalize */
    ARRAY(struct event) events;
    int32_t start_event, end_event; /* from normalize on */
    uint64_t *tensor_offset;        /* [kernel->tensors.n] bytes into the workspace; activations */
    uint64_t workspace_bytes;
    uint8_t *tensor_transport; /* [kernel->tensors.n] enum prog_transport, from transport on */
    uint64_t flagged_bytes;    /* of the flagged tensors, which then lie in a space of their own */
    uint64_t reset_words; /* of a unit of RESET_SENTINELS, if any tensor is TRANSPORT_SENTINEL */
    uint64_t n_pairs;     /* task pairs that depend on each other: events before any fusion */
    uint64_t n_after_successor; /* events after successor-set fusion */
};

void tgraph_init(struct tgraph *g, struct arena *arena, const struct kgraph *kernel,
                 const struct task_options *options);
void tgraph_fini(struct tgraph *g);

/* The regions that a task reads and writes; returns their number (<= TASK_MAX_ACCESS). Weights are
 * immutable and left out. */
int task_access(const struct kgraph *k, const struct task *t, struct region *out);

/* The number of tasks of a task's gang, 1: it is alone; the first task and the range of the tasks,
 * until linearize. */
uint32_t gang_size(const struct tgraph *g, const struct task *t);
int32_t gang_first(const struct tgraph *g, int32_t task);
struct task_range gang_range(const struct tgraph *g, int32_t task);
/* Checks that gangs are whole, from linearize on; if placed, also that they stand on their
 * workers. */
int gang_verify(struct diag *d, const struct tgraph *g, bool placed);

/* The stages. Each expects the graph as the one before left it. */
int decompose(struct diag *d, struct tgraph *g);
int memory_plan(struct diag *d, struct tgraph *g);
int depend(struct diag *d, struct tgraph *g);
int event_fuse(struct diag *d, struct tgraph *g);
int normalize(struct diag *d, struct tgraph *g);
int linearize(struct diag *d, struct tgraph *g);
int place(struct diag *d, struct tgraph *g);
int transport(struct diag *d, struct tgraph *g);

/* Checks what must hold after a stage (indices, normal form, counts of triggers, contiguity,
 * acyclicity). Cheap; the proof of the whole is task_verify's. */
int tgraph_verify(struct diag *d, const struct tgraph *g, enum task_stage stage);
void tgraph_dump(const struct tgraph *g, enum task_stage stage, struct strbuf *out);

struct task_stats {
    uint64_t n_tasks, n_dummies, n_events, n_pairs;
    uint64_t n_jit_tasks, n_aot_tasks;
    uint64_t n_data_events; /* after transport */
    uint64_t workspace_bytes, flagged_bytes;
    uint64_t weight_bytes_max_worker, weight_bytes_min_worker; /* after place */
};
void tgraph_stats(const struct tgraph *g, enum task_stage stage, struct task_stats *stats);

/* Bytes of weights that a task reads: what placement balances. */
uint64_t task_weight_bytes(const struct kgraph *k, const struct task *t);

#endif
