/* options.c - the parser of the command line. options.def lists the commands and options. */
#include "cli/options.h"

#include "base/checked.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets of commands, as options.def names them. */
#define IN(ID)     (1u << CMD_##ID)
#define SAMPLES    (IN(GENERATE) | IN(CHAT))
#define RUNS_MODEL (SAMPLES | IN(SERVE) | IN(BENCH_LATENCY))
#define HAS_MODEL                                                                                  \
    (RUNS_MODEL | IN(COMPILE) | IN(INSPECT) | IN(GRAPH) | IN(VERIFY) | IN(PROFILE) | IN(EXPLAIN))
#define EVERYWHERE ((1u << N_COMMANDS) - 1)

const struct command_info command_table[N_COMMANDS] = {
#define COMMAND(ID, id, name, positional, summary, examples)                                       \
    [CMD_##ID] = {name, OPT_##positional, summary, examples},
#include "cli/options.def"
};

const struct option_info option_table[N_OPTIONS] = {
#define OPTION(ID, name, letter, kind, value, fallback, commands, help)                            \
    [OPT_##ID] = {name, letter, KIND_##kind, value, fallback, help, commands},
#include "cli/options.def"
};

/* ---- words -------------------------------------------------------------------------------- */

static char fold(char c) {
    return c == '_' ? '-' : c;
}

/* Whether the n bytes at `typed` spell `name`. */
static bool same_word(const char *typed, size_t n, const char *name) {
    if (strlen(name) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (fold(typed[i]) != fold(name[i])) return false;
    return true;
}

enum { LONGEST_WORD = 63 };

unsigned options_distance(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LONGEST_WORD || n_b > LONGEST_WORD) return UINT_MAX;
    unsigned rows[3][LONGEST_WORD + 1];
    unsigned *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= n_b; j++) last[j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            unsigned change = last[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            row[j] = MIN(change, MIN(last[j], row[j - 1]) + 1);
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) row[j] = MIN(row[j], before[j - 2] + 1);
        }
        unsigned *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[n_b];
}

/* The largest distance at which a word is still suggested for the typed one. */
static unsigned near_enough(const char *typed) {
    return (unsigned)(strlen(typed) / 3 + 1);
}

/* ---- values ------------------------------------------------------------------------------- */

static int bad_value(struct diag *d, const struct option_info *info, const char *want,
                     const char *have) {
    return fail(d, QN_EINVAL, "--%s: want %s, have '%s'", info->name, want, have);
}

/* The factor of a suffix; 0: not a suffix. vLLM's rule: k is 1000, K is 1024. */
static double suffix_factor(const char *suffix) {
    static const struct {
        char letter;
        double factor;
    } table[] = {{'k', 1e3},     {'m', 1e6},     {'g', 1e9},
                 {'K', 1 << 10}, {'M', 1 << 20}, {'G', 1 << 30}};
    if (suffix[0] == '\0') return 1;
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (suffix[0] == table[i].letter && suffix[1] == '\0') return table[i].factor;
    return 0;
}

static int parse_count(struct diag *d, const struct option_info *info, const char *text,
                       int64_t *out) {
    const char *want = "a whole number such as 512, 32k (32000) or 32K (32768)";
    char *end;
    if (text[0] < '0' || text[0] > '9') return bad_value(d, info, want, text);
    errno = 0;
    unsigned long long whole = strtoull(text, &end, 10);
    if (*end == '\0' && errno == 0 && whole <= INT64_MAX) {
        *out = (int64_t)whole;
        return QN_OK;
    }
    double number = strtod(text, &end);
    double factor = suffix_factor(end);
    if (factor == 0 || !(number * factor < 9e15)) return bad_value(d, info, want, text);
    *out = (int64_t)(number * factor);
    if ((double)*out != number * factor) return bad_value(d, info, want, text);
    return QN_OK;
}

static int parse_integer(struct diag *d, const struct option_info *info, const char *text,
                         int64_t *out) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno) return bad_value(d, info, "a whole number", text);
    *out = n;
    return QN_OK;
}

/* Parses the 64 bits of a seed, signed or unsigned. */
static int parse_seed(struct diag *d, const struct option_info *info, const char *text,
                      int64_t *out) {
    const bool negative = text[0] == '-';
    const char *digits = text + negative;
    char *end;
    errno = 0;
    const unsigned long long n = strtoull(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end || errno || (negative && n > 1ull << 63))
        return bad_value(d, info, "a whole number from -2^63 to 2^64 - 1", text);
    *out = (int64_t)(negative ? 0 - n : n);
    return QN_OK;
}

static int parse_number(struct diag *d, const struct option_info *info, const char *text,
                        double *out) {
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out)) return bad_value(d, info, "a number", text);
    return QN_OK;
}

static int parse_choice(struct diag *d, const struct option_info *info, const char *text) {
    char want[100];
    for (const char *word = info->value; *word;) {
        size_t n = strcspn(word, "|");
        if (n == strlen(text) && strncmp(word, text, n) == 0) return QN_OK;
        word += n + (word[n] == '|');
    }
    snprintf(want, sizeof want, "one of %s", info->value);
    return bad_value(d, info, want, text);
}

/* "1,2,3" */
static int parse_counts(struct diag *d, struct options *o, const struct option_info *info,
                        const char *text, struct option_value *v) {
    size_t n = 1;
    if (info->kind == KIND_IDS && text[0] == '\0') return QN_OK;
    for (const char *c = text; *c; c++) n += *c == ',';
    TRY(ARENA_NEW(d, &o->arena, &v->integers, n));
    const char *at = text;
    for (size_t i = 0; i < n; i++) {
        at += strspn(at, " ");
        char *end;
        errno = 0;
        bool digit = at[0] >= '0' && at[0] <= '9';
        long long number = strtoll(at, &end, 10);
        end += strspn(end, " ");
        if (!digit || errno || *end != (i + 1 < n ? ',' : '\0'))
            return bad_value(d, info, "whole numbers separated by commas", text);
        v->integers[i] = number;
        at = end + 1;
    }
    v->n = n;
    return QN_OK;
}

static int add_text(struct diag *d, struct options *o, const char *text, struct option_value *v) {
    const char **texts;
    TRY(ARENA_NEW(d, &o->arena, &texts, v->n + 1));
    if (v->n) memcpy(texts, v->texts, v->n * sizeof *texts);
    texts[v->n++] = text;
    v->texts = texts;
    return QN_OK;
}

static int set_value(struct diag *d, struct options *o, enum option option, const char *text) {
    const struct option_info *info = &option_table[option];
    struct option_value *v = &o->values[option];
    v->given = true;
    v->text = text;
    switch (info->kind) {
    case KIND_FLAG:
    case KIND_TEXT: return QN_OK;
    case KIND_CHOICE: return parse_choice(d, info, text);
    case KIND_COUNT: return parse_count(d, info, text, &v->integer);
    case KIND_INTEGER: return parse_integer(d, info, text, &v->integer);
    case KIND_SEED: return parse_seed(d, info, text, &v->integer);
    case KIND_NUMBER: return parse_number(d, info, text, &v->number);
    case KIND_TEXTS: return add_text(d, o, text, v);
    case KIND_COUNTS:
    case KIND_IDS: return parse_counts(d, o, info, text, v);
    }
    return QN_OK;
}

/* ---- commands and options ----------------------------------------------------------------- */

/* The command that argv[1...] begins with; *n_words: how many arguments name it. */
static enum command find_command(int argc, char *const *argv, int *n_words) {
    for (int c = 0; c < N_COMMANDS; c++) {
        const char *name = command_table[c].name, *space = strchr(name, ' ');
        size_t n = space ? (size_t)(space - name) : strlen(name);
        if (strlen(argv[1]) != n || strncmp(argv[1], name, n) != 0) continue;
        *n_words = space ? 2 : 1;
        if (!space || (argc > 2 && strcmp(argv[2], space + 1) == 0)) return (enum command)c;
    }
    return N_COMMANDS;
}

/* Whether the word is the first word of a command of two words. */
static bool is_first_word(const char *word, const char *name) {
    const char *space = strchr(name, ' ');
    return space && strlen(word) == (size_t)(space - name) &&
           strncmp(word, name, (size_t)(space - name)) == 0;
}

/* Reports that a second word is missing or wrong. */
static int unknown_second(struct diag *d, int argc, char *const *argv) {
    char wanted[200] = "";
    size_t n = 0;
    for (int c = 0; c < N_COMMANDS && n < sizeof wanted; c++)
        if (is_first_word(argv[1], command_table[c].name))
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s`%s`", n > 0 ? " or " : "",
                                  command_table[c].name);
    return fail(d, QN_EINVAL, "%s: want %s, have %s%s%s", argv[1], wanted,
                argc > 2 ? "'" : "nothing more", argc > 2 ? argv[2] : "", argc > 2 ? "'" : "");
}

static int unknown_command(struct diag *d, int argc, char *const *argv) {
    char typed[2 * LONGEST_WORD + 2];
    const char *nearest = NULL;
    unsigned best = UINT_MAX;
    for (int c = 0; c < N_COMMANDS; c++) {
        const char *name = command_table[c].name;
        if (is_first_word(argv[1], name)) return unknown_second(d, argc, argv);
        unsigned distance = options_distance(argv[1], name);
        if (distance < best) best = distance, nearest = name;
    }
    snprintf(typed, sizeof typed, "%.*s", LONGEST_WORD, argv[1]);
    if (best <= near_enough(typed))
        return fail(d, QN_EINVAL, "unknown command '%s'; did you mean '%s'?", typed, nearest);
    return fail(d, QN_EINVAL, "unknown command '%s'; `quern --help` lists them", typed);
}

static int unknown_option(struct diag *d, const struct options *o, const char *typed, size_t n) {
    char word[LONGEST_WORD + 1];
    snprintf(word, sizeof word, "%.*s", (int)MIN(n, (size_t)LONGEST_WORD), typed);
    int nearest = OPT_NONE;
    unsigned best = UINT_MAX;
    for (int i = 0; i < N_OPTIONS; i++) {
        if (same_word(typed, n, option_table[i].name))
            return fail(d, QN_EINVAL, "--%s is not an option of `quern %s`", option_table[i].name,
                        command_table[o->command].name);
        if (!option_fits((enum option)i, o->command)) continue;
        unsigned distance = options_distance(word, option_table[i].name);
        if (distance < best) best = distance, nearest = i;
    }
    if (nearest != OPT_NONE && best <= near_enough(word))
        return fail(d, QN_EINVAL, "unknown option --%s; did you mean --%s?", word,
                    option_table[nearest].name);
    return fail(d, QN_EINVAL, "unknown option --%s; `quern %s --help` lists them", word,
                command_table[o->command].name);
}

static enum option find_long(const struct options *o, const char *typed, size_t n) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (option_fits((enum option)i, o->command) && same_word(typed, n, option_table[i].name))
            return (enum option)i;
    return OPT_NONE;
}

static enum option find_letter(const struct options *o, char letter) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (option_fits((enum option)i, o->command) && option_table[i].letter == letter)
            return (enum option)i;
    return OPT_NONE;
}

/* Parses one option at argv[*i]; moves *i to the last argument that it uses. */
static int parse_option(struct diag *d, struct options *o, int argc, char *const *argv, int *i) {
    const char *typed = argv[*i], *equals = NULL;
    enum option option;
    if (typed[1] == '-') {
        equals = strchr(typed, '=');
        size_t n = equals ? (size_t)(equals - typed) - 2 : strlen(typed) - 2;
        option = find_long(o, typed + 2, n);
        if (option == OPT_NONE) return unknown_option(d, o, typed + 2, n);
    } else {
        option = find_letter(o, typed[1]);
        if (option == OPT_NONE)
            return fail(d, QN_EINVAL, "unknown option -%c; `quern %s --help` lists them", typed[1],
                        command_table[o->command].name);
        if (typed[2] == '=')
            equals = typed + 2;
        else if (typed[2])
            equals = typed + 1; /* -n32 */
    }
    const struct option_info *info = &option_table[option];
    if (o->values[option].bare && info->kind != KIND_TEXTS)
        return fail(d, QN_EINVAL, "--%s: the argument '%s' has given it already", info->name,
                    o->values[option].text);
    if (info->kind == KIND_FLAG) {
        if (equals) return fail(d, QN_EINVAL, "--%s takes no value", info->name);
        return set_value(d, o, option, "");
    }
    if (equals) return set_value(d, o, option, equals + 1);
    if (*i + 1 >= argc)
        return fail(d, QN_EINVAL, "--%s wants a value: %s", info->name, info->value);
    return set_value(d, o, option, argv[++*i]);
}

static int parse_bare(struct diag *d, struct options *o, const char *text) {
    enum option option = command_table[o->command].positional;
    if (option == OPT_NONE)
        return fail(d, QN_EINVAL, "`quern %s` takes no argument '%s'",
                    command_table[o->command].name, text);
    if (o->values[option].given && option_table[option].kind != KIND_TEXTS)
        return fail(d, QN_EINVAL, "argument '%s': --%s is '%s' already", text,
                    option_table[option].name, o->values[option].text);
    o->values[option].bare = true;
    return set_value(d, o, option, text);
}

/* Parses a command line without a command: --help, --version, or nothing. */
static int parse_no_command(struct diag *d, const char *word, struct options *o) {
    o->command = N_COMMANDS;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        o->values[OPT_HELP].given = true;
        return QN_OK;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        o->command = CMD_VERSION;
        return QN_OK;
    }
    return fail(d, QN_EINVAL, "unknown option %s before the command", word);
}

int options_parse(struct diag *d, int argc, char *const *argv, struct options *o) {
    *o = (struct options){.command = N_COMMANDS};
    if (argc < 2) return fail(d, QN_EINVAL, "which command? `quern --help` lists them");
    if (argv[1][0] == '-' || strcmp(argv[1], "help") == 0) return parse_no_command(d, argv[1], o);
    int n_words = 1;
    o->command = find_command(argc, argv, &n_words);
    if (o->command == N_COMMANDS) {
        bool help = argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"));
        for (int c = 0; c < N_COMMANDS && help; c++)
            if (is_first_word(argv[1], command_table[c].name))
                return parse_no_command(d, argv[2], o);
        return unknown_command(d, argc, argv);
    }
    bool options_over = false;
    for (int i = 1 + n_words; i < argc; i++) {
        if (!options_over && strcmp(argv[i], "--") == 0)
            options_over = true;
        else if (!options_over && argv[i][0] == '-' && argv[i][1])
            TRY(parse_option(d, o, argc, argv, &i));
        else
            TRY(parse_bare(d, o, argv[i]));
    }
    return QN_OK;
}

void options_fini(struct options *o) {
    arena_fini(&o->arena);
}

const char *options_text(const struct options *o, enum option option, const char *fallback) {
    return o->values[option].given ? o->values[option].text : fallback;
}

int64_t options_integer(const struct options *o, enum option option, int64_t fallback) {
    return o->values[option].given ? o->values[option].integer : fallback;
}

double options_number(const struct options *o, enum option option, double fallback) {
    return o->values[option].given ? o->values[option].number : fallback;
}

bool options_flag(const struct options *o, enum option option) {
    return o->values[option].given;
}
