/* cmd_verify.c - quern verify: proves a program right, or names the pair of tasks that is wrong. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_verify(const struct options *o) {
    qn_engine_params params;
    qn_error error;
    char *summary = NULL;
    if (!o->values[OPT_PROGRAM].given && !o->values[OPT_MODEL].given)
        return cli_usage("what? quern verify PROGRAM, or quern verify --model DIR");
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    bool right = qn_verify(&params, &summary, &error) == QN_OK;
    if (cli_wants_json(o)) {
        rc = cli_print_json(json_pack("{s:b, s:s?, s:s?}", "ok", right, "summary", summary, "error",
                                      right ? NULL : error.message));
    } else if (right) {
        printf("%s\n", summary);
    }
    qn_free(summary);
    return right ? rc : cli_failed(&error);
}
