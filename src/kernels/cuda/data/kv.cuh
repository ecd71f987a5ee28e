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

/* Whether wgmma multiplies keys and values of many rows as they come from the cache: heads of whole
 * lines of 128 bytes, a share's 16 positions in one block. */
#define ROWS_BY_WGMMA                                                                              \
    (HAS_WGMMA && QN_HEAD_DIM % 64 == 0 && QN_HEAD_DIM <= 128 && QN_KV_BLOCK % 16 == 0)

/* How rows of keys or of values lie, in a block of the cache and in a page. Lines of 128 bytes have
 * their chunks of 16 bytes swapped by the position, which is what wgmma calls its swizzle of 128
 * bytes: no two of eight rows have a chunk in the same banks. Where wgmma reads them, the lines of
 * eight positions that have the same columns follow each other; elsewhere those of a position. Rows
 * that are not whole lines are not swapped. All in bytes. */
enum {
    KV_SWAPS = QN_HEAD_DIM % 64 == 0,
    KV_ROW = QN_HEAD_DIM * 2,
    KV_LINE = ROWS_BY_WGMMA ? 128 : KV_ROW, /* from a position to the next of eight */
    KV_PLANE = ROWS_BY_WGMMA ? 1024 : 128,  /* from 64 columns to the next */
    KV_APART = KV_LINE != KV_ROW            /* a position's lines do not follow each other */
};

/* Where the first line of position number n of a share begins, from the share's begin. */
DEV uint32_t kv_row_at(uint32_t n) {
    return KV_LINE == KV_ROW ? n * KV_ROW : n / 8 * (8 * KV_ROW) + n % 8 * KV_LINE;
}
/* Where chunk number `chunk` of a position's row lies, from its first line on. */
DEV uint32_t kv_chunk_at(uint32_t position, uint32_t chunk) {
    return KV_SWAPS ? chunk / 8 * KV_PLANE + (chunk % 8 ^ position % 8) * 16 : chunk * 16;
}
/* Where chunk number i lies as it is stored, of rows that follow each other, from the first one's
 * first line on: for copies, which keep the order. */
DEV uint32_t kv_stored_at(uint32_t i) {
    constexpr uint32_t chunks = QN_HEAD_DIM / 8;
    return kv_row_at(i / chunks) + i % chunks / 8 * KV_PLANE + i % chunks % 8 * 16;
}
/* The first line of a position's row, of which `row` is where rows that follow each other would
 * have it: a row is numbered so. */
DEV char *kv_line(const void *row, uint32_t position) {
    const int32_t apart = (int32_t)(position % 8) * (KV_LINE - KV_ROW);
    return (char *)row + (KV_APART ? apart : 0);
}

/* Latents lie by shares of 16 positions that follow each other: line number 0 of all of them, then
 * number 1, and so on, the chunks of a line swapped by the position. So in shared memory; so in the
 * cache, too, where rows are whole lines and blocks whole shares. Elsewhere the cache has rows as
 * they are. */
enum {
    LATENT_LINES = (QN_KEY_DIM + 63) / 64,
    LATENT_PLANE = 16 * 128,               /* bytes from a line to the next of a share */
    LATENT_PAGES = (LATENT_LINES + 3) / 4, /* pages of a share; lines of a page */
    LATENT_PAGE_LINES = (LATENT_LINES + LATENT_PAGES - 1) / LATENT_PAGES,
    LATENT_BY_LINES = QN_KEY_DIM % 64 == 0 && QN_KV_BLOCK % 16 == 0
};

/* Where a line or a chunk of a position lies in its share, in bytes. */
DEV uint32_t latent_line_at(uint32_t position, uint32_t line) {
    return line * LATENT_PLANE + position % 16 * 128;
}
DEV uint32_t latent_chunk_at(uint32_t position, uint32_t chunk) {
    return latent_line_at(position, chunk / 8) + (chunk % 8 ^ position % 8) * 16;
}
/* Where the share of a position begins in a layer's cache, in elements; row: kv_row. */
DEV uint64_t latent_share_at(uint32_t row, uint32_t position) {
    return (uint64_t)(row - position % 16) * QN_KEY_DIM;
}
/* Where a column of a position lies there. */
DEV uint64_t latent_at(uint32_t row, uint32_t position, uint32_t column) {
    if (!LATENT_BY_LINES) return (uint64_t)row * QN_KEY_DIM + column;
    return latent_share_at(row, position) + latent_chunk_at(position, column / 8) / 2 + column % 8;
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
