/* tokenizer_split.h - patterns, and the steps that cut text into the words that BPE sees.
 *
 * tokenizer.json's pre-tokenizers are split into primitive steps: ByteLevel is (prefix space) +
 * (split by GPT-2's pattern) + (byte alphabet), Metaspace is (replace and prepend) + (split).
 *
 *   words: one buffer of text and the ranges of the words in it, in order:
 *     text  |H e l l o _ w o r l d|
 *     items  [0,5)      [5,11)          first: the word is where the whole input begins
 */
#ifndef QN_MODEL_TOKENIZER_SPLIT_H
#define QN_MODEL_TOKENIZER_SPLIT_H

#include "base/arena.h"
#include "base/array.h"
#include "base/strbuf.h"

#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>

/* What a step searches for: a regular expression, a fixed text, or a class of characters. */
struct pattern {
    pcre2_code *code;
    const char *text; /* n bytes, owned by the tokenizer's arena */
    size_t n;
    bool (*is_in_class)(int32_t c);
};

/* Compiles `source`, written for Oniguruma, for PCRE2: see docs/tokenizer.md for the differences.
 * `field` stands for the pattern in messages. Errors: QN_EUNSUPPORTED (does not compile, or means
 * something else to PCRE2), QN_ENOMEM. */
int tokenizer_split_compile(struct diag *d, const char *field, const char *source, size_t n,
                            struct pattern *p);
void tokenizer_split_release(struct pattern *p);

/* The first match of p at or after *start in text[0, n): moves *start and sets *end. A match of an
 * expression may be empty. Errors: QN_ELIMIT (the expression backtracks too much), QN_ENOMEM. */
int tokenizer_split_find(struct diag *d, const struct pattern *p, pcre2_match_data *match,
                         const char *text, size_t n, size_t *start, size_t *end, bool *found);

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pre_step {
    enum pre_kind { PRE_PREFIX_SPACE, PRE_ALPHABET, PRE_METASPACE, PRE_SPLIT } kind;
    struct pattern pattern;       /* PRE_SPLIT */
    enum split_behavior behavior; /* PRE_SPLIT */
    bool invert;                  /* PRE_SPLIT: what does not match is the delimiter */
    enum prepend_scheme prepend;  /* PRE_METASPACE */
    const char *replacement;      /* PRE_METASPACE: NUL-terminated */
};

struct word {
    size_t start, n;
    bool first;
};

struct words {
    struct strbuf text;
    ARRAY(struct word) items;
};

/* Applies one step: reads `from`, overwrites `to`. A step that does not change the text moves the
 * buffer over from `from`. */
int tokenizer_split_apply(struct diag *d, const struct pre_step *s, pcre2_match_data *match,
                          struct words *from, struct words *to);

#endif
