/* cmd_graph.c - quern graph: the text of one stage of the compiler. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_graph(const struct options *o) {
    qn_engine_params params;
    qn_error error;
    char *text;
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    int64_t rows = options_integer(o, OPT_ROWS, 0);
    if (rows > UINT32_MAX) return cli_usage("--rows: %lld is too large", (long long)rows);
    rc =
        qn_graph_dump(&params, options_text(o, OPT_STAGE, "kernel"), (uint32_t)rows, &text, &error);
    if (rc != QN_OK) return cli_failed(&error);
    fputs(text, stdout);
    qn_free(text);
    return EXIT_OK;
}
