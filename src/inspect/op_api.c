/* op_api.c - the public functions on operator texts: what they mean, and whether two mean the same.
 */
#include "engine/api.h"

#include "base/mapfile.h"
#include "block/compare.h"
#include "block/op_text.h"
#include "block/prove.h"
#include "block/real.h"

#include <stdlib.h>

static int read_op(struct diag *d, const char *path, struct expr **out) {
    struct mapfile file;
    *out = NULL;
    if (path == NULL) return fail(d, QN_EINVAL, "which operator? Give a file");
    TRY(mapfile_open(d, path, OP_TEXT_MAX_BYTES, &file));
    struct expr *x = malloc(sizeof *x);
    int rc = x == NULL ? fail_nomem(d, sizeof *x, "an operator")
                       : op_text_parse(d, path, (const char *)file.data, file.bytes, x);
    mapfile_close(&file);
    if (rc == QN_OK)
        *out = x;
    else
        free(x);
    return rc;
}

int qn_op_check(const char *path, char **text, qn_error *error) {
    struct diag d = {0};
    struct strbuf out = {0};
    struct expr *x;
    *text = NULL;
    int rc = read_op(&d, path, &x);
    if (rc == QN_OK) {
        rc = op_check(&d, x, &out);
        free(x);
    }
    if (rc == QN_OK)
        *text = out.text;
    else
        strbuf_fini(&out);
    return api_return(rc, &d, error);
}

/* Tells how far both are from a in double, if computed in float32 with bfloat16 where a text says
 * cast16. */
static int tell_rounding(struct diag *d, const struct expr *a, const struct expr *b,
                         struct strbuf *out) {
    struct matching m;
    double error_a, error_b;
    uint32_t absent = 0;
    for (uint32_t i = 0; i < a->n_args; i++)
        if (a->args[i].kind == EXPR_CONST && a->args[i].fallback != EXPR_NO_NODE) absent |= 1u << i;
    TRY(matching_make(d, a, b, &m));
    const struct compare_case c = {&m, absent};
    TRY(compare_floats(d, &c, DTYPE_BF16, &error_a, &error_b));
    strbuf_printf(
        out,
        "rounded to float32: errors up to %.2g and %.2g of the largest result; the second "
        "is %s %g times the first",
        error_a, error_b, real_passes(error_b, error_a) ? "within" : "above", REAL_MARGIN);
    return QN_OK;
}

int qn_op_prove(const char *path_a, const char *path_b, int *verdict, char **text, char **rounding,
                qn_error *error) {
    struct diag d = {0};
    struct strbuf out = {0}, more = {0};
    struct expr *a = NULL, *b = NULL;
    enum verdict v = VERDICT_UNDECIDED;
    *text = NULL;
    if (rounding) *rounding = NULL;
    int rc = read_op(&d, path_a, &a);
    if (rc == QN_OK) rc = read_op(&d, path_b, &b);
    if (rc == QN_OK) rc = prove(&d, a, b, &v, &out);
    if (rc == QN_OK && v == VERDICT_EQUAL && rounding && !expr_has(a, BLOCK_OP_CHOOSE) &&
        !expr_has(b, BLOCK_OP_CHOOSE))
        rc = tell_rounding(&d, a, b, &more);
    if (rc == QN_OK) rc = strbuf_status(&d, &out);
    if (rc == QN_OK) rc = strbuf_status(&d, &more);
    free(a);
    free(b);
    *verdict = (int)v;
    if (rc == QN_OK)
        *text = out.text;
    else
        strbuf_fini(&out);
    if (rc == QN_OK && rounding)
        *rounding = more.text;
    else
        strbuf_fini(&more);
    return api_return(rc, &d, error);
}
