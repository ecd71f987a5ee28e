/* op_api.c - the public functions on operator texts: what they mean, and whether two mean the same.
 */
#include "engine/api.h"

#include "base/mapfile.h"
#include "block/op_text.h"
#include "block/prove.h"

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

int qn_op_prove(const char *path_a, const char *path_b, int *verdict, char **text,
                qn_error *error) {
    struct diag d = {0};
    struct strbuf out = {0};
    struct expr *a = NULL, *b = NULL;
    enum verdict v = VERDICT_UNDECIDED;
    *text = NULL;
    int rc = read_op(&d, path_a, &a);
    if (rc == QN_OK) rc = read_op(&d, path_b, &b);
    if (rc == QN_OK) rc = prove(&d, a, b, &v, &out);
    if (rc == QN_OK) rc = strbuf_status(&d, &out);
    free(a);
    free(b);
    *verdict = (int)v;
    if (rc == QN_OK)
        *text = out.text;
    else
        strbuf_fini(&out);
    return api_return(rc, &d, error);
}
