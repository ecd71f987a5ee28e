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

/* Whether wgmma multiplies keys and values of many rows in the layout that they have in the cache.
 * Heads must be whole lines of 128 bytes, and a share's 16 positions must lie in one KV block. */
#define ROWS_BY_WGMMA                                                                              \
    (HAS_WGMMA && QN_HEAD_DIM % 64 == 0 && QN_HEAD_DIM <= 128 && QN_KV_BLOCK % 16 == 0)

/* How rows of keys or of values lie in a KV block and in a page, in bytes. In each line of 128
 * bytes the chunks of 16 bytes are swapped by the position, which is wgmma's swizzle of 128 bytes:
 * no two of eight rows have a chunk in the same banks. Rows that are not whole lines are not
 * swapped. If wgmma reads the rows, the lines of eight positions that have the same columns follow
 * each other; otherwise the lines of one position do. */
enum {
    KV_SWAPS = QN_HEAD_DIM % 64 == 0,
    KV_ROW = QN_HEAD_DIM * 2,
    KV_LINE = ROWS_BY_WGMMA ? 128 : KV_ROW, /* from a position to the next of eight */
    KV_PLANE = ROWS_BY_WGMMA ? 1024 : 128,  /* from 64 columns to the next */
    KV_APART = KV_LINE != KV_ROW            /* a position's lines do not follow each other */
};

/* Bytes from a share's start to the first line of its position number n. */
DEV uint32_t kv_row_at(uint32_t n) {
    return KV_LINE == KV_ROW ? n * KV_ROW : n / 8 * (8 * KV_ROW) + n % 8 * KV_LINE;
}
/* Bytes from the first line of a position's row to chunk number `chunk` of the row. */
DEV uint32_t kv_chunk_at(uint32_t position, uint32_t chunk) {
    return KV_SWAPS ? chunk / 8 * KV_PLANE + (chunk % 8 ^ position % 8) * 16 : chunk * 16;
}
/* Bytes from the first line of rows that follow each other to their chunk number i in the order of
 * storage: for copies, which keep this order. */
DEV uint32_t kv_stored_at(uint32_t i) {
    constexpr uint32_t chunks = QN_HEAD_DIM / 8;
    return kv_row_at(i / chunks) + i % chunks / 8 * KV_PLANE + i % chunks % 8 * 16;
}
/* The first line of a position's row. `row` is where the row would begin if each row were
 * contiguous, as the numbers of rows count. */
DEV char *kv_line(const void *row, uint32_t position) {
    const int32_t apart = (int32_t)(position % 8) * (KV_LINE - KV_ROW);
    return (char *)row + (KV_APART ? apart : 0);
}

/* Latents lie in shares of 16 consecutive positions: line number 0 of all positions, then number 1,
 * and so on, with the chunks of a line swapped by the position. Shared memory has this layout. The
 * cache has it, too, if rows are whole lines and KV blocks are whole shares; otherwise its rows are
 * contiguous. */
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
/* Where a column of a position lies in a layer's cache, in elements. */
DEV uint64_t latent_at(uint32_t row, uint32_t position, uint32_t column) {
    if (!LATENT_BY_LINES) return (uint64_t)row * QN_KEY_DIM + column;
    return latent_share_at(row, position) + latent_chunk_at(position, column / 8) / 2 + column % 8;
}

/* The KV block of a position of a slot. */
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

/* Slot and position of a token row. Those of the first rows are in shared memory. */
DEV uint32_t row_slot(const struct block_shared *s, uint32_t row) {
    if (row < MAX_PLACES) return s->place[row].position_slot % PROG_MAX_SEQS;
    return (uint32_t)load_index_l2(s->batch.rows.slot + row);
}

DEV uint32_t row_position(const struct block_shared *s, uint32_t row) {
    if (row < MAX_PLACES) return s->place[row].position_slot / PROG_MAX_SEQS;
    return (uint32_t)load_index_l2(s->batch.rows.position + row);
}

/* The first row of the iteration that is of the row's request, whose slot this is. A request's rows
 * follow each other. A whole warp calls it: 32 rows are looked up at a time. */
DEV uint32_t row_first(const struct block_shared *s, uint32_t slot, uint32_t row) {
    uint32_t from = 0, end = row;
    if (row == 0 || row_slot(s, row - 1) != slot) return row;
    while (from < end) {
        const uint32_t step = (end - from + 31) / 32, at = from + thread_here() % 32 * step;
        const uint32_t own = __ballot_sync(~0u, at >= end || row_slot(s, at) == slot);
        const uint32_t first = own == 0 ? 32 : __popc((own & -own) - 1);
        if (first == 0) return from;
        end = min(from + first * step, end);
        from += (first - 1) * step + 1;
    }
    return end;
}

/* Whether MIXED runs ATTENTION's rows instead of PREFILL: each row is another request's, or there
 * are few rows and no context is longer than a piece. For 24 and 64 tokens of a prompt of Qwen3-8B
 * the first token took 6.4 and 7.1 ms with PREFILL, 6.1 and 6.8 with MIXED (H100), because only few
 * tasks have an item of PREFILL. */
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
