#include "model/jinja/text.h"
#include "base/checked.h"
#include "model/tokenizer_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

size_t text_chars(const char *p, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)p[i] & 0xC0) != 0x80;
    return chars;
}

size_t text_offset(const struct text *t, size_t i) {
    if (i >= t->chars) return t->n;
    if (t->chars == t->n) return i;
    size_t at = 0;
    while (i-- > 0) text_next(t->p, &at);
    return at;
}

int32_t text_next(const char *p, size_t *i) {
    return tokenizer_text_next(p, i);
}

size_t text_put(int32_t c, char out[4]) {
    return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

/* Classes. */

bool text_is_space(int32_t c) {
    return tokenizer_text_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool text_is_line_end(int32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

static bool in(utf8proc_category_t c, utf8proc_category_t first, utf8proc_category_t last) {
    return c >= first && c <= last;
}

static bool is_letter(int32_t c) {
    return in(utf8proc_category(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool text_is_printable(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return c == ' ' || (k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS);
}

/* Whether a character that is no cased letter may have a case by one of Unicode's lists. */
static bool has_case_by_name(int32_t c, utf8proc_category_t k) {
    return k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_NL || c == 0xAA || c == 0xBA ||
           c == 0x345 || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F189);
}

/* 1: yes, 0: no, -1: needs tables that are not here. */
static int char_is(enum text_class class, int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    bool cased = in(k, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LT);
    bool number = in(k, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
    switch (class) {
    case TEXT_ALPHA: return is_letter(c);
    case TEXT_SPACE: return text_is_space(c);
    case TEXT_DIGIT: return k == UTF8PROC_CATEGORY_NO ? -1 : k == UTF8PROC_CATEGORY_ND;
    case TEXT_ALNUM: return is_letter(c) || number;
    default: break;
    }
    if (c >= 0x80 && !cased) return has_case_by_name(c, k) ? -1 : 0;
    return class == TEXT_LOWER ? k == UTF8PROC_CATEGORY_LL : k == UTF8PROC_CATEGORY_LU;
}

int text_is(struct run *r, enum text_class class, const struct text *t, bool *is) {
    bool by_case = class == TEXT_LOWER || class == TEXT_UPPER, cased = false;
    *is = t->n > 0;
    for (size_t i = 0; i < t->n;) {
        int32_t c = text_next(t->p, &i);
        int yes = char_is(class, c);
        if (yes < 0)
            return run_fail(r, QN_EUNSUPPORTED, "the class of U+%04X is not supported",
                            (unsigned)c);
        if (by_case && !yes) {
            utf8proc_category_t k = utf8proc_category(c);
            *is = *is && !in(k, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LT);
        } else {
            *is = *is && yes;
        }
        cased = cased || yes;
    }
    if (by_case) *is = *is && cased;
    return QN_OK;
}

/* Cases. */

/* Letters whose upper or title case is more than one letter. */
static bool is_special(int32_t c) {
    static const uint16_t ranges[][2] = {
        {0xDF, 0xDF},   {0x149, 0x149},   {0x1F0, 0x1F0},   {0x390, 0x390},   {0x3B0, 0x3B0},
        {0x587, 0x587}, {0x1E96, 0x1E9A}, {0x1F50, 0x1F57}, {0x1F80, 0x1FFC}, {0xFB00, 0xFB17},
    };
    for (size_t i = 0; i < COUNT_OF(ranges); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

/* A capital sigma's small form depends on its neighbours, next[0, n) being what follows. */
static int lower_sigma(struct out *o, int32_t before, const char *next, size_t n) {
    size_t i = 0;
    int32_t after = n > 0 ? text_next(next, &i) : ' ';
    bool plain = after == ' ' || after == '\n' || after == ',' || after == '!' || after == '?';
    if (!is_letter(after) && !(is_letter(before) && plain))
        return run_fail(o->r, QN_EUNSUPPORTED, "the lower case of U+03A3 here is not supported");
    out_char(o, is_letter(after) ? 0x3C3 : 0x3C2);
    return QN_OK;
}

int text_case(struct out *o, enum text_case to, const char *p, size_t n) {
    int32_t before = ' ';
    for (size_t i = 0; i < n;) {
        int32_t c = text_next(p, &i);
        if (c < 0x80) {
            bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
            out_char(o, to == TEXT_TO_LOWER ? (upper ? c + 32 : c) : (lower ? c - 32 : c));
        } else if (to == TEXT_TO_LOWER && c == 0x130) {
            out_str(o, "i\xCC\x87");
        } else if (to == TEXT_TO_LOWER && c == 0x3A3) {
            TRY(lower_sigma(o, before, p + i, n - i));
        } else if (to != TEXT_TO_LOWER && is_special(c)) {
            return run_fail(o->r, QN_EUNSUPPORTED, "the upper case of U+%04X is not supported",
                            (unsigned)c);
        } else {
            out_char(o, to == TEXT_TO_LOWER   ? utf8proc_tolower(c)
                        : to == TEXT_TO_UPPER ? utf8proc_toupper(c)
                                              : utf8proc_totitle(c));
        }
        before = c;
    }
    return o->rc;
}

/* Pieces. */

static bool strips(const struct text *chars, int32_t c) {
    if (chars == NULL) return text_is_space(c);
    for (size_t i = 0; i < chars->n;)
        if (text_next(chars->p, &i) == c) return true;
    return false;
}

void text_strip(const char *p, size_t n, const struct text *chars, bool left, bool right,
                size_t *start, size_t *end) {
    size_t a = 0, b = n;
    for (size_t i = 0; left && i < n; a = i)
        if (!strips(chars, text_next(p, &i))) break;
    while (right && b > a && strips(chars, tokenizer_text_last(p, b))) do
            b--;
        while (((unsigned char)p[b] & 0xC0) == 0x80);
    *start = a;
    *end = b;
}

int64_t text_find(const char *p, size_t n, const struct text *what, bool last) {
    if (!last) {
        const char *hit = what->n == 0 ? p : memmem(p, n, what->p, what->n);
        return hit == NULL ? -1 : hit - p;
    }
    for (size_t i = n + 1; i-- > 0;)
        if (what->n <= n - i && memcmp(p + i, what->p, what->n) == 0 &&
            (i == n || ((unsigned char)p[i] & 0xC0) != 0x80))
            return (int64_t)i;
    return -1;
}

/* Numbers. */

double text_decimal(const char *digits, size_t n, int64_t exponent) {
    char text[1100]; /* a double is decided by its first 768 digits and whether more follow */
    size_t k = 0;
    while (n > 1 && *digits == '0') digits++, n--;
    for (; k < n && k < 1000; k++) text[k] = digits[k];
    for (size_t i = k; i < n; i++)
        if (digits[i] != '0') text[k - 1] = text[k - 1] == '0' ? '1' : text[k - 1];
    exponent += (int64_t)(n - k);
    exponent = exponent > 9999 ? 9999 : exponent < -9999 ? -9999 : exponent;
    snprintf(text + k, sizeof text - k, "e%d", (int)exponent);
    return strtod(text, NULL);
}

void text_float(double number, char out[TEXT_FLOAT_BYTES]) {
    char e[TEXT_FLOAT_BYTES], digits[20] = "0";
    int n_digits = 0, exponent, k = 0;
    if (!isfinite(number)) {
        snprintf(out, TEXT_FLOAT_BYTES, "%s", isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        return;
    }
    for (int precision = 0; precision < 17; precision++) {
        snprintf(e, sizeof e, "%.*e", precision, number);
        if (strtod(e, NULL) == number) break;
    }
    const char *mark = strchr(e, 'e');
    for (const char *p = e; p < mark; p++)
        if (*p >= '0' && *p <= '9') digits[n_digits++] = *p;
    exponent = atoi(mark + 1);
    if (signbit(number)) out[k++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[k++] = digits[0];
        if (n_digits > 1)
            k += snprintf(out + k, (size_t)(TEXT_FLOAT_BYTES - k), ".%.*s", n_digits - 1,
                          digits + 1);
        snprintf(out + k, (size_t)(TEXT_FLOAT_BYTES - k), "e%c%02d", exponent < 0 ? '-' : '+',
                 abs(exponent));
        return;
    }
    for (int i = exponent < 0 ? exponent : 0; i <= exponent || i < n_digits || i == exponent + 1;
         i++) {
        if (i == exponent + 1) out[k++] = '.';
        out[k++] = (char)(i >= 0 && i < n_digits ? digits[i] : '0');
    }
    out[k] = '\0';
}

/* Digits with single underscores between them, appended to out; -1: none. */
static int read_digits(const char **p, const char *end, char *out, size_t *n) {
    const char *s = *p;
    size_t had = *n;
    while (s < end && ((*s >= '0' && *s <= '9') ||
                       (*s == '_' && *n > had && s + 1 < end && s[1] >= '0' && s[1] <= '9'))) {
        if (*s != '_') out[(*n)++] = *s;
        s++;
    }
    *p = s;
    return *n > had ? 0 : -1;
}

static bool word_is(const char *p, size_t n, const char *word) {
    return n == strlen(word) && strncasecmp(p, word, n) == 0;
}

static bool read_float(const char *p, const char *end, char *digits, double *number) {
    size_t n = 0;
    int64_t exponent = 0;
    if (p < end && *p != '.' && read_digits(&p, end, digits, &n) != 0) return false;
    if (p < end && *p == '.') {
        size_t before = n;
        p++;
        if (read_digits(&p, end, digits, &n) != 0 && before == 0) return false;
        exponent = -(int64_t)(n - before);
    }
    if (n == 0) return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        bool minus = ++p < end && *p == '-';
        size_t from = n;
        if (p < end && (*p == '-' || *p == '+')) p++;
        if (read_digits(&p, end, digits, &n) != 0) return false;
        int64_t e = 0;
        for (size_t i = from; i < n; i++) e = e > 99999 ? e : e * 10 + (digits[i] - '0');
        exponent += minus ? -e : e;
        n = from;
    }
    *number = text_decimal(digits, n, exponent);
    return p == end;
}

bool text_to_float(const struct text *t, double *number) {
    size_t start, end;
    text_strip(t->p, t->n, NULL, true, true, &start, &end);
    const char *p = t->p + start;
    bool minus = start < end && *p == '-';
    if (start < end && (*p == '-' || *p == '+')) p++, start++;
    size_t n = end - start;
    bool ok = true;
    if (word_is(p, n, "inf") || word_is(p, n, "infinity")) {
        *number = INFINITY;
    } else if (word_is(p, n, "nan")) {
        *number = NAN;
    } else {
        char *digits = malloc(n + 1);
        ok = digits != NULL && read_float(p, p + n, digits, number);
        free(digits);
    }
    if (ok && minus) *number = -*number;
    return ok;
}

static int digit_of(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

bool text_to_int(const struct text *t, int base, int64_t *integer, bool *big) {
    size_t start, end;
    text_strip(t->p, t->n, NULL, true, true, &start, &end);
    const char *p = t->p + start, *stop = t->p + end;
    bool minus = p < stop && *p == '-', digit = false;
    int prefix = 0;
    if (p < stop && (*p == '-' || *p == '+')) p++;
    if (stop - p > 2 && *p == '0') {
        char x = (char)(p[1] | 32);
        prefix = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    }
    bool prefixed = prefix != 0 && (base == prefix || base == 0);
    if (prefixed) p += 2 + (p[2] == '_');
    if (base == 0) base = prefixed ? prefix : 10;
    *integer = 0;
    *big = false;
    for (; p < stop; p++) {
        if (*p == '_' && digit) {
            digit = false;
            continue;
        }
        int v = digit_of(*p);
        if (v >= base) return false;
        digit = true;
        if (__builtin_mul_overflow(*integer, base, integer) ||
            __builtin_sub_overflow(*integer, v, integer))
            *big = true;
    }
    if (!minus && __builtin_sub_overflow(0, *integer, integer)) *big = true;
    return digit;
}
