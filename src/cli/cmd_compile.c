/* cmd_compile.c - quern compile: the compiled program as a file. */
#include "cli/cli.h"

int cmd_compile(const struct options *o) {
    const char *path = options_text(o, OPT_OUTPUT, NULL);
    qn_engine_params params;
    qn_error error;
    if (!path) return cli_usage("where to? Give a file with -o");
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    cli_note(o, "compiling %s", params.model);
    uint64_t start = cli_now();
    if (qn_compile(&params, path, &error) != QN_OK) return cli_failed(&error);
    cli_note(o, "wrote %s in %.2f s", path, (double)(cli_now() - start) * 1e-9);
    return EXIT_OK;
}
