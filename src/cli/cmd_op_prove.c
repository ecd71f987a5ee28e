/* cmd_op_prove.c - quern op prove: whether two operator texts mean the same. */
#include "cli/cli.h"

#include <stdio.h>

/* The exit status and first words of a verdict; "not decided" is neither right nor wrong. */
static const struct {
    int exit;
    const char *words;
} verdicts[] = {
    [QN_OP_EQUAL] = {EXIT_OK, "equal"},
    [QN_OP_DIFFERENT] = {EXIT_FAILED, "different"},
    [QN_OP_UNDECIDED] = {EXIT_UNDECIDED, "not decided"},
};

int cmd_op_prove(const struct options *o) {
    const struct option_value *files = &o->values[OPT_FILE];
    qn_error error;
    char *text, *rounding;
    int verdict;
    if (files->n != 2) return cli_usage("which two operators? quern op prove FILE FILE");
    if (qn_op_prove(files->texts[0], files->texts[1], &verdict, &text, &rounding, &error) != QN_OK)
        return cli_failed(&error);
    printf("%s: %s\n", verdicts[verdict].words, text);
    if (rounding) cli_note(o, "%s", rounding);
    qn_free(rounding);
    qn_free(text);
    return verdicts[verdict].exit;
}
