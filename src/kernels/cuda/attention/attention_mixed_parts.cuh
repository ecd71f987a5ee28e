/* attention_mixed_parts.cuh - the units and parts on which two warps of MIXED work
 * (attention_mixed.cuh), and how their bytes are loaded.
 *
 * A *unit* is a piece of a step. A *part* is what a warp reads of 32 of a unit's positions: the
 * keys of 16, or half of the values' columns of all 32. Each warp loads its parts into a ring of
 * its own: STEPS_DEPTH void pages that the loader gives it. Weights of the next task may use the
 * other pages.
 *
 * Where a step is one token and its request has none before it in the iteration (decode), all but
 * the token's own key and value, its *fresh* position, is already in the cache. Then as many parts
 * as the ring holds are requested before the task's event. Other steps request everything after
 * it. Each further part is requested when an earlier one has been used.
 *
 * Scratch: attention_mixed.cuh.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_MIXED_PARTS_CUH
#define QN_CUDA_ATTENTION_ATTENTION_MIXED_PARTS_CUH

#include "kernels/cuda/attention/attention_share.cuh"

/* A piece of a step. */
struct steps_unit {
    struct attention_step step;
    uint32_t piece, piece_end; /* of the step */
    uint32_t fresh; /* the only position that the iteration adds; ~0: there may be more */
    uint32_t more;  /* whether there is such a unit */
};

enum {
    STEPS_PAIRS = WARPS / 2,
    FEW_TOKENS = SUB_HEADS < 8 ? 8 / SUB_HEADS : 1, /* of a step: half of the rows it could have */
    STEPS_UNITS = 8 / HEAD_HALVES,                  /* known at a time */
    LISTS_AT = WARPS * STEPS_UNITS * sizeof(struct steps_unit),

    PART_POSITIONS = 32,
    PARTS_OF_A_PIECE = ATTENTION_PIECE / PART_POSITIONS,
    HALF_COLUMNS = (QN_HEAD_DIM / 2 + 7) / 8 * 8, /* of values; the second half may be shorter */
    HALF_SPANS = (HALF_COLUMNS + 63) / 64,
    HALF_PAIRS = (HALF_COLUMNS + 15) / 16,
    KEY_ROW = (QN_HEAD_DIM + 63) / 64 * 128, /* bytes of a part's rows */
    VALUE_ROW = HALF_SPANS * 128,
    KEYS_BYTES = 16 * KEY_ROW,
    VALUES_BYTES = PART_POSITIONS * VALUE_ROW,
    PART_BYTES = KEYS_BYTES > VALUES_BYTES ? KEYS_BYTES : VALUES_BYTES,
    PAGE_ROOM = CUDA_PAGE_BYTES / PART_BYTES,
    PAGE_PARTS = PAGE_ROOM < 3 ? PAGE_ROOM : 3, /* of a page */
    PART_SLOTS = STEPS_DEPTH * PAGE_PARTS,
    UNITS_AHEAD = PART_SLOTS / 2 + 1, /* that may be requested: a unit has two parts at least */
};
static_assert(PART_SLOTS > 0 && UNITS_AHEAD < STEPS_UNITS, "attention's ring");
static_assert(ATTENTION_PIECE == 8 * 16 && PARTS_OF_A_PIECE == 4, "eight shares");

/* Which half of a pair's work the warp does. */
DEV uint32_t half_of(const struct warp_context *c) {
    return c->warp % 2;
}

/* ---- units ---- */

DEV struct steps_unit *unit_of(const struct warp_context *c, uint32_t u) {
    return (struct steps_unit *)SCRATCH + c->warp * STEPS_UNITS + u % STEPS_UNITS;
}

/* The first position of a share; whether any row sees one of its positions. */
DEV uint32_t unit_first(const struct steps_unit *unit, uint32_t share) {
    return unit->piece * ATTENTION_PIECE + 16 * share;
}
DEV bool unit_sees(const struct steps_unit *unit, uint32_t first) {
    return first < unit->step.hi && first + 16 > unit->step.lo;
}

/* How many of the token rows from `row` on, below `end`, belong to one slot. */
DEV uint32_t same_slot(const struct block_shared *b, uint32_t row, uint32_t end) {
    uint32_t slot = row_slot(b, row), n = 1;
    while (row + n < end && row_slot(b, row + n) == slot) n++;
    return n;
}

/* The list of two warps. Its items have fewer tokens where at most half of all pairs of warps would
 * have one. */
DEV struct steps_list list_begin(const struct warp_context *c, const struct cuda_task *task) {
    struct steps_list l = {0, 0, 0, 0, FEW_TOKENS, task_window(task) != 0};
    uint64_t item, last;
    const uint32_t n_rows = SHARED->batch.rows.n_rows, n = task->unit1 * STEPS_PAIRS;
    while (l.tokens > 1 && 2 * ceil_div(n_rows, l.tokens) * HEAD_STEPS <= n) l.tokens /= 2;
    prog_slice((uint64_t)ceil_div(n_rows, l.tokens) * HEAD_STEPS,
               task->unit0 * STEPS_PAIRS + c->warp / 2, n, &item, &last);
    l.item = (uint32_t)item;
    l.last = (uint32_t)last;
    return l;
}

/* The list's next step. */
DEV struct steps_found list_next(struct steps_list *l) {
    const struct block_shared *b = SHARED;
    struct attention_step s;
    if (l->item >= l->last) return {};
    if (l->row == l->row_end) {
        l->row = l->item / HEAD_STEPS * l->tokens;
        l->row_end = min(l->row + l->tokens, b->batch.rows.n_rows);
    }
    s.row0 = l->row;
    s.n_tokens = same_slot(b, l->row, l->row_end);
    step_range(b, window_if(l->slides), &s);
    const bool first = s.row0 == 0 || row_slot(b, s.row0 - 1) != s.slot;
    const struct steps_found found = {
        (uint16_t)(l->item % HEAD_STEPS),         (uint16_t)s.n_tokens, s.row0, s.lo, s.hi,
        first && s.n_tokens == 1 ? s.hi - 1 : ~0u};
    l->row += s.n_tokens;
    if (l->row == l->row_end) l->item++;
    return found;
}

/* A step's first unit. */
DEV struct steps_unit unit_from(const struct steps_found *found) {
    struct steps_unit unit = {};
    unit.more = found->n_tokens > 0;
    if (!unit.more) return unit;
    unit.step.row0 = found->row0;
    unit.step.n_tokens = found->n_tokens;
    unit.step.slot = row_slot(SHARED, found->row0);
    unit.step.lo = found->lo;
    unit.step.hi = found->hi;
    step_heads(&unit.step, found->head / SUBS, found->head % SUBS);
    unit.piece = found->lo / ATTENTION_PIECE;
    unit.piece_end = (found->hi - 1) / ATTENTION_PIECE + 1;
    unit.fresh = found->fresh;
    return unit;
}

/* The warp's list. */
DEV struct steps_list *list_of(const struct warp_context *c) {
    return (struct steps_list *)(SCRATCH + LISTS_AT) + c->warp;
}

/* Stores the task's first unit and list in scratch. They are found once an iteration, as in
 * items_first. */
DEV void units_begin(const struct warp_context *c, const struct cuda_task *task) {
    struct warp_state *mine = &SHARED->warp[c->warp];
    const uint64_t key =
        (uint64_t)items_key(task->kind, task_window(task), task->unit0) << 32 | SHARED->flag;
    if (c->lane == 0) {
        if (mine->list_key != key) {
            mine->steps.list = list_begin(c, task);
            mine->steps.found = list_next(&mine->steps.list);
            mine->list_key = key;
        }
        *unit_of(c, 0) = unit_from(&mine->steps.found);
        *list_of(c) = mine->steps.list;
    }
    __syncwarp();
}

/* Finds unit number u, the one after unit u - 1. */
CODE(void, unit_find, uint32_t u) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    if (c.lane != 0) return;
    struct steps_unit unit = *unit_of(&c, u - 1);
    if (++unit.piece == unit.piece_end) {
        const struct steps_found found = list_next(list_of(&c));
        unit = unit_from(&found);
    }
    *unit_of(&c, u) = unit;
}

/* The same, or notes that there is none. No lane reads unit u - STEPS_UNITS any more. */
DEV void unit_known(const struct warp_context *c, uint32_t u) {
    __syncwarp();
    if (unit_of(c, u - 1)->more)
        unit_find(u);
    else if (c->lane == 0)
        unit_of(c, u)->more = 0;
    __syncwarp();
}

/* Parts of a unit's keys, and as many of its values: [first, end) of its piece's four. */
struct parts_range {
    uint32_t first, end;
};
DEV struct parts_range parts_of(const struct steps_unit *unit) {
    const uint32_t begin = unit->piece * ATTENTION_PIECE;
    const uint32_t first = unit->step.lo > begin ? (unit->step.lo - begin) / PART_POSITIONS : 0;
    return {first, ceil_div(min(unit->step.hi - begin, (uint32_t)ATTENTION_PIECE),
                            (uint32_t)PART_POSITIONS)};
}

/* ---- the warp's ring ---- */

/* A place in the order of parts. */
struct parts_cursor {
    uint32_t unit, part; /* part: among all of the unit's */
    uint32_t slot;       /* where it goes: bytes from the ring's begin */
    uint32_t pages;      /* the sum of where the warp's two pages begin */
    uint32_t asked;      /* parts so far, of the first PART_SLOTS */
    bool more;           /* whether there is such a part */
    uint32_t
        place[PARTS_OF_A_PIECE]; /* cache rows of the unit's positions, the lane's of each 32 */
};

DEV uint32_t slot_first(const struct warp_context *c) {
    return page_slot(c->warp, c->page) * CUDA_PAGE_BYTES;
}
DEV uint32_t slot_pages(const struct warp_context *c) {
    const uint32_t last = STEPS_DEPTH > 1 ? page_next(c->page) : c->page;
    return slot_first(c) + page_slot(c->warp, last) * CUDA_PAGE_BYTES;
}
DEV uint32_t slot_next(uint32_t pages, uint32_t slot) {
    const uint32_t in_page = slot % CUDA_PAGE_BYTES;
    return in_page == (PAGE_PARTS - 1) * PART_BYTES ? pages - (slot - in_page) : slot + PART_BYTES;
}

/* The first position of a part. */
DEV uint32_t part_first(const struct steps_unit *unit, uint32_t n) {
    return unit->piece * ATTENTION_PIECE + n * PART_POSITIONS;
}

/* The lane's position in a part. Positions past the last one that the step sees repeat that one:
 * values of zero weight must be numbers. */
DEV uint32_t part_position(const struct warp_context *c, const struct steps_unit *unit,
                           uint32_t n) {
    return min(part_first(unit, n) + c->lane, unit->step.hi - 1);
}

/* Where the cursor's unit lies in the cache. */
DEV void cursor_places(const struct warp_context *c, struct parts_cursor *at) {
    const struct steps_unit *unit = unit_of(c, at->unit);
    const struct rt_batch *b = &SHARED->batch;
    const int32_t *table = b->block_table + (uint64_t)unit->step.slot * b->max_blocks;
    uint32_t block[PARTS_OF_A_PIECE];
#pragma unroll
    for (int n = 0; n < PARTS_OF_A_PIECE; n++)
        block[n] = (uint32_t)load_index_l2(table + part_position(c, unit, n) / QN_KV_BLOCK);
#pragma unroll
    for (int n = 0; n < PARTS_OF_A_PIECE; n++)
        at->place[n] = kv_block_row(block[n], part_position(c, unit, n));
}

/* Moves the cursor to a unit's first part. */
DEV void cursor_enter(const struct warp_context *c, struct parts_cursor *at, uint32_t u) {
    at->unit = u;
    at->part = 0;
    at->more = unit_of(c, u)->more != 0;
    if (at->more) cursor_places(c, at);
}

/* Where a chunk of a row of a part lies, from the row's begin: swapped, so that no two of eight
 * rows have it in the same banks. */
DEV uint32_t part_chunk(uint32_t row, uint32_t chunk) {
    return chunk / 8 * 128 + (chunk % 8 ^ row % 8) * 16;
}

/* Requests the warp's rows of a part, of keys or of values, chunk by chunk. place: of the lane's
 * position; NOWHERE: it is not wanted. first: the part's first position. last: the position that is
 * repeated from there on. */
enum { NOWHERE = ~0u };
DEV void ask_keys(const struct warp_context *c, const uint16_t *kv, uint32_t place, uint32_t first,
                  uint32_t last, char *to) {
    const uint32_t chunks = QN_HEAD_DIM / 8;
#pragma unroll 1
    for (uint32_t i = c->lane; i - c->lane < 16 * chunks; i += 32) {
        const uint32_t row = i / chunks, chunk = i % chunks, n = half_of(c) * 16 + row % 16;
        const uint32_t from = __shfl_sync(~0u, place, n), position = min(first + n, last);
        if (row < 16 && from != NOWHERE)
            copy16_async(to + row * KEY_ROW + part_chunk(row, chunk),
                         kv_line(kv + (uint64_t)from * QN_HEAD_DIM, position) +
                             kv_chunk_at(position, chunk));
    }
}
DEV void ask_values(const struct warp_context *c, const uint16_t *kv, uint32_t place,
                    uint32_t first, uint32_t last, char *to) {
    const uint32_t chunks = HALF_COLUMNS / 8, skip = half_of(c) * chunks;
#pragma unroll 1
    for (uint32_t i = c->lane; i - c->lane < 32 * chunks; i += 32) {
        const uint32_t row = i / chunks, chunk = i % chunks;
        const uint32_t from = __shfl_sync(~0u, place, row % 32), position = min(first + row, last);
        if (from != NOWHERE && skip + chunk < QN_HEAD_DIM / 8)
            copy16_async(to + row * VALUE_ROW + part_chunk(row, chunk),
                         kv_line(kv + (uint64_t)from * QN_HEAD_DIM, position) +
                             KV_VALUE_STRIDE * 2 + kv_chunk_at(position, skip + chunk));
    }
}

/* The same for the part's first n positions, where 16 positions follow each other in the cache.
 * place: of the lane's position, or of the last one. A lane copies one chunk of every few rows. The
 * chunk has the same place in a line of the cache and in the part, unless a line is cut or not
 * swapped. */
enum {
    KEY_CHUNKS = QN_HEAD_DIM / 8,
    VALUE_CHUNKS = HALF_COLUMNS / 8,
    ASK_BLOCKS = QN_KV_BLOCK % 16 == 0 && QN_HEAD_DIM >= 32 && 32 % KEY_CHUNKS == 0,
    HALVES_ARE_LINES = HALF_COLUMNS % 64 == 0,
};
/* Copies the lane's chunk of row i of 16. */
DEV void ask_chunk(const char *from, char *to, uint32_t i, uint32_t chunk) {
    copy16_once_async(to, from + (KV_SWAPS ? kv_stored_at(chunk) : kv_chunk_at(i, chunk)));
}
DEV void ask_key_block(const struct warp_context *c, const uint16_t *kv, uint32_t place, uint32_t n,
                       char *to) {
    constexpr uint32_t step = 32 / KEY_CHUNKS;
    const uint32_t row = c->lane / KEY_CHUNKS, chunk = c->lane % KEY_CHUNKS;
    const uint32_t first = __shfl_sync(~0u, place, half_of(c) * 16) / 16 * 16;
    const char *from = (const char *)(kv + (uint64_t)first * QN_HEAD_DIM) + row * KV_LINE;
    to += row * KEY_ROW;
#pragma unroll
    for (uint32_t i = 0; i < 16; i += step) {
        const uint32_t in_line =
            KV_SWAPS ? chunk / 8 * 128 + chunk % 8 * 16 : part_chunk(row + i, chunk);
        if (half_of(c) * 16 + row + i < n)
            ask_chunk(from + kv_row_at(i), to + i * KEY_ROW + in_line, row + i, chunk);
    }
}
DEV void ask_value_blocks(const struct warp_context *c, const uint16_t *kv, uint32_t place,
                          uint32_t n, char *to) {
    constexpr uint32_t step = 32 / VALUE_CHUNKS;
    const uint32_t row = c->lane / VALUE_CHUNKS, chunk = c->lane % VALUE_CHUNKS;
    const uint32_t column = half_of(c) * VALUE_CHUNKS + chunk;
    to += row * VALUE_ROW;
#pragma unroll
    for (uint32_t block = 0; block < 2; block++, to += 16 * VALUE_ROW) {
        const uint32_t first = __shfl_sync(~0u, place, block * 16) / 16 * 16;
        const char *from = (const char *)(kv + KV_VALUE_STRIDE + (uint64_t)first * QN_HEAD_DIM);
#pragma unroll
        for (uint32_t i = 0; i < 16; i += step) {
            if (block * 16 + row + i >= n) continue;
            if (HALVES_ARE_LINES && KV_SWAPS && step <= 8)
                ask_chunk(from + row * KV_LINE + kv_row_at(i), to + i * VALUE_ROW + chunk * 16,
                          row + i, column);
            else
                copy16_once_async(to + i * VALUE_ROW + part_chunk(row + i, chunk),
                                  from + kv_row_at(row + i) + kv_chunk_at(row + i, column));
        }
    }
}

/* Requests the cursor's part into its slot, and goes on to the next one. */
DEV void part_ask(const struct warp_context *c, const struct cuda_task *task,
                  struct parts_cursor *at) {
    const struct steps_unit *unit = unit_of(c, at->unit);
    const struct parts_range parts = parts_of(unit);
    const uint32_t n_keys = parts.end - parts.first, slot = at->slot;
    const bool values = at->part >= n_keys;
    const uint32_t n = parts.first + at->part - (values ? n_keys : 0);
    const uint16_t *kv =
        (const uint16_t *)task->more + (uint64_t)unit->step.kv_head * KV_HEAD_STRIDE;
    uint32_t place = at->place[0];
#pragma unroll
    for (uint32_t i = 1; i < PARTS_OF_A_PIECE; i++) place = i == n ? at->place[i] : place;
    char *to = RING + slot;
    if (ASK_BLOCKS && unit->fresh != ~0u) {
        const uint32_t old = unit->fresh - part_first(unit, n); /* positions before the fresh one */
        if (values)
            ask_value_blocks(c, kv, place, old, to);
        else
            ask_key_block(c, kv, place, old, to);
    } else {
        const uint32_t first = part_first(unit, n), last = unit->step.hi - 1;
        if (part_position(c, unit, n) == unit->fresh) place = NOWHERE;
        if (values)
            ask_values(c, kv, place, first, last, to);
        else
            ask_keys(c, kv, place, first, last, to);
    }
    at->slot = slot_next(at->pages, slot);
    at->part++;
    if (at->part == 2 * n_keys) cursor_enter(c, at, at->unit + 1);
}

/* Requests the next part, if there is one. */
DEV void part_next(const struct warp_context *c, const struct cuda_task *task,
                   struct parts_cursor *at) {
    if (at->more) part_ask(c, task, at);
    copy_commit();
}

/* Requests the first parts, as many as there is room for. BEFORE the event: up to the first that
 * the iteration may have written. */
template <bool BEFORE>
DEV void parts_ask(const struct warp_context *c, const struct cuda_task *task,
                   struct parts_cursor *at) {
#pragma unroll 1
    for (; at->asked < PART_SLOTS; at->asked++) {
        if (BEFORE && at->more && unit_of(c, at->unit)->fresh == ~0u) return;
        part_next(c, task, at);
    }
}

#endif
