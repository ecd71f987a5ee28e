/* cmd_completion.c - quern completion SHELL: a completion script, made from the option table. */
#include "cli/cli.h"
#include "cli/manual.h"

#include <stdio.h>

int cmd_completion(const struct options *o) {
    const char *shell = options_text(o, OPT_SHELL, NULL);
    if (!shell) return cli_usage("which shell? quern completion bash|zsh|fish");
    struct strbuf text = {0};
    completion(shell, &text);
    bool bad = strbuf_status(NULL, &text) != QN_OK;
    fputs(strbuf_text(&text), stdout);
    strbuf_fini(&text);
    return bad ? cli_error("out of memory") : EXIT_OK;
}
