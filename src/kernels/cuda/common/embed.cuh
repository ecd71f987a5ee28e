/* embed.cuh - EMBED: x[row] = table[token], and what the first norm makes of it. The table is a
 * weight image (it may be the LM head's too), so a row is picked out of its row block's pages. */
#ifndef QN_CUDA_COMMON_EMBED_CUH
#define QN_CUDA_COMMON_EMBED_CUH

#include "kernels/cuda/common/act.cuh"
#include "kernels/cuda/common/kv.cuh"

/* Columns [k, k + 4) of a matrix row, k a multiple of 4: cuda_abi.h has the order. */
DEV float4 image_load4(const char *image, uint32_t row, uint32_t k, uint32_t k_tiles) {
    uint32_t step = k % CUDA_PAGE_K / 32 * 2 + k % 8 / 4;
    uint32_t lane = row % 8 * 4 + k % 32 / 8;
    const char *page = image + ((uint64_t)(row / 16) * k_tiles + k / CUDA_PAGE_K) * CUDA_PAGE_BYTES;
    const uint32_t *word = (const uint32_t *)(page + (step * 32 + lane) * 16) + row % 16 / 8;
    uint32_t lo = __ldg(word), hi = __ldg(word + 2);
    return make_float4(unpack_low<WEIGHT_E>(lo), unpack_high<WEIGHT_E>(lo),
                       unpack_low<WEIGHT_E>(hi), unpack_high<WEIGHT_E>(hi));
}

/* The sum of the squares of SQUARES_COLUMNS columns of which four lanes have four each, in the
 * first of them: added up as linear_norm does. All lanes. */
DEV float embed_squares(float4 v, uint32_t lane) {
    const float a[4] = {v.x, v.y, v.z, v.w};
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* columns r and r + 8 */
        const float b = __shfl_xor_sync(~0u, a[i], 2);
        p[i] = lane % 4 < 2 ? fmaf(b, b, a[i] * a[i]) : 0;
    }
    const float sum = (p[0] + p[1]) + (p[2] + p[3]);
    return sum + __shfl_xor_sync(~0u, sum, 1);
}

/* Columns [k, k + 4) of a row, times the weights of the norm that comes next. */
DEV void embed_normed(const struct cuda_task *task, uint32_t row, uint32_t k, float4 v,
                      float4 norm) {
    const float4 n = make_float4(v.x * norm.x, v.y * norm.y, v.z * norm.z, v.w * norm.w);
    float *out = (float *)task->out2;
    if (task->flags & CUDA_OUT_PAIRED) { /* a single row */
        store_flagged_pair(out + k, n.x, n.y, SHARED->flag);
        store_flagged_pair(out + k + 2, n.z, n.w, SHARED->flag);
    } else if (task->flags & CUDA_OUT_PACKED) {
        packed_store4(task, task->out2, row, k, n);
    } else {
        const struct act to =
            act_from(act_of(task->out2, task, CUDA_NORMED_FLAGGED), (uint64_t)row * QN_HIDDEN + k);
        act_put2(to, make_float2(n.x, n.y));
        act_put2(act_from(to, 2), make_float2(n.z, n.w));
    }
}

/* A row of the table. Four columns a thread, two times that at once. */
DEV void embed_row(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                   uint32_t token) {
    constexpr int AT_ONCE = 2;
    const uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN), step = 4 * COMPUTE_THREADS;
    for (uint32_t first = 4 * c->thread; first - 4 * c->lane < QN_HIDDEN; first += AT_ONCE * step) {
        float4 v[AT_ONCE] = {}, norm[AT_ONCE] = {};
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const uint32_t k = first + u * step;
            if (k >= QN_HIDDEN) continue;
            v[u] = image_load4((const char *)task->w, token, k, k_tiles);
            norm[u] = __ldg((const float4 *)((const float *)task->norm + k));
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const uint32_t k = first + u * step;
            const float squares = embed_squares(v[u], c->lane);
            if (k >= QN_HIDDEN) continue;
            act_store4(task, (uint64_t)row * QN_HIDDEN + k, v[u]); /* x[T, H] */
            embed_normed(task, row, k, v[u], norm[u]);
            if (c->lane % 4 == 0)
                act_put(act_from(squares_at(task, row), k / SQUARES_COLUMNS), squares);
        }
    }
}

DEV void run_embed(struct warp_context *c, const struct cuda_task *task) {
    const struct rt_rows *rows = &SHARED->batch.rows;
    const uint32_t end = min(task->row1, rows->n_rows);
    for (uint32_t row = task->row0; row < end; row++)
        embed_row(c, task, row, (uint32_t)load_index_l2(rows->token + row));
}

#endif
