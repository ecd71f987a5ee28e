/* search_rig.h - reading patterns, and what a found graph is asked for. */
#ifndef QN_TESTS_SEARCH_RIG_H
#define QN_TESTS_SEARCH_RIG_H

#include "base/mapfile.h"
#include "block/op_text.h"
#include "search/search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

/* The operator in tests/search/patterns; free() it. */
static inline struct expr *read_pattern(const char *name) {
    struct diag d = {0};
    struct mapfile file;
    struct expr *x = malloc(sizeof *x);
    char path[200];
    snprintf(path, sizeof path, "tests/search/patterns/%s.op", name);
    assert_non_null(x);
    assert_int_equal(mapfile_open(&d, path, OP_TEXT_MAX_BYTES, &file), QN_OK);
    const int rc = op_text_parse(&d, path, (const char *)file.data, file.bytes, x);
    mapfile_close(&file);
    if (rc != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    return x;
}

/* Searches; `sizes` as of --sizes. Returns the seconds of processor time. */
static inline double search_pattern(const char *name, const char *sizes,
                                    struct search_params params, struct search_result *out) {
    struct diag d = {0};
    struct expr *x = read_pattern(name);
    assert_int_equal(problem_sizes_parse(&d, sizes, &params.sizes), QN_OK);
    const clock_t start = clock();
    const int rc = search(&d, x, &params, out);
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (rc != QN_OK) print_error("%s: %s\n", name, d.message);
    assert_int_equal(rc, QN_OK);
    free(x);
    return seconds;
}

/* All graphs of a result as one text; strbuf_fini() it. */
static inline struct strbuf result_text(const struct search_result *r) {
    struct strbuf text = {0};
    for (size_t i = 0; i < r->graphs.n; i++) {
        strbuf_printf(&text, "%.6f\n", r->graphs.items[i].cost);
        block_write(&r->graphs.items[i].blocks, &text);
    }
    return text;
}

#endif
