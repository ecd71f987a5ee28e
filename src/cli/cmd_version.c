/* cmd_version.c - quern version */
#include "cli/cli.h"

#include <stdio.h>

int cmd_version(const struct options *o) {
    if (cli_wants_json(o)) return cli_print_json(json_pack("{s:s}", "version", qn_version()));
    printf("quern %s\n", qn_version());
    return EXIT_OK;
}
