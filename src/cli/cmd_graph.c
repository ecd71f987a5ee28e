/* cmd_graph.c - quern graph: any stage of the compiler, as text, dot, JSON or a page. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_graph(const struct options *o) {
    qn_engine_params params;
    qn_graph_params graph;
    qn_error error;
    char *text;
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    params.progress = NULL; /* the result appears at once */
    qn_graph_params_init(&graph);
    int64_t rows = options_integer(o, OPT_ROWS, 0), layer = options_integer(o, OPT_LAYER, -1);
    if (rows > UINT32_MAX) return cli_usage("--rows: %lld is too large", (long long)rows);
    if (layer > INT32_MAX) return cli_usage("--layer: %lld is too large", (long long)layer);
    graph.stage = options_text(o, OPT_STAGE, NULL);
    graph.format = options_text(o, OPT_GRAPH_FORMAT, NULL);
    graph.n_rows = (uint32_t)rows;
    graph.layer = (int32_t)layer;
    graph.diff = options_flag(o, OPT_DIFF);
    if (qn_graph(&params, &graph, &text, &error) != QN_OK) return cli_failed(&error);
    fputs(text, stdout);
    qn_free(text);
    return EXIT_OK;
}
