/* kv.cuh - rows of the iteration and addresses in the paged KV cache (layout: graph/kv_row.h). */
#ifndef QN_CUDA_DATA_KV_CUH
#define QN_CUDA_DATA_KV_CUH

#include "kernels/cuda/data/packed_layout.cuh"
#include "kernels/cuda/data/reduce.cuh"

/* Heads of a row of qkv. */
#define QKV_HEADS (QN_N_HEADS + 2 * QN_N_KV_HEADS)

/* Elements from k of a head to v of that head, and from a head to the next, inside a block. */
#define KV_HEAD_STRIDE  QN_KV_HEAD_STRIDE
#define KV_VALUE_STRIDE QN_KV_VALUE_STRIDE

/* Where a column of a key or of a value lies in its row. Chunks of 16 bytes are swapped by the
 * row's position, so that no two lanes that load a share of 16 positions for the tensor cores meet
 * in a bank of shared memory. Rows that are not whole lines of 128 bytes are not swapped. */
enum { KV_SWAPS = QN_HEAD_DIM % 64 == 0, LATENT_SWAPS = QN_KEY_DIM % 64 == 0 };
DEV uint32_t key_at(uint32_t position, uint32_t column) {
    return KV_SWAPS ? column / 64 * 64 + (column % 64 ^ position % 2 * 32) : column;
}
DEV uint32_t value_at(uint32_t position, uint32_t column) {
    return KV_SWAPS ? column / 64 * 64 + (column % 64 ^ position / 4 % 4 * 16) : column;
}

/* Where chunk number `chunk` of a row of the cache goes in shared memory, where each row begins
 * with a line of 128 bytes and all rows are swapped. */
DEV uint32_t key_chunk_to(uint32_t row, uint32_t chunk) {
    return KV_SWAPS ? chunk : chunk ^ row % 2 * 4;
}
DEV uint32_t value_chunk_to(uint32_t row, uint32_t chunk) {
    return KV_SWAPS ? chunk : chunk ^ row / 4 % 4 * 2;
}

/* Latents are keys and values in one: both orders of chunks. */
DEV uint32_t latent_swap(uint32_t position) {
    return position % 2 * 32 ^ position / 4 % 4 * 16;
}
DEV uint32_t latent_at(uint32_t position, uint32_t column) {
    return LATENT_SWAPS ? column ^ latent_swap(position) : column;
}

/* The cache block of a position of a slot. */
DEV uint32_t kv_block(const struct rt_batch *b, uint32_t slot, uint32_t position) {
    const int32_t *table = b->block_table + (uint64_t)slot * b->max_blocks;
    return (uint32_t)load_index_l2(table + position / QN_KV_BLOCK);
}

/* Number of the cache row that holds k of KV head 0 at a position, in rows of a key. */
DEV uint32_t kv_block_row(uint32_t block, uint32_t position) {
    return block * (QN_KV_BLOCK_STRIDE / QN_KEY_DIM) + position % QN_KV_BLOCK;
}
DEV uint32_t kv_row(const struct rt_batch *b, uint32_t slot, uint32_t position) {
    return kv_block_row(kv_block(b, slot, position), position);
}

/* Slot and position of a token row: the first rows' are in shared memory. */
DEV uint32_t row_slot(const struct block_shared *s, uint32_t row) {
    if (row < MAX_PLACES) return s->place[row].position_slot % PROG_MAX_SEQS;
    return (uint32_t)load_index_l2(s->batch.rows.slot + row);
}

DEV uint32_t row_position(const struct block_shared *s, uint32_t row) {
    if (row < MAX_PLACES) return s->place[row].position_slot / PROG_MAX_SEQS;
    return (uint32_t)load_index_l2(s->batch.rows.position + row);
}

/* Whether MIXED has ATTENTION's rows, not PREFILL: each is another request's, or there are few and
 * no context is longer than a piece. Of 24 and of 64 tokens of a prompt of Qwen3-8B PREFILL made
 * the first token in 6.4 and 7.1 ms instead of 6.1 and 6.8 (H100), since few tasks have an item of
 * it. */
DEV bool rows_are_mixed(const struct block_shared *s) {
    const uint32_t n = s->batch.rows.n_rows;
    return s->batch.rows.n_alone == n || (n <= MAX_PLACES && s->last_position < ATTENTION_PIECE);
}

/* Where a token row's own key lies in the cache. */
DEV uint32_t row_kv_row(const struct block_shared *s, uint32_t row) {
    if (row < MAX_PLACES) return s->place[row].kv_row;
    return kv_row(&s->batch, row_slot(s, row), row_position(s, row));
}

/* The token row of a logit row. */
DEV uint32_t row_of_logits(const struct block_shared *s, uint32_t row) {
    if (row < MAX_LOGIT_PLACES) return s->logit_row[row];
    return (uint32_t)load_index_l2(s->batch.rows.logit_row + row);
}

#endif
