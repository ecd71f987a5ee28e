/* attention_items.cuh - the work list (work_list.cuh) of a task of ATTENTION_STEP or _WHOLE: its
 * items, and which of their bytes are loaded as pages.
 *
 * An item is a piece of the context of one token row, for one KV head and up to SUB_HEADS of its
 * query heads. Items are ordered by row, head, piece. A task has a slice of them, in
 * ATTENTION_WHOLE with all pieces of a row and head. The 128 positions of a piece are eight shares
 * of 16, one for each compute warp:
 *
 *   nothing   no position of it is visible to the row
 *   page      all of it was in the cache before the iteration: the loader fetches it as soon as
 *             there is room, long before the task's event
 *   fresh     the iteration itself writes some of it: the page holds the positions before, the
 *             compute warps add the others
 *
 * A share takes one page: k[16][head_dim], then v[16][head_dim]. Where these do not fit, it takes
 * two: an item has the eight shares' pages of k, then those of v. Shares of which nothing is loaded
 * have void pages.
 *
 * Long contexts of ATTENTION_STEP: RUN_LEAST to eight whole pieces of one row and head, before
 * anything fresh, form a run. In a run each warp takes a piece for itself, and the warps exchange
 * nothing (attention_decode_long.cuh). A page holds RUN_POSITIONS of k or of v. The first pages of
 * all pieces come first, one for each warp, then the second ones, and so on, k before v. Warps
 * without a piece have void pages.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_ITEMS_CUH
#define QN_CUDA_ATTENTION_ATTENTION_ITEMS_CUH

#include "kernels/cuda/data/kv.cuh"
#include "kernels/cuda/block/work_list.cuh"

#define GROUP_HEADS     (QN_N_HEADS / QN_N_KV_HEADS)
#define SUB_MOST        (QN_LATENT || QN_HEAD_DIM <= 128 ? 16 : 8)
#define SUB_HEADS       (GROUP_HEADS < SUB_MOST ? GROUP_HEADS : SUB_MOST) /* heads of one step */
#define SUBS            ((GROUP_HEADS + SUB_HEADS - 1) / SUB_HEADS)       /* steps per group */
#define HEAD_STEPS      (QN_N_KV_HEADS * SUBS)

#define SHARE_POSITIONS (ATTENTION_PIECE / WARPS)
#define SHARE_BYTES     (SHARE_POSITIONS * QN_HEAD_DIM * 2) /* of k, and as many of v */
#define SHARE_PAGES     (2 * SHARE_BYTES <= CUDA_PAGE_BYTES ? 1 : 2)
static_assert(QN_LATENT || SUB_HEADS == cuda_sub_heads(GROUP_HEADS, QN_HEAD_DIM),
              "the host's items");
static_assert(SHARE_BYTES <= CUDA_PAGE_BYTES, "a page holds a share's keys");

/* Of a run: positions in a page; pages of a piece's k, and as many of its v. */
#define RUN_POSITIONS (2 * SHARE_POSITIONS / SHARE_PAGES)
#define RUN_PAGES     (ATTENTION_PIECE / RUN_POSITIONS)
enum {
    RUN_LEAST = 4,                             /* void pages cost the loader as much as others */
    HAS_RUNS = QN_KV_BLOCK >= SHARE_POSITIONS, /* else copies are too small to be worth it */
};

/* Positions that a row of a task sees, itself included; 0: all. A constant unless layers differ. */
DEV uint32_t task_window(const struct cuda_task *task) {
    return QN_WINDOWS_DIFFER ? task->k : QN_SLIDING_WINDOW;
}

/* The same for a list. slides: whether its layer has a window. */
DEV uint32_t window_if(uint32_t slides) {
    return QN_WINDOWS_DIFFER && !slides ? 0 : QN_SLIDING_WINDOW;
}

/* The first position that a row at `position` sees. */
DEV uint32_t window_start(uint32_t window, uint32_t position) {
    const uint32_t n = position + 1;
    return window != 0 && n > window ? n - window : 0;
}

DEV uint32_t row_pieces(const struct block_shared *b, uint32_t window, uint32_t row,
                        uint32_t *first) {
    uint32_t position = row_position(b, row);
    *first = window_start(window, position) / ATTENTION_PIECE;
    return position / ATTENTION_PIECE + 1 - *first;
}

/* A task's first item is the same in all layers of one window. Copies that are kept of it have this
 * key. */
DEV uint32_t items_key(uint32_t kind, uint32_t window, uint32_t unit0) {
    return kind << 24 | (QN_WINDOWS_DIFFER && window != 0) << 23 | unit0;
}

/* The first piece that the row sees. */
DEV uint32_t item_first_piece(const struct attention_item *w) {
    return w->lo / ATTENTION_PIECE;
}

DEV void items_row(const struct block_shared *b, struct attention_item *w, uint32_t row) {
    w->row = row;
    w->slot = row_slot(b, row);
    w->hi = row_position(b, row) + 1;
    w->lo = window_start(window_if(w->slides), w->hi - 1);
    w->piece = item_first_piece(w);
    w->piece_end = (w->hi - 1) / ATTENTION_PIECE + 1;
    /* The rows of a slot follow each other in order of position. */
    while (row > 0 && row_slot(b, row - 1) == w->slot) row--;
    w->fresh = row_position(b, row);
}

enum {
    ITEMS_ALIKE = 2 * WARPS, /* most pieces of a row whose items of STEP count one each */
    ITEMS_ANY = 0xffff,
};

/* How much a row's items of one head count when they are divided among tasks: one each. In STEP's
 * long contexts the last one counts three more: at the end of a head all warps work together and
 * make the next heads, and the runs before and after are not whole. WHOLE: all items of a head
 * count one together. */
struct row_load {
    uint32_t pieces, all;
};
DEV struct row_load items_load_of(const struct block_shared *b, uint32_t row, uint32_t kind,
                                  uint32_t window) {
    uint32_t first;
    const uint32_t n = row_pieces(b, window, row, &first);
    if (kind == OP_ATTENTION_WHOLE) return {n, 1};
    return {n, n + (kind == OP_ATTENTION_STEP && n > ITEMS_ALIKE ? 3 : 0)};
}

/* The same for all rows, by a whole warp. */
DEV uint32_t items_load(const struct block_shared *b, uint32_t lane, uint32_t kind,
                        uint32_t window) {
    uint32_t n = 0;
    for (uint32_t row = 0; row < b->batch.rows.n_rows; row += 32) {
        const bool mine = row + lane < b->batch.rows.n_rows;
        n += __reduce_add_sync(~0u, mine ? items_load_of(b, row + lane, kind, window).all : 0);
    }
    return n;
}

/* Where a task's slice of the load begins: row, head, piece of the head; number of items before. */
struct items_cut {
    uint32_t row, head, piece, items;
};
DEV struct items_cut items_cut_at(const struct block_shared *b, uint32_t kind, uint32_t window,
                                  uint32_t at) {
    struct items_cut s = {};
    struct row_load load = items_load_of(b, 0, kind, window);
    while (at >= load.all * HEAD_STEPS) {
        at -= load.all * HEAD_STEPS;
        s.items += load.pieces * HEAD_STEPS;
        if (++s.row == b->batch.rows.n_rows) return s;
        load = items_load_of(b, s.row, kind, window);
    }
    s.head = at / load.all;
    s.piece = min(at % load.all, load.pieces);
    s.items += s.head * load.pieces + s.piece;
    if (s.piece < load.pieces) return s;
    s.piece = 0;
    if (++s.head < HEAD_STEPS) return s;
    s.head = 0;
    s.row++;
    return s;
}

/* The task's first item. load: of all rows. left 0: the task has no items. */
DEV struct attention_item items_begin(const struct block_shared *b, const struct cuda_task *task,
                                      uint32_t load) {
    struct attention_item w = {};
    uint64_t first, end;
    const uint32_t window = task_window(task);
    w.kind = task->kind;
    w.slides = window != 0;
    prog_slice((uint64_t)load * HEAD_STEPS, task->unit0, task->unit1, &first, &end);
    const struct items_cut begin = items_cut_at(b, w.kind, window, (uint32_t)first);
    w.left = items_cut_at(b, w.kind, window, (uint32_t)end).items - begin.items;
    if (w.left == 0) return w;
    items_row(b, &w, begin.row);
    w.head = begin.head;
    w.piece += begin.piece;
    return w;
}

/* The value of block_shared.pieces_most for one window. */
DEV uint32_t items_most(const struct block_shared *b, uint32_t window) {
    uint32_t first, n = b->last_position / ATTENTION_PIECE + 1;
    if (b->batch.rows.n_rows == 1)
        n = row_pieces(b, window, 0, &first);
    else if (!b->decode_only)
        n = ITEMS_ANY;
    return n <= ITEMS_ALIKE ? n : ITEMS_ANY;
}

DEV void items_note_most(struct block_shared *b) {
    if (QN_WINDOWS_DIFFER) b->pieces_most[0] = (uint16_t)items_most(b, 0);
    b->pieces_most[QN_SLIDING_WINDOW != 0] = (uint16_t)items_most(b, QN_SLIDING_WINDOW);
}

/* The value for a task's window. */
DEV uint32_t pieces_most(const struct cuda_task *task) {
    return SHARED->pieces_most[task_window(task) != 0];
}

/* Whether no task of attention of up to `pieces` pieces a row has more than one item. */
DEV bool items_are_single(const struct cuda_task *task, uint32_t pieces) {
    return pieces * HEAD_STEPS * SHARED->batch.rows.n_rows <= task->unit1;
}

/* ---- latents in a lease (attention_latent_lease.cuh) ---- */

/* The number of a row's items. Items are ordered by row, by piece (ATTENTION_SPLIT only), by step
 * of heads. */
DEV uint32_t latent_row_items(const struct block_shared *b, uint32_t kind, uint32_t window,
                              uint32_t row) {
    uint32_t first;
    return HEAD_STEPS * (kind == OP_ATTENTION_SPLIT ? row_pieces(b, window, row, &first) : 1);
}

/* A task's items: `first`, and every `step`-th one after it that is below `end`. Of ATTENTION, a
 * task has every n-th item, n being the number of tasks: the later a row of a prompt, the longer
 * its context. Of ATTENTION_SPLIT, whose items are alike, its items follow each other. */
struct latent_slice {
    uint32_t first, end, step;
};
DEV struct latent_slice latent_slice_of(const struct block_shared *b, uint32_t kind,
                                        uint32_t window, uint32_t unit0, uint32_t unit1) {
    const uint32_t n_rows = b->batch.rows.n_rows;
    uint32_t n = 0;
    uint64_t from, to;
    if (kind != OP_ATTENTION_SPLIT) {
        n = n_rows * HEAD_STEPS;
        return {min(unit0, n), n, unit1};
    }
    for (uint32_t row = 0; row < n_rows; row++) n += latent_row_items(b, kind, window, row);
    prog_slice(n, unit0, unit1, &from, &to);
    return {(uint32_t)from, (uint32_t)to, 1};
}

/* An item's row, its piece among those that the row sees, its step of heads. */
struct latent_place {
    uint32_t row, piece, step;
};
DEV struct latent_place latent_place_at(const struct block_shared *b, uint32_t kind,
                                        uint32_t window, uint32_t item) {
    uint32_t row = 0;
    if (kind != OP_ATTENTION_SPLIT) return {item / HEAD_STEPS, 0, item % HEAD_STEPS};
    for (uint32_t n; item >= (n = latent_row_items(b, kind, window, row)); row++) item -= n;
    return {row, item / HEAD_STEPS, item % HEAD_STEPS};
}

/* ---- the list of a task ---- */

/* Whether a run begins with this item. */
DEV bool item_begins_run(const struct attention_item *w) {
    return HAS_RUNS && w->kind == OP_ATTENTION_STEP && w->left >= RUN_LEAST &&
           w->lo <= w->piece * ATTENTION_PIECE &&
           min(w->piece_end, w->fresh / ATTENTION_PIECE) >= w->piece + RUN_LEAST;
}

/* Number of items of the run that begins with this one; 1: no run begins. */
DEV uint32_t item_run(const struct attention_item *w) {
    if (!item_begins_run(w)) return 1;
    const uint32_t n = min(min(w->piece_end, w->fresh / ATTENTION_PIECE) - w->piece, w->left);
    /* Halved where a full run would leave too few items for another. */
    return n <= WARPS ? n : n < WARPS + RUN_LEAST ? n / 2 : WARPS;
}

/* Goes on to the n-th item after this one, all of them of one row and head. */
DEV void items_skip(const struct block_shared *b, struct attention_item *w, uint32_t n) {
    w->left -= n;
    w->piece += n;
    if (w->left == 0 || w->piece < w->piece_end) return;
    w->piece = item_first_piece(w);
    if (++w->head < HEAD_STEPS) return;
    w->head = 0;
    items_row(b, w, w->row + 1);
}

/* Whether the row sees any position of the share that begins at `first`. */
DEV bool item_sees(const struct attention_item *w, uint32_t first) {
    return first < w->hi && first + SHARE_POSITIONS > w->lo;
}

/* Number of positions of a share that are loaded as a page. */
DEV uint32_t item_paged(const struct attention_item *w, uint32_t first) {
    if (!item_sees(w, first) || first >= w->fresh) return 0;
    return min(w->fresh - first, (uint32_t)SHARE_POSITIONS);
}

/* The task's first item. Slices are the same in every layer of one window, so the last item found
 * is kept for the iteration: finding it takes 64-bit divisions. */
DEV struct attention_item items_first(const struct warp_context *c, const struct cuda_task *task) {
    struct block_shared *b = SHARED;
    const uint32_t window = task_window(task);
    const uint64_t key = (uint64_t)items_key(task->kind, window, task->unit0) << 32 | b->flag;
    struct warp_state *mine = &b->warp[c->warp];
    if (mine->list_key == key) return mine->item;
    const struct attention_item w =
        items_begin(b, task, items_load(b, c->lane, task->kind, window));
    __syncwarp(); /* all lanes have seen the old key */
    if (c->lane == 0) {
        mine->item = w;
        mine->list_key = key;
    }
    __syncwarp();
    return w;
}

#endif
