/* The verifier's rectangles: that a pass over many at once never calls disjoint what a look at
 * every pair does not, and finds the cuts disjoint that decompose makes. */
#include "task/random.h"
#include "base/checked.h"
#include "task/task_verify_proof.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#undef fail

enum { MAX_RECTS = 64, STRIDE = 24, ROWS = 12, BASE = 40 };

static const struct rect whole = {.at = BASE, .run = STRIDE, .stride = STRIDE, .n_rows = ROWS};

static struct rect rect_of(uint32_t row0, uint32_t row1, uint32_t col0, uint32_t col1) {
    return (struct rect){.at = BASE + row0 * STRIDE + col0,
                         .run = col1 - col0,
                         .stride = STRIDE,
                         .n_rows = row1 - row0};
}

static bool disjoint(const struct rect *r, uint32_t n) {
    struct tile tiles[MAX_RECTS];
    for (uint32_t i = 0; i < n; i++) assert_true(task_verify_rect_tile(&whole, &r[i], &tiles[i]));
    return task_verify_rect_disjoint(tiles, n);
}

/* Byte by byte: what neither of the functions under test has a part in. */
static bool share_a_byte(const struct rect *a, const struct rect *b) {
    bool taken[BASE + ROWS * STRIDE] = {0};
    for (uint64_t r = 0; r < a->n_rows; r++) memset(taken + a->at + r * a->stride, 1, a->run);
    for (uint64_t r = 0; r < b->n_rows; r++)
        for (uint64_t i = 0; i < b->run; i++)
            if (taken[b->at + r * b->stride + i]) return true;
    return false;
}

static bool any_pair_shares(const struct rect *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i + 1; k < n; k++)
            if (share_a_byte(&r[i], &r[k])) return true;
    return false;
}

/* A grid of row_tiles x col_tiles, in any order; returns how many. */
static uint32_t cut(struct rect *r, uint32_t row_tiles, uint32_t col_tiles) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < row_tiles; i++)
        for (uint32_t k = 0; k < col_tiles; k++)
            r[n++] = rect_of(ROWS * i / row_tiles, ROWS * (i + 1) / row_tiles,
                             STRIDE * k / col_tiles, STRIDE * (k + 1) / col_tiles);
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t k = random_below(i);
        const struct rect swap = r[k];
        r[k] = r[i - 1];
        r[i - 1] = swap;
    }
    return n;
}

static void grids_are_disjoint_in_any_order(void **state) {
    (void)state;
    struct rect r[MAX_RECTS];
    random_state = 1;
    for (uint32_t rows = 1; rows <= 6; rows++)
        for (uint32_t cols = 1; cols <= 10; cols++) assert_true(disjoint(r, cut(r, rows, cols)));
}

/* A grid with one tile moved or stretched, or rectangles at random. */
static void disjoint_means_that_no_pair_shares_a_byte(void **state) {
    (void)state;
    struct rect r[MAX_RECTS];
    uint32_t n_disjoint = 0, n_sharing = 0;
    random_state = 2;
    for (int round = 0; round < 20000; round++) {
        uint32_t n = round % 2 ? cut(r, 1 + random_below(4), 1 + random_below(8)) : 0;
        const uint32_t i = n > 0 ? random_below(n) : 0, more = n > 0 ? 1 : 1 + random_below(5);
        if (n == 0) n = more;
        for (uint32_t k = i; k < i + more; k++) {
            const uint32_t row = random_below(ROWS), col = random_below(STRIDE);
            r[k] = rect_of(row, row + 1 + random_below(ROWS - row), col,
                           col + 1 + random_below(STRIDE - col));
        }
        const bool shares = any_pair_shares(r, n);
        assert_true(disjoint(r, n) == !shares);
        n_disjoint += !shares;
        n_sharing += shares;
    }
    assert_true(n_disjoint > 1000 && n_sharing > 1000);
}

static void overlap_and_has_are_exact_on_one_grid(void **state) {
    (void)state;
    random_state = 3;
    for (int round = 0; round < 20000; round++) {
        struct rect r[2];
        for (int k = 0; k < 2; k++) {
            const uint32_t row = random_below(ROWS), col = random_below(STRIDE);
            r[k] = rect_of(row, row + 1 + random_below(ROWS - row), col,
                           col + 1 + random_below(STRIDE - col));
        }
        const bool shares = share_a_byte(&r[0], &r[1]);
        if (shares) assert_true(task_verify_rect_overlap(&r[0], &r[1]));
        if (task_verify_rect_has(&r[0], &r[1])) {
            struct rect byte = {.run = 1, .stride = STRIDE, .n_rows = 1};
            for (uint64_t y = 0; y < r[1].n_rows; y++)
                for (uint64_t x = 0; x < r[1].run; x++) {
                    byte.at = r[1].at + y * STRIDE + x;
                    assert_true(share_a_byte(&r[0], &byte));
                }
        }
    }
}

/* Slices of one list are disjoint unless one is there twice. */
static void slices_are_told_apart_by_number(void **state) {
    (void)state;
    struct rect r[8];
    for (uint32_t i = 0; i < 8; i++) {
        r[i] = whole;
        r[i].slice = 7 - i;
        r[i].n_slices = 8;
    }
    assert_true(disjoint(r, 8));
    r[3].slice = 1;
    assert_false(disjoint(r, 8));
    assert_true(task_verify_rect_overlap(&r[3], &r[6]));
    assert_false(task_verify_rect_overlap(&r[2], &r[6]));
}

/* What lies across the ends of rows, or beside the tensor, is for a closer look. */
static void what_is_off_the_grid_is_no_tile(void **state) {
    (void)state;
    struct tile t;
    struct rect r = rect_of(1, 2, 20, 24);
    assert_true(task_verify_rect_tile(&whole, &r, &t));
    r.run = 5;
    assert_false(task_verify_rect_tile(&whole, &r, &t));
    r = rect_of(0, 1, 0, 4);
    r.at = BASE - 1;
    assert_false(task_verify_rect_tile(&whole, &r, &t));
    r = rect_of(0, 1, 0, 4);
    r.stride = STRIDE / 2;
    assert_false(task_verify_rect_tile(&whole, &r, &t));
    r = rect_of(0, 1, 0, 4);
    r.space = 1;
    assert_false(task_verify_rect_tile(&whole, &r, &t));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_are_disjoint_in_any_order),
        cmocka_unit_test(disjoint_means_that_no_pair_shares_a_byte),
        cmocka_unit_test(overlap_and_has_are_exact_on_one_grid),
        cmocka_unit_test(slices_are_told_apart_by_number),
        cmocka_unit_test(what_is_off_the_grid_is_no_tile),
    };
    return cmocka_run_group_tests_name("rect", tests, NULL, NULL);
}
