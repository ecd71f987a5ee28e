/* reasoning.h - how models mark their thoughts in an answer: one row per form. */
#ifndef QN_CHAT_REASONING_H
#define QN_CHAT_REASONING_H

#include <stdbool.h>

struct reasoning_form {
    const char *name;         /* as vLLM spells it */
    const char *const *names; /* other names, NULL at the end */
    const char *sign;         /* a template with this text has the form; NULL: by name only */
    const char *open, *close;
    const char *end, *gap; /* `close` as models write it, and the text between it and the rest */
    bool begins_inside;    /* an answer begins with thoughts, whether the prompt says so or not */
};

/* The form with this name; NULL: there is none. */
const struct reasoning_form *reasoning_form_find(const char *name);
/* The form of a template's text; NULL: none is known. */
const struct reasoning_form *reasoning_form_of(const char *chat_template);
/* "qwen3, deepseek_r1, ..." */
const char *reasoning_form_names(void);

/* Whether an answer to this prompt begins with thoughts; reasoning_is_over: whether it has none,
 * because the prompt has ended them. prompt may be NULL. */
bool reasoning_begins(const struct reasoning_form *form, const char *prompt);
bool reasoning_is_over(const struct reasoning_form *form, const char *prompt);

#endif
