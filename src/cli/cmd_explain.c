/* cmd_explain.c - quern explain: one task, event or tensor. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_explain(const struct options *o) {
    qn_engine_params params;
    qn_error error;
    char *text;
    const char *what = options_text(o, OPT_WHAT, NULL);
    if (!what)
        return cli_usage("explain what? task:NUMBER, event:NUMBER or tensor:NAME, for example "
                         "`quern explain task:17 --model DIR`");
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    params.progress = NULL; /* the result appears at once */
    int64_t rows = options_integer(o, OPT_ROWS, 0);
    if (rows > UINT32_MAX) return cli_usage("--rows: %lld is too large", (long long)rows);
    if (qn_explain(&params, what, (uint32_t)rows, options_text(o, OPT_FORMAT, NULL), &text,
                   &error) != QN_OK)
        return cli_failed(&error);
    fputs(text, stdout);
    qn_free(text);
    return EXIT_OK;
}
