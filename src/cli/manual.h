/* manual.h - texts made from options.def: --help, the manual page, shell completion. */
#ifndef QN_CLI_MANUAL_H
#define QN_CLI_MANUAL_H

#include "base/strbuf.h"
#include "cli/options.h"

/* The output of `quern --help`. */
void help_overview(struct strbuf *out);
/* The output of `quern <command> --help`. */
void help_command(enum command command, struct strbuf *out);
/* quern(1) in man's macros. */
void manpage(struct strbuf *out);
/* The completion script of "bash", "zsh" or "fish". */
void completion(const char *shell, struct strbuf *out);

#endif
