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

float tile_inverse_rms(const struct cpu_task *t, const float *x, uint32_t k) {
    return 1.0f / sqrtf(t->isa->sum_squares(x, k) / (float)k + t->op->attrs.eps);
}

void tile_pack_norm(const struct cpu_task *t, enum dtype weight, const float *const *x,
                    const float *norm, uint32_t n, uint32_t k, void *dst, float *inv) {
    assert(t->isa->pack_bytes(weight, n, k) <= cpu_pack_bound(n, k));
    t->isa->pack(weight, x, norm, n, k, dst);
    for (uint32_t i = 0; i < n; i++) inv[i] = tile_inverse_rms(t, x[i], k);
}

struct tile_cache tile_cache_of(const struct cpu_task *t, uint32_t tensor) {
    const uint64_t layer = PROG(t->program, TENSOR)[tensor].where;
    return (struct tile_cache){t->tensors[tensor], &PROG(t->program, KV)[layer]};
}

void *tile_kv(const struct cpu_task *t, const struct tile_cache *cache, uint32_t slot,
              uint32_t position, int which, uint32_t kv_head) {
    const struct rt_batch *b = t->batch;
    const struct kv_row *r = cache->row;
    int32_t block = b->block_table[(size_t)slot * b->max_blocks + position / b->kv_block];
    assert(block >= 0 && (uint32_t)block < b->n_kv_blocks);
    uint32_t in = position % b->kv_block;
    uint64_t at = (uint64_t)block * kv_block_elements(r, b->kv_block);
    at += which == 0 ? kv_key_at(r, b->kv_block, kv_head, in)
                     : kv_value_at(r, b->kv_block, kv_head, in);
    return (char *)cache->base + at * dtype_bytes(r->dtype);
}
