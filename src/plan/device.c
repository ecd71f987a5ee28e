/* device.c - see device.h. */
#include "plan/device.h"
#include "codegen/cuda_abi.h"
#include "graph/op.h"

enum {
    RING_BYTES = 256 << 10, /* the ring of an sm_90 and the pages in registers */
    /* 42 MB of activations gain 2 % on Qwen3-8B, 61 MB cost 1 % (H100, bench/measurements.md). */
    KEPT_BYTES = 48 << 20,
    /* From QKV to O, where the context is in pieces. Memory fills a ring in 7.0 us on an H200,
     * where that shows, and in 10.3 us on an H100, where it does not (bench/measurements.md). */
    PIECES_NS = 8500,
    /* A block's own way from a task's end to the next one's activations took 1.7 to 1.9 us (one
     * H100, Qwen3-0.6B), one more piece of a context in the same task 1.0 to 1.6 us (one H200;
     * bench/measurements.md, "Contexts"). */
    HAND_OVER_NS = 1800,
    PIECE_NS = 1300,
};

struct device device_cpu(uint32_t n_workers) {
    return (struct device){
        .kind = DEVICE_CPU, .n_workers = n_workers, .n_ranks = 1, .gang = 1, .piece_ns = PIECE_NS};
}

struct device device_cuda(uint32_t cc, uint32_t n_workers, double bytes_per_ns) {
    return (struct device){.kind = DEVICE_CUDA,
                           .n_workers = n_workers,
                           .n_ranks = 1,
                           .gang = 1,
                           .cc = cc,
                           .has = {cc / 10 == 9, cc >= 90, cc >= 90},
                           .ring_bytes = RING_BYTES,
                           .kept_bytes = KEPT_BYTES,
                           .bytes_per_ns = bytes_per_ns,
                           .hand_over_ns = HAND_OVER_NS,
                           .piece_ns = PIECE_NS};
}

bool device_streams(uint64_t n_rows) {
    return n_rows <= 2 * PACK_ROWS;
}

bool device_packs(const struct device *d, uint32_t n_rows, uint64_t k) {
    return d->kind == DEVICE_CUDA && (n_rows > 1 || k > STAGED_COLUMNS);
}

bool device_holds_layer(const struct device *d, const struct model_spec *s) {
    const uint64_t heads = 2ull * (s->n_heads + s->n_kv_heads) * s->head_dim;
    const uint64_t bytes = (heads + 3ull * s->intermediate) * s->hidden * dtype_bytes(DTYPE_BF16);
    return d->kind == DEVICE_CUDA && bytes / d->n_workers <= d->ring_bytes;
}

bool device_has_short_ring(const struct device *d) {
    return d->bytes_per_ns * PIECES_NS > (double)d->ring_bytes;
}
