/* line_input.h - input from a person or a pipe, one text at a time.
 *
 * On a terminal: editing, a history of the session, texts of several lines; the prompt goes to
 * stderr. From a pipe or a file: each line is one text, unchanged.
 */
#ifndef QN_CLI_LINE_INPUT_H
#define QN_CLI_LINE_INPUT_H

#include "base/strbuf.h"

#include <stdbool.h>

enum line_result {
    LINE_TEXT,        /* *text is the next text, without its newline, not empty */
    LINE_INTERRUPTED, /* Ctrl-C: the typed text is dropped */
    LINE_END,         /* Ctrl-D, or the end of the input */
    LINE_FAILED,      /* the error has been printed */
};

struct line_input {
    bool terminal;
    struct editor *editor; /* NULL unless on a terminal */
    char *line;            /* getline's */
    size_t capacity;
    struct strbuf text; /* of several lines */
};

/* Prints errors; returns an exit code. line_input_close is needed in every case. */
int line_input_open(struct line_input *in);
void line_input_close(struct line_input *in);

/* Reads the next text. On a terminal only, a line that ends with a backslash continues in the next
 * line, and a text that begins with three double quotes goes on until a line ends with them. *text
 * lives until the next call. */
enum line_result line_input_next(struct line_input *in, const char **text, size_t *n);

#endif
