/* vocab.h - the texts of a vocabulary as tries, for finding all tokens that a grammar allows.
 *
 *   plain   tokens of at most VOCAB_PLAIN_MAX whole characters that a JSON string may hold as they
 *           are; for each n there is also a mask of those with at most n characters
 *   other   all other tokens: quotes, escapes, control characters, parts of characters
 *
 * A trie's nodes lie depth first, so a node's subtree is [node, node.skip), and its tokens are a
 * contiguous range of `ids`. A vocab is read-only once made, and shared by matchers of any thread.
 */
#ifndef QN_GRAMMAR_VOCAB_H
#define QN_GRAMMAR_VOCAB_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    VOCAB_PLAIN_MAX = 32,  /* characters of a plain token */
    VOCAB_TOKEN_MAX = 255, /* bytes of a token; a longer one is never allowed */
};

/* The first byte of a special token's text. No other text has this byte. */
#define VOCAB_SPECIAL "\xff"

struct vocab_node {
    uint32_t skip;  /* the first node after the subtree */
    uint32_t first; /* in ids: the tokens of the subtree begin here with the node's own */
    uint16_t n_own;
    uint8_t byte;
    uint8_t depth; /* 1: the first byte of a token */
};

struct vocab_trie {
    struct vocab_node *nodes; /* [n_nodes + 1], the last one only has `first` */
    uint32_t n_nodes;
    int32_t *ids; /* in order of their texts */
    uint32_t n_ids;
};

struct vocab {
    struct vocab_trie plain, other;
    uint32_t n_tokens, n_words; /* words of 32 bits in a mask */
    uint32_t longest;           /* bytes of the longest token that is ever allowed */
    uint32_t *plain_masks;      /* [VOCAB_PLAIN_MAX + 1][n_words] row n: plain tokens of at most n
                                 * characters */
    const char *bytes;          /* all texts, one after the other */
    const uint32_t *at;         /* [n_tokens + 1] where each begins */
};

/* bytes and at are borrowed. A token without text is never allowed. Errors: QN_ENOMEM. */
int vocab_make(struct diag *d, const char *bytes, const uint32_t *at, uint32_t n_tokens,
               struct vocab *v);
void vocab_fini(struct vocab *v);

/* Whether a plain token may hold c as a character of its own. */
static inline int vocab_is_plain(uint8_t c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

#endif
