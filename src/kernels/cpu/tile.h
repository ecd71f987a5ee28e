/* tile.h - what the kernels share: operands of a task, its rows, its scratch, RMSNorm folded into
 * the packing of activations, addresses in the KV cache.
 *
 * A kernel walks its task's token rows in blocks of tile_block_rows(k), so that a block of packed
 * activations stays in a core's L2 cache while the weights pass by, and its columns in chunks, so
 * that a block's results stay there too until they are finished. */
#ifndef QN_KERNELS_CPU_TILE_H
#define QN_KERNELS_CPU_TILE_H

#include "kernels/cpu/cpu_kernel.h"

enum {
    TILE_MAX_ROWS = 192, /* most rows of a block */
    TILE_MIN_CHUNK = 64, /* columns of many rows */
};

/* Columns of a chunk for blocks of `block` rows. Few rows have long chunks, so that the weights of
 * one matrix stream for long before those of another do. */
static inline uint32_t tile_chunk(uint32_t block) {
    uint32_t columns = 2048 / block & ~(TILE_MIN_CHUNK - 1u);
    return columns > TILE_MIN_CHUNK ? columns : TILE_MIN_CHUNK;
}

/* Rows of a block for dot products of length k: about 384 KB of packed bf16, 32 to 192 rows. */
uint32_t tile_block_rows(uint32_t k);

/* Operands by slot of op.def. NULL where an optional one is absent. */
static inline const void *tile_in(const struct cpu_task *t, int slot) {
    uint32_t i = t->op->in[slot];
    return i == PROG_NONE ? NULL : t->tensors[i];
}
static inline void *tile_out(const struct cpu_task *t, int slot) {
    uint32_t i = t->op->out[slot];
    return i == PROG_NONE ? NULL : t->tensors[i];
}
static inline enum dtype tile_in_dtype(const struct cpu_task *t, int slot) {
    return (enum dtype)PROG(t->program, TENSOR)[t->op->in[slot]].dtype;
}

static inline const uint32_t *tile_in_shape(const struct cpu_task *t, int slot) {
    return PROG(t->program, TENSOR)[t->op->in[slot]].shape;
}

/* Row n of a weight matrix. */
static inline const void *tile_weight_row(const void *w, enum dtype dtype, uint64_t n, uint32_t k) {
    return (const char *)w + n * k * dtype_bytes(dtype);
}

/* The matrix of an expert: a stack's address is that of an array of its matrices' addresses. */
static inline const void *tile_expert(const struct cpu_task *t, int slot, uint32_t expert) {
    const void *const *stack = t->tensors[t->op->in[slot]];
    return stack[expert];
}

/* The end of a task's rows: the task's own, or where this iteration's rows end. */
static inline uint32_t tile_row_end(const struct cpu_task *t, uint32_t n_rows) {
    return t->task->row1 < n_rows ? t->task->row1 : n_rows;
}

/* The same for an operator whose tasks' rows are a band of logit rows. */
static inline uint32_t tile_band_end(const struct cpu_task *t) {
    const uint32_t n = t->batch->rows.n_logit_rows, first = t->op->attrs.band_first;
    return tile_row_end(t, n > first ? n - first : 0);
}

/* The logit row of a task's row. */
static inline uint32_t tile_logit_row(const struct cpu_task *t, uint32_t row) {
    return t->op->attrs.band_first + row;
}

/* Scratch is cut from its start, every piece 64-byte aligned. With base NULL the same calls count
 * the bytes: `used` at the end is what a kernel's _scratch function returns. */
struct tile_scratch {
    char *base;
    size_t used;
};
static inline void *tile_take(struct tile_scratch *s, size_t bytes) {
    char *p = s->base == NULL ? NULL : s->base + s->used;
    s->used += (bytes + 63) & ~(size_t)63;
    return p;
}

/* Rows of the largest block that the operator's tasks work on. */
uint32_t tile_op_block(const struct prog_op *op, uint32_t k);

/* 1 / rms of a row of k floats. */
float tile_inverse_rms(const struct cpu_task *t, const float *x, uint32_t k);

/* Packs n <= TILE_MAX_ROWS rows of k floats, times the RMSNorm's weights if norm is not NULL.
 * Stores in inv[n] the factor 1 / rms of each row, by which the dot products must be multiplied. */
void tile_pack_norm(const struct cpu_task *t, enum dtype weight, const float *const *x,
                    const float *norm, uint32_t n, uint32_t k, void *dst, float *inv);

/* A layer's KV cache and how its rows lie. */
struct tile_cache {
    void *base;
    const struct kv_row *row;
};
/* The cache of a state tensor. */
struct tile_cache tile_cache_of(const struct cpu_task *t, uint32_t tensor);

/* Address of the key (which = 0) or value (1) row of a position of a slot. */
void *tile_kv(const struct cpu_task *t, const struct tile_cache *cache, uint32_t slot,
              uint32_t position, int which, uint32_t kv_head);

/* Scratch of gate and up of a block of rows, dense or of an expert; base NULL: bytes alone. */
struct mlp_scratch {
    void *pack;       /* a block of rows of x * norm */
    float *gate, *up; /* [block, tile_chunk(block)] dot products */
    size_t bytes;
};

static inline struct mlp_scratch mlp_scratch_at(void *base, uint32_t block, uint32_t k) {
    struct tile_scratch s = {.base = base};
    struct mlp_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(block, k));
    l.gate = tile_take(&s, (size_t)block * tile_chunk(block) * sizeof(float));
    l.up = tile_take(&s, (size_t)block * tile_chunk(block) * sizeof(float));
    l.bytes = s.used;
    return l;
}

#endif
