/* gen.h - a generation: the choices of one call, their requests in the engine, and the output that
 * is not written yet.
 *
 *   work thread          loop                                   loop
 *   format's work ──► gen_start: submit all choices ──► gen_poll: outputs ──► format ──► bytes
 *
 * An answer in one piece keeps all output until the last choice has ended. A stream writes new
 * output at once while its client takes it. While the client does not, output gathers here and goes
 * out later as one event.
 */
#ifndef QN_SERVER_GEN_H
#define QN_SERVER_GEN_H

#include "server/state.h"

#include "base/array.h"

enum { GEN_MAX_CHOICES = 1024, GEN_ECHOED = 5 };

struct gen_prompt {
    int32_t *ids;
    size_t n_ids;
    char *text; /* [n_text] for echo; NULL: decoded from the ids */
    size_t n_text;
};

struct gen_token {
    int32_t id;
    float logprob; /* NaN: none, the first token of a prompt */
    const qn_token_logprob *top;
    size_t n_top;
};

/* A part of an answer to a chat (parts.h). */
struct part {
    int kind;           /* QN_PIECE_REASONING, QN_PIECE_TEXT, QN_PIECE_CALL */
    struct strbuf text; /* of a call: its arguments */
    char *name;         /* of a call: the tool */
    char id[48];        /* of a call */
    size_t n_written;   /* bytes of the text that the stream has */
    bool begun;         /* the format's own: its first event is written */
};

/* Settings for taking the choices of a chat apart (parts.c). */
struct plan {
    qn_answer_params params;
    char *tools, *prompt;
    qn_answer **answers; /* [n] until the choices take them over; NULL: no chat */
    bool shows_thoughts;
    bool later;     /* the answer's form begins after a thought, if there is one */
    int64_t budget; /* tokens that a thought may have; -1: no bound */
};

struct choice {
    struct gen *gen;
    qn_request *request; /* NULL: not submitted */
    uint32_t index, prompt;
    struct choice *chain; /* next in its bucket */
    struct strbuf text;
    ARRAY(struct gen_token) tokens; /* where log-probabilities are requested */
    size_t text_offset;             /* characters of the tokens written so far */
    uint32_t n_tokens;
    int finish; /* QN_RUNNING ... */
    char *stop; /* the text that ended it; NULL: none */
    int32_t stop_id;
    uint64_t first_ns, last_ns;
    bool begun, told; /* the format's own: first and last event are written */
    /* Of a chat. */
    qn_answer *answer; /* NULL: the output is `text` */
    ARRAY(struct part) parts;
    uint32_t n_calls;
    bool has_news;           /* parts have unwritten output */
    bool free_form;          /* the later form (plan.later) does not hold yet */
    bool goes_on;            /* its request is not the first one */
    uint32_t n_thought;      /* tokens */
    ARRAY(int32_t) ids;      /* output of the first request, kept where a second one may follow */
    struct gen_prompt again; /* prompt of the second request; ids NULL: none follows */
};

/* How one API writes its answers; each function appends. */
struct format {
    const char *prefix;                                /* of ids */
    const char *call_prefix;                           /* of ids of calls */
    void (*whole)(struct gen *g, struct strbuf *b);    /* the answer in one piece */
    void (*start)(struct gen *g, struct strbuf *b);    /* of a stream; may be NULL */
    void (*delta)(struct choice *c, struct strbuf *b); /* new output of the choice, and its end */
    void (*end)(struct gen *g, struct strbuf *b);      /* of a stream */
    void (*failed)(struct gen *g, const struct problem *p, struct strbuf *b); /* for a problem */
    const char *ping;                                                         /* while silent */
};

struct gen {
    struct call *call;
    const struct format *format;
    char id[48];
    int64_t created;
    bool stream, include_usage, continuous_usage, echo, wants_logprobs, drops_output;
    uint32_t n, n_top, cache_space;
    int32_t priority;
    struct gen_prompt *prompts;
    size_t n_prompts;
    qn_sampling_params sampling;
    const char *stop[QN_MAX_STOP]; /* of the call's fields */
    int32_t stop_ids[QN_MAX_STOP_TOKEN_IDS];
    qn_logit_bias bias[QN_MAX_LOGIT_BIAS];
    char *structured; /* of sampling: schema, regex, grammar or choices; NULL: none */
    struct choice *choices;
    size_t n_choices, n_running;
    uint64_t n_prompt_tokens, n_output_tokens, n_cached_tokens, n_thought_tokens;
    struct plan plan;
    char *echoed[GEN_ECHOED]; /* fields that the answer repeats, where the format has them */
    uint64_t written_ns;      /* when bytes were last written */
    uint64_t sequence;        /* numbers of events, where the format has them */
    bool streaming;           /* the answer's header is out */
    struct gen *before, *next;
};

/* Makes c->gen for one format, without prompts. Errors: PROBLEM_INTERNAL. */
int gen_new(struct call *c, const struct format *format);
/* Adds a prompt. The generation takes over its ids and text, also after a failure. */
int gen_add_prompt(struct gen *g, const struct gen_prompt *prompt);
/* Reads the sampling parameters from the fields and checks them against the engine's bounds. */
int gen_read_sampling(struct gen *g, enum field max_tokens, enum field stop);
/* Sets what the whole output must be: a QN_STRUCTURED_... with this text. `param` is the field that
 * requests it. */
int gen_set_structured(struct gen *g, const char *param, int kind, const char *text);
/* Reads response_format, or a field like it: {type, schema}. `inside` names the member that holds
 * the schema; NULL: the object itself.
 */
int gen_read_format(struct gen *g, const char *param, const json_t *v, const char *inside);
/* Reads whether a stream reports its usage. */
int gen_read_stream_options(struct gen *g);
void gen_free(struct gen *g);

/* ---- on the loop ---------------------------------------------------------------------------- */

void gen_start(struct call *c);
/* Reads the engine's new outputs. */
void gen_poll(struct server *s);
void gen_gone(struct gen *g);
void gen_room(struct gen *g);
/* Sends pings; called once a second. */
void gen_tick(struct server *s);
/* Ends all generations with a problem. */
void gen_end_all(struct server *s, enum problem_kind kind, const char *message);

#endif
