/* maps_agree.h - holds the two evaluators of op.def's access maps to each other. To be included
 * after cmocka.h. */
#ifndef QN_TESTS_MAPS_AGREE_H
#define QN_TESTS_MAPS_AGREE_H

#include "task/program_map.h"
#include "task/random.h"
#include "task/task_verify_map.h"

static void same_range(const struct map_operand *a, const struct verify_operand *b,
                       const struct prog_task *t) {
    assert_int_equal(a->n_dims, b->n_dims);
    for (uint32_t k = 0; k < a->n_dims; k++) {
        const struct map_range x = op_map_range(&a->dim[k], t->row0, t->row1, t->unit0, t->unit1);
        const struct verify_interval y = task_verify_map_range(&b->dim[k], t);
        assert_int_equal(a->dim[k].extent, b->dim[k].extent);
        assert_int_equal(x.first < x.last, y.first < y.last);
        if (x.first >= x.last) continue;
        assert_int_equal(x.first, y.first);
        assert_int_equal(x.last, y.last);
    }
}

/* Both evaluators on random tasks of an operator. */
static void maps_agree(struct proof *f, uint32_t op) {
    struct op_map map;
    struct verify_map other;
    struct diag d = {0};
    const int rc = program_map(&d, f->p, f->v, &PROG(f->p, OP)[op], &map);
    if (rc != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    assert_int_equal(task_verify_map(f, op, &other), QN_OK);
    assert_int_equal(map.rows, other.rows);
    assert_int_equal(map.units, other.units);
    for (int i = 0; i < 200; i++) {
        struct prog_task t = {0};
        t.row0 = random_below((uint32_t)map.rows);
        t.row1 = t.row0 + 1 + random_below((uint32_t)map.rows - t.row0);
        t.unit0 = random_below((uint32_t)map.units);
        t.unit1 = t.unit0 + 1 + random_below((uint32_t)map.units - t.unit0);
        for (int k = 0; k < OP_MAX_IN; k++) same_range(&map.in[k], &other.in[k], &t);
        for (int k = 0; k < OP_MAX_OUT; k++) same_range(&map.out[k], &other.out[k], &t);
    }
}

#endif
