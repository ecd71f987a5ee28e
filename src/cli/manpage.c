/* manpage.c - quern(1), from the table. */
#include "cli/manual.h"

#include <string.h>

/* Appends text, with the characters that roff would interpret escaped. */
static void roff(struct strbuf *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool line_start = i == 0 || text[i - 1] == '\n';
        if (line_start && (text[i] == '.' || text[i] == '\'')) strbuf_str(out, "\\&");
        if (text[i] == '\\')
            strbuf_str(out, "\\e");
        else if (text[i] == '-')
            strbuf_str(out, "\\-");
        else if (text[i] == '\'')
            strbuf_str(out, "\\(aq");
        else
            strbuf_char(out, text[i]);
    }
}

static void option_entry(struct strbuf *out, const struct option_info *info) {
    strbuf_str(out, ".TP\n");
    if (info->letter) strbuf_printf(out, "\\fB\\-%c\\fR, ", info->letter);
    strbuf_str(out, "\\fB\\-\\-");
    roff(out, info->name, strlen(info->name));
    strbuf_str(out, "\\fR");
    if (info->value[0]) {
        strbuf_str(out, " \\fI");
        roff(out, info->value, strlen(info->value));
        strbuf_str(out, "\\fR");
    }
    strbuf_char(out, '\n');
    roff(out, info->help, strlen(info->help));
    if (info->fallback[0]) {
        strbuf_str(out, "\nDefault: ");
        roff(out, info->fallback, strlen(info->fallback));
        strbuf_char(out, '.');
    }
    strbuf_str(out, "\nCommands:");
    for (int c = 0; c < N_COMMANDS; c++) {
        if (!(info->commands >> c & 1)) continue;
        strbuf_char(out, ' ');
        roff(out, command_table[c].name, strlen(command_table[c].name));
        strbuf_str(out, info->commands >> (c + 1) ? "," : ".");
    }
    strbuf_char(out, '\n');
}

/* Environment variables that the library reads. Variables for tuning are in docs/gpu.md. */
static const struct {
    const char *name, *help;
} variables[] = {
    {"QN_DUMP", "Stages of the compiler, separated by commas, or all: every compile writes their "
                "text to ROWS-STAGE.txt, the program's to program.txt. The names are those of "
                "`quern graph --stage`."},
    {"QN_DUMP_DIR", "An existing folder for these files; by itself the current one."},
    {"QN_NVRTC", "NVIDIA's run-time compiler: the library or its folder."},
    {"QN_CUDA_DEVICE", "Which GPU, from 0."},
    {"QN_CACHE_DIR", "Where compiled kernels are kept; off: nowhere."},
};

void manpage(struct strbuf *out) {
    strbuf_str(out, ".TH QUERN 1 \"\" \"quern " QN_VERSION "\" \"User Commands\"\n"
                    ".SH NAME\nquern \\- run a large language model as one kernel\n"
                    ".SH SYNOPSIS\n.B quern\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIMODEL\\fR]\n"
                    ".SH DESCRIPTION\nquern compiles a Hugging Face checkpoint into one persistent "
                    "kernel and runs it.\nResults go to standard output, everything else to "
                    "standard error.\n.SH COMMANDS\n");
    for (int c = 0; c < N_COMMANDS; c++) {
        const struct command_info *info = &command_table[c];
        strbuf_printf(out, ".TP\n\\fB%s\\fR\n%s.\n.RS\n.nf\n", info->name, info->summary);
        for (const char *line = info->examples; *line;) {
            size_t n = strcspn(line, "\n");
            strbuf_str(out, "quern ");
            roff(out, line, n);
            strbuf_char(out, '\n');
            line += n + (line[n] == '\n');
        }
        strbuf_str(out, ".fi\n.RE\n");
    }
    strbuf_str(out,
               ".SH OPTIONS\nIn names \\- and _ are the same. A value follows = or is the next "
               "argument.\n");
    for (int i = 0; i < N_OPTIONS; i++) option_entry(out, &option_table[i]);
    strbuf_str(out, ".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n1\nfailed\n.TP\n2\nwrong usage\n");
    strbuf_str(out, ".SH ENVIRONMENT\n");
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        strbuf_printf(out, ".TP\n.B %s\n", variables[i].name);
        roff(out, variables[i].help, strlen(variables[i].help));
        strbuf_char(out, '\n');
    }
}
