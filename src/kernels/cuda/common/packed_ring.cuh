/* packed_ring.cuh - Hopper: how weights and activations pass through a lease (packed.cuh).
 *
 *   0           parked sums
 *   + parked    slots of weights: [row block][step][512 bytes], 8 steps of 16 columns
 *   + weights   slots of activations: pieces of a stretch of rows, [group of eight][1 KB], 4 steps
 *
 * Both are rings of their own: few large copies want long slots of weights, and activations have
 * more bytes to the step. Warps of their own ask for them (packed_ask.cuh; packed_full tells when a
 * slot has come), the compute warps multiply and say when they have used one (packed_empty).
 *
 * When one warp asked for both, it took 42 ns a copy and 11 ns a KB (H100), one after the other: a
 * tile of 128 x 128 and 128 columns of k are 8 copies of 4 KB and 2 of 16 KB, 1.1 us, for 2.1
 * million products.
 */
#ifndef QN_CUDA_COMMON_PACKED_RING_CUH
#define QN_CUDA_COMMON_PACKED_RING_CUH

#include "kernels/cuda/common/act.cuh"

#define LEASE_BYTES (RING_BYTES + SCRATCH_BYTES)

enum {
    RING_BLOCKS = 8,  /* row blocks of a tile */
    RING_W_STEPS = 8, /* steps of 16 columns in a slot of weights; of activations: PIECE_STEPS */
    W_PARTS = CUDA_PAGE_K / 16 / RING_W_STEPS, /* slots of a k-tile */
    X_PARTS = CUDA_PAGE_K / CUDA_PACK_COLUMNS,
};

struct ring_shape {
    uint32_t w_bytes, x_bytes; /* of a slot */
    uint32_t w_slots, x_slots;
    uint32_t w_at, x_at; /* where the first one is */
};

DEV constexpr uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

DEV constexpr struct ring_shape ring_shape_of(void) {
    struct ring_shape s = {};
    const uint32_t parked = RING_BLOCKS * CUDA_PAGE_ROWS * PACK_TILE * 4;
    const uint32_t room = LEASE_BYTES - parked;
    s.w_bytes = RING_BLOCKS * RING_W_STEPS * 512;
    s.x_bytes = PACK_TILE / PACK_ROWS * PACKED_PIECE;
    s.w_slots = least((room - 3 * s.x_bytes) / s.w_bytes, MAX_W_SLOTS);
    s.x_slots = least((room - s.w_slots * s.w_bytes) / s.x_bytes, MAX_X_SLOTS);
    s.w_at = parked;
    s.x_at = parked + s.w_slots * s.w_bytes;
    return s;
}

#endif
