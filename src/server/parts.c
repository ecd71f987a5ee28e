#include "server/parts.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- made, on any thread -------------------------------------------------------------------- */

static int no_memory(struct gen *g) {
    return problem_set(&g->call->problem, PROBLEM_INTERNAL, NULL, "out of memory");
}

/* The engine's message begins with the place, then a colon. */
static int engine_problem(struct gen *g, const qn_error *error) {
    char name[96];
    if (error->code == QN_ENOMEM) return no_memory(g);
    snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(error->message, ":"), (size_t)95),
             error->message);
    return problem_set(&g->call->problem, PROBLEM_VALUE, name, "%s", error->message);
}

/* Checks each tool's schema by itself, so that an error names the tool. */
static int check_schemas(struct gen *g, const struct chat_use *u) {
    qn_sampling_params s;
    qn_error error;
    for (size_t i = 0; i < json_array_size(u->tools); i++) {
        const json_t *f = json_object_get(json_array_get(u->tools, i), "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        char param[64];
        if (u->named && strcmp(u->named, name) != 0) continue;
        char *schema = json_dumps(json_object_get(f, "parameters"), JSON_COMPACT);
        if (!schema) return no_memory(g);
        qn_sampling_params_init(&s, NULL);
        s.structured_kind = QN_STRUCTURED_JSON_SCHEMA;
        s.structured_text = schema;
        const int rc = qn_sampling_params_check(&s, &error);
        free(schema);
        if (rc == QN_OK) continue;
        snprintf(param, sizeof param, "tools[%zu].function.parameters", i);
        return problem_set(&g->call->problem, PROBLEM_VALUE, param, "%s: %s", param, error.message);
    }
    return QN_OK;
}

static int require_calls(struct gen *g, const struct chat_use *u, const qn_answer_params *p) {
    char *grammar = NULL;
    qn_error error;
    TRY(check_schemas(g, u));
    if (qn_answer_grammar(p, g->call->server->tokenizer, u->named, u->parallel, &grammar, &error) !=
        QN_OK)
        return engine_problem(g, &error);
    const int rc = gen_set_structured(g, "tool_choice", QN_STRUCTURED_GRAMMAR, grammar);
    qn_free(grammar);
    TRY(rc);
    if (qn_sampling_params_check(&g->sampling, &error) == QN_OK) return QN_OK;
    return problem_set(&g->call->problem, PROBLEM_VALUE, "tools", "tools: %s", error.message);
}

static int open_answers(struct gen *g) {
    struct plan *plan = &g->plan;
    qn_error error;
    plan->answers = calloc(g->n, sizeof(void *));
    if (!plan->answers) return no_memory(g);
    for (uint32_t i = 0; i < g->n; i++)
        if (qn_answer_open(&plan->params, &plan->answers[i], &error) != QN_OK)
            return engine_problem(g, &error);
    return QN_OK;
}

int parts_open(struct gen *g, const struct chat_use *u, const char *prompt) {
    struct plan *plan = &g->plan;
    const struct server *s = g->call->server;
    const bool calls = u->tools && u->choice != TOOLS_NONE;
    if (calls && !s->forms_info.tool_parser)
        return problem_set(&g->call->problem, PROBLEM_UNSUPPORTED, "tools",
                           "tools: the model's chat template has no form of calls that is known "
                           "here; start with --tool-call-parser");
    plan->tools = calls && !u->tools_text.failed ? strdup(u->tools_text.text) : NULL;
    plan->prompt = strdup(prompt);
    if ((calls && !plan->tools) || !plan->prompt) return no_memory(g);
    plan->params = s->forms;
    plan->params.tools_json = plan->tools;
    plan->params.prompt = plan->prompt;
    plan->params.max_calls = u->parallel ? 0 : 1;
    if (!u->parts_thoughts) plan->params.reasoning_parser = "none";
    plan->shows_thoughts = u->shows_thoughts;
    plan->budget = u->budget;
    const bool thinks = u->parts_thoughts && s->forms_info.reasoning_parser;
    if (s->forms_info.has_special_marks && (calls || thinks)) g->sampling.skip_special_tokens = 0;
    if (calls && u->choice == TOOLS_REQUIRED) TRY(require_calls(g, u, &plan->params));
    TRY(open_answers(g));
    plan->later = thinks && g->structured && qn_answer_next(plan->answers[0]) != QN_PIECE_TEXT;
    return QN_OK;
}

void parts_close(struct gen *g) {
    for (uint32_t i = 0; g->plan.answers && i < g->n; i++) qn_answer_close(g->plan.answers[i]);
    free(g->plan.answers);
    free(g->plan.tools);
    free(g->plan.prompt);
}

/* ---- on the loop ---------------------------------------------------------------------------- */

void parts_begin(struct choice *c) {
    struct plan *plan = &c->gen->plan;
    if (!plan->answers) return;
    c->answer = plan->answers[c->index];
    plan->answers[c->index] = NULL;
    c->free_form = plan->later;
}

void parts_fini(struct choice *c) {
    for (size_t i = 0; i < c->parts.n; i++) {
        strbuf_fini(&c->parts.items[i].text);
        free(c->parts.items[i].name);
    }
    ARRAY_FINI(&c->parts);
    ARRAY_FINI(&c->ids);
    free(c->again.ids);
    qn_answer_close(c->answer);
}

static void lose(struct choice *c) {
    c->text.failed = true; /* checked once, when the answer is written */
}

/* Makes a call's id: some models' templates require a certain length. */
static void name_call(struct choice *c, struct part *p) {
    struct gen *g = c->gen;
    const uint32_t length = g->call->server->forms_info.id_length;
    state_new_id(g->call->server, g->format->call_prefix, p->id);
    const size_t n = strlen(p->id);
    if (length > 0 && length < n) memmove(p->id, p->id + n - length, length + 1);
}

static struct part *begin_part(struct choice *c, int kind) {
    if (ARRAY_PUSH(NULL, &c->parts, (struct part){.kind = kind}) != QN_OK) {
        lose(c);
        return NULL;
    }
    return &c->parts.items[c->parts.n - 1];
}

static void begin_call(struct choice *c, const qn_piece *piece) {
    struct part *p = begin_part(c, QN_PIECE_CALL);
    if (!p) return;
    p->name = strndup(piece->text, piece->n_text);
    if (!p->name) lose(c);
    name_call(c, p);
    c->n_calls++;
}

static void take_piece(struct choice *c, const qn_piece *piece) {
    struct part *last = c->parts.n ? &c->parts.items[c->parts.n - 1] : NULL;
    if (piece->kind == QN_PIECE_REASONING && !c->gen->plan.shows_thoughts) return;
    c->has_news = true;
    if (piece->kind == QN_PIECE_CALL) {
        begin_call(c, piece);
        return;
    }
    const int kind = piece->kind == QN_PIECE_ARGUMENTS ? QN_PIECE_CALL : piece->kind;
    if (!last || last->kind != kind) last = begin_part(c, kind);
    if (last) strbuf_add(&last->text, piece->text, piece->n_text);
}

/* Reads the next pieces; returns whether any of them is not a thought. */
static bool read_pieces(struct choice *c, const char *text, size_t n, bool last, bool thoughts) {
    const qn_piece *pieces;
    size_t n_pieces;
    bool says = false;
    if (qn_answer_read(c->answer, text, n, last, &pieces, &n_pieces, NULL) != QN_OK) lose(c);
    for (size_t i = 0; i < n_pieces; i++) {
        const bool thought = pieces[i].kind == QN_PIECE_REASONING;
        says |= !thought;
        if (thought || !thoughts) take_piece(c, &pieces[i]);
    }
    return says;
}

/* ---- going on ------------------------------------------------------------------------------- */

/* Makes the prompt of the second request: the first prompt, n_ids ids of the output, and a text. */
static void go_on(struct choice *c, size_t n_ids, const char *text) {
    const struct gen_prompt *p = &c->gen->prompts[c->prompt];
    int32_t *more = NULL;
    size_t n_more = 0;
    if (qn_tokenize(c->gen->call->server->tokenizer, text, strlen(text), 0, &more, &n_more, NULL) !=
        QN_OK) {
        lose(c);
        return;
    }
    int32_t *ids = malloc((p->n_ids + n_ids + n_more + 1) * sizeof *ids);
    if (ids) {
        memcpy(ids, p->ids, p->n_ids * sizeof *ids);
        if (n_ids) memcpy(ids + p->n_ids, c->ids.items, n_ids * sizeof *ids);
        if (n_more) memcpy(ids + p->n_ids + n_ids, more, n_more * sizeof *ids);
        c->again.ids = ids;
        c->again.n_ids = p->n_ids + n_ids + n_more;
    } else {
        lose(c);
    }
    qn_free(more);
    c->free_form = false;
}

/* The answer does not begin with a thought: generates it again, held to its form from the first
 * token on. */
static void start_over(struct choice *c) {
    struct gen *g = c->gen;
    qn_answer_params p = g->plan.params;
    p.reasoning_parser = "none";
    qn_answer_close(c->answer);
    c->answer = NULL;
    if (qn_answer_open(&p, &c->answer, NULL) != QN_OK) lose(c);
    g->n_output_tokens -= c->n_tokens;
    c->n_tokens = 0;
    c->tokens.n = 0;
    go_on(c, 0, "");
}

/* Ends the thought, in the prompt of the second request. */
static void end_thought(struct choice *c, size_t n_ids) {
    const qn_answer_info *info = &c->gen->call->server->forms_info;
    char text[128];
    snprintf(text, sizeof text, "%s%s", info->reasoning_end, info->reasoning_gap);
    read_pieces(c, text, strlen(text), false, false);
    go_on(c, n_ids, text);
}

/* Decides whether a second request follows: after a thought if a form waits, or at the end of a
 * thought's budget. `was`: the kind of text at the token's beginning; says: its text goes beyond
 * thoughts. */
static void decide(struct choice *c, const qn_output *out, int was, bool says) {
    const struct plan *plan = &c->gen->plan;
    const int next = qn_answer_next(c->answer);
    const bool ended = out->finish_reason != QN_RUNNING;
    const bool by_model =
        out->finish_reason == QN_FINISH_STOP && !out->stop && out->stop_token_id < 0;
    const size_t n_ids = c->ids.n - (ended && c->ids.n > 0);
    if (ended && !(by_model && c->free_form)) return;
    if (next == QN_PIECE_REASONING) {
        const bool spent = plan->budget >= 0 && c->n_thought >= (uint64_t)plan->budget;
        if (spent || ended) end_thought(c, n_ids);
    } else if (c->free_form && was == QN_PIECE_REASONING) {
        /* The token holds the end of the thought and more: it is replaced by that end. */
        const qn_answer_info *info = &c->gen->call->server->forms_info;
        char text[128];
        snprintf(text, sizeof text, "%s%s", info->reasoning_end, info->reasoning_gap);
        go_on(c, n_ids - says, says ? text : info->reasoning_gap);
    } else if (c->free_form && (next == QN_PIECE_TEXT || ended)) {
        start_over(c);
    }
}

void parts_take(struct choice *c, const qn_output *out) {
    struct gen *g = c->gen;
    const int was = qn_answer_next(c->answer);
    const bool last = out->finish_reason != QN_RUNNING;
    const bool keeps = c->free_form || g->plan.budget >= 0;
    if (keeps && out->id >= 0 && ARRAY_PUSH(NULL, &c->ids, out->id) != QN_OK) lose(c);
    /* Free text before the form holds is not part of the answer. */
    const bool says = read_pieces(c, out->text, out->n_text, last && !c->free_form, c->free_form);
    if (out->id >= 0 &&
        (was == QN_PIECE_REASONING || qn_answer_next(c->answer) == QN_PIECE_REASONING)) {
        c->n_thought++;
        g->n_thought_tokens++;
    }
    if (keeps) decide(c, out, was, says);
    if (last && !c->again.ids && c->free_form) read_pieces(c, "", 0, true, true);
}

void parts_sampling(const struct choice *c, qn_sampling_params *s) {
    if (c->free_form) {
        s->structured_kind = QN_STRUCTURED_NONE;
        s->structured_text = NULL;
    }
    if (s->max_tokens) s->max_tokens -= MIN(c->n_tokens, s->max_tokens - 1);
    s->min_tokens -= MIN(c->n_tokens, s->min_tokens);
}

/* ---- for formats ---------------------------------------------------------------------------- */

const char *parts_finish_text(const struct choice *c) {
    if (c->finish == QN_RUNNING) return NULL;
    return c->finish == QN_FINISH_STOP && parts_has_calls(c) ? "tool_calls"
                                                             : qn_finish_reason_text(c->finish);
}

void parts_text(const struct choice *c, struct strbuf *b) {
    for (size_t i = 0; i < c->parts.n; i++)
        if (c->parts.items[i].kind == QN_PIECE_TEXT)
            strbuf_add(b, strbuf_text(&c->parts.items[i].text), c->parts.items[i].text.n);
}
