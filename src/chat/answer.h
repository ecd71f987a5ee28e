/* answer.h - what a model says, taken apart as it comes: thoughts, text, calls of tools.
 *
 *   bytes ──► reasoning form ──► tool form ──► pieces
 *
 * The pieces of a text, put together, are the same however the text is cut: each byte is looked at
 * once, alone. Text that may begin a mark or a call waits until that is certain. Nothing is lost:
 * what turns out not to be a call is text, as it was. Only marks, and white space beside thoughts
 * and calls, are left out.
 *
 * A call is certain when a tool of the request is named in the right form and, in JSON, its
 * arguments begin. From then on what follows is its arguments, whether they are right or not: an
 * answer that is cut off has calls with arguments that are cut off.
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
    const char *prompt;                  /* that it answers; NULL: not known */
    size_t max_calls;                    /* further ones are left out; 0: no bound */
};

/* Errors: toolset_read's, QN_ENOMEM. The caller frees it. */
int answer_new(struct diag *d, const struct answer_params *p, struct answer **out);
void answer_free(struct answer *a);

/* Reads text[0, n); `last`: nothing comes after it. The pieces are those of this call. Errors:
 * QN_ENOMEM. */
int answer_read(struct diag *d, struct answer *a, const char *text, size_t n, bool last);
const struct piece *answer_pieces(const struct answer *a, size_t *n);
const char *answer_text(const struct answer *a);
/* Whether what comes next is thought; of an answer that has not begun, whether that is open. */
bool answer_thinks(const struct answer *a);
bool answer_begins(const struct answer *a);

#endif
