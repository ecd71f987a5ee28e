/* act.cuh - activations into the compute warps: the only place that knows how they travel.
 *
 * Today they are F32 tensors guarded by event counters: by the time a task runs they can simply be
 * read through L2.
 */
#ifndef QN_CUDA_COMMON_ACT_CUH
#define QN_CUDA_COMMON_ACT_CUH

#include "kernels/cuda/common/walk.cuh"

/* Four floats of an activation row that another block wrote. */
DEV float4 act_load4(const float *p) {
    return load4_l2(p);
}
DEV float act_load(const float *p) {
    return load_l2(p);
}

DEV float square_sum(float sum, float4 v) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}

/* The same sum in every lane, by one fixed tree. */
DEV float warp_sum(float v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

DEV float warp_max(float v) {
    for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

/* Only the residual stream is normed: rows of QN_HIDDEN floats. */
DEV float inverse_rms_of(float sum) {
    return inverse_sqrt_fast(__fadd_rn(__fmul_rn(sum, 1.0f / QN_HIDDEN), RMS_EPS));
}

/* 1 / rms from the eight parts of the sum of squares, added in order. */
DEV float inverse_rms(const float *parts) {
    float v[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) v[i] = parts[i];
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += v[i];
    return inverse_rms_of(sum);
}

DEV uint2 pack_scaled(float4 v, float4 scale) {
    return make_uint2(pack_pair<WEIGHT_E>(v.x * scale.x, v.y * scale.y),
                      pack_pair<WEIGHT_E>(v.z * scale.z, v.w * scale.w));
}

/* What a compute thread fetches for a task before the task's event is activated: constants only. */
struct early {
    float4 norm[4]; /* of the norm's weights: float4 number thread + 256 i */
};

DEV void early_norm(const struct warp_context *c, const struct cuda_task *task, struct early *e) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
        uint32_t i = c->thread + u * COMPUTE_THREADS;
        e->norm[u] = task->norm != 0 && i < task->k / 4 ? __ldg((const float4 *)task->norm + i)
                                                        : make_float4(0, 0, 0, 0);
    }
}

/* Stages one row of k floats, times the norm's weights, as 16-bit floats, zeros up to k_padded.
 * The row's sum of squares is left in eight parts: part w is warp w's share, float4 number
 * 32 w + lane + 256 i. (rms_of_row adds in the same order.) All compute threads. */
DEV void act_stage_row(const struct warp_context *c, const float *row, const float *norm,
                       const struct early *early, uint32_t k, uint32_t k_padded, char *dst,
                       float *parts) {
    float sum = 0;
    uint32_t i = c->thread;
    float4 v[4];
#pragma unroll
    for (int u = 0; u < 4; u++) {
        uint32_t at = i + u * COMPUTE_THREADS;
        v[u] = at < k / 4 ? act_load4(row + 4 * at) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < 4; u++) {
        uint32_t at = i + u * COMPUTE_THREADS;
        float4 scale = norm != nullptr ? early->norm[u] : make_float4(1, 1, 1, 1);
        if (at >= k / 4) scale = make_float4(0, 0, 0, 0);
        sum = square_sum(sum, v[u]);
        if (at < k_padded / 4) *(uint2 *)(dst + 8 * at) = pack_scaled(v[u], scale);
    }
    /* Rows of more than 4096 floats. */
    i += 4 * COMPUTE_THREADS;
#pragma unroll 4
    for (; i < k_padded / 4; i += COMPUTE_THREADS) {
        float4 x = i < k / 4 ? act_load4(row + 4 * i) : make_float4(0, 0, 0, 0);
        float4 scale = make_float4(1, 1, 1, 1);
        if (norm != nullptr) {
            sum = square_sum(sum, x);
            if (i < k / 4) scale = __ldg((const float4 *)norm + i);
        }
        *(uint2 *)(dst + 8 * i) = pack_scaled(x, scale);
    }
    if (norm == nullptr) return;
    sum = warp_sum(sum);
    if (c->lane == 0) parts[c->warp] = sum;
}

/* 1 / rms of one row by one warp: the same additions as act_stage_row and inverse_rms. */
DEV float rms_of_row(const struct warp_context *c, const float *row, uint32_t k) {
    float part[WARPS] = {};
    for (uint32_t i0 = c->lane; i0 < k / 4; i0 += COMPUTE_THREADS) {
        float4 v[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            v[w] =
                i0 + 32 * w < k / 4 ? act_load4(row + 4 * (i0 + 32 * w)) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            if (i0 + 32 * w < k / 4) part[w] = square_sum(part[w], v[w]);
    }
    float sum = warp_sum(part[0]);
#pragma unroll
    for (int w = 1; w < WARPS; w++) sum += warp_sum(part[w]);
    return inverse_rms_of(sum);
}

#endif
