#include "cli/line_input.h"

#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HISTORY_TEXTS = 1000 };
static const char QUOTES[] = "\"\"\"";

struct editor {
    EditLine *el;
    History *history;
    bool interrupted; /* Ctrl-C was pressed in the edited line */
    char prompt[3];   /* "> ", ". " where a text continues */
};

/* ---- the editor --------------------------------------------------------------------------- */

static struct editor *editor_of(EditLine *el) {
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    return data;
}

static char *prompt_of(EditLine *el) {
    return editor_of(el)->prompt;
}

static unsigned char on_interrupt(EditLine *el, int key) {
    (void)key;
    editor_of(el)->interrupted = true;
    return CC_EOF;
}

static void editor_close(struct editor *e) {
    if (!e) return;
    if (e->el) el_end(e->el);
    if (e->history) history_end(e->history);
    free(e);
}

/* The editor splits bytes into characters by the locale, but texts are always UTF-8. */
static void set_characters(void) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

static struct editor *editor_open(void) {
    struct editor *e = calloc(1, sizeof *e);
    HistEvent event;
    if (!e) return NULL;
    set_characters();
    e->el = el_init("quern", stdin, stderr, stderr);
    e->history = history_init();
    if (!e->el || !e->history) {
        editor_close(e);
        return NULL;
    }
    history(e->history, &event, H_SETSIZE, HISTORY_TEXTS);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_source(e->el, NULL); /* the user's .editrc */
    /* el_set would copy the names, and el_end does not free the copies. */
    el_wset(e->el, EL_ADDFN, L"quern-interrupt", L"drop the text", on_interrupt);
    el_set(e->el, EL_SETTY, "-d", "-isig", NULL); /* Ctrl-C is a key while a line is edited */
    el_set(e->el, EL_BIND, "^C", "quern-interrupt", NULL);
    return e;
}

static enum line_result edit_line(struct editor *e, bool goes_on, const char **line, size_t *n) {
    int count = 0;
    e->interrupted = false;
    snprintf(e->prompt, sizeof e->prompt, "%s", goes_on ? ". " : "> ");
    *line = el_gets(e->el, &count);
    *n = count > 0 ? (size_t)count : 0;
    if (!e->interrupted && *line && count > 0) return LINE_TEXT;
    fputs(e->interrupted ? "^C\n" : "\n", stderr);
    return e->interrupted ? LINE_INTERRUPTED : LINE_END;
}

/* ---- texts -------------------------------------------------------------------------------- */

int line_input_open(struct line_input *in) {
    *in = (struct line_input){0};
    if (fcntl(STDIN_FILENO, F_GETFD) < 0)
        return cli_error("stdin is closed, and questions come from there");
    in->terminal = isatty(STDIN_FILENO);
    if (in->terminal && isatty(STDERR_FILENO) && !(in->editor = editor_open()))
        return cli_error("this terminal cannot be used: TERM is '%s'",
                         getenv("TERM") ? getenv("TERM") : "");
    return EXIT_OK;
}

void line_input_close(struct line_input *in) {
    editor_close(in->editor);
    free(in->line);
    strbuf_fini(&in->text);
    *in = (struct line_input){0};
}

static size_t without_newline(const char *line, size_t n) {
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    return n;
}

static enum line_result next_line(struct line_input *in, bool goes_on, const char **line,
                                  size_t *n) {
    if (in->editor) {
        enum line_result result = edit_line(in->editor, goes_on, line, n);
        if (result == LINE_TEXT) *n = without_newline(*line, *n);
        return result;
    }
    const ssize_t have = getline(&in->line, &in->capacity, stdin);
    *line = in->line;
    *n = have > 0 ? without_newline(in->line, (size_t)have) : 0;
    if (have >= 0) {
        in->line[*n] = '\0';
        return LINE_TEXT;
    }
    if (!ferror(stdin)) return LINE_END;
    const bool interrupted = errno == EINTR;
    clearerr(stdin);
    if (interrupted) return LINE_INTERRUPTED;
    cli_error("stdin: %s", strerror(errno));
    return LINE_FAILED;
}

static bool ends_with(const char *text, size_t n, const char *end) {
    const size_t n_end = strlen(end);
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

/* Collects the lines of a text, from its first one on, into in->text. */
static enum line_result gather(struct line_input *in, const char *line, size_t n) {
    const bool quoted = n >= 3 && memcmp(line, QUOTES, 3) == 0;
    if (quoted) line += 3, n -= 3;
    for (;;) {
        const bool over = quoted ? ends_with(line, n, QUOTES) : !ends_with(line, n, "\\");
        const size_t mark = !quoted ? !over : over ? 3 : 0;
        strbuf_add(&in->text, line, n - mark);
        if (over) return LINE_TEXT;
        strbuf_char(&in->text, '\n');
        enum line_result result = next_line(in, true, &line, &n);
        if (result != LINE_TEXT) return result;
    }
}

static void remember(struct editor *e, const char *text) {
    HistEvent event;
    history(e->history, &event, H_ENTER, text);
}

enum line_result line_input_next(struct line_input *in, const char **text, size_t *n) {
    for (;;) {
        const char *line;
        enum line_result result = next_line(in, false, &line, n);
        if (result != LINE_TEXT) return result;
        if (!in->editor) {
            *text = line;
            if (*n > 0) return LINE_TEXT;
            continue;
        }
        strbuf_clear(&in->text);
        result = gather(in, line, *n);
        if (result != LINE_TEXT) return result;
        *text = strbuf_text(&in->text);
        *n = in->text.n;
        if (*n == 0) continue;
        remember(in->editor, *text);
        return LINE_TEXT;
    }
}
