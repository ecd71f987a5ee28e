/* tokenizer_decode.h - the decoder's steps, made by tokenizer_parse.c.
 *
 * Steps before the first DECODE_ALPHABET, DECODE_FUSE or DECODE_JOIN see one token at a time. Later
 * steps see one endless token (`fused`) and may have to hold some of it back.
 */
#ifndef QN_MODEL_TOKENIZER_DECODE_H
#define QN_MODEL_TOKENIZER_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct decode_step {
    enum decode_kind {
        DECODE_ALPHABET,  /* byte alphabet to bytes to text; fuses */
        DECODE_BYTES,     /* <0xXX> tokens to text */
        DECODE_REPLACE,   /* text by text */
        DECODE_STRIP,     /* strips `text` up to n_left and n_right times at the ends */
        DECODE_METASPACE, /* `text` is a space, nothing in the first token if drop_first */
        DECODE_FUSE,
        DECODE_JOIN, /* for files without a decoder: a space between tokens; fuses */
    } kind;
    bool fused;
    const char *text, *with; /* NUL-terminated, in the tokenizer's arena */
    size_t text_n, with_n;
    int64_t n_left, n_right;
    bool drop_first;
};

/* The byte of a token <0xXX>, -1: it is not one. */
int tokenizer_decode_byte(const char *text, size_t n);

#endif
