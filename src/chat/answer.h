/* answer.h - a model's answer, taken apart as it arrives: thoughts, text, calls of tools.
 *
 *   bytes ──► reasoning form ──► tool form ──► pieces
 *
 * The joined pieces of a text are the same however the text is cut, because each byte is read once
 * and alone. Text that may begin a mark or a call waits until that is certain. Nothing is lost:
 * text that turns out not to be a call stays unchanged text. Only marks, and white space beside
 * thoughts and calls, are left out.
 *
 * A call is certain when it names a tool of the request in the right form and, in JSON, its
 * arguments have begun. From then on the following text is its arguments, right or not: the calls
 * of a truncated answer may have truncated arguments.
 */
#ifndef QN_CHAT_ANSWER_H
#define QN_CHAT_ANSWER_H

#include "chat/reasoning.h"
#include "chat/tool_form.h"

enum piece_kind { PIECE_REASONING = 1, PIECE_TEXT, PIECE_CALL, PIECE_ARGUMENTS };

struct piece {
    enum piece_kind kind;
    size_t first, n; /* bytes of answer_text; of a PIECE_CALL the tool's name */
};

struct answer_params {
    const struct tool_form *form;        /* NULL: nothing is a call */
    const struct reasoning_form *thinks; /* NULL: nothing is a thought */
    const char *tools;                   /* as toolset.h; NULL: none */
    const char *prompt;                  /* the answered prompt; NULL: not known */
    size_t max_calls;                    /* further calls are left out; 0: no bound */
};

/* Errors: toolset_read's, QN_ENOMEM. The caller frees it. */
int answer_new(struct diag *d, const struct answer_params *p, struct answer **out);
void answer_free(struct answer *a);

/* Reads text[0, n); `last`: no text follows. The pieces are those of this call. Errors:
 * QN_ENOMEM. */
int answer_read(struct diag *d, struct answer *a, const char *text, size_t n, bool last);
const struct piece *answer_pieces(const struct answer *a, size_t *n);
const char *answer_text(const struct answer *a);
/* Whether the next text is a thought; answer_begins: whether that is still open. */
bool answer_thinks(const struct answer *a);
bool answer_begins(const struct answer *a);

#endif
