/* cuda_trace.c - see cuda_trace.h. */
#include "engine/cuda_trace.h"

#include "base/checked.h"

#include <stddef.h>
#include <string.h>

static uint64_t capacity_of(const struct rt_trace *rings) {
    return (uint64_t)rings->mask + 1;
}

uint64_t cuda_trace_bytes(uint64_t ring_bytes, uint32_t n_workers) {
    if (ring_bytes == 0) return 0;
    return sizeof(struct rt_trace) + CUDA_TRACE_RINGS((uint64_t)n_workers) * ring_bytes;
}

/* ---- open and close ---- */

static int take_pinned(struct diag *d, struct cuda_trace *t) {
    const uint64_t rings = CUDA_TRACE_RINGS((uint64_t)t->n_workers);
    const uint64_t part = capacity_of(t->host) * sizeof(struct rt_trace_record);
    uint64_t bytes = sizeof *t->header + CUDA_TRACE_PARTS * part;
    bytes += rings * (sizeof *t->now + sizeof *t->taken);
    CU(d, t->api, cuMemHostAlloc, &t->pinned, bytes, CU_HOST_PORTABLE);
    memset(t->pinned, 0, bytes);
    t->header = t->pinned;
    t->now = (void *)(t->header + 1);
    t->part[0] = (void *)(t->now + rings);
    for (int k = 1; k < CUDA_TRACE_PARTS; k++) t->part[k] = t->part[k - 1] + capacity_of(t->host);
    t->taken = (void *)(t->part[CUDA_TRACE_PARTS - 1] + capacity_of(t->host));
    return QN_OK;
}

int cuda_trace_open(struct diag *d, const struct cuda_api *api, cu_stream stream,
                    struct rt_trace *rings, uint32_t n_workers, cu_pointer device,
                    struct cuda_trace *t) {
    *t = (struct cuda_trace){.api = api, .host = rings, .device = device, .n_workers = n_workers};
    if (rings == NULL) return QN_OK;
    TRY(take_pinned(d, t));
    *t->header = (struct rt_trace){.n_rings = CUDA_TRACE_RINGS(n_workers),
                                   .mask = rings->mask,
                                   .ring_bytes = rings->ring_bytes};
    CU(d, api, cuMemcpyHtoDAsync_v2, device, t->header, sizeof *t->header, stream);
    CU(d, api, cuStreamSynchronize, stream);
    return QN_OK;
}

void cuda_trace_close(struct cuda_trace *t) {
    if (t->pinned != NULL) t->api->cuMemFreeHost(t->pinned);
    *t = (struct cuda_trace){0};
}

int cuda_trace_switch(struct diag *d, struct cuda_trace *t, cu_stream stream) {
    if (t->host == NULL) return QN_OK;
    uint32_t on = rt_load_relaxed(&t->host->on);
    if (on == t->on) return QN_OK;
    CU(d, t->api, cuMemcpyHtoDAsync_v2, t->device + offsetof(struct rt_trace, on), &on, sizeof on,
       stream);
    CU(d, t->api, cuStreamSynchronize, stream);
    t->on = on;
    return QN_OK;
}

/* ---- taking ---- */

/* Records of a ring that were copied out of the device, oldest first. */
struct part {
    const struct rt_trace_record *items;
    uint64_t n, next, lost;
};

static cu_pointer ring_at(const struct cuda_trace *t, uint64_t ring) {
    return t->device + sizeof(struct rt_trace) + ring * t->host->ring_bytes;
}

static int copy_heads(struct diag *d, struct cuda_trace *t, cu_stream stream) {
    CU(d, t->api, cuMemcpyDtoHAsync_v2, t->header, t->device, sizeof *t->header, stream);
    for (uint32_t i = 0; i < CUDA_TRACE_RINGS(t->n_workers); i++)
        CU(d, t->api, cuMemcpyDtoHAsync_v2, &t->now[i], ring_at(t, i), sizeof t->now[i], stream);
    CU(d, t->api, cuStreamSynchronize, stream);
    return QN_OK;
}

/* Copies a ring's records that were not taken yet into t->part[which]. */
static int copy_part(struct diag *d, struct cuda_trace *t, cu_stream stream, uint32_t ring,
                     int which, struct part *out) {
    const uint64_t capacity = capacity_of(t->host), n = t->now[ring].n;
    uint64_t first = MAX(t->taken[ring], n > capacity ? n - capacity : 0);
    *out = (struct part){.items = t->part[which], .n = n - first, .lost = first - t->taken[ring]};
    while (first < n) {
        uint64_t at = first & t->host->mask, run = MIN(n - first, capacity - at);
        CU(d, t->api, cuMemcpyDtoHAsync_v2, t->part[which] + out->n - (n - first),
           ring_at(t, ring) + sizeof(struct rt_trace_ring) + at * sizeof(struct rt_trace_record),
           run * sizeof(struct rt_trace_record), stream);
        first += run;
    }
    t->taken[ring] = n;
    return QN_OK;
}

static uint32_t kind_of(const struct rt_trace_record *r) {
    return r->kind & 0xff;
}

/* Appends the next record of a part, or all records of the task that it begins. */
static void append(struct rt_trace *to, uint32_t ring, struct part *p, uint64_t offset) {
    bool in_task = false;
    do {
        const struct rt_trace_record *r = &p->items[p->next++];
        if (kind_of(r) == RT_TRACE_READY) in_task = true;
        if (kind_of(r) == RT_TRACE_END) in_task = false;
        rt_trace_put(to, ring, r->time_ns + offset, r->kind, r->what);
    } while (in_task && p->next < p->n);
}

/* The part whose next record is the oldest; NULL: nothing is left. */
static struct part *oldest(struct part part[CUDA_TRACE_PARTS]) {
    struct part *best = NULL;
    for (struct part *p = part; p < part + CUDA_TRACE_PARTS; p++)
        if (p->next < p->n &&
            (!best || p->items[p->next].time_ns < best->items[best->next].time_ns))
            best = p;
    return best;
}

static void append_all(struct rt_trace *to, uint32_t ring, struct part part[CUDA_TRACE_PARTS],
                       uint64_t offset) {
    struct rt_trace_ring *r = rt_trace_ring(to, ring);
    uint64_t lost = 0; /* counted; at least a ring full comes after them */
    for (int k = 0; k < CUDA_TRACE_PARTS; k++) lost += part[k].lost;
    __atomic_store_n(&r->begun, r->begun + lost, __ATOMIC_RELEASE);
    __atomic_store_n(&r->n, r->n + lost, __ATOMIC_RELEASE);
    for (struct part *p; (p = oldest(part)) != NULL;) append(to, ring, p, offset);
}

/* Takes a worker's rings. */
static int take_ring(struct diag *d, struct cuda_trace *t, cu_stream stream, uint32_t ring) {
    struct part part[CUDA_TRACE_PARTS] = {0};
    uint64_t n = 0;
    for (int k = 0; k < CUDA_TRACE_PARTS; k++) {
        uint32_t from = (uint32_t)k * t->n_workers + ring;
        TRY(copy_part(d, t, stream, from, k, &part[k]));
        n += part[k].n;
    }
    if (n == 0) return QN_OK;
    CU(d, t->api, cuStreamSynchronize, stream);
    append_all(t->host, ring, part, t->launched_ns - t->header->start_ns);
    return QN_OK;
}

int cuda_trace_take(struct diag *d, struct cuda_trace *t, cu_stream stream) {
    if (t->host == NULL) return QN_OK;
    TRY(copy_heads(d, t, stream));
    for (uint32_t i = 0; i < RT_TRACE_RINGS(t->n_workers); i++) TRY(take_ring(d, t, stream, i));
    return QN_OK;
}
