#include "kernels/cpu/tile.h"

#include <assert.h>
#include <math.h>

uint32_t tile_block_rows(uint32_t k) {
    uint32_t rows = 384 * 1024 / 2 / k & ~31u; /* multiples of 32: two AMX tiles of tokens */
    if (rows < 32) return 32;
    return rows < TILE_MAX_ROWS ? rows : TILE_MAX_ROWS;
}

uint32_t tile_op_block(const struct prog_op *op, uint32_t k) {
    uint32_t block = tile_block_rows(k);
    return op->n_rows < block ? op->n_rows : block;
}

void tile_pack_norm(const struct cpu_task *t, enum dtype weight, const float *const *x,
                    const float *norm, uint32_t n, uint32_t k, void *dst, float *inv) {
    assert(t->isa->pack_bytes(weight, n, k) <= cpu_pack_bound(n, k));
    t->isa->pack(weight, x, norm, n, k, dst);
    for (uint32_t i = 0; i < n; i++)
        inv[i] = 1.0f / sqrtf(t->isa->sum_squares(x[i], k) / (float)k + t->op->attrs.eps);
}

void *tile_kv(const struct cpu_task *t, void *cache, uint32_t slot, uint32_t position, int which,
              uint32_t kv_head) {
    const struct rt_batch *b = t->batch;
    uint32_t D = t->op->attrs.D;
    int32_t block = b->block_table[(size_t)slot * b->max_blocks + position / b->kv_block];
    assert(block >= 0 && (uint32_t)block < b->n_kv_blocks);
    size_t row = (((size_t)block * 2 + (size_t)which) * t->op->attrs.kv + kv_head) * b->kv_block +
                 position % b->kv_block;
    return (char *)cache + row * D * dtype_bytes(b->kv_dtype);
}
