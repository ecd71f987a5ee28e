/* tokenizer_internal.h - the tokenizer itself; for src/model/tokenizer*.c only.
 *
 * Made by tokenizer_{parse,post,config}.c, read by everything else.
 */
#ifndef QN_MODEL_TOKENIZER_INTERNAL_H
#define QN_MODEL_TOKENIZER_INTERNAL_H

#include "base/arena.h"
#include "base/map.h"
#include "model/tokenizer.h"
#include "model/tokenizer_added.h"
#include "model/tokenizer_bpe.h"
#include "model/tokenizer_decode.h"
#include "model/tokenizer_split.h"
#include "model/tokenizer_text.h"

struct norm_step {
    enum norm_kind {
        NORM_FORM,
        NORM_PREPEND,
        NORM_REPLACE,
        NORM_LOWERCASE,
        NORM_STRIP,
        NORM_ALPHABET
    } kind;
    enum text_form form;
    struct pattern pattern; /* NORM_REPLACE */
    const char *text;       /* NORM_PREPEND, NORM_REPLACE: the text put there */
    size_t n;
    bool left, right; /* NORM_STRIP */
};

/* The result of the post-processor: parts in a row, as ids in which -1 stands for the encoding. */
enum { POST_MAX_PARTS = 64 };
struct post {
    struct token_ids ids;
    size_t ends[POST_MAX_PARTS]; /* part i is ids[ends[i - 1], ends[i]) */
    size_t n_parts;              /* 0: there is no post-processor */
};

struct tokenizer {
    struct arena arena;
    struct bpe bpe;
    ARRAY(struct added_token) added; /* in the file's order */
    struct map added_ids;            /* text -> index in added */
    int32_t *added_of_id;            /* [n_vocab], index in added, -1: none */
    struct added_finder raw, normalized;
    ARRAY(struct norm_step) norms;
    ARRAY(struct pre_step) pres;
    struct post post;
    ARRAY(struct decode_step) decodes;
    int32_t n_vocab;
    int32_t eos; /* -1: no file names one */
};

/* Memory of one call of tokenizer_encode. */
struct encode_scratch {
    struct strbuf text[3];       /* lossy text; two for the normalizer's steps */
    struct added_spans spans[2]; /* of the raw text, of a normalized stretch */
    struct words words[2];
    struct bpe_scratch bpe;
    pcre2_match_data *match;
};

/* Applies the normalizer to text[0, n); the result is in *out, which is one of s->text[1, 2]. */
int tokenizer_normalize(struct diag *d, const struct tokenizer *t, struct encode_scratch *s,
                        const char *text, size_t n, struct strbuf **out);
/* The text of an id for the decoder, NULL: no such id. *skipped: whether skip_special leaves it
 * out. */
const char *tokenizer_shown(const struct tokenizer *t, int32_t id, size_t *n, bool *skipped);
int tokenizer_scratch_init(struct diag *d, struct encode_scratch *s);
void tokenizer_scratch_fini(struct encode_scratch *s);

#endif
