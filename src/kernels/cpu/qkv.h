/* qkv.h - what QKV does in one task, QKV_LINEAR and QKV_HEADS (or ATTENTION_STEP) in two: the
 * same arithmetic, so the same bits. */
#ifndef QN_KERNELS_CPU_QKV_H
#define QN_KERNELS_CPU_QKV_H

#include "kernels/cpu/tile.h"

/* y[n] = y * inv + bias (NULL: none): from dot products to a projection. */
static inline void qkv_scale(float *y, uint32_t n, float inv, const float *bias) {
    for (uint32_t i = 0; i < n; i++) {
        y[i] *= inv;
        if (bias != NULL) y[i] += bias[i];
    }
}

/* Applies per-head RMSNorm (norm not NULL) and RoPE (if `turn`) to the head y[D] of a row, in
 * place. */
void qkv_turn_head(const struct cpu_task *t, bool turn, const float *norm, uint32_t row, float *y);

/* Applies RoPE at the row's position to y[n], where n is the width that RoPE turns. */
void qkv_rotate(const struct cpu_task *t, uint32_t row, float *y, uint32_t n);

/* Stores a key (`which` 0) or value (1) head y at the row's place in the cache. */
void qkv_store(const struct cpu_task *t, const struct tile_cache *cache, int which, uint32_t idx,
               uint32_t row, const float *y);

/* Makes a key (`which` 0) or value (1) head from its projection y and stores it at the row's place
 * in the cache. Changes y. */
void qkv_store_kv(const struct cpu_task *t, const struct tile_cache *cache, int which, uint32_t idx,
                  const float *norm, uint32_t row, float *y);

/* Makes the head y[D] of a row, by per-head RMSNorm (norm not NULL) and RoPE, and stores it.
 * `which` -1: as query head idx of output q; 0, 1: as key, value head idx of the KV cache. Changes
 * y. */
void qkv_place_head(const struct cpu_task *t, int which, uint32_t idx, const float *norm,
                    uint32_t row, float *y);

#endif
