/* help.c - --help, from the table. */
#include "cli/manual.h"

#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 34, HELP_WIDTH = 96 };

void help_overview(struct strbuf *out) {
    strbuf_str(out, "quern " QN_VERSION ": run a large language model as one kernel\n\n"
                    "usage: quern COMMAND [OPTIONS] [MODEL]\n\n");
    for (int c = 0; c < N_COMMANDS; c++)
        strbuf_printf(out, "  %-16s %s\n", command_table[c].name, command_table[c].summary);
    strbuf_str(out, "\n`quern COMMAND --help` tells more. MODEL is a Hugging Face directory.\n"
                    "Results go to stdout, everything else to stderr.\n"
                    "Exit status: 0 done, 1 failed, 2 wrong usage.\n"
                    "Environment: QN_DUMP=STAGE,... (or all) makes any compile write those stages "
                    "to files\n"
                    "in QN_DUMP_DIR, by itself in the current folder; `quern man` has the rest.\n");
}

/* Appends text in lines of at most HELP_WIDTH, each from HELP_COLUMN on; `at` is the cursor's
 * column. */
static void wrap(struct strbuf *out, int at, const char *text) {
    while (*text) {
        if (at > HELP_COLUMN - 2) {
            strbuf_char(out, '\n');
            at = 0;
        }
        strbuf_printf(out, "%*s", HELP_COLUMN - at, "");
        size_t n = strlen(text), room = HELP_WIDTH - HELP_COLUMN;
        if (n > room) {
            for (n = room; n > 0 && text[n] != ' ';) n--;
            if (n == 0) n = room;
        }
        strbuf_add(out, text, n);
        strbuf_char(out, '\n');
        text += n + strspn(text + n, " ");
        at = 0;
    }
}

static void option_line(struct strbuf *out, const struct option_info *info) {
    char left[100], help[400];
    char letter[] = {'-', info->letter, ',', ' ', '\0'};
    snprintf(left, sizeof left, "  %s--%s%s%s", info->letter ? letter : "    ", info->name,
             info->value[0] ? " " : "", info->value);
    strbuf_str(out, left);
    snprintf(help, sizeof help, "%s%s%s%s", info->help, info->fallback[0] ? " [" : "",
             info->fallback, info->fallback[0] ? "]" : "");
    wrap(out, (int)strlen(left), help);
}

void help_command(enum command command, struct strbuf *out) {
    const struct command_info *info = &command_table[command];
    bool bare = info->positional != OPT_NONE;
    strbuf_printf(out, "quern %s: %s\n\nusage: quern %s [OPTIONS]", info->name, info->summary,
                  info->name);
    if (bare) {
        strbuf_str(out, " [");
        for (const char *c = option_table[info->positional].name; *c; c++)
            strbuf_char(out, (char)(*c - 'a' + 'A'));
        strbuf_char(out, ']');
    }
    strbuf_str(out, "\n\nOptions (- and _ are the same; --name value or --name=value):\n");
    for (int i = 0; i < N_OPTIONS; i++)
        if (option_fits((enum option)i, command)) option_line(out, &option_table[i]);
    strbuf_str(out, "\nExamples:\n");
    for (const char *line = info->examples; *line;) {
        size_t n = strcspn(line, "\n");
        strbuf_printf(out, "  quern %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}
