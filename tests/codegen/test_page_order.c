/* The order of addition (graph/partials.h) and the order of pages that follows it (cuda_abi.h), for
 * every number of k-tiles up to what a model may have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "codegen/cuda_abi.h"

enum { MOST_TILES = SPEC_MAX_HIDDEN / PARTIAL_TILE };

/* Contiguous stretches that have all tiles; the shards of 2, 4 and 8 GPUs differ by a tile. */
static void test_bounds(void **state) {
    (void)state;
    for (uint32_t tiles = 1; tiles <= MOST_TILES; tiles++) {
        assert_int_equal(partial_first(tiles, 0), 0);
        assert_int_equal(partial_first(tiles, PARTIALS), tiles);
        for (uint32_t gpus = 1; gpus <= PARTIALS; gpus *= 2)
            for (uint32_t p = 0; p < PARTIALS; p += PARTIALS / gpus) {
                const uint32_t end = partial_first(tiles, p + PARTIALS / gpus);
                assert_in_range(end - partial_first(tiles, p), tiles / gpus,
                                (tiles + gpus - 1) / gpus);
            }
        for (uint32_t tile = 0; tile < tiles; tile++) {
            const uint32_t p = partial_of(tiles, tile);
            assert_true(partial_first(tiles, p) <= tile && tile < partial_first(tiles, p + 1));
        }
    }
}

/* Those that have tiles, in order. */
static void test_nth(void **state) {
    (void)state;
    for (uint32_t tiles = 1; tiles <= MOST_TILES; tiles++) {
        uint32_t n = 0;
        for (uint32_t p = 0; p < PARTIALS; p++)
            if (partial_first(tiles, p) < partial_first(tiles, p + 1))
                assert_int_equal(partial_nth(tiles, n++), p);
        assert_int_equal(n, partial_count(tiles));
        assert_int_equal(partial_nth(tiles, n), PARTIALS);
    }
}

/* Either half has the partial sums of four of the eighths; the second may have none. */
static void test_halves(void **state) {
    (void)state;
    for (uint32_t tiles = 1; tiles <= 3 * PARTIALS; tiles++) {
        const uint32_t half = partial_half(tiles);
        assert_int_equal(half == partial_count(tiles), tiles == 1);
        for (uint32_t n = 0; n < partial_count(tiles); n++)
            assert_int_equal(partial_nth(tiles, n) < PARTIALS / 2, n < half);
    }
}

/* A row block's pages have each k-tile once; those of a partial sum have one place in all steps,
 * and are in order of K. */
static void test_pages(void **state) {
    (void)state;
    for (uint32_t tiles = 1; tiles <= MOST_TILES; tiles++) {
        for (uint32_t page = 0; page < tiles; page++) {
            const uint32_t tile = cuda_page_tile(tiles, page), p = partial_of(tiles, tile);
            assert_in_range(tile, 0, tiles - 1);
            assert_int_equal(cuda_tile_page(tiles, tile), page);
            assert_int_equal(cuda_partial_turn(tiles, p), page % PARTIALS);
            assert_int_equal(cuda_turn_partial(tiles, page % PARTIALS), p);
            if (page >= PARTIALS)
                assert_int_equal(cuda_page_tile(tiles, page - PARTIALS), tile - 1);
        }
        for (uint32_t p = 0; p < PARTIALS; p++)
            assert_int_equal(cuda_turn_partial(tiles, cuda_partial_turn(tiles, p)), p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_nth),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
