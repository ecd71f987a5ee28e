/* cmd_verify.c - quern verify: proves a program right, or names the pair of tasks that is wrong. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int cmd_verify(const struct options *o) {
    qn_engine_params params;
    qn_error error;
    char *summary = NULL;
    if (!o->values[OPT_PROGRAM].given && !o->values[OPT_MODEL].given)
        return cli_usage("what? quern verify PROGRAM, or quern verify --model DIR");
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    struct stat at;
    if (params.program && stat(params.program, &at) == 0 && S_ISDIR(at.st_mode))
        return cli_usage("%s is a directory: quern verify --model %s compiles and proves its model",
                         params.program, params.program);
    bool right = qn_verify(&params, &summary, &error) == QN_OK;
    if (cli_wants_json(o)) {
        const char *why = right ? NULL : error.message;
        json_t *text = summary ? cli_json_text(summary, strlen(summary)) : json_null();
        json_t *reason = why ? cli_json_text(why, strlen(why)) : json_null();
        rc = cli_print_json(
            json_pack("{s:b, s:o, s:o}", "ok", right, "summary", text, "error", reason));
    } else if (right) {
        printf("%s\n", summary);
    }
    qn_free(summary);
    return right ? rc : cli_failed(&error);
}
