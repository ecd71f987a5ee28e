/* options.h - the command line: the types of options.def, and a parsed command line.
 *
 * The table is constant. A parsed command line belongs to main and dies with options_fini. Every
 * spelling rule lives in options.c: `-` and `_` are the same in names, a value follows `=` or is
 * the next argument, `--` ends the options.
 */
#ifndef QN_CLI_OPTIONS_H
#define QN_CLI_OPTIONS_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum command {
#define COMMAND(ID, id, name, positional, summary, examples) CMD_##ID,
#include "cli/options.def"
    N_COMMANDS
};

enum option {
#define OPTION(ID, name, letter, kind, value, fallback, commands, help) OPT_##ID,
#include "cli/options.def"
    N_OPTIONS,
    OPT_NONE = -1
};

enum option_kind {
    KIND_FLAG,
    KIND_TEXT,
    KIND_CHOICE,
    KIND_COUNT,
    KIND_INTEGER,
    KIND_SEED,
    KIND_NUMBER,
    KIND_TEXTS,
    KIND_COUNTS,
    KIND_IDS,
    /* as sampling.def has them */
    KIND_ABOVE = KIND_NUMBER,
    KIND_INT = KIND_INTEGER,
    KIND_OPTIONAL = KIND_COUNT,
    KIND_BIAS = KIND_TEXT,
    KIND_JSON = KIND_TEXT,
};

struct command_info {
    const char *name;       /* "bench latency" */
    enum option positional; /* OPT_NONE: bare arguments are refused */
    const char *summary, *examples;
};

struct option_info {
    const char *name;
    char letter; /* 0: no short form */
    enum option_kind kind;
    const char *value, *fallback, *help;
    uint32_t commands; /* bit per enum command */
};

extern const struct command_info command_table[N_COMMANDS];
extern const struct option_info option_table[N_OPTIONS];

static inline bool option_fits(enum option option, enum command command) {
    return option_table[option].commands >> command & 1;
}

/* One option as given. The strings are argv's. */
struct option_value {
    bool given;
    bool bare; /* given as an argument without the option's name */
    const char *text;
    int64_t integer;
    double number;
    int64_t *integers;  /* [n] COUNTS and IDS */
    const char **texts; /* [n] TEXTS */
    size_t n;
};

struct options {
    enum command command;
    struct option_value values[N_OPTIONS];
    struct arena arena;
};

/* Parses argv[1, argc). Errors: QN_EINVAL with a message for the user, nearest match included; the
 * command is set if it was understood, else it is N_COMMANDS. "--help" and "--version" without a
 * command give N_COMMANDS with values[OPT_HELP].given, and CMD_VERSION. */
int options_parse(struct diag *d, int argc, char *const *argv, struct options *o);
void options_fini(struct options *o);

/* A value, or the fallback where the option was not given. */
const char *options_text(const struct options *o, enum option option, const char *fallback);
int64_t options_integer(const struct options *o, enum option option, int64_t fallback);
double options_number(const struct options *o, enum option option, double fallback);
bool options_flag(const struct options *o, enum option option);

/* Edits (insert, delete, change, swap of neighbours) between two words of at most 63 bytes, with
 * '-' and '_' equal; longer words count as far apart. */
unsigned options_distance(const char *a, const char *b);

#endif
