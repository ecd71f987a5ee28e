/* row_stage.cuh - stages a single row of activations: stores it to shared memory as 16-bit floats
 * for the tensor cores (matvec.cuh). */
#ifndef QN_CUDA_DATA_ROW_STAGE_CUH
#define QN_CUDA_DATA_ROW_STAGE_CUH

#include "kernels/cuda/data/squares.cuh"

DEV uint2 pack_scaled(float4 v, float4 scale) {
    return make_uint2(pack_pair<WEIGHT_E>(v.x * scale.x, v.y * scale.y),
                      pack_pair<WEIGHT_E>(v.z * scale.z, v.w * scale.w));
}

/* Only the residual stream is normed: rows of QN_HIDDEN floats. A thread holds STREAM_FOURS of a
 * row's float4s at once. */
enum {
    STREAM_FOURS = QN_HIDDEN > 8 * COMPUTE_THREADS   ? 4
                   : QN_HIDDEN > 4 * COMPUTE_THREADS ? 2
                                                     : 1
};

/* Constants that a compute thread fetches for a task before the task's event is activated. */
struct early {
    float4 norm[STREAM_FOURS]; /* float4 number first + 256 i of the norm's weights */
};

/* Fetches the weights of a norm; zeros if norm is NULL. */
DEV void early_norm(const float *norm, uint32_t first, struct early *e) {
#pragma unroll
    for (int u = 0; u < STREAM_FOURS; u++) {
        const uint32_t i = first + u * COMPUTE_THREADS;
        e->norm[u] = make_float4(0, 0, 0, 0);
        if (norm != nullptr && i < QN_HIDDEN / 4) e->norm[u] = __ldg((const float4 *)norm + i);
    }
}

/* Stages the thread's next float4s of a row of the residual stream, from number `first` on: 16-bit
 * floats, times the norm's weights, with zeros up to the end of the last k-tile. Returns sum plus
 * their blocks' sums of squares. */
DEV float stage_stream_share(struct operand row, const struct early *e, uint32_t first, char *dst,
                             float sum) {
    float4 v[STREAM_FOURS];
    operand_load_share<STREAM_FOURS>(row, first, QN_HIDDEN / 4, v);
#pragma unroll
    for (int u = 0; u < STREAM_FOURS; u++) {
        const uint32_t at = first + u * COMPUTE_THREADS;
        sum += squares_of_block(v[u]);
        if (at < cuda_k_tiles(QN_HIDDEN) * (CUDA_PAGE_K / 4))
            *(uint2 *)(dst + 8 * at) = pack_scaled(v[u], e->norm[u]);
    }
    return sum;
}

/* Stages a row of the residual stream. parts[8]: the sum of squares of each warp's share. All
 * compute threads take part. */
DEV void stage_stream(const struct warp_context *c, struct operand row, const float *norm,
                      const struct early *early, char *dst, float *parts) {
    constexpr uint32_t step = STREAM_FOURS * COMPUTE_THREADS;
    float sum = stage_stream_share(row, early, c->thread, dst, 0);
#pragma unroll 1
    for (uint32_t first = step; first < QN_HIDDEN / 4; first += step) {
        struct early more;
        early_norm(norm, first + c->thread, &more);
        sum = stage_stream_share(row, &more, first + c->thread, dst, sum);
    }
#pragma unroll
    for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (c->lane == 0) parts[c->warp] = sum;
}

/* Stages a row of K floats that is not normed, with zeros up to the end of the last k-tile. Only
 * where no event is carried by data: otherwise such a row travels as pairs. */
template <uint32_t K>
DEV void stage_floats(const struct warp_context *c, struct operand row, char *dst) {
    constexpr int N = 2;
    constexpr uint32_t end = cuda_k_tiles(K) * CUDA_PAGE_K / 4;
#pragma unroll 1
    for (uint32_t first = c->thread; first < end; first += N * COMPUTE_THREADS) {
        float4 v[N];
        operand_load_share<N>(row, first, K / 4, v);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (first + u * COMPUTE_THREADS < end)
                *(uint2 *)(dst + 8 * (first + u * COMPUTE_THREADS)) =
                    pack_scaled(v[u], make_float4(1, 1, 1, 1));
    }
}

/* ROWS rows of K elements, one after the other, are staged in whole k-tiles each. Of the staged
 * fours of elements: whether number `at` is one of a row, and which one of all rows it is. */
template <uint32_t K, uint32_t ROWS> DEV bool stage_has(uint32_t at) {
    constexpr uint32_t pitch = cuda_k_tiles(K) * CUDA_PAGE_K / 4;
    if (ROWS == 1 || K % CUDA_PAGE_K == 0) return at < ROWS * K / 4;
    return at < ROWS * pitch && at % pitch < K / 4;
}
template <uint32_t K, uint32_t ROWS> DEV uint32_t stage_from(uint32_t at) {
    constexpr uint32_t pitch = cuda_k_tiles(K) * CUDA_PAGE_K / 4;
    if (ROWS == 1 || K % CUDA_PAGE_K == 0) return at;
    return at - at / pitch * (pitch - K / 4);
}

/* Stages rows of K elements that travel as pairs, which are rounded already. A thread loads its
 * share in equal parts of at most six vectors of two pairs, because its registers hold a page, too.
 * It loads all missing vectors again together. */
template <uint32_t K, uint32_t ROWS = 1>
DEV void stage_pairs(const struct warp_context *c, struct operand row, char *dst) {
    constexpr uint32_t end = ROWS * cuda_k_tiles(K) * CUDA_PAGE_K / 4;
    constexpr uint32_t share = (end + COMPUTE_THREADS - 1) / COMPUTE_THREADS;
    constexpr uint32_t trips = (share + 5) / 6, N = (share + trips - 1) / trips;
#pragma unroll
    for (uint32_t first = 0; first < end; first += N * COMPUTE_THREADS) {
        uint4 v[N] = {};
        uint32_t missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < N; u++)
            missing |= stage_has<K, ROWS>(first + u * COMPUTE_THREADS + c->thread) << u;
#pragma unroll 1
        do {
#pragma unroll
            for (uint32_t u = 0; u < N; u++)
                if (missing >> u & 1)
                    v[u] = load_flagged_pair(
                        row.at + 4 * stage_from<K, ROWS>(first + u * COMPUTE_THREADS + c->thread));
#pragma unroll
            for (uint32_t u = 0; u < N; u++)
                if (v[u].y == row.flag && v[u].w == row.flag) missing &= ~(1u << u);
        } while (missing != 0 && !operand_given_up());
#pragma unroll
        for (uint32_t u = 0; u < N; u++) {
            const uint32_t at = first + u * COMPUTE_THREADS + c->thread;
            if (at < end) *(uint2 *)(dst + 8 * at) = make_uint2(v[u].x, v[u].z);
        }
    }
}

#endif
