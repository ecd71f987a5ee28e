/* tokenizer.h - text to token ids and back, exactly as Hugging Face `tokenizers` does it.
 *
 *   text ─ added tokens ─ normalizer ─ pre-tokenizer ─ BPE ─ post-processor ─► ids
 *   ids  ─ decoder steps (one token at a time, the tail that may change is held back) ─► text
 *
 * A tokenizer is made from tokenizer.json, is read-only afterwards and may be shared by threads.
 * Which components of the file are read, and where we differ on purpose: docs/tokenizer.md.
 * A component that is not supported is QN_EUNSUPPORTED with the name of the field.
 *
 *   tokenizer_text.c    UTF-8, classes of characters, the byte alphabet, NFC and friends
 *   tokenizer_split.c   patterns (PCRE2) and the pre-tokenizer's steps
 *   tokenizer_bpe.c     vocabulary and merges
 *   tokenizer_added.c   added tokens: finding them in text
 *   tokenizer_decode.c  the decoder, streaming
 *   tokenizer_parse.c   reads tokenizer.json into the above; component.c: members of its objects
 *   tokenizer_post.c    its post-processor
 *   tokenizer_config.c  the files beside it
 */
#ifndef QN_MODEL_TOKENIZER_H
#define QN_MODEL_TOKENIZER_H

#include "base/array.h"
#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Growing ids; starts as {0}, released with ARRAY_FINI. */
struct token_ids {
    int32_t *items;
    size_t n, capacity;
};

/* Longest text and longest list of ids that one call takes. */
enum { TOKENIZER_MAX_TEXT = 256 << 20 };

/* Opens path/tokenizer.json, with those of tokenizer_config.json, special_tokens_map.json and
 * added_tokens.json that exist beside it; or `path` itself if that is a file. Errors: QN_ENOENT,
 * QN_EIO, QN_EFORMAT, QN_EUNSUPPORTED, QN_ELIMIT, QN_ENOMEM. */
int tokenizer_open(struct diag *d, const char *path, struct tokenizer **out);

/* The same from text in memory; `config` (tokenizer_config.json) may be NULL. `name` stands for
 * the file in messages. */
int tokenizer_parse(struct diag *d, const char *name, const char *json, size_t n,
                    const char *config, size_t config_n, struct tokenizer **out);
void tokenizer_free(struct tokenizer *t);

/* Appends the ids of text[0, n) to *ids. Added tokens inside the text are recognised; add_special
 * says whether the post-processor adds its own (bos ...). Bytes that are not UTF-8 count as U+FFFD,
 * one per maximal part of a character, like Python's errors="replace".
 * Errors: QN_ELIMIT (text too long), QN_EFORMAT (the unknown token is not in the vocabulary). */
int tokenizer_encode(struct diag *d, const struct tokenizer *t, const char *text, size_t n,
                     bool add_special, struct token_ids *ids);

/* Appends the text of ids[0, n) to *out. skip_special leaves out special tokens.
 * Errors: QN_EINVAL for an id that is not in [0, tokenizer_n_vocab). */
int tokenizer_decode(struct diag *d, const struct tokenizer *t, const int32_t *ids, size_t n,
                     bool skip_special, struct strbuf *out);

/* One more than the largest id, added tokens included. Ids below it may be unused. */
int32_t tokenizer_n_vocab(const struct tokenizer *t);
/* The id of a token as it is spelled in the file, -1: none. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);
/* The spelling of an id in the file, NUL-terminated, *n bytes; NULL: no such id. Owned by t. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *n);
/* Appends the bytes that the token stands for in the middle of a text; they may be a part of a
 * character. Errors: QN_EINVAL as tokenizer_decode. */
int tokenizer_bytes(struct diag *d, const struct tokenizer *t, int32_t id, struct strbuf *out);
/* Whether skip_special leaves the id out. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* The eos named by the files beside tokenizer.json; -1: none. */
int32_t tokenizer_eos(const struct tokenizer *t);

/* Decoding while tokens arrive. The pieces joined are the text that tokenizer_decode gives for all
 * ids at once; every piece is whole UTF-8 characters. Text that later tokens may still change is
 * held back: the bytes of an unfinished character, a run of byte-fallback tokens (text only as a
 * whole), spaces that a decoder may strip. One stream per sequence. */
enum { TOKENIZER_MAX_DECODERS = 16 };

struct token_stream {
    const struct tokenizer *t; /* must outlive the stream */
    bool skip_special;
    struct token_stream_step {
        uint64_t n_seen;    /* tokens (bytes, once tokens are fused) that reached this step */
        struct strbuf held; /* not passed on yet */
    } steps[TOKENIZER_MAX_DECODERS];
};

void token_stream_init(struct token_stream *s, const struct tokenizer *t, bool skip_special);
/* Appends to *out the text that is certain after this token. Errors: QN_EINVAL (the stream stays
 * usable). */
int token_stream_push(struct diag *d, struct token_stream *s, int32_t id, struct strbuf *out);
/* Appends the held-back text; the sequence ends here. */
int token_stream_flush(struct diag *d, struct token_stream *s, struct strbuf *out);
void token_stream_fini(struct token_stream *s);

#endif
