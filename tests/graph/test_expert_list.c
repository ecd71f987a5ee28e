/* test_expert_list.c - the entries of a list of experts, and how tasks share out its work: every
 * item once, and about as much to each. */
#include "graph/expert_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_EXPERTS = 128, MAX_BLOCKS = 64 };

static uint64_t random_state = 1;

static uint32_t below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* A list of experts with up to `most` rows each; returns how many are listed. */
static uint32_t make(int32_t *list, uint32_t n_experts, uint32_t n_listed, uint32_t most) {
    int32_t slot = 0;
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (below(n_experts - e) >= n_listed - n) continue;
        int32_t *entry = list + n++ * EXPERT_WORDS;
        entry[EXPERT_ID] = (int32_t)e;
        entry[EXPERT_FIRST] = slot;
        slot += 1 + (int32_t)below(most);
        entry[EXPERT_END] = slot;
    }
    for (uint32_t i = n; i < n_experts; i++) list[i * EXPERT_WORDS] = -1;
    return n;
}

struct shape {
    uint32_t n_experts, n_listed, width, most, n_slices, placing;
};

/* The largest slice's cost over the mean, in thousandths. */
static uint64_t share_out(const struct shape *s) {
    static uint8_t taken[MAX_EXPERTS][MAX_BLOCKS];
    int32_t list[MAX_EXPERTS * EXPERT_WORDS];
    const uint32_t n = make(list, s->n_experts, s->n_listed, s->most);
    uint64_t most = 0, sum = 0;
    memset(taken, 0, sizeof taken);
    assert_int_equal(n, s->n_listed);
    for (uint32_t k = 0; k < s->n_slices; k++) {
        struct expert_walk w = expert_walk_slice(list, s->n_experts, s->n_experts, s->width,
                                                 s->placing, k, s->n_slices);
        struct expert_item item;
        uint64_t cost = 0;
        for (int32_t last = -1; expert_walk_next(&w, &item); last = (int32_t)item.expert) {
            assert_true((int32_t)item.expert > last && item.row0 < item.row1);
            assert_true(item.row0 % EXPERT_BLOCK == 0 && item.row1 <= s->width);
            assert_true(item.row1 % EXPERT_BLOCK == 0 || item.row1 == s->width);
            for (uint32_t row = item.row0; row < item.row1; row += EXPERT_BLOCK) {
                assert_int_equal(taken[item.expert][row / EXPERT_BLOCK]++, 0);
                cost += EXPERT_READ + item.slot1 - item.slot0;
            }
        }
        most = cost > most ? cost : most;
        sum += cost;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = 0; b < expert_blocks(s->width); b++)
            assert_int_equal(taken[list[i * EXPERT_WORDS]][b], 1);
    return most * s->n_slices * 1000 / sum;
}

static void every_item_is_shared_out_once(void **state) {
    (void)state;
    for (int i = 0; i < 4000; i++) {
        struct shape s = {.n_experts = 1 + below(MAX_EXPERTS),
                          .width = 1 + below(MAX_BLOCKS * EXPERT_BLOCK),
                          .most = 1 + below(50),
                          .n_slices = 1 + below(200),
                          .placing = below(2)};
        s.n_listed = 1 + below(s.n_experts);
        share_out(&s);
    }
}

/* Qwen3-30B-A3B on an H100's 132 SMs: one request, then as many experts as 8 and 64 have. */
static void slices_are_even(void **state) {
    (void)state;
    assert_true(share_out(&(struct shape){128, 8, 768, 1, 132, EXPERT_SLICED}) <= 1032);
    assert_true(share_out(&(struct shape){128, 52, 768, 2, 132, EXPERT_SLICED}) <= 1060);
    assert_true(share_out(&(struct shape){128, 126, 768, 8, 132, EXPERT_SLICED}) <= 1030);
    assert_true(share_out(&(struct shape){128, 106, 768, 53, 132, EXPERT_SLICED}) <= 1060);
    assert_true(share_out(&(struct shape){128, 8, 768, 1, 132, EXPERT_STATIC}) > 10000);
}

/* Slots of one entry touch at most EXPERT_STRETCH / PACK_ROWS eights, and no entry is shorter than
 * it must be. */
static void entries_fit_the_list(void **state) {
    (void)state;
    for (int i = 0; i < 2000; i++) {
        const uint32_t n_experts = 1 + below(MAX_EXPERTS), top_k = 1 + below(n_experts);
        const uint32_t n_rows = 1 + below(2000);
        uint32_t slot = 0, n = 0;
        for (uint32_t e = 0; e < n_experts; e++) {
            /* As many slots as rows, none, or few: up to top_k slots for each row in all. */
            const uint32_t left = n_rows * top_k - slot, most = left < n_rows ? left : n_rows;
            const uint32_t end = slot + (below(2) ? most : below(most + 1));
            for (uint32_t next; slot < end; slot = next, n++) {
                next = expert_entry_end(slot, end);
                assert_true(next > slot && next <= end);
                assert_true((next - 1) / PACK_ROWS - slot / PACK_ROWS < EXPERT_STRETCH / PACK_ROWS);
                assert_true(next == end || next % PACK_ROWS == 0);
            }
        }
        assert_true(n <= expert_list_rows(n_rows, n_experts, top_k));
    }
}

/* A list that is empty, or none of whose rows is in use. */
static void an_empty_list_has_no_items(void **state) {
    (void)state;
    const int32_t list[EXPERT_WORDS] = {-1, 0, 0};
    for (uint32_t rows = 0; rows < 2; rows++) {
        struct expert_walk w = expert_walk_slice(list, rows, 8, 40, EXPERT_SLICED, 0, 1);
        struct expert_item item;
        assert_false(expert_walk_next(&w, &item));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_shared_out_once),
        cmocka_unit_test(slices_are_even),
        cmocka_unit_test(entries_fit_the_list),
        cmocka_unit_test(an_empty_list_has_no_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
