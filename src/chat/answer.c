#include "chat/answer.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum mode { MODE_BEGIN, MODE_THOUGHT, MODE_TEXT, MODE_CALL };

struct answer {
    const struct tool_form *form;
    const struct reasoning_form *thinks;
    struct toolset tools;
    size_t max_calls, n_calls;
    enum mode mode;
    bool has_text;       /* not only white space since the start, a thought or a call */
    bool follows;        /* a thought or a call came before */
    struct strbuf held;  /* may begin a mark, or a call that is not certain */
    struct strbuf space; /* white space, part of the text only if text follows */
    struct call_reader call;
    struct strbuf text; /* of the pieces */
    ARRAY(struct piece) pieces;
    int rc; /* the first failure */
};

/* ---- pieces --------------------------------------------------------------------------------- */

static void add(struct answer *a, enum piece_kind kind, const char *text, size_t n) {
    struct piece *last = a->pieces.n ? &a->pieces.items[a->pieces.n - 1] : NULL;
    const struct piece piece = {kind, a->text.n, n};
    strbuf_add(&a->text, text, n);
    if (last && last->kind == kind && kind != PIECE_CALL)
        last->n += n;
    else if (ARRAY_PUSH(NULL, &a->pieces, piece) != QN_OK)
        a->rc = QN_ENOMEM;
}

static void add_space(struct answer *a, enum piece_kind kind) {
    if (a->space.n > 0) add(a, kind, strbuf_text(&a->space), a->space.n);
    strbuf_clear(&a->space);
}

/* Adds a byte of the answer. Without forms white space is not held back. */
static void say(struct answer *a, char byte) {
    if (is_space(byte) && (a->form || (a->follows && !a->has_text))) {
        strbuf_char(&a->space, byte);
        return;
    }
    if (a->follows && !a->has_text) strbuf_clear(&a->space);
    a->has_text = true;
    add_space(a, PIECE_TEXT);
    add(a, PIECE_TEXT, &byte, 1);
}

static void say_held(struct answer *a) {
    for (size_t i = 0; i < a->held.n; i++) say(a, a->held.text[i]);
    strbuf_clear(&a->held);
}

static void think(struct answer *a, char byte) {
    if (is_space(byte)) {
        strbuf_char(&a->space, byte);
        return;
    }
    if (!a->has_text) strbuf_clear(&a->space);
    a->has_text = true;
    add_space(a, PIECE_REASONING);
    add(a, PIECE_REASONING, &byte, 1);
}

/* Begins another part: white space around it is left out. */
static void turn(struct answer *a, enum mode mode) {
    a->mode = mode;
    a->has_text = false;
    strbuf_clear(&a->space);
    strbuf_clear(&a->held);
}

/* ---- for the rows --------------------------------------------------------------------------- */

static bool is_left_out(const struct answer *a) {
    return a->max_calls && a->n_calls > a->max_calls;
}

void call_begin(struct call_reader *c, const struct tool *tool) {
    struct answer *a = c->answer;
    turn(a, MODE_CALL);
    a->follows = true;
    a->n_calls++;
    c->tool = tool;
    if (!is_left_out(a)) add(a, PIECE_CALL, tool->name, strlen(tool->name));
}

void call_arguments(struct call_reader *c, const char *text, size_t n) {
    if (!is_left_out(c->answer)) add(c->answer, PIECE_ARGUMENTS, text, n);
}

void call_unread(struct call_reader *c, const char *text, size_t n) {
    strbuf_add(&c->answer->held, text, n);
}

const struct toolset *call_tools(const struct call_reader *c) {
    return &c->answer->tools;
}

enum call_step call_expect(struct call_reader *c, const char *mark, char byte) {
    if (byte != mark[c->matched]) return CALL_IS_NOT;
    if (mark[++c->matched]) return CALL_GOES_ON;
    c->matched = 0;
    return CALL_ENDS;
}

/* ---- modes ---------------------------------------------------------------------------------- */

static void step(struct answer *a, char byte);

/* Whether the mark begins with the held bytes. */
static bool may_be(const struct answer *a, const char *mark) {
    return mark && mark_begins(mark, &a->held);
}

static bool is_whole(const struct answer *a, const char *mark) {
    return mark && a->held.n == strlen(mark) && may_be(a, mark);
}

/* Takes the first held byte. */
static char unhold(struct answer *a) {
    const char first = a->held.text[0];
    a->held.n--;
    memmove(a->held.text, a->held.text + 1, a->held.n + 1);
    return first;
}

static void begin(struct answer *a, char byte) {
    if (a->held.n == 0 && is_space(byte)) {
        strbuf_char(&a->space, byte);
        return;
    }
    strbuf_char(&a->held, byte);
    if (!may_be(a, a->thinks->open)) {
        struct strbuf again = a->held;
        a->held = (struct strbuf){0};
        a->mode = MODE_TEXT;
        if (!a->form) add_space(a, PIECE_TEXT);
        for (size_t i = 0; i < again.n; i++) step(a, again.text[i]);
        strbuf_fini(&again);
    } else if (is_whole(a, a->thinks->open)) {
        turn(a, MODE_THOUGHT);
    }
}

static void thought(struct answer *a, char byte) {
    const struct reasoning_form *f = a->thinks;
    strbuf_char(&a->held, byte);
    /* Some models repeat the opening mark that the prompt has already written. */
    while (a->held.n > 0 && !may_be(a, f->close) && !(may_be(a, f->open) && !a->has_text))
        think(a, unhold(a));
    if (is_whole(a, f->open)) strbuf_clear(&a->held);
    if (!is_whole(a, f->close)) return;
    turn(a, MODE_TEXT);
    a->follows = true;
}

static void begin_call(struct answer *a, int mark) {
    struct call_reader *c = &a->call;
    a->mode = MODE_CALL;
    json_call_clear(&c->json);
    strbuf_clear(&c->word);
    strbuf_clear(&c->name);
    strbuf_clear(&c->part);
    *c = (struct call_reader){.answer = a,
                              .mark = mark,
                              .json = c->json,
                              .word = c->word,
                              .name = c->name,
                              .part = c->part};
}

static void text(struct answer *a, char byte) {
    const struct tool_form *f = a->form;
    if (!f) {
        say(a, byte);
        return;
    }
    if (a->held.n == 0 && f->first && f->first == byte && !a->has_text && a->n_calls == 0) {
        begin_call(a, -1);
        step(a, byte);
        return;
    }
    strbuf_char(&a->held, byte);
    while (a->held.n > 0 && !may_be(a, f->starts[0]) && !may_be(a, f->starts[1])) say(a, unhold(a));
    for (int i = 0; i < 2 && a->held.n > 0; i++)
        if (is_whole(a, f->starts[i])) {
            begin_call(a, i);
            return;
        }
}

static void call(struct answer *a, char byte) {
    const bool was_certain = a->call.tool != NULL;
    const size_t n_calls = a->n_calls;
    const enum call_step got = a->form->read(&a->call, byte);
    const bool certain = was_certain || a->call.tool || a->n_calls > n_calls;
    if (got == CALL_GOES_ON) {
        if (!certain) strbuf_char(&a->held, byte);
        return;
    }
    a->mode = MODE_TEXT;
    if (got == CALL_ENDS) {
        turn(a, MODE_TEXT);
        return;
    }
    say_held(a);
    step(a, byte);
}

static void step(struct answer *a, char byte) {
    static void (*const modes[])(struct answer * a, char byte) = {
        [MODE_BEGIN] = begin, [MODE_THOUGHT] = thought, [MODE_TEXT] = text, [MODE_CALL] = call};
    modes[a->mode](a, byte);
}

/* Passes on the text held back at the end, and white space that was open. */
static void end(struct answer *a) {
    if (a->mode == MODE_THOUGHT) {
        while (a->held.n > 0) think(a, unhold(a));
        return;
    }
    if (a->mode == MODE_CALL && a->call.tool) return;
    a->mode = MODE_TEXT;
    say_held(a);
    if (a->has_text || !a->follows) add_space(a, PIECE_TEXT);
}

/* ---- answers -------------------------------------------------------------------------------- */

int answer_new(struct diag *d, const struct answer_params *p, struct answer **out) {
    struct answer *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a) return fail_nomem(d, sizeof *a, "an answer");
    const int rc = p->tools && p->form ? toolset_read(d, p->tools, &a->tools) : QN_OK;
    if (rc != QN_OK) {
        free(a);
        return rc;
    }
    a->form = a->tools.n > 0 ? p->form : NULL;
    a->thinks = p->thinks;
    a->max_calls = p->max_calls;
    if (!p->thinks || reasoning_is_over(p->thinks, p->prompt))
        a->mode = MODE_TEXT;
    else
        a->mode = reasoning_begins(p->thinks, p->prompt) ? MODE_THOUGHT : MODE_BEGIN;
    *out = a;
    return QN_OK;
}

void answer_free(struct answer *a) {
    if (!a) return;
    toolset_fini(&a->tools);
    json_call_fini(&a->call.json);
    strbuf_fini(&a->call.word);
    strbuf_fini(&a->call.name);
    strbuf_fini(&a->call.part);
    strbuf_fini(&a->held);
    strbuf_fini(&a->space);
    strbuf_fini(&a->text);
    ARRAY_FINI(&a->pieces);
    free(a);
}

int answer_read(struct diag *d, struct answer *a, const char *text, size_t n, bool last) {
    strbuf_clear(&a->text);
    a->pieces.n = 0;
    for (size_t i = 0; i < n; i++) step(a, text[i]);
    if (last) end(a);
    TRY(strbuf_status(d, &a->text));
    TRY(strbuf_status(d, &a->held));
    TRY(strbuf_status(d, &a->space));
    TRY(strbuf_status(d, &a->call.word));
    return a->rc == QN_OK ? QN_OK : fail_nomem(d, n, "an answer");
}

const struct piece *answer_pieces(const struct answer *a, size_t *n) {
    *n = a->pieces.n;
    return a->pieces.items;
}

const char *answer_text(const struct answer *a) {
    return strbuf_text(&a->text);
}

bool answer_thinks(const struct answer *a) {
    return a->mode == MODE_THOUGHT;
}

bool answer_begins(const struct answer *a) {
    return a->mode == MODE_BEGIN;
}
