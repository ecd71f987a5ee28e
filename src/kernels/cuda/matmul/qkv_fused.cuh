/* qkv_fused.cuh - QKV_FUSED: heads from the parked sums of a tile, which has whole heads: the same
 * bits as QKV_LINEAR and QKV_HEADS (attention/qkv.cuh) in two.
 *
 * A head of 2,048 tokens of Qwen3-8B had 1 KB stored and as much read again. Angles of a token come
 * from L2, where all heads' are the same ones.
 */
#ifndef QN_CUDA_MATMUL_QKV_FUSED_CUH
#define QN_CUDA_MATMUL_QKV_FUSED_CUH

#include "kernels/cuda/attention/qkv.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

/* cuda_head_tiles */
#define HEADS_BY_TILE (HAS_WGMMA && !QN_LATENT && QN_HEAD_DIM % 16 == 0 && 128 % QN_HEAD_DIM == 0)

#if HEADS_BY_TILE

/* Where a token of the tile stands. */
struct tile_place {
    uint32_t turn, position, kv, reserved; /* turn: turn_at; kv: row_kv_row */
};
enum { TILE_PLACES = TILE_BYTES - PACK_TILE * sizeof(struct tile_place) };
static_assert(WGMMA_RING.x_at + WGMMA_RING.x_slots * WGMMA_RING.x_bytes <= TILE_PLACES, "room");

DEV struct tile_place *tile_places(void) {
    return (struct tile_place *)(shared_memory + TILE_PLACES);
}

/* The places of a tile's tokens, for heads_finish. To be called between barriers. The next tile of
 * the same tokens has them still. */
DEV void tile_places_put(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                         uint32_t end) {
    const uint32_t token = row + c->thread;
    if (task->kind != OP_QKV_FUSED || c->thread >= PACK_TILE || token >= end) return;
    const uint32_t position = row_position(SHARED, token);
    tile_places()[c->thread] = {turn_at(token, position), position, row_kv_row(SHARED, token), 0};
}

/* What turns a head of some tokens, the warp's from number `first` of the tile on. */
struct turns_some {
    struct head_turn of[HEADS_AHEAD];
};
DEV struct turns_some turns_ask(const struct warp_context *c, const float *norm, bool is_value,
                                uint32_t first, uint32_t n) {
    struct turns_some t;
#pragma unroll
    for (int j = 0; j < HEADS_AHEAD; j++)
        t.of[j] =
            head_turn_of(c, norm, is_value, tile_places()[min(first + j * WARPS, n - 1)].turn);
    return t;
}

/* The lane's pairs of a head of a token: sums times 1 / rms, and biases. */
DEV void sums_load(const struct warp_context *c, const struct cuda_task *task,
                   const struct tile_at *t, uint32_t at, uint32_t column, float *a, float *b) {
    const float *v = tile_parked(t, at, column - t->block * CUDA_PAGE_ROWS);
    const float inv = tile_norm_of(t->row + at);
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t i = min(c->lane + 32 * u, HALF_DIM - 1u), k = i + HALF_DIM;
        a[u] = v[i] * inv;
        b[u] = v[k] * inv;
        if (QN_QKV_BIAS && task->bias != 0) {
            a[u] += __ldg((const float *)task->bias + column + i);
            b[u] += __ldg((const float *)task->bias + column + k);
        }
    }
}

/* Stores the heads of a tile. */
DEV void heads_finish(const struct warp_context *c, const struct cuda_task *task,
                      const struct tile_at *t) {
    const uint32_t n = tile_tokens(t);
#pragma unroll 1
    for (uint32_t block = t->block; block < t->end; block += QN_HEAD_DIM / CUDA_PAGE_ROWS) {
        const uint32_t column = block * CUDA_PAGE_ROWS, unit = column / QN_HEAD_DIM;
        const bool is_value = unit >= QN_N_HEADS + QN_N_KV_HEADS;
        const float *norm = (const float *)(unit < QN_N_HEADS ? task->norm : task->more);
        struct turns_some next = turns_ask(c, norm, is_value, c->warp, n);
#pragma unroll 1
        for (uint32_t first = c->warp; first < n; first += HEADS_AHEAD * WARPS) {
            const struct turns_some now = next;
            next = turns_ask(c, norm, is_value, first + HEADS_AHEAD * WARPS, n);
            float a[HEADS_AHEAD][LANE_PAIRS], b[HEADS_AHEAD][LANE_PAIRS];
#pragma unroll
            for (int j = 0; j < HEADS_AHEAD; j++) {
                sums_load(c, task, t, min(first + j * WARPS, n - 1), column, a[j], b[j]);
                head_turn_apply(c, &now.of[j], is_value, a[j], b[j]);
            }
#pragma unroll
            for (int j = 0; j < HEADS_AHEAD; j++) {
                const uint32_t at = first + j * WARPS;
                if (at >= n) break;
                const struct tile_place p = tile_places()[at];
                heads_store(c, task, unit, t->row + at, p.position, p.kv, a[j], b[j]);
            }
        }
    }
}

#else

DEV void tile_places_put(const struct warp_context *, const struct cuda_task *, uint32_t,
                         uint32_t) {}

#endif

#endif
