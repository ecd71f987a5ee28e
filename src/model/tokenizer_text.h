/* tokenizer_text.h - characters: UTF-8, classes, the byte alphabet and normalization.
 *
 * Inside the tokenizer all text is valid UTF-8; tokenizer_text_lossy makes it so on entry.
 */
#ifndef QN_MODEL_TOKENIZER_TEXT_H
#define QN_MODEL_TOKENIZER_TEXT_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* The kind of the first bytes of p[0, n), n > 0. */
enum text_part {
    TEXT_CHAR,  /* a character of *length bytes */
    TEXT_BAD,   /* *length bytes that can begin no character: one U+FFFD */
    TEXT_SHORT, /* all n = *length bytes begin a character whose end is missing */
};
enum text_part tokenizer_text_part(const char *p, size_t n, size_t *length);

/* Appends bytes[0, n), with U+FFFD in place of bytes that are not UTF-8. */
void tokenizer_text_lossy(struct strbuf *out, const char *bytes, size_t n);
bool tokenizer_text_valid(const char *bytes, size_t n);

/* The character at p[*i] of valid UTF-8; moves *i after it. */
static inline int32_t tokenizer_text_next(const char *p, size_t *i) {
    const unsigned char *s = (const unsigned char *)p + *i;
    if (s[0] < 0x80) return *i += 1, s[0];
    if (s[0] < 0xE0) return *i += 2, (s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    if (s[0] < 0xF0) {
        *i += 3;
        return (s[0] & 0x0F) << 12 | (s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *i += 4;
    return (s[0] & 7) << 18 | (s[1] & 0x3F) << 12 | (s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}
/* The character that ends before p[n], n > 0. */
int32_t tokenizer_text_last(const char *p, size_t n);
void tokenizer_text_add(struct strbuf *out, int32_t c);

/* Classes by Unicode's data. space: White_Space. word: the \w of Unicode regular expressions. */
bool tokenizer_text_is_space(int32_t c);
bool tokenizer_text_is_word(int32_t c);
bool tokenizer_text_is_numeric(int32_t c);     /* Nd, Nl, No */
bool tokenizer_text_is_punctuation(int32_t c); /* ASCII punctuation and P* */

/* GPT-2's byte alphabet: every byte has a printable character below U+0144. */
void tokenizer_text_to_alphabet(struct strbuf *out, const char *bytes, size_t n);
/* The byte of a character of the alphabet, -1: not in it. */
int tokenizer_text_from_alphabet(int32_t c);

enum text_form { TEXT_NFC, TEXT_NFD, TEXT_NFKC, TEXT_NFKD };
int tokenizer_text_normalize(struct diag *d, enum text_form form, const char *text, size_t n,
                             struct strbuf *out);
void tokenizer_text_lowercase(struct strbuf *out, const char *text, size_t n);

#endif
