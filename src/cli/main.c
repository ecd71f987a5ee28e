/* main.c - quern: parses the command line, runs one command. */
#include "cli/cli.h"
#include "cli/manual.h"

#include <stdio.h>

static int (*const run[N_COMMANDS])(const struct options *) = {
#define COMMAND(ID, id, name, positional, summary, examples) [CMD_##ID] = cmd_##id,
#include "cli/options.def"
};

static int print_help(const struct options *o) {
    struct strbuf text = {0};
    if (o->command == N_COMMANDS)
        help_overview(&text);
    else
        help_command(o->command, &text);
    if (strbuf_status(NULL, &text) != QN_OK) return cli_error("out of memory");
    fputs(strbuf_text(&text), stdout);
    strbuf_fini(&text);
    return EXIT_OK;
}

int main(int argc, char **argv) {
    struct options o;
    struct diag d = {0};
    int rc;
    if (options_parse(&d, argc, argv, &o) != QN_OK) {
        rc = options_flag(&o, OPT_HELP) && o.command != N_COMMANDS ? print_help(&o)
                                                                   : cli_usage("%s", d.message);
    } else if (options_flag(&o, OPT_HELP)) {
        rc = print_help(&o);
    } else {
        rc = run[o.command](&o);
    }
    int finish = cli_finish();
    options_fini(&o);
    return rc != EXIT_OK ? rc : finish;
}
