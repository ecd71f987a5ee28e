/* rt_trace.h - what happened when: one ring of records per worker.
 *
 * Off by default: rt.trace is NULL and every trace point is one branch that is never taken, outside
 * of all inner loops. On a GPU even that costs a small model 4 % of its time, by the code that is
 * jumped over, so kernels have trace points only if they were compiled for a trace (QN_TRACES).
 * Where there is a trace, `on` turns recording on and off while the program runs. The trace's
 * memory is planned and taken at open; nothing is allocated later. A ring keeps the newest records;
 * `n` counts all of them, so the number that was dropped is known.
 *
 *   area | ring 0 | ring 1 | ... | ring n_rings - 1            each ring: 64 bytes, then records
 *
 *   record   0        8          12         16
 *            | time ns | aux:24 kind:8 | what |
 *
 * A GPU writes rings of its own in its memory, which the host appends to these once the kernel has
 * ended (engine/cuda_trace.h).
 *
 * Each ring has one writer, its worker. A reader (trace.c) may look at any time: it copies a ring,
 * then leaves out the records that may have been overwritten meanwhile.
 */
#ifndef QN_RUNTIME_RT_TRACE_H
#define QN_RUNTIME_RT_TRACE_H

#include "runtime/rt_state.h"

#ifndef __CUDACC__
#define QN_TRACES 1
#elif !defined(QN_TRACES)
#define QN_TRACES 0
#endif

/* Kinds of records. The comments say what `what` and `aux` are. */
enum rt_trace_kind {
    RT_TRACE_READY = 1,    /* task: its event was seen activated; on the CPU its body begins at
                            * once */
    RT_TRACE_BEGIN = 2,    /* task: its operands have arrived and its body begins; only where that
                            * is later than READY */
    RT_TRACE_END = 3,      /* task: its body is done, the trigger follows */
    RT_TRACE_PUBLISH = 4,  /* event: activated by this worker's trigger */
    RT_TRACE_STALL = 6,    /* event: a deadline passed */
    RT_TRACE_DONE = 7,     /* iteration: all its tasks are done, the boundary begins */
    RT_TRACE_IDLE = 8,     /* iteration: the boundary found no work */
    RT_TRACE_ITER = 9,     /* iteration, aux variant: published; the records below precede it */
    RT_TRACE_ROWS = 10,    /* token rows of the iteration, aux logit rows */
    RT_TRACE_RUNNING = 11, /* requests running, aux requests waiting */
    RT_TRACE_CONTEXT = 12, /* KV positions that its rows attend to, summed over all rows */
    RT_TRACE_BLOCKS = 13,  /* KV blocks free */
    RT_TRACE_PAGES = 14,   /* task, aux RT_TRACE_PAGES_AUX: a GPU's loader has requested the last of
                            * its weights */
};

/* At that moment: pages requested and not yet arrived, pages that the loader could still request
 * before it must wait for the compute warps, and KiB of a page; each is less than 256. */
#define RT_TRACE_PAGES_AUX(n_flying, n_free, kib) ((n_flying) | (n_free) << 8 | (kib) << 16)

struct rt_trace_record {
    uint64_t time_ns; /* rt_now_ns */
    uint32_t kind;    /* enum rt_trace_kind | aux << 8 */
    uint32_t what;
};
ABI_SIZE(struct rt_trace_record, 16);

struct rt_trace_ring {
    uint64_t n;     /* records ever written; the newest is at (n - 1) & mask */
    uint64_t begun; /* the same, counting one that is being written */
    uint64_t pad0[6];
};
ABI_SIZE(struct rt_trace_ring, 64);

struct rt_trace {
    uint32_t on;
    uint32_t n_rings;
    uint32_t mask; /* records per ring - 1, a power of two - 1 */
    uint32_t pad0;
    uint64_t ring_bytes; /* from one ring to the next: 64 + 16 * (mask + 1) */
    uint64_t start_ns;   /* CUDA, a device's rings: when the launch began, by the device's clock */
    uint64_t pad1[4];
};
ABI_SIZE(struct rt_trace, 64);

#define RT_TRACE_RINGS(n_workers) (n_workers)

/* The rings that are to be written; NULL: none. */
RT_FN struct rt_trace *rt_trace_of(const struct rt *rt) {
    return QN_TRACES ? rt->trace : 0;
}

RT_FN struct rt_trace_ring *rt_trace_ring(struct rt_trace *t, uint32_t ring) {
    return (struct rt_trace_ring *)((char *)(t + 1) + t->ring_bytes * ring);
}

RT_FN struct rt_trace_record *rt_trace_at(struct rt_trace *t, struct rt_trace_ring *r, uint64_t n) {
    return (struct rt_trace_record *)(r + 1) + (n & t->mask);
}

RT_FN void rt_trace_put(struct rt_trace *t, uint32_t ring, uint64_t now, uint32_t word,
                        uint32_t what) {
    struct rt_trace_ring *r = rt_trace_ring(t, ring);
    uint64_t n = r->n;
    struct rt_trace_record *to = rt_trace_at(t, r, n);
#ifdef __CUDACC__
    r->begun = n + 1;
    to->time_ns = now;
    to->kind = word;
    to->what = what;
    r->n = n + 1;
#else
    /* A ring is larger than the caches, and after an END a locked instruction waits until the
     * record is stored. So the next line is prefetched, while a task's body runs. */
    __builtin_prefetch(to + 64 / sizeof *to, 1);
    /* Releases: a reader that sees a word of this record also sees that it was begun. */
    __atomic_store_n(&r->begun, n + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&to->time_ns, now, __ATOMIC_RELEASE);
    __atomic_store_n(&to->kind, word, __ATOMIC_RELEASE);
    __atomic_store_n(&to->what, what, __ATOMIC_RELEASE);
    __atomic_store_n(&r->n, n + 1, __ATOMIC_RELEASE);
#endif
}

RT_FN void rt_trace_write(struct rt_trace *t, uint32_t ring, uint32_t kind, uint32_t aux,
                          uint32_t what) {
    if (!rt_load_relaxed(&t->on) || ring >= t->n_rings) return;
    rt_trace_put(t, ring, rt_now_ns(), kind | aux << 8, what);
}

/* Records something that followed the worker's newest record at once. On the CPU the new record has
 * the same time, because reading the clock is most of what a record costs. A GPU's control warp
 * publishes for tasks whose records are in another ring, so it reads the clock. */
RT_FN void rt_trace_follow(const struct rt *rt, uint32_t worker, uint32_t kind, uint32_t what) {
    struct rt_trace *t = rt_trace_of(rt);
    if (!t || !rt_load_relaxed(&t->on) || worker >= t->n_rings) return;
#ifdef __CUDACC__
    uint64_t now = rt_now_ns();
#else
    struct rt_trace_ring *r = rt_trace_ring(t, worker);
    uint64_t now = r->n > 0 ? rt_trace_at(t, r, r->n - 1)->time_ns : rt_now_ns();
#endif
    rt_trace_put(t, worker, now, kind, what);
}

/* The trace points of workers. */
RT_FN void rt_trace(const struct rt *rt, uint32_t worker, uint32_t kind, uint32_t aux,
                    uint32_t what) {
    struct rt_trace *t = rt_trace_of(rt);
    if (t) rt_trace_write(t, worker, kind, aux, what);
}

/* At the boundary, just before an iteration is published: what it consists of. */
RT_COLD void rt_trace_iteration(const struct rt *rt, uint32_t worker) {
    const struct rt_control *c = rt->control;
    const struct rt_rows *rows = &rt->batch->rows;
    struct rt_trace *t = rt_trace_of(rt);
    uint32_t context = 0;
    if (!t || !rt_load_relaxed(&t->on) || worker >= t->n_rings) return;
    for (uint32_t i = 0; i < rows->n_rows; i++) context += (uint32_t)rows->position[i] + 1;
    uint64_t now = rt_now_ns();
    rt_trace_put(t, worker, now, RT_TRACE_ROWS | rows->n_logit_rows << 8, rows->n_rows);
    rt_trace_put(t, worker, now, RT_TRACE_RUNNING | c->n_waiting << 8, c->n_running);
    rt_trace_put(t, worker, now, RT_TRACE_CONTEXT, context);
    rt_trace_put(t, worker, now, RT_TRACE_BLOCKS, c->n_free);
    rt_trace_put(t, worker, now, RT_TRACE_ITER | c->variant << 8, c->iteration);
}

#endif
