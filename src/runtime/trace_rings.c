#include "runtime/trace_rings.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_RECORDS = 1024 };

static uint64_t records_per_ring(uint32_t n_workers, uint64_t limit) {
    uint64_t n = MIN_RECORDS, rings = RT_TRACE_RINGS((uint64_t)n_workers);
    if (limit == 0) limit = TRACE_RINGS_DEFAULT_BYTES;
    limit = MIN(limit, (uint64_t)1 << 40);
    while (n < (uint64_t)1 << 28 && 2 * n * sizeof(struct rt_trace_record) * rings <= limit) n *= 2;
    return n;
}

static uint64_t ring_bytes(uint64_t n_records) {
    return sizeof(struct rt_trace_ring) + n_records * sizeof(struct rt_trace_record);
}

uint64_t trace_ring_bytes(uint32_t n_workers, uint64_t limit) {
    return ring_bytes(records_per_ring(n_workers, limit));
}

uint64_t trace_rings_bytes(uint32_t n_workers, uint64_t limit) {
    return sizeof(struct rt_trace) +
           RT_TRACE_RINGS((uint64_t)n_workers) * trace_ring_bytes(n_workers, limit);
}

int trace_rings_new(struct diag *d, uint32_t n_workers, uint64_t limit, struct rt_trace **out) {
    uint64_t bytes = align_up(trace_rings_bytes(n_workers, limit), 64);
    uint64_t n = records_per_ring(n_workers, limit);
    struct rt_trace *t = aligned_alloc(64, bytes);
    *out = NULL;
    if (t == NULL) return fail_nomem(d, bytes, "the trace");
    memset(t, 0, bytes); /* touched now, so that no record waits for a page */
    t->n_rings = RT_TRACE_RINGS(n_workers);
    t->mask = (uint32_t)(n - 1);
    t->ring_bytes = ring_bytes(n);
    *out = t;
    return QN_OK;
}

void trace_rings_switch(struct rt_trace *t, bool on) {
    __atomic_store_n(&t->on, on ? 1u : 0u, __ATOMIC_RELAXED);
}
