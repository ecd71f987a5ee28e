/* tokenizer_bpe.h - the model: a vocabulary and a ranked list of merges.
 *
 * A word starts as its characters' tokens; the adjacent pair with the lowest rank (the leftmost of
 * equals) is replaced by its merge until no pair has one. O(n log n) for a word of n characters.
 *
 * Tokens are kept as the file spells them: byte-level text arrives in the byte alphabet.
 */
#ifndef QN_MODEL_TOKENIZER_BPE_H
#define QN_MODEL_TOKENIZER_BPE_H

#include "base/arena.h"
#include "base/array.h"
#include "base/map.h"
#include "model/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    BPE_MAX_IDS = 1 << 22, /* an id at or above this is refused */
    BPE_DIRECT = 0x800,    /* characters with their token in a table */
};

struct bpe_token {
    const char *text; /* NUL-terminated, in the arena; NULL: no such id */
    uint32_t n;
};

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; BPE_NO_PAIR marks an empty slot */
    uint32_t rank;
    int32_t id;
};

struct bpe {
    struct arena arena;
    const char *file;         /* for messages */
    struct map ids;           /* text of a token -> id */
    struct bpe_token *tokens; /* [n_ids] */
    int32_t n_ids, n_vocab;   /* largest id + 1; entries of the vocabulary */
    struct bpe_merge *merges; /* [merge_slots], open addressing; merge_slots is a power of two */
    uint64_t merge_slots, n_merges;
    int32_t direct[BPE_DIRECT]; /* token of a character, -1: none */
    int32_t byte_ids[256];      /* tokens <0x00> .. <0xFF>, -1: none */
    bool byte_fallback, fuse_unk, ignore_merges, has_unk;
    bool shared_ids; /* two tokens share one id */
    const char *unk_token;
    int32_t unk; /* -1: unk_token is not in the vocabulary */
    /* No token holds this text except as its first character, so a word may be cut before it if
     * another character precedes. NULL: none. */
    const char *cut_before;
};

/* One caller's memory while it encodes; starts as {0}. */
struct bpe_scratch {
    ARRAY(struct bpe_symbol) symbols;
    ARRAY(struct bpe_pair) heap;
};

void tokenizer_bpe_fini(struct bpe *b);
void tokenizer_bpe_scratch_fini(struct bpe_scratch *s);

/* Adds a token of the model's vocabulary; ids may come in any order. Of several tokens with one id
 * the first is decoded. Errors: QN_ELIMIT (id), QN_EFORMAT (the text has another id), QN_ENOMEM. */
int tokenizer_bpe_add(struct diag *d, struct bpe *b, const char *text, size_t n, int64_t id);
/* Adds a merge; call tokenizer_bpe_reserve_merges with their number first. Errors: QN_EFORMAT with
 * the token that is not in the vocabulary. */
int tokenizer_bpe_reserve_merges(struct diag *d, struct bpe *b, size_t n);
int tokenizer_bpe_merge(struct diag *d, struct bpe *b, const char *left, size_t left_n,
                        const char *right, size_t right_n, uint32_t rank);
/* Call after the last token and merge: fills the tables that encoding uses. */
int tokenizer_bpe_finish(struct diag *d, struct bpe *b);

int32_t tokenizer_bpe_id(const struct bpe *b, const char *text, size_t n);

/* Appends the ids of one word. Errors: QN_EFORMAT (unk_token is not in the vocabulary), QN_ENOMEM.
 */
int tokenizer_bpe_encode(struct diag *d, const struct bpe *b, struct bpe_scratch *s,
                         const char *word, size_t n, struct token_ids *ids);

#endif
