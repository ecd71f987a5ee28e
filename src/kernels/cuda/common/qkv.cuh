/* qkv.cuh - QKV: query heads and this iteration's rows of the KV cache. One unit is one head; its
 * row blocks hold RoPE pairs 8 rows apart (CUDA_HEADS). When a head's dot products are all in
 * scratch, one warp per token norms, rotates and stores it. */
#ifndef QN_CUDA_COMMON_QKV_CUH
#define QN_CUDA_COMMON_QKV_CUH

#include "kernels/cuda/common/kv.cuh"
#include "kernels/cuda/common/linear.cuh"

#define HALF_DIM (QN_HEAD_DIM / 2)
/* RoPE pairs per lane */
#define LANE_PAIRS ((HALF_DIM + 31) / 32)

struct op_qkv {
    const struct warp_context *c;
    const struct cuda_task *task;
    float *head; /* scratch: [tile tokens][head_dim] */
    uint32_t row0, n;

    DEV const float *row(uint32_t row) const {
        return (const float *)task->in + (uint64_t)row * QN_HIDDEN;
    }
    DEV float2 prefetch(uint32_t, uint32_t, uint32_t) const { return make_float2(0, 0); }

    /* Where the tile's tokens stand, into shared memory; read after many barriers. */
    DEV void begin_tile(uint32_t first_row, uint32_t n_tokens) {
        row0 = first_row;
        n = n_tokens;
        if (c->thread >= n) return;
        const struct rt_batch *b = &c->shared->batch;
        uint32_t position = row_position(b, row0 + c->thread);
        c->shared->place[c->thread].position = position;
        c->shared->place[c->thread].kv_row = kv_row(b, row_slot(b, row0 + c->thread), position);
    }

    DEV void finish(uint32_t block, uint32_t r, uint32_t token, float v0, float v1, float2) const {
        uint32_t i = block % HEAD_BLOCKS * 8 + r;
        if (i >= HALF_DIM) return;
        float inv = c->shared->inv_rms[token];
        v0 *= inv;
        v1 *= inv;
#if QN_QKV_BIAS
        const float *bias = (const float *)task->bias + block / HEAD_BLOCKS * QN_HEAD_DIM + i;
        v0 += __ldg(bias);
        v1 += __ldg(bias + HALF_DIM);
#endif
        head[token * QN_HEAD_DIM + i] = v0;
        head[token * QN_HEAD_DIM + i + HALF_DIM] = v1;
    }

    /* One token's head by one warp: lane l has pairs l, l + 32 ... */
    DEV void finish_token(uint32_t unit, uint32_t token) const {
        const float *y = head + token * QN_HEAD_DIM;
        float a[LANE_PAIRS], b[LANE_PAIRS];
        const struct row_place place = c->shared->place[token];
        float squares = 0;
#pragma unroll
        for (int u = 0; u < LANE_PAIRS; u++) {
            uint32_t i = c->lane + 32 * u;
            a[u] = i < HALF_DIM ? y[i] : 0;
            b[u] = i < HALF_DIM ? y[i + HALF_DIM] : 0;
            squares = fmaf(b[u], b[u], fmaf(a[u], a[u], squares));
        }
        const bool is_query = unit < QN_N_HEADS, is_value = unit >= QN_N_HEADS + QN_N_KV_HEADS;
#if QN_QK_NORM
        if (!is_value) {
            float inv = 1.0f / sqrtf(warp_sum(squares) / (float)QN_HEAD_DIM + RMS_EPS);
            const float *norm = (const float *)(is_query ? task->more : task->more2);
#pragma unroll
            for (int u = 0; u < LANE_PAIRS; u++) {
                uint32_t i = c->lane + 32 * u;
                if (i >= HALF_DIM) break;
                a[u] = a[u] * inv * __ldg(norm + i);
                b[u] = b[u] * inv * __ldg(norm + i + HALF_DIM);
            }
        }
#endif
        const uint64_t angle = (uint64_t)place.position * HALF_DIM;
#pragma unroll
        for (int u = 0; u < LANE_PAIRS; u++) {
            uint32_t i = c->lane + 32 * u;
            if (i >= HALF_DIM) break;
            if (!is_value) {
                float cosine = __ldg(c->args->rope_cos + angle + i);
                float sine = __ldg(c->args->rope_sin + angle + i);
                float first = a[u] * cosine - b[u] * sine;
                b[u] = b[u] * cosine + a[u] * sine;
                a[u] = first;
            }
            if (is_query)
                store_query(unit, token, i, a[u], b[u]);
            else
                store_kv(unit - QN_N_HEADS, place.kv_row, i, a[u], b[u]);
        }
    }

    DEV void store_query(uint32_t unit, uint32_t token, uint32_t i, float a, float b) const {
        float *q = (float *)task->out + ((uint64_t)(row0 + token) * QN_N_HEADS + unit) * QN_HEAD_DIM;
        q[i] = a;
        q[i + HALF_DIM] = b;
    }

    /* unit: key heads, then value heads */
    DEV void store_kv(uint32_t unit, uint32_t row, uint32_t i, float a, float b) const {
        uint16_t *kv = (uint16_t *)task->out2 + (uint64_t)row * QN_HEAD_DIM;
        uint32_t head_idx = unit % QN_N_KV_HEADS, value = unit / QN_N_KV_HEADS;
        kv += (uint64_t)value * KV_VALUE_STRIDE + (uint64_t)head_idx * KV_HEAD_STRIDE;
        kv[i] = pack_one<KV_E>(a);
        kv[i + HALF_DIM] = pack_one<KV_E>(b);
    }

    DEV void finish_unit(uint32_t unit) const {
        for (uint32_t token = c->warp; token < n; token += WARPS) finish_token(unit, token);
    }
};

DEV void run_qkv(struct warp_context *c, const struct cuda_task *task) {
    struct op_qkv op = {c, task, (float *)c->scratch, 0, 0};
    linear_run(c, task, c->shared->batch.rows.n_rows, op);
}

#endif
