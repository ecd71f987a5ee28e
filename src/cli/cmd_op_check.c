/* cmd_op_check.c - quern op check: types, dims and normal form of an operator text. */
#include "cli/cli.h"

#include <stdio.h>

int cmd_op_check(const struct options *o) {
    const struct option_value *files = &o->values[OPT_FILE];
    qn_error error;
    char *text;
    if (files->n != 1) return cli_usage("which operator? quern op check FILE");
    if (qn_op_check(files->texts[0], &text, &error) != QN_OK) return cli_failed(&error);
    fputs(text, stdout);
    qn_free(text);
    return EXIT_OK;
}
