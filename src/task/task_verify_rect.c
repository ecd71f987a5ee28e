/* task_verify_rect.c - rectangles of bytes: whether two share any, whether one has another, and
 * whether many are disjoint without a look at every pair. */
#include "base/checked.h"
#include "task/task_verify_proof.h"

bool task_verify_rect_overlap(const struct rect *a, const struct rect *b) {
    if (a->space != b->space) return false;
    if (a->n_slices > 0 && a->op == b->op && a->n_slices == b->n_slices && a->slice != b->slice)
        return false;
    const uint64_t a_end = a->at + (a->n_rows - 1) * a->stride + a->run;
    const uint64_t b_end = b->at + (b->n_rows - 1) * b->stride + b->run;
    if (a_end <= b->at || b_end <= a->at) return false;
    if (a->stride != b->stride) return true; /* different shapes over the same bytes */
    /* Same pitch: compare as rectangles relative to one grid. */
    const uint64_t base = MIN(a->at, b->at), pitch = a->stride;
    const uint64_t ar = (a->at - base) / pitch, ac = (a->at - base) % pitch;
    const uint64_t br = (b->at - base) / pitch, bc = (b->at - base) % pitch;
    if (ac + a->run > pitch || bc + b->run > pitch) return true; /* off the grid: may overlap */
    return ar < br + b->n_rows && br < ar + a->n_rows && ac < bc + b->run && bc < ac + a->run;
}

bool task_verify_rect_has(const struct rect *a, const struct rect *b) {
    const uint64_t row_a = a->at / a->stride, row_b = b->at / b->stride;
    const uint64_t col_a = a->at % a->stride, col_b = b->at % b->stride;
    if (a->stride != b->stride || a->n_slices > 0) return false;
    if (a->run == a->stride) /* whole rows: bytes from start to end */
        return a->at <= b->at &&
               a->at + a->n_rows * a->stride >= b->at + (b->n_rows - 1) * b->stride + b->run;
    return row_a <= row_b && row_a + a->n_rows >= row_b + b->n_rows && col_a <= col_b &&
           col_a + a->run >= col_b + b->run;
}

bool task_verify_rect_tile(const struct rect *whole, const struct rect *r, struct tile *t) {
    if (r->n_slices > 0) {
        *t = (struct tile){0, 1, r->slice, (uint64_t)r->slice + 1};
        return true;
    }
    if (r->space != whole->space || r->stride != whole->stride || r->at < whole->at) return false;
    t->row0 = (r->at - whole->at) / r->stride;
    t->row1 = t->row0 + r->n_rows;
    t->col0 = (r->at - whole->at) % r->stride;
    t->col1 = t->col0 + r->run;
    return t->col1 <= r->stride;
}

/* Whether each tile lies to the right of the one before, in the same rows, or below all of them. */
static bool in_bands(const struct tile *t, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        const bool same = t[i].row0 == t[i - 1].row0 && t[i].row1 == t[i - 1].row1;
        if (same ? t[i].col0 < t[i - 1].col1 : t[i].row0 < t[i - 1].row1) return false;
    }
    return true;
}

static int by_corner(const void *a, const void *b) {
    const struct tile *x = a, *y = b;
    if (x->row0 != y->row0) return x->row0 < y->row0 ? -1 : 1;
    return (x->col0 > y->col0) - (x->col0 < y->col0);
}

/* Whether no two of n tiles, in order of rows, overlap. The first of t are those before that reach
 * the rows at hand. */
static bool sweep(struct tile *t, uint32_t n) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tile at = t[i];
        uint32_t kept = 0;
        for (uint32_t k = 0; k < before; k++) {
            if (t[k].row1 <= at.row0) continue;
            if (t[k].col0 < at.col1 && at.col0 < t[k].col1) return false;
            t[kept++] = t[k];
        }
        t[kept++] = at;
        before = kept;
    }
    return true;
}

bool task_verify_rect_disjoint(struct tile *tiles, uint32_t n) {
    if (in_bands(tiles, n)) return true;
    qsort(tiles, n, sizeof *tiles, by_corner);
    return in_bands(tiles, n) || sweep(tiles, n);
}
