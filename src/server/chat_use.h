/* chat_use.h - the part of a chat request beside its messages, in every chat API: which tools the
 * model may call, and how it is to think.
 *
 *   tools, tool_choice, parallel_tool_calls          all three, with different words
 *   reasoning_effort, thinking_token_budget, ...     chat
 *   thinking {type, budget_tokens}                   Anthropic's
 *   reasoning {effort}                               Responses'
 */
#ifndef QN_SERVER_CHAT_USE_H
#define QN_SERVER_CHAT_USE_H

#include "server/state.h"

enum { CHAT_USE_TOOLS_BYTES = 1 << 20 }; /* of all tools together */

enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED };

struct chat_use {
    json_t *tools;            /* in the form of chat completions; NULL: none */
    struct strbuf tools_text; /* the same as JSON */
    enum tool_choice choice;
    const char *named; /* of TOOLS_REQUIRED: the tool that must be called, NULL: any */
    bool parallel;     /* allows more than one call; false for a named tool */
    json_t *kwargs;    /* of the template; NULL: none */
    bool parts_thoughts, shows_thoughts;
    int64_t budget; /* tokens that a thought may have; -1: no bound */
};

/* Reads the fields that the call's route has. The caller frees *u, also after a failure. */
int chat_use_read(struct call *c, struct chat_use *u);
void chat_use_free(struct chat_use *u);

/* The work of a route: makes the call's gen, then reads the request's tools and thoughts, then its
 * body. `read` sets *text to the conversation as the template writes it; it is freed here. */
struct gen;
struct format;
typedef int chat_read_fn(struct gen *g, const struct chat_use *u, char **text);
int chat_use_work(struct call *c, const struct format *format, chat_read_fn *read);

#endif
