/* cmd_op_search.c - quern op search: block graphs for an operator, cheapest first. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_op_search(const struct options *o) {
    const struct option_value *files = &o->values[OPT_FILE];
    const int64_t tasks = options_integer(o, OPT_TASKS, 1);
    const int64_t threads = options_integer(o, OPT_SEARCH_THREADS, 1);
    const int64_t graphs = options_integer(o, OPT_MAX_GRAPHS, 16);
    qn_op_search_params params;
    qn_error error;
    char *text;
    if (files->n != 1) return cli_usage("which operator? quern op search FILE");
    if (tasks < 1 || tasks > 2)
        return cli_usage("--tasks: want 1 or 2, have %lld", (long long)tasks);
    if (threads < 1 || threads > 64 || graphs < 1 || graphs > 1000)
        return cli_usage("--threads: want 1 to 64; --max-graphs: want 1 to 1000");
    qn_op_search_params_init(&params);
    params.n_tasks = (uint32_t)tasks;
    params.n_threads = (uint32_t)threads;
    params.n_graphs = (uint32_t)graphs;
    params.sizes = options_text(o, OPT_SIZES, NULL);
    params.format = options_text(o, OPT_FORMAT, NULL);
    if (qn_op_search(files->texts[0], &params, &text, &error) != QN_OK) return cli_failed(&error);
    fputs(text, stdout);
    qn_free(text);
    return EXIT_OK;
}
