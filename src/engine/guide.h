/* guide.h - what keeps a request's output to the grammar that its sampling parameters name.
 *
 * The vocabulary's texts are read once, when the first such request is submitted. A guide belongs
 * to one request, then, while the runtime is not done with it, to the slot. SAMPLE of the request's
 * row asks it for a mask (rt_batch.h): what it answers depends on the request's own tokens only, so
 * they are the same alone and in any batch, and no thread of the user is waited for.
 */
#ifndef QN_ENGINE_GUIDE_H
#define QN_ENGINE_GUIDE_H

#include "engine/api.h" /* first: error codes */

#include "grammar/grammar.h"
#include "model/tokenizer.h"
#include "runtime/rt_batch.h"

#include <pthread.h>

/* The texts of an engine's tokens; starts as {0}. */
struct guide_texts {
    pthread_mutex_t mutex;
    bool made;
    struct strbuf bytes;
    uint32_t *at; /* [n_tokens + 1] */
    struct vocab vocab;
};

struct guide {
    struct code code;
    struct matcher *matcher;
    uint32_t n_read; /* output tokens that the matcher has */
    int32_t ends[RT_MAX_STOP_IDS];
    struct diag failure; /* why there is no mask; set by SAMPLE before it ends the request */
};

void guide_texts_init(struct guide_texts *t);
void guide_texts_fini(struct guide_texts *t);
/* The vocabulary of n_tokens tokens, made by the first call. Special tokens are
 * allowed where a grammar names them, ids that the tokenizer does not have never. Errors:
 * QN_ENOMEM. */
int guide_texts_make(struct diag *d, struct guide_texts *t, const struct tokenizer *tokenizer,
                     uint32_t n_tokens);

/* Errors: QN_EINVAL (the kind, or parameters that do not go with a grammar), grammar_compile's. */
int guide_check(struct diag *d, const qn_sampling_params *s);
/* vocab is borrowed; ends[n_ends]: the tokens that end an output, at least one. Errors: as
 * grammar_compile, matcher_new; QN_EINVAL when not even the first token exists. */
int guide_new(struct diag *d, const struct vocab *vocab, const qn_sampling_params *s,
              const int32_t *ends, uint32_t n_ends, struct guide **out);
void guide_free(struct guide *g); /* NULL is fine */

/* A rt_mask_fn: `user` is a struct guide. */
const uint32_t *guide_mask(void *user, const int32_t *output, uint32_t n);

#endif
