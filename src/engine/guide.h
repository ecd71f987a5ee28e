/* guide.h - what keeps a request's output to the grammar that its sampling parameters name.
 *
 *   guide_texts   the vocabulary's texts, read once, when the first such request is submitted
 *   guide_rules   a compiled grammar, with the states and masks that its texts have led to. The
 *                 last used ones are kept, and requests with the same grammar share one
 *   guide         one request's text. From the request's slot on the mask thread owns it
 *                 (mask_thread.h)
 *
 * A mask depends on the request's own tokens only, so a request has the same masks alone and in any
 * batch.
 */
#ifndef QN_ENGINE_GUIDE_H
#define QN_ENGINE_GUIDE_H

#include "engine/api.h" /* first: error codes */

#include "grammar/grammar.h"
#include "model/tokenizer.h"
#include "runtime/rt_batch.h"

#include <pthread.h>

enum { GUIDE_RULES_KEPT = 64 };

/* The texts of an engine's tokens; starts as {0}. */
struct guide_texts {
    pthread_mutex_t mutex;
    bool made;
    struct strbuf bytes;
    uint32_t *at; /* [n_tokens + 1] */
    struct vocab vocab;
    int32_t ends[RT_MAX_STOP_IDS]; /* the model's tokens that end an output */
    uint32_t n_ends;
    /* Sorted by use, the last used one first. */
    struct guide_rules *kept[GUIDE_RULES_KEPT];
};

struct guide_rules {
    uint32_t n_refs; /* by guides and by guide_texts.kept */
    enum grammar_kind kind;
    char *text;
    struct code code;
    struct matcher *matcher; /* at the beginning of a text; once shared, only the mask thread's */
    uint32_t *first;         /* [vocab.n_words] the tokens that may come first */
};

/* The mask thread and the session hand a guide over by this word. The first to be done with it sets
 * GUIDE_GONE; the other one frees it. */
enum guide_turn {
    GUIDE_IDLE,
    GUIDE_BUSY,    /* the mask thread works on it: its slot may not be released */
    GUIDE_LEAVING, /* the same, and the request is over */
    GUIDE_GONE,
};

struct guide {
    struct guide_rules *rules;
    struct matcher *matcher; /* the mask thread's */
    struct guide *next;      /* in the mask thread's list */
    uint32_t turn;           /* enum guide_turn */
    uint32_t slot, max_tokens;
    uint32_t n_read; /* output tokens that it has read */
    uint32_t failed; /* 1: no more masks are made; `failure` says why */
    struct diag failure;
};

void guide_texts_init(struct guide_texts *t);
void guide_texts_fini(struct guide_texts *t);
/* The first call makes the vocabulary of n_tokens tokens, of which ends[n_ends] end an output.
 * Special tokens are allowed where a grammar names them. Ids that the tokenizer does not have are
 * never allowed. Errors: QN_ENOMEM. */
int guide_texts_make(struct diag *d, struct guide_texts *t, const struct tokenizer *tokenizer,
                     uint32_t n_tokens, const int32_t *ends, uint32_t n_ends);

/* Errors: QN_EINVAL (the kind, or parameters that do not go with a grammar), grammar_compile's. */
int guide_check(struct diag *d, const qn_sampling_params *s);
/* Errors: as grammar_compile, matcher_new; QN_EINVAL when not even the first token exists. */
int guide_new(struct diag *d, struct guide_texts *t, const qn_sampling_params *s,
              struct guide **out);
void guide_free(struct guide *g); /* NULL is fine */

/* Reads the tokens output[g->n_read, n); *mask: the tokens that may come next, NULL: the output is
 * over. Errors: matcher.h's. */
int guide_read(struct diag *d, struct guide *g, const struct guide_texts *t, const int32_t *output,
               uint32_t n, const uint32_t **mask);

#endif
