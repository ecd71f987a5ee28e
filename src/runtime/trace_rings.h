/* trace_rings.h - the host's memory of a trace: rings of records (runtime/rt_trace.h), which a
 * backend fills and inspect/trace.h reads. */
#ifndef QN_RUNTIME_TRACE_RINGS_H
#define QN_RUNTIME_TRACE_RINGS_H

#include "base/status.h"
#include "runtime/rt_trace.h"

#include <stdbool.h>

enum { TRACE_RINGS_DEFAULT_BYTES = 64 << 20 };

/* Bytes that trace_rings_new takes for n_workers rings. Each ring has the largest power of two of
 * records with which all records stay within `limit` bytes (0: TRACE_RINGS_DEFAULT_BYTES), at least
 * 1024. */
uint64_t trace_rings_bytes(uint32_t n_workers, uint64_t limit);

/* Bytes of one of these rings. */
uint64_t trace_ring_bytes(uint32_t n_workers, uint64_t limit);

/* The rings, empty and off. The caller frees them (free()). Errors: QN_ENOMEM. */
int trace_rings_new(struct diag *d, uint32_t n_workers, uint64_t limit, struct rt_trace **out);
void trace_rings_switch(struct rt_trace *t, bool on);

#endif
