/* text.h - texts as Python sees them: sequences of code points, its classes, its spellings.
 *
 * Where Unicode's full rules would be needed and are not here (letters whose upper case is two
 * letters, say), a function says so instead of giving another text.
 */
#ifndef QN_MODEL_JINJA_TEXT_H
#define QN_MODEL_JINJA_TEXT_H

#include "model/jinja/value.h"

size_t text_chars(const char *p, size_t n);
/* Byte offset of character i, or n behind the last. */
size_t text_offset(const struct text *t, size_t i);
int32_t text_next(const char *p, size_t *i);
size_t text_put(int32_t c, char out[4]); /* bytes written */

bool text_is_space(int32_t c); /* str.isspace */
bool text_is_printable(int32_t c);
bool text_is_line_end(int32_t c); /* of str.splitlines */

enum text_class { TEXT_ALPHA, TEXT_DIGIT, TEXT_ALNUM, TEXT_SPACE, TEXT_LOWER, TEXT_UPPER };
/* str.isalpha and its like. */
int text_is(struct run *r, enum text_class class, const struct text *t, bool *is);

enum text_case { TEXT_TO_LOWER, TEXT_TO_UPPER, TEXT_TO_TITLE };
/* Appends p[0, n) in another case. */
int text_case(struct out *o, enum text_case to, const char *p, size_t n);

/* What str.strip(chars) leaves of p[0, n): [*start, *end). chars NULL: white space. */
void text_strip(const char *p, size_t n, const struct text *chars, bool left, bool right,
                size_t *start, size_t *end);
/* Where `what` is first or last in p[0, n); -1: nowhere. Bytes. */
int64_t text_find(const char *p, size_t n, const struct text *what, bool last);

enum { TEXT_FLOAT_BYTES = 40 };
void text_float(double number, char out[TEXT_FLOAT_BYTES]); /* Python's repr */
/* Python's float(text) and int(text, base); false: not a number. *big: beyond 64 bits. */
bool text_to_float(const struct text *t, double *number);
bool text_to_int(const struct text *t, int base, int64_t *integer, bool *big);
/* digits[0, n) times ten to the power of `exponent`, rounded once, in any locale. */
double text_decimal(const char *digits, size_t n, int64_t exponent);

#endif
