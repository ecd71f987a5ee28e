/* stage_test.h - what the tests of the compiler's stages share. */
#ifndef QN_TESTS_TASK_STAGE_TEST_H
#define QN_TESTS_TASK_STAGE_TEST_H

#include "task/task_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

static const struct task_options defaults = {.device.n_workers = 4, .tasks_per_worker = 1};

/* Fails the test with the diagnosis unless rc is QN_OK. */
static inline void ok(const struct diag *d, int rc) {
    if (rc != QN_OK) print_error("%s\n", d->message);
    assert_int_equal(rc, QN_OK);
}

#endif
