/* cmd_man.c - quern man: the manual page, made from the option table. */
#include "cli/cli.h"
#include "cli/manual.h"

#include <stdio.h>

int cmd_man(const struct options *o) {
    (void)o;
    struct strbuf text = {0};
    manpage(&text);
    bool bad = strbuf_status(NULL, &text) != QN_OK;
    fputs(strbuf_text(&text), stdout);
    strbuf_fini(&text);
    return bad ? cli_error("out of memory") : EXIT_OK;
}
