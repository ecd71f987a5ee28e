/* completion.c - completion scripts for bash, zsh and fish, from the table. Each script offers the
 * commands, then the options of the command on the line, the words of a choice, and file names
 * wherever a value may be one. */
#include "cli/manual.h"

#include <string.h>

/* Whether two commands begin with the same word. */
static bool same_first(int a, int b) {
    const char *x = command_table[a].name, *y = command_table[b].name;
    const size_t n = strcspn(x, " ");
    return strcspn(y, " ") == n && strncmp(x, y, n) == 0;
}

/* Whether no earlier command begins with the same word; this one then offers all second words. */
static bool leads(int command) {
    for (int c = 0; c < command; c++)
        if (same_first(c, command)) return false;
    return true;
}

/* The second words of the commands with the same first word. */
static void second_words(struct strbuf *out, int command) {
    for (int c = 0; c < N_COMMANDS; c++) {
        const char *second = strchr(command_table[c].name, ' ');
        if (second && same_first(c, command)) strbuf_str(out, second);
    }
}

/* Whether one of those commands has the option. */
static bool fits_first(enum option option, int command) {
    for (int c = 0; c < N_COMMANDS; c++)
        if (same_first(c, command) && option_fits(option, (enum command)c)) return true;
    return false;
}

/* The first word of each command, once: "bench latency" gives "bench". */
static void first_words(struct strbuf *out) {
    for (int c = 0; c < N_COMMANDS; c++)
        if (leads(c))
            strbuf_printf(out, " %.*s", (int)strcspn(command_table[c].name, " "),
                          command_table[c].name);
}

static void words_of_choice(struct strbuf *out, const char *value) {
    for (; *value; value++) strbuf_char(out, *value == '|' ? ' ' : *value);
}

/* The words that may stand after one command, besides its options: a second word, or a choice. */
static void bare_words(struct strbuf *out, const struct command_info *info) {
    enum option bare = info->positional;
    if (bare != OPT_NONE && option_table[bare].kind == KIND_CHOICE) {
        strbuf_char(out, ' ');
        words_of_choice(out, option_table[bare].value);
    }
}

static void bash(struct strbuf *out) {
    strbuf_str(out, "# quern: completion for bash\n_quern() {\n"
                    "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" "
                    "prev=\"${COMP_WORDS[COMP_CWORD-1]}\" words\n"
                    "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    first_words(out);
    strbuf_str(out, " --help --version\"\n    else\n        case \"$prev\" in\n");
    for (int i = 0; i < N_OPTIONS; i++) {
        if (option_table[i].kind != KIND_CHOICE) continue;
        strbuf_printf(out, "        --%s) COMPREPLY=($(compgen -W \"", option_table[i].name);
        words_of_choice(out, option_table[i].value);
        strbuf_str(out, "\" -- \"$cur\")); return;;\n");
    }
    strbuf_str(out, "        esac\n        case \"${COMP_WORDS[1]}\" in\n");
    for (int c = 0; c < N_COMMANDS; c++) {
        const char *name = command_table[c].name;
        if (!leads(c)) continue;
        strbuf_printf(out, "        %.*s) words=\"", (int)strcspn(name, " "), name);
        second_words(out, c);
        bare_words(out, &command_table[c]);
        for (int i = 0; i < N_OPTIONS; i++)
            if (fits_first((enum option)i, c)) strbuf_printf(out, " --%s", option_table[i].name);
        strbuf_str(out, "\";;\n");
    }
    strbuf_str(out, "        esac\n    fi\n"
                    "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                    "    case \"$cur\" in\n    -*) ;;\n"
                    "    *) [ \"$COMP_CWORD\" -gt 1 ] && "
                    "COMPREPLY+=($(compgen -f -- \"$cur\"));;\n    esac\n}\n"
                    "complete -o filenames -F _quern quern\n");
}

/* Appends text inside single quotes of a shell; `:` and brackets would mean something to zsh. */
static void quoted(struct strbuf *out, const char *text, const char *escape) {
    for (; *text; text++) {
        if (*text == '\'')
            strbuf_str(out, "'\\''");
        else {
            if (strchr(escape, *text)) strbuf_char(out, '\\');
            strbuf_char(out, *text);
        }
    }
}

static void zsh_option(struct strbuf *out, const struct option_info *info) {
    strbuf_printf(out, "            '%s--%s", info->kind == KIND_TEXTS ? "*" : "", info->name);
    strbuf_str(out, info->kind == KIND_FLAG ? "[" : "=[");
    quoted(out, info->help, ":[]");
    strbuf_char(out, ']');
    if (info->kind != KIND_FLAG) {
        strbuf_char(out, ':');
        quoted(out, info->kind == KIND_CHOICE ? info->name : info->value, ":[]");
        strbuf_char(out, ':');
        if (info->kind == KIND_CHOICE) {
            strbuf_char(out, '(');
            words_of_choice(out, info->value);
            strbuf_char(out, ')');
        } else if (info->kind == KIND_TEXT) {
            strbuf_str(out, "_files");
        }
    }
    strbuf_str(out, "' \\\n");
}

static void zsh(struct strbuf *out) {
    strbuf_str(out, "#compdef quern\n# quern: completion for zsh\n_quern() {\n"
                    "    if (( CURRENT == 2 )); then\n        compadd --");
    first_words(out);
    strbuf_str(out, "\n        return\n    fi\n    case $words[2] in\n");
    for (int c = 0; c < N_COMMANDS; c++) {
        const char *name = command_table[c].name;
        if (!leads(c)) continue;
        strbuf_printf(out, "    %.*s)\n", (int)strcspn(name, " "), name);
        if (strchr(name, ' ')) {
            strbuf_str(out, "        if (( CURRENT == 3 )); then compadd");
            second_words(out, c);
            strbuf_str(out, "; return; fi\n");
        }
        strbuf_str(out, "        _arguments \\\n");
        for (int i = 0; i < N_OPTIONS; i++)
            if (fits_first((enum option)i, c)) zsh_option(out, &option_table[i]);
        enum option bare = command_table[c].positional;
        bool choice = bare != OPT_NONE && option_table[bare].kind == KIND_CHOICE;
        strbuf_str(out, "            '*:file:");
        strbuf_str(out, choice ? "(" : "_files");
        if (choice) {
            words_of_choice(out, option_table[bare].value);
            strbuf_char(out, ')');
        }
        strbuf_str(out, "';;\n");
    }
    strbuf_str(out, "    esac\n}\nif [ \"$funcstack[1]\" = _quern ]; then _quern; "
                    "else compdef _quern quern; fi\n");
}

static void fish(struct strbuf *out) {
    strbuf_str(out, "# quern: completion for fish\n"
                    "complete -c quern -n __fish_use_subcommand -f -a '");
    first_words(out);
    strbuf_str(out, "'\n");
    for (int c = 0; c < N_COMMANDS; c++) {
        const char *name = command_table[c].name;
        int n = (int)strcspn(name, " ");
        if (!leads(c)) continue;
        if (strchr(name, ' ')) {
            strbuf_printf(out, "complete -c quern -n '__fish_seen_subcommand_from %.*s' -a '", n,
                          name);
            second_words(out, c);
            strbuf_str(out, "'\n");
        }
        enum option bare = command_table[c].positional;
        if (bare != OPT_NONE && option_table[bare].kind == KIND_CHOICE) {
            strbuf_printf(out, "complete -c quern -n '__fish_seen_subcommand_from %.*s' -f -a '", n,
                          name);
            words_of_choice(out, option_table[bare].value);
            strbuf_str(out, "'\n");
        }
        for (int i = 0; i < N_OPTIONS; i++) {
            const struct option_info *info = &option_table[i];
            if (!fits_first((enum option)i, c)) continue;
            strbuf_printf(out, "complete -c quern -n '__fish_seen_subcommand_from %.*s' -l %s", n,
                          name, info->name);
            if (info->letter) strbuf_printf(out, " -s %c", info->letter);
            if (info->kind != KIND_FLAG) strbuf_str(out, " -r");
            if (info->kind == KIND_CHOICE) {
                strbuf_str(out, " -f -a '");
                words_of_choice(out, info->value);
                strbuf_char(out, '\'');
            }
            strbuf_str(out, " -d '");
            quoted(out, info->help, "\\");
            strbuf_str(out, "'\n");
        }
    }
}

void completion(const char *shell, struct strbuf *out) {
    if (strcmp(shell, "bash") == 0)
        bash(out);
    else if (strcmp(shell, "zsh") == 0)
        zsh(out);
    else
        fish(out);
}
