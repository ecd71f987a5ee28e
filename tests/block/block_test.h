/* block_test.h - what the tests of src/block share: cmocka, and operators from text. */
#ifndef QN_TESTS_BLOCK_TEST_H
#define QN_TESTS_BLOCK_TEST_H

#include "block/op_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

#define FAIL(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(false))

/* The operator of a text, which must be right; free() it. */
static inline struct expr *op_of(const char *text) {
    struct diag d = {0};
    struct expr *x = malloc(sizeof *x);
    if (x == NULL || op_text_parse(&d, "test", text, strlen(text), x) != QN_OK)
        FAIL("%s\n%s", text, d.message);
    return x;
}

#endif
