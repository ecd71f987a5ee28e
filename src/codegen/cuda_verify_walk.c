/* cuda_verify_walk.c - the part of cuda_verify.h's proof that is about a task's way through weights
 * and rows: each task's walk is of a form that the kernels have, and the tasks of an operator make
 * up its output once. */
#include "codegen/cuda_verify_proof.h"

#include "base/checked.h"

#include <string.h>

/* Rows of the image that make a unit. */
static uint32_t rows_per_unit(const struct prog_op *op) {
    switch (op->kind) {
    case OP_LM_HEAD: return LM_BLOCK;
    case OP_GATED_MLP: return 2;
    case OP_QKV_FUSED: return op->attrs.D;
    default: return 1;
    }
}

static bool one_of(uint32_t v, const uint8_t *list) {
    while (*list != 0 && *list != v) list++;
    return *list != 0;
}

/* One row, staged: scratch holds activations, partial sums and a unit's results. */
static bool is_row_form(const struct cuda_task *t, const struct prog_op *op) {
    const uint32_t unit = op->kind == OP_LM_HEAD ? LM_BLOCK / CUDA_PAGE_ROWS : 0;
    const uint64_t bytes = (uint64_t)t->k_tiles * CUDA_PAGE_K * 2 + unit * CUDA_PAGE_ROWS * 4ull +
                           (uint64_t)t->group * PARTIALS * CUDA_PAGE_ROWS * 4;
    return t->tile == 1 && t->row0 == 0 && op->n_rows == 1 && t->unit_blocks == unit &&
           t->group >= 1 && t->group <= (unit != 0 ? unit : (uint32_t)CUDA_ROW_GROUP) &&
           bytes <= CUDA_SCRATCH_BYTES;
}

/* Weights stream past all packed rows at once. The partial sums of a group are in scratch. */
static bool is_stream_form(const struct cuda_task *t, const struct prog_op *op) {
    return t->eights == t->columns && t->tile == PACK_ROWS * t->columns && t->unit_blocks == 0 &&
           t->row0 == 0 && t->row1 == op->n_rows && t->group >= 1 &&
           t->group <= cuda_packed_group(op->kind, t->columns);
}

/* Tiles in a leased ring: the sizes that are compiled (matmul_tile*.cuh). */
static bool is_tile_form(const struct cuda_proof *f, const struct cuda_task *t,
                         const struct prog_op *op) {
    static const uint8_t of_32[] = {4, 12, 16, 0}, of_64[] = {2, 4, 8, 12, 16, 0},
                         of_128[] = {4, 8, 0};
    const bool wide = f->cc / 10 == 9 && op->kind != OP_LINEAR && op->kind != OP_QKV_FUSED &&
                      t->group == (op->kind == OP_LINEAR_SPLITK ? 16 : 12);
    const bool group = t->tile == PACK_NARROW / 2 ? one_of(t->group, of_32)
                       : t->tile == PACK_NARROW   ? one_of(t->group, of_64)
                       : t->tile == PACK_WIDE     ? wide
                       : t->tile == PACK_TILE     ? one_of(t->group, of_128)
                                                  : false;
    return group && (t->group < 16 || op->kind == OP_LINEAR_SPLITK) && t->unit_blocks == 0 &&
           t->row0 % PACK_ROWS == 0;
}

/* Matrices of each head's own: tiles of eight rows or more, all row blocks of a tile in turn.
 * Except for LATENT_HEADS, scratch holds the partial sums of a group. */
static bool is_of_heads(const struct prog_op *op) {
    return op->kind == OP_LATENT_HEADS || op->kind == OP_LATENT_VALUES ||
           op->kind == OP_LATENT_MERGE;
}
static bool is_heads_form(const struct cuda_task *t, const struct prog_op *op) {
    const bool sums = op->kind != OP_LATENT_HEADS, merges = op->kind == OP_LATENT_MERGE;
    const uint64_t merged = merges ? cuda_merged_bytes(op->units / op->attrs.heads, op->k) : 0;
    const uint64_t bytes = merged + (uint64_t)t->group * t->k_tiles * t->tile * CUDA_PAGE_ROWS * 4;
    if (merges && t->tile != PACK_ROWS) return false;
    return t->columns == 0 && t->unit_blocks == 0 && t->tile >= PACK_ROWS &&
           t->tile % PACK_ROWS == 0 && t->tile <= (sums ? CUDA_VALUES_ROWS : PACK_TILE) &&
           (sums ? t->group >= 1 && bytes <= CUDA_SCRATCH_BYTES : t->group == 1 && t->k_tiles == 1);
}

/* Rows of LATENT_HEADS' image before unit u: the first DV units of each head have a row each. */
static uint64_t latent_rows(const struct op_attrs *a, uint64_t u) {
    const uint64_t units = MIN(u, (uint64_t)a->heads * a->D), head = units / a->D;
    return head * a->DV + MIN(units - head * a->D, (uint64_t)a->DV);
}

/* Whether the activations say by sentinels that they are stored. Bulk copies into a lease do not
 * poll. */
static bool is_polled(const struct cuda_proof *f, const struct prog_op *op) {
    const struct prog_tensor *in = cuda_proof_tensor(f, op, F_IN);
    return in != NULL && in->transport == TRANSPORT_SENTINEL;
}

static bool is_matrix_form(const struct cuda_proof *f, const struct cuda_task *t,
                           const struct prog_op *op) {
    const bool packed = (t->flags & CUDA_IN_PACKED) != 0;
    if (is_of_heads(op)) return !packed && is_heads_form(t, op);
    /* Tiles of whole heads. */
    if (op->kind == OP_QKV_FUSED && (t->columns != CUDA_LEASE || t->tile != PACK_TILE ||
                                     f->cc / 10 != 9 || !cuda_head_tiles(op->attrs.D)))
        return false;
    switch (t->columns) {
    case 0: return !packed && is_row_form(t, op);
    case 1:
    case 2: return packed && op->kind != OP_LINEAR_SPLITK && is_stream_form(t, op);
    case CUDA_LEASE: return packed && !is_polled(f, op) && is_tile_form(f, t, op);
    default: return false;
    }
}

/* ATTENTION leases the ring. MIXED has tile 0. PREFILL has as many rows at a time as the warps have
 * rows of a product, if the ring has room for them. Over latents a tile is one row, unless pieces
 * of ATTENTION_SPLIT come as pages. */
static bool is_attention_form(const struct cuda_proof *f, const struct cuda_task *t,
                              const struct prog_op *op) {
    const struct op_attrs *a = &op->attrs;
    const uint32_t rows = CUDA_COMPUTE_WARPS * (16 / cuda_sub_heads(a->heads / a->kv, a->D));
    const bool lease = t->group == 0 && t->unit_blocks == 0 && t->columns == CUDA_LEASE;
    if (op->kind == OP_ATTENTION_SPLIT && cuda_latent_paged(a->D, f->p->kv_block, f->cc))
        return t->group == 0 && t->unit_blocks == 0 && t->columns == 0 && t->tile == 0;
    if (a->DR != 0) return lease && t->tile == 1 && cuda_latent_part(a->D, f->cc) != 0;
    return lease && op->kind == OP_ATTENTION &&
           (t->tile == 0 ||
            (t->tile == rows && op->n_rows > STEP_ROWS && cuda_rows_fit(a->D, f->cc)));
}

/* ROUTER: up to CUDA_ROUTER_ROWS token rows at a time. */
static bool is_router_form(const struct cuda_task *t) {
    return t->columns == 0 && t->unit_blocks == 0 && t->group == 0 && t->tile >= 1 &&
           t->tile <= CUDA_ROUTER_ROWS;
}

/* GROUPED_*: whole tiles of an expert's row blocks, in a leased ring. */
static bool is_grouped_form(const struct cuda_proof *f, const struct cuda_task *t,
                            const struct prog_op *op) {
    return f->cc / 10 == 9 && t->columns == CUDA_LEASE && t->tile == PACK_TILE && t->group == 8 &&
           t->unit_blocks == 0 && t->row0 == 0 && t->row1 == op->n_rows;
}

int cuda_proof_walk(const struct cuda_proof *f, uint32_t task, const struct prog_op *op) {
    const struct cuda_task *t = &f->t->tasks[task];
    uint64_t block0 = 0, block1 = 0;
    bool legal = t->tile == 0 && t->group == 0 && t->columns == 0 && t->unit_blocks == 0;
    if (op != NULL && cuda_has_pages(op->kind)) {
        const uint64_t rows = rows_per_unit(op);
        block0 = t->unit0 * rows / CUDA_PAGE_ROWS;
        block1 = CEIL_DIV(t->unit1 * rows, (uint64_t)CUDA_PAGE_ROWS);
        legal = t->unit0 * rows % CUDA_PAGE_ROWS == 0 &&
                (op->kind == OP_ROUTER ? is_router_form(t) : is_matrix_form(f, t, op));
        if (op->kind == OP_LATENT_HEADS) {
            const uint64_t first = latent_rows(&op->attrs, t->unit0);
            const uint64_t end = latent_rows(&op->attrs, t->unit1);
            block0 = first < end ? first / CUDA_PAGE_ROWS : 0;
            block1 = first < end ? CEIL_DIV(end, (uint64_t)CUDA_PAGE_ROWS) : 0;
        }
    } else if (op != NULL && op->kind == OP_EXPERT_DOWN) {
        block0 = t->unit0 / CUDA_PAGE_ROWS;
        block1 = CEIL_DIV(t->unit1, (uint32_t)CUDA_PAGE_ROWS);
        legal = legal && t->unit0 % CUDA_PAGE_ROWS == 0 && t->row0 == 0 && t->row1 == op->n_rows;
    } else if (op != NULL && cuda_is_grouped(op->kind)) {
        const uint64_t rows = op->kind == OP_GROUPED_DOWN
                                  ? f->spec->hidden
                                  : 2 * align_up(f->spec->experts.width, CUDA_PAGE_ROWS / 2);
        block1 = CEIL_DIV(rows, (uint64_t)CUDA_PAGE_ROWS);
        legal = is_grouped_form(f, t, op);
    } else if (op != NULL && (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_SPLIT)) {
        legal = is_attention_form(f, t, op);
    }
    const struct cuda_wanted all[] = {
        {"block0", block0, t->block0},
        {"block1", block1, t->block1},
        {"tile, group, columns, unit_blocks: a form that there is", 1, legal},
    };
    return cuda_proof_wanted(f, task, all, COUNT_OF(all));
}

/* ---- the tasks of an operator -------------------------------------------------------------- */

/* Whether those tasks whose first unit is in [from, to) cover these units of all rows: in order of
 * rows, then units, each begins where the one before ends. So do their row blocks, which
 * cuda_proof_walk found to be those of their units. */
static bool units_cover(const struct cuda_task *t, uint64_t n, const struct prog_op *op,
                        uint32_t from, uint32_t to) {
    const uint32_t first = cuda_proof_rows_before(op);
    uint32_t row0 = first, row1 = first, unit = to;
    for (uint64_t i = 0; i < n; i++) {
        if (t[i].unit0 < from || (t[i].unit0 >= to && to < op->units)) continue;
        if (unit == to) { /* the rows before are complete */
            row0 = row1;
            row1 = t[i].row1;
            unit = from;
        }
        if (t[i].row0 != row0 || t[i].row1 != row1 || row1 <= row0 || t[i].unit0 != unit ||
            t[i].unit1 <= unit || t[i].unit1 > to)
            return false;
        unit = t[i].unit1;
    }
    return unit == to && row1 == first + op->n_rows;
}

/* Whether tasks, in order of rows, then units, cover all, in two bands of units at most. The first
 * band ends where the tasks of the first rows no longer follow each other (plan/split.h). */
static bool tiles_cover(const struct cuda_task *t, uint64_t n, const struct prog_op *op) {
    uint32_t to = 0;
    for (uint64_t i = 0; i < n && t[i].unit0 == to && t[i].row1 == t[0].row1; i++) to = t[i].unit1;
    return to > 0 && units_cover(t, n, op, 0, to) &&
           (to == op->units || units_cover(t, n, op, to, op->units));
}

/* Whether the tasks are slices 0, 1, ... n - 1 of n. */
static bool slices_cover(const struct cuda_task *t, uint64_t n, const struct prog_op *op) {
    for (uint64_t i = 0; i < n; i++)
        if (t[i].row0 != 0 || t[i].row1 != op->n_rows || t[i].unit0 != i || t[i].unit1 != n)
            return false;
    return n > 0;
}

/* Whether all pages that any list of experts can name lie in the allocation. Kernels take an expert
 * of an image to have as many row blocks as its matrix needs, and read none beyond the last expert.
 */
static bool experts_inside(const struct cuda_proof *f, const struct prog_op *op,
                           const struct cuda_task *t) {
    const bool down = op->kind == OP_EXPERT_DOWN || op->kind == OP_GROUPED_DOWN;
    const uint64_t rows = down ? f->spec->hidden : 2 * align_up(f->spec->experts.width, 8);
    const uint64_t k = down ? f->spec->experts.width : f->spec->hidden;
    const uint64_t pages =
        CEIL_DIV(rows, (uint64_t)CUDA_PAGE_ROWS) * CEIL_DIV(k, (uint64_t)CUDA_PAGE_K);
    const struct prog_tensor *w = cuda_proof_tensor(f, op, F_W);
    return w->shape[0] == f->spec->experts.n && op->k == k &&
           w->shape[1] == (down ? f->spec->hidden : f->spec->experts.width) &&
           t->w - f->t->bases.weights + w->shape[0] * pages * CUDA_PAGE_BYTES <= f->t->weight_bytes;
}

/* Whether all pages that the tasks read lie in the allocation, even those of a last unit that lacks
 * rows: an image has whole units. */
static bool pages_inside(const struct cuda_proof *f, const struct prog_op *op,
                         const struct cuda_task *t, uint64_t n) {
    if (cuda_lists_experts(op->kind) || cuda_is_grouped(op->kind)) return experts_inside(f, op, t);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t end =
            (uint64_t)(t[i].kind == OP_LINEAR_SPLITK ? t[i].n_pieces : t[i].block1) * t[i].k_tiles *
            CUDA_PAGE_BYTES;
        if (cuda_has_pages(t[i].kind) && t[i].w - f->t->bases.weights + end > f->t->weight_bytes)
            return false;
    }
    return true;
}

bool cuda_proof_covers(const struct cuda_proof *f, const struct prog_op *op,
                       const struct cuda_task *t, uint64_t n) {
    const bool sliced = op_split_of(op->kind) == SPLIT_SLICES;
    return (sliced ? slices_cover(t, n, op) : tiles_cover(t, n, op)) && pages_inside(f, op, t, n);
}
