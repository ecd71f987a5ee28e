/* qkv_fused.cuh - QKV_FUSED: makes heads from the parked sums of a tile, which has whole heads. The
 * bits are those of the two operators QKV_LINEAR and QKV_HEADS (attention/qkv.cuh).
 *
 * Two operators store the projections and read them again: 50 MB for 2,048 rows of Qwen3-8B. A
 * token's angles come from L2, and are the same for all heads.
 */
#ifndef QN_CUDA_MATMUL_QKV_FUSED_CUH
#define QN_CUDA_MATMUL_QKV_FUSED_CUH

#include "kernels/cuda/attention/qkv.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

/* cuda_head_tiles */
#define HEADS_BY_TILE (HAS_WGMMA && !QN_LATENT && QN_HEAD_DIM % 16 == 0 && 128 % QN_HEAD_DIM == 0)

#if HEADS_BY_TILE

static_assert(cuda_head_tiles(QN_HEAD_DIM), "as the host has it");

/* Where a token of the tile stands. */
struct tile_place {
    uint32_t angle, position, kv, reserved; /* angle: of the tables; kv: row_kv_row */
};
enum { TILE_PLACES = TILE_BYTES - PACK_TILE * sizeof(struct tile_place) };
static_assert(WGMMA_RING.x_at + WGMMA_RING.x_slots * WGMMA_RING.x_bytes <= TILE_PLACES, "room");

DEV struct tile_place *tile_places(void) {
    return (struct tile_place *)(shared_memory + TILE_PLACES);
}

/* Stores the places of the warp's tokens of the tile, every eighth one. They are still there for
 * the next tile of the same tokens. */
DEV void tile_places_put(const struct warp_context *c, const struct tile_at *t, uint32_t n) {
    const uint32_t at = c->warp + WARPS * c->lane, row = t->row + at;
    if (at < n) {
        const uint32_t position = row_position(SHARED, row);
        tile_places()[at] = {turn_at(row, position) * HALF_DIM, position, row_kv_row(SHARED, row),
                             0};
    }
    __syncwarp();
}

enum head_kind { HEAD_QUERY, HEAD_KEY, HEAD_VALUE };

/* A head that is being made from the tile's sums. */
struct tile_head {
    uint32_t unit, n; /* n: tokens of the tile */
    const float *cosine, *sine;
    float norm_a[LANE_PAIRS], norm_b[LANE_PAIRS], bias_a[LANE_PAIRS], bias_b[LANE_PAIRS];
};
template <enum head_kind KIND>
DEV struct tile_head tile_head_of(const struct warp_context *c, const struct cuda_task *task,
                                  const struct tile_at *t, uint32_t unit) {
    const bool biased = QN_QKV_BIAS && task->bias != 0;
    const float *norm = (const float *)(KIND == HEAD_QUERY ? task->norm : task->more);
    const float *bias = (const float *)task->bias + unit * QN_HEAD_DIM;
    struct tile_head h;
    h.unit = unit;
    h.n = tile_tokens(t);
    h.cosine = SHARED->args.rope_cos;
    h.sine = SHARED->args.rope_sin;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t i = pair_column(c, u);
        h.norm_a[u] = QN_QK_NORM && KIND != HEAD_VALUE ? __ldg(norm + i) : 1;
        h.norm_b[u] = QN_QK_NORM && KIND != HEAD_VALUE ? __ldg(norm + i + HALF_DIM) : 1;
        h.bias_a[u] = biased ? __ldg(bias + i) : 0;
        h.bias_b[u] = biased ? __ldg(bias + i + HALF_DIM) : 0;
    }
    return h;
}

/* The j-th of the warp's tokens from number `first` of the tile on; beyond the last one the warp's
 * first. */
DEV uint32_t token_of(const struct warp_context *c, uint32_t first, uint32_t j, uint32_t n) {
    const uint32_t at = first + j * WARPS;
    return at < n ? at : c->warp;
}

/* Rotations of HEADS_AHEAD of these tokens. */
struct angles_some {
    float cosine[HEADS_AHEAD][LANE_PAIRS], sine[HEADS_AHEAD][LANE_PAIRS];
};
template <enum head_kind KIND>
DEV struct angles_some angles_ask(const struct warp_context *c, const struct tile_head *h,
                                  uint32_t first) {
    struct angles_some x = {};
#pragma unroll
    for (int j = 0; j < HEADS_AHEAD; j++) {
        const uint32_t angle = tile_places()[token_of(c, first, j, h->n)].angle;
#pragma unroll
        for (int u = 0; u < LANE_PAIRS; u++) {
            if (KIND == HEAD_VALUE) continue;
            x.cosine[j][u] = __ldg(h->cosine + angle + pair_column(c, u));
            x.sine[j][u] = __ldg(h->sine + angle + pair_column(c, u));
        }
    }
    return x;
}

/* The lane's pairs of a token's head: sums times 1 / rms, plus biases. */
DEV void sums_load(const struct warp_context *c, const struct cuda_task *task,
                   const struct tile_at *t, const struct tile_head *h, uint32_t at, float *a,
                   float *b) {
    const float *v = tile_parked(t, at, h->unit * QN_HEAD_DIM - t->block * CUDA_PAGE_ROWS);
    const float inv = tile_norm_of(t->row + at);
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        a[u] = v[pair_column(c, u)] * inv;
        b[u] = v[pair_column(c, u) + HALF_DIM] * inv;
        if (!QN_QKV_BIAS || task->bias == 0) continue;
        a[u] += h->bias_a[u];
        b[u] += h->bias_b[u];
    }
}

/* Stores a head of the tile's tokens. All choices are made outside the loop over tokens: at a
 * branch the compiler would end one token before it begins the next. */
template <enum head_kind KIND>
DEV void head_finish(const struct warp_context *c, const struct cuda_task *task,
                     const struct tile_at *t, uint32_t unit) {
    const struct tile_head h = tile_head_of<KIND>(c, task, t, unit);
    if (c->warp >= h.n) return;
    struct angles_some next = angles_ask<KIND>(c, &h, c->warp);
#pragma unroll 1
    for (uint32_t first = c->warp; first < h.n; first += HEADS_AHEAD * WARPS) {
        const struct angles_some now = next;
        next = angles_ask<KIND>(c, &h, first + HEADS_AHEAD * WARPS);
        float a[HEADS_AHEAD][LANE_PAIRS], b[HEADS_AHEAD][LANE_PAIRS];
#pragma unroll
        for (int j = 0; j < HEADS_AHEAD; j++) {
            struct head_turn turn;
#pragma unroll
            for (int u = 0; u < LANE_PAIRS; u++) {
                turn.norm_a[u] = h.norm_a[u];
                turn.norm_b[u] = h.norm_b[u];
                turn.cosine[u] = now.cosine[j][u];
                turn.sine[u] = now.sine[j][u];
            }
            sums_load(c, task, t, &h, token_of(c, first, j, h.n), a[j], b[j]);
            head_turn_apply(c, &turn, KIND == HEAD_VALUE, a[j], b[j]);
        }
#pragma unroll
        for (int j = 0; j < HEADS_AHEAD; j++) {
            const uint32_t at = first + j * WARPS;
            if (at >= h.n) break;
            const struct tile_place p = tile_places()[at];
            if (KIND == HEAD_QUERY)
                query_store(c, task, unit, t->row + at, a[j], b[j]);
            else
                key_value_store(c, task, unit, p.position, p.kv, a[j], b[j]);
        }
    }
}

/* Stores the heads of a tile. Not a part of tile_finish, which all variants of many rows run. */
CODE(void, heads_finish, const struct cuda_task *task, struct tile_at t) {
    constexpr uint32_t blocks = QN_HEAD_DIM / CUDA_PAGE_ROWS;
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    if (t.block == task->block0 || task->row1 - task->row0 > PACK_TILE)
        tile_places_put(&c, &t, tile_tokens(&t));
#pragma unroll 1
    for (uint32_t block = t.block; block < t.end; block += blocks)
        if (block / blocks < QN_N_HEADS)
            head_finish<HEAD_QUERY>(&c, task, &t, block / blocks);
        else if (block / blocks < QN_N_HEADS + QN_N_KV_HEADS)
            head_finish<HEAD_KEY>(&c, task, &t, block / blocks);
        else
            head_finish<HEAD_VALUE>(&c, task, &t, block / blocks);
}

#endif

#endif
