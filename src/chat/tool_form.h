/* tool_form.h - the forms in which models write calls of tools: one row each.
 *
 *   tool_form.c         the table
 *   form_hermes.c       <tool_call>{"name": "f", "arguments": {...}}</tool_call>
 *   form_llama3.c       {"name": "f", "parameters": {...}}; {...}
 *   form_mistral.c      [TOOL_CALLS] [{"name": "f", "arguments": {...}}], [TOOL_CALLS]f[ARGS]{...}
 *   form_pythonic.c     [f(a=1, b="x"), g()]
 *   form_qwen3_xml.c    <tool_call><function=f><parameter=a>1</parameter></function></tool_call>
 *
 * A row reads and writes its form. Reading goes byte by byte, so that an answer means the same
 * however it is cut into pieces. Writing is the text of a grammar (docs/structured-outputs.md) that
 * holds an answer to calls.
 */
#ifndef QN_CHAT_TOOL_FORM_H
#define QN_CHAT_TOOL_FORM_H

#include "base/strbuf.h"
#include "chat/json_call.h"
#include "chat/toolset.h"

#include <string.h>

struct answer;

enum call_step {
    CALL_GOES_ON,
    CALL_ENDS,   /* with this byte */
    CALL_ENDED,  /* before this byte, which is read again */
    CALL_IS_NOT, /* this byte does not fit: text that is not certain yet is no call, and the byte is
                  * read again */
};

/* The reader's position in one stretch of calls. */
struct call_reader {
    struct answer *answer;
    const struct tool *tool; /* of the call, once it is certain; NULL: not yet */
    int mark;                /* it began with starts[mark]; -1: with `first` */
    int state;               /* the form's own */
    size_t matched;          /* bytes of an expected mark */
    struct json_call json;
    struct nesting nesting; /* of arguments */
    struct strbuf word;     /* bytes that are read whole */
    struct strbuf name;     /* of a tool, or of a parameter */
    struct strbuf part;     /* may be the end of a value */
    bool quoted;            /* the parameter's value is a text */
    char quote;             /* the quote that is open */
    size_t n_parameters;
};

/* What a grammar is written from. */
struct call_grammar {
    struct strbuf text;
    const struct toolset *tools;
    const struct tool *named;                         /* the tool that must be called; NULL: any */
    bool parallel;                                    /* allows more than one call */
    bool (*is_special)(void *user, const char *text); /* whether a mark is one special token */
    void *user;
};

struct tool_form {
    const char *name;         /* as vLLM spells it */
    const char *const *names; /* other names, NULL at the end */
    const char *const *signs; /* a template with one of these texts has the form, NULL at the end */
    const char *needs;        /* ... if it also has this one; NULL: no such condition */
    const char *const *marks; /* all marks of the form, NULL at the end */
    const char *starts[2];    /* those of them that may begin a call; NULL: none */
    char first;               /* may begin a call at the start of the answer; '\0': none */
    size_t n_id;              /* characters of a call's id; 0: any */
    enum call_step (*read)(struct call_reader *c, char byte);
    /* Appends the rule `root`. Errors: QN_EUNSUPPORTED if the form cannot express a schema. */
    int (*grammar)(struct diag *d, struct call_grammar *g);
};

/* The form with this name; NULL: there is none. */
const struct tool_form *tool_form_find(const char *name);
/* The form of a template's text, and of all those with a name the one that fits a template best. */
const struct tool_form *tool_form_of(const char *chat_template);
const struct tool_form *tool_form_named(const char *name, const char *chat_template);
/* "hermes, llama3_json, ..." */
const char *tool_form_names(void);

/* ---- for the rows ---- */

/* Begins the call of a tool, which is now certain: the held-back bytes are not text. */
void call_begin(struct call_reader *c, const struct tool *tool);
void call_arguments(struct call_reader *c, const char *text, size_t n);
/* Gives back bytes that the row has read and that are text, before it returns CALL_ENDED. */
void call_unread(struct call_reader *c, const char *text, size_t n);
const struct toolset *call_tools(const struct call_reader *c);

/* Reads one byte of a mark that must come now. Returns CALL_GOES_ON, CALL_ENDS after the mark's
 * last byte, or CALL_IS_NOT. */
enum call_step call_expect(struct call_reader *c, const char *mark, char byte);
/* Reads one byte of a call in JSON; begins the call when it is certain. CALL_ENDED: the object
 * broke off after its arguments. */
enum call_step call_json(struct call_reader *c, char byte);

/* Whether the mark begins with the bytes in b. */
static inline bool mark_begins(const char *mark, const struct strbuf *b) {
    return b->n <= strlen(mark) && memcmp(mark, strbuf_text(b), b->n) == 0;
}

static inline bool is_space(char byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* Parts of a grammar's text: a literal, a mark (one token where it is special), a value of a
 * schema. */
void grammar_literal(struct call_grammar *g, const char *text);
void grammar_mark(struct call_grammar *g, const char *text);
void grammar_schema(struct call_grammar *g, const json_t *schema);
/* Arguments of a tool as a JSON object. */
void grammar_arguments(struct call_grammar *g, const struct tool *tool);
/* Rules `name`, `name-1` ...: all texts without `mark`. The first byte of `mark` occurs in it
 * once. */
void grammar_without(struct call_grammar *g, const char *name, const char *mark);
/* Iterates over the tools that may be called; before NULL: the first one. */
const struct tool *grammar_next(const struct call_grammar *g, const struct tool *before);
/* The rule `call`: one of the tools, {"name": "f", <key>: {...}} each. */
void grammar_json_calls(struct call_grammar *g, const char *key);
/* A parameter's schema with the definitions that it may refer to; the caller releases it. */
json_t *grammar_property(const struct tool *tool, const char *name);
bool tool_requires(const struct tool *tool, const char *name);

extern const struct tool_form form_hermes, form_llama3, form_mistral, form_mistral_args,
    form_pythonic, form_qwen3_xml;

#endif
