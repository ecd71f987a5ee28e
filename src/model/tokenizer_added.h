/* tokenizer_added.h - added tokens, which are no part of the model: finding them in text.
 *
 * Text is searched twice: unchanged for the tokens that are not `normalized`, and again after the
 * normalizer for the tokens that are (whose own text then went through the normalizer, too). At
 * each place the longest token wins, and the search goes on after it.
 */
#ifndef QN_MODEL_TOKENIZER_ADDED_H
#define QN_MODEL_TOKENIZER_ADDED_H

#include "base/array.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *text; /* NUL-terminated, in the tokenizer's arena */
    uint32_t n;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
    /* The text that decoding shows: through the normalizer if `normalized`. Decoding skips it with
     * the special tokens if it spells one of them. */
    const char *shown;
    size_t shown_n;
    bool skipped;
};

/* Texts to look for, as a tree of bytes; starts as {0}. */
struct added_finder {
    ARRAY(struct added_node) nodes; /* nodes[0] is the root, once there is any text */
    bool begins[256];               /* bytes that a text begins with */
};
void tokenizer_added_fini(struct added_finder *f);
/* Adds a text of n bytes for tokens[value]; a known text keeps its value. */
int tokenizer_added_insert(struct diag *d, struct added_finder *f, const char *text, size_t n,
                           int32_t value);

/* A stretch of text: an added token (id >= 0) or what lies between. */
struct added_span {
    size_t start, end;
    int32_t id;
};
struct added_spans {
    struct added_span *items;
    size_t n, capacity;
};

/* Overwrites *spans with the spans of text[0, n), in order. lstrip and rstrip tokens take the
 * white space beside them. */
int tokenizer_added_find(struct diag *d, const struct added_finder *f,
                         const struct added_token *tokens, const char *text, size_t n,
                         struct added_spans *spans);

#endif
