/* cmd_op_show.c - quern op show: a block graph as text, dot or a page. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_op_show(const struct options *o) {
    const struct option_value *files = &o->values[OPT_FILE];
    qn_error error;
    char *text;
    if (files->n != 1) return cli_usage("which graph or operator? quern op show FILE");
    if (qn_op_show(files->texts[0], options_text(o, OPT_SHOW_FORMAT, NULL), &text, &error) != QN_OK)
        return cli_failed(&error);
    fputs(text, stdout);
    qn_free(text);
    return EXIT_OK;
}
