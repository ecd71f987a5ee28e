#include "model/tokenizer_text.h"
#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum text_part tokenizer_text_part(const char *p, size_t n, size_t *length) {
    const unsigned char *s = (const unsigned char *)p;
    *length = 1;
    if (s[0] < 0x80) return TEXT_CHAR;
    if (s[0] < 0xC2 || s[0] > 0xF4) return TEXT_BAD;
    size_t want = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    /* The second byte has a narrower range where a longer spelling, a surrogate or a number above
     * U+10FFFF would follow. */
    unsigned low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < want; i++) {
        if (i == n) return TEXT_SHORT;
        if (s[i] < low || s[i] > high) return TEXT_BAD;
        low = 0x80, high = 0xBF;
        *length = i + 1;
    }
    return TEXT_CHAR;
}

void tokenizer_text_lossy(struct strbuf *out, const char *bytes, size_t n) {
    for (size_t i = 0, start = 0; start < n;) {
        size_t length = 0;
        while (i < n && tokenizer_text_part(bytes + i, n - i, &length) == TEXT_CHAR) i += length;
        if (i > start) strbuf_add(out, bytes + start, i - start);
        if (i < n) {
            strbuf_str(out, TOKENIZER_REPLACEMENT);
            i += length;
        }
        start = i;
    }
}

bool tokenizer_text_valid(const char *bytes, size_t n) {
    size_t length;
    for (size_t i = 0; i < n; i += length)
        if (tokenizer_text_part(bytes + i, n - i, &length) != TEXT_CHAR) return false;
    return true;
}

int32_t tokenizer_text_last(const char *p, size_t n) {
    do n--;
    while (((unsigned char)p[n] & 0xC0) == 0x80);
    return tokenizer_text_next(p, &n);
}

void tokenizer_text_add(struct strbuf *out, int32_t c) {
    utf8proc_uint8_t bytes[4];
    strbuf_add(out, (const char *)bytes, (size_t)utf8proc_encode_char(c, bytes));
}

bool tokenizer_text_is_space(int32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool tokenizer_text_is_word(int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
    }
    /* Join_Control, and the enclosed letters, which are symbols with the property Alphabetic. */
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
           (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

bool tokenizer_text_is_numeric(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool tokenizer_text_is_punctuation(int32_t c) {
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
               (c >= '{' && c <= '~');
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

/* Bytes that are printable in Latin-1 stand for themselves. The others (0x00-0x20, 0x7F-0xA0, 0xAD)
 * get the characters from U+0100 on, in order. */
static int32_t alphabet(unsigned char b) {
    if (b <= 0x20) return 0x100 + b;
    if (b < 0x7F || (b > 0xA0 && b != 0xAD)) return b;
    return b == 0xAD ? 0x143 : 0x121 + (b - 0x7F);
}

int tokenizer_text_from_alphabet(int32_t c) {
    if (c >= 0x100 && c <= 0x120) return c - 0x100;
    if (c >= 0x121 && c <= 0x142) return c - 0x121 + 0x7F;
    if (c == 0x143) return 0xAD;
    return c > 0x20 && c < 0x100 && alphabet((unsigned char)c) == c ? c : -1;
}

void tokenizer_text_to_alphabet(struct strbuf *out, const char *bytes, size_t n) {
    char chunk[512];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t c = alphabet((unsigned char)bytes[i]);
        if (used + 2 > sizeof chunk) strbuf_add(out, chunk, used), used = 0;
        if (c < 0x80) {
            chunk[used++] = (char)c;
        } else {
            chunk[used++] = (char)(0xC0 | c >> 6);
            chunk[used++] = (char)(0x80 | (c & 0x3F));
        }
    }
    strbuf_add(out, chunk, used);
}

/* Characters that normalization changes or moves only since Unicode 10 or later. The reference's
 * tables are of Unicode 9, which leave them unchanged. (U+11930 here keeps U+11935 from composing
 * with it.) */
static const int32_t newer[][2] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

static bool is_newer(int32_t c) {
    size_t low = 0, high = COUNT_OF(newer);
    if (c < newer[0][0]) return false;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > newer[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT_OF(newer) && c >= newer[low][0];
}

/* Whether c is in a block whose characters no form changes or combines; a wrong "no" only costs
 * time. compat: also under NFKC and NFKD; compose: NFC and NFKC. */
static bool is_inert(int32_t c, bool compose, bool compat) {
    if (c < 0x80) return true;
    if (c < 0x300) return compose && !compat;
    if (c >= 0xAC00 && c <= 0xD7A3) return compose;
    return (c >= 0x0400 && c <= 0x0482 && compose) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x1F300 && c <= 0x1F64F);
}

struct mark {
    int32_t c;
    int32_t combining_class;
    size_t idx;
};

static int compare_marks(const void *x, const void *y) {
    const struct mark *a = x, *b = y;
    if (a->combining_class != b->combining_class)
        return a->combining_class < b->combining_class ? -1 : 1;
    return a->idx < b->idx ? -1 : a->idx > b->idx;
}

/* Stable sort by combining class inside c[0, n). utf8proc's own exchange sort is quadratic in a run
 * of marks, which a hostile text may make very long. */
static int sort_marks(struct diag *d, int32_t *c, size_t n) {
    struct mark small[32], *marks = small;
    if (n > COUNT_OF(small)) marks = malloc(n * sizeof *marks);
    if (marks == NULL) return fail_nomem(d, n * sizeof *marks, "combining marks");
    for (size_t i = 0; i < n; i++)
        marks[i] = (struct mark){c[i], utf8proc_get_property(c[i])->combining_class, i};
    qsort(marks, n, sizeof *marks, compare_marks);
    for (size_t i = 0; i < n; i++) c[i] = marks[i].c;
    if (marks != small) free(marks);
    return QN_OK;
}

static int canonical_order(struct diag *d, int32_t *c, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && utf8proc_get_property(c[end])->combining_class != 0) end++;
        if (end - i > 1) TRY(sort_marks(d, c + i, end - i));
        i = end + 1;
    }
    return QN_OK;
}

static int normalize_run(struct diag *d, bool compose, bool compat, const char *text, size_t n,
                         struct strbuf *out) {
    /* A character decomposes into at most 18 (NFKD of U+FDFA). */
    enum { MOST = 20 };
    size_t capacity = n + MOST, used = 0;
    int32_t *c = malloc(capacity * sizeof *c);
    if (c == NULL) return fail_nomem(d, capacity * sizeof *c, "normalization");
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0), unused = 0;
    int rc = QN_OK;
    for (size_t i = 0; i < n;) {
        TRY_GOTO(rc, done, array_reserve(d, (void **)&c, &capacity, used + MOST, sizeof *c));
        utf8proc_ssize_t made = utf8proc_decompose_char(tokenizer_text_next(text, &i), c + used,
                                                        MOST, (utf8proc_option_t)options, &unused);
        if (made < 0 || made > MOST) {
            rc = fail(d, QN_EINTERNAL, "normalization: %s", utf8proc_errmsg(made));
            goto done;
        }
        used += (size_t)made;
    }
    TRY_GOTO(rc, done, canonical_order(d, c, used));
    if (compose)
        used = (size_t)utf8proc_normalize_utf32(
            c, (utf8proc_ssize_t)used, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    for (size_t i = 0; i < used; i++) tokenizer_text_add(out, c[i]);
done:
    free(c);
    return rc;
}

/* Copies inert stretches. Other characters are normalized together with the one character before
 * them, their possible base; such a stretch ends before the next inert character. A newer character
 * is never a base. */
int tokenizer_text_normalize(struct diag *d, enum text_form form, const char *text, size_t n,
                             struct strbuf *out) {
    bool compose = form == TEXT_NFC || form == TEXT_NFKC;
    bool compat = form == TEXT_NFKC || form == TEXT_NFKD;
    for (size_t start = 0, end; start < n; start = end) {
        size_t base = start, next = start;
        while (next < n) {
            size_t at = next;
            int32_t c = tokenizer_text_next(text, &next);
            bool plain = is_newer(c);
            if (!plain && !is_inert(c, compose, compat)) {
                next = at;
                break;
            }
            base = plain ? next : at;
        }
        if (next == n) base = n;
        strbuf_add(out, text + start, base - start);
        for (end = next; end < n;) {
            size_t at = end;
            int32_t c = tokenizer_text_next(text, &end);
            if (is_newer(c) || is_inert(c, compose, compat)) {
                end = at;
                break;
            }
        }
        if (end > base) TRY(normalize_run(d, compose, compat, text + base, end - base, out));
    }
    return QN_OK;
}

void tokenizer_text_lowercase(struct strbuf *out, const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        int32_t c = tokenizer_text_next(text, &i);
        if (c == 0x130) /* the only character whose full lower case is longer than the simple one */
            strbuf_str(out, "i\xCC\x87");
        else
            tokenizer_text_add(out, utf8proc_tolower(c));
    }
}
