/* jsonio_read.c - text to jansson's values, by the rules of Python's json module, which wrote most
 * of the files that we read. jansson's own parser refuses integers beyond 64 bits, NaN and
 * Infinity wherever they stand. */
#include "base/jsonio.h"
#include "base/strbuf.h"
#include "base/utf8.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 2048 }; /* each level is a few hundred bytes of stack */

/* json_real takes finite numbers only. jansson never releases or writes a value whose reference
 * count is SIZE_MAX. */
static const json_t not_a_number = {JSON_NULL, SIZE_MAX}, infinite = {JSON_NULL, SIZE_MAX},
                    minus_infinite = {JSON_NULL, SIZE_MAX};

static const struct {
    const char *text;
    const json_t *value;
} constants[] = {{"NaN", &not_a_number}, {"Infinity", &infinite}, {"-Infinity", &minus_infinite}};

bool jsonio_non_finite(const json_t *v, double *number) {
    const bool is = v == &not_a_number || v == &infinite || v == &minus_infinite;
    if (is) *number = v == &not_a_number ? NAN : v == &infinite ? INFINITY : -INFINITY;
    return is;
}

struct reader {
    struct diag *d;
    const char *name;
    const char *text;
    size_t n, at;
    int depth;
    bool unique;          /* a key twice in an object is an error */
    struct strbuf *bytes; /* a string or a number while it is read */
};

__attribute__((format(printf, 2, 3))) static int bad(const struct reader *r, const char *fmt, ...) {
    char text[160];
    size_t line = 1, start = 0;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (size_t i = 0; i < r->at; i++)
        if (r->text[i] == '\n') line++, start = i + 1;
    return fail(r->d, QN_EFORMAT, "%s: line %zu, column %zu: %s", r->name, line, r->at - start + 1,
                text);
}

static int made(const struct reader *r, const json_t *v) {
    return v != NULL ? QN_OK : fail_nomem(r->d, 0, r->name);
}

static int peek(const struct reader *r) {
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

static void skip_blanks(struct reader *r) {
    while (r->at < r->n && strchr(" \t\r\n", r->text[r->at]) != NULL && r->text[r->at] != '\0')
        r->at++;
}

/* ---- strings ---- */

static void add_utf8(struct strbuf *b, uint32_t c) {
    if (c < 0x80) {
        strbuf_char(b, (char)c);
        return;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    strbuf_char(b, (char)(lead[more] | c >> (6 * more)));
    for (int i = more - 1; i >= 0; i--) strbuf_char(b, (char)(0x80 | (c >> (6 * i) & 0x3f)));
}

/* Four hex digits at text[at]; -1 if they are not hex digits. */
static int32_t hex4(const struct reader *r, size_t at) {
    int32_t c = 0;
    if (r->n - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        const char *digits = "0123456789abcdef", *p;
        const char lower = (char)(r->text[i] | 0x20);
        if (r->text[i] < '0' || (p = strchr(digits, lower)) == NULL) return -1;
        c = c << 4 | (int32_t)(p - digits);
    }
    return c;
}

/* Reads the XXXX of \uXXXX. Half of a surrogate pair is no character: it becomes U+FFFD. */
static int read_unicode(struct reader *r) {
    int32_t c = hex4(r, r->at), low;
    if (c < 0) return bad(r, "want four hexadecimal digits");
    r->at += 4;
    if (c >= 0xd800 && c < 0xdc00 && r->n - r->at >= 6 && memcmp(r->text + r->at, "\\u", 2) == 0 &&
        (low = hex4(r, r->at + 2)) >= 0xdc00 && low < 0xe000) {
        r->at += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    add_utf8(r->bytes, c >= 0xd800 && c < 0xe000 ? 0xfffd : (uint32_t)c);
    return QN_OK;
}

static int read_escape(struct reader *r) {
    static const char letters[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    const int letter = peek(r);
    const char *p = letter > 0 ? strchr(letters, letter) : NULL;
    if (letter == 'u') {
        r->at++;
        return read_unicode(r);
    }
    if (p == NULL) return bad(r, "an unknown escape");
    strbuf_char(r->bytes, means[p - letters]);
    r->at++;
    return QN_OK;
}

/* Reads a string, from its opening quote on, into r->bytes. */
static int read_text(struct reader *r) {
    if (peek(r) != '"') return bad(r, "want a string");
    r->at++;
    strbuf_clear(r->bytes);
    for (;;) {
        const size_t start = r->at;
        while (r->at < r->n && r->text[r->at] != '"' && r->text[r->at] != '\\' &&
               (unsigned char)r->text[r->at] >= 0x20)
            r->at++;
        strbuf_add(r->bytes, r->text + start, r->at - start);
        const int c = peek(r);
        if (c < 0) return bad(r, "the text ends inside a string");
        if (c != '"' && c != '\\') return bad(r, "a control character inside a string");
        r->at++;
        if (c == '"') return strbuf_status(r->d, r->bytes);
        TRY(read_escape(r));
    }
}

/* ---- numbers ---- */

static size_t digits(struct reader *r) {
    const size_t start = r->at;
    while (r->at < r->n && r->text[r->at] >= '0' && r->text[r->at] <= '9') r->at++;
    return r->at - start;
}

/* Reads text[start, at) as a double. strtod expects the decimal point of the process's locale. */
static int read_real(struct reader *r, size_t start, json_t **out) {
    const char *point = memchr(r->text + start, '.', r->at - start);
    strbuf_clear(r->bytes);
    if (point != NULL) {
        strbuf_add(r->bytes, r->text + start, (size_t)(point - r->text) - start);
        strbuf_str(r->bytes, localeconv()->decimal_point);
        start = (size_t)(point - r->text) + 1;
    }
    strbuf_add(r->bytes, r->text + start, r->at - start);
    TRY(strbuf_status(r->d, r->bytes));
    const double v = strtod(strbuf_text(r->bytes), NULL);
    const json_t *beyond = v > 0 ? &infinite : &minus_infinite;
    *out = isfinite(v) ? json_real(v) : (json_t *)(uintptr_t)beyond;
    return made(r, *out);
}

static int read_number(struct reader *r, json_t **out) {
    const size_t start = r->at;
    bool whole = true;
    if (peek(r) == '-') r->at++;
    const bool zero = peek(r) == '0';
    const size_t n = digits(r);
    if (n == 0 || (zero && n > 1)) return r->at = start, bad(r, "want a value");
    if (peek(r) == '.') {
        r->at++, whole = false;
        if (digits(r) == 0) return bad(r, "want a digit behind the point");
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++, whole = false;
        if (peek(r) == '-' || peek(r) == '+') r->at++;
        if (digits(r) == 0) return bad(r, "want digits of an exponent");
    }
    int64_t v = 0;
    const bool negative = r->text[start] == '-';
    for (size_t i = start + negative; whole && i < r->at; i++) {
        const int digit = r->text[i] - '0';
        whole = !__builtin_mul_overflow(v, 10, &v) &&
                !__builtin_add_overflow(v, negative ? -digit : digit, &v);
    }
    if (!whole) return read_real(r, start, out);
    *out = json_integer(v);
    return made(r, *out);
}

/* ---- values ---- */

static int read_value(struct reader *r, json_t **out);

/* Whether `word` is at the reader's place; if so, moves past it. */
static bool take(struct reader *r, const char *word) {
    const size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->text + r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

/* After a member: true if another one follows. Errors go to *rc. */
static bool more(struct reader *r, char close, int *rc) {
    skip_blanks(r);
    if (take(r, ",")) {
        skip_blanks(r);
        return true;
    }
    if (peek(r) != close)
        *rc = bad(r, peek(r) < 0 ? "the text ends inside an %s" : "want ',' or the end of the %s",
                  close == ']' ? "array" : "object");
    r->at++;
    return false;
}

static int read_array(struct reader *r, json_t *list) {
    int rc = QN_OK;
    skip_blanks(r);
    if (take(r, "]")) return QN_OK;
    do {
        json_t *v = NULL;
        TRY(read_value(r, &v));
        if (json_array_append_new(list, v) != 0) return made(r, NULL);
    } while (more(r, ']', &rc));
    return rc;
}

static int read_key(struct reader *r, char **key) {
    const size_t at = r->at;
    TRY(read_text(r));
    if (strlen(strbuf_text(r->bytes)) != r->bytes->n)
        return r->at = at, bad(r, "a key with a NUL inside");
    *key = strdup(strbuf_text(r->bytes));
    return *key != NULL ? QN_OK : fail_nomem(r->d, r->bytes->n, r->name);
}

static int read_member(struct reader *r, json_t *object) {
    const size_t at = r->at, n = json_object_size(object);
    char *key = NULL;
    json_t *v = NULL;
    int rc = read_key(r, &key);
    if (rc == QN_OK) {
        skip_blanks(r);
        if (!take(r, ":")) rc = bad(r, "want ':'");
    }
    if (rc == QN_OK) rc = read_value(r, &v);
    if (rc == QN_OK && json_object_set_new_nocheck(object, key, v) != 0) rc = made(r, NULL);
    if (rc == QN_OK && r->unique && json_object_size(object) == n)
        r->at = at, rc = bad(r, "'%.60s' is there twice", key);
    free(key);
    return rc;
}

static int read_object(struct reader *r, json_t *object) {
    int rc = QN_OK;
    skip_blanks(r);
    if (take(r, "}")) return QN_OK;
    do TRY(read_member(r, object));
    while (more(r, '}', &rc));
    return rc;
}

/* A container whose bracket has been read. */
static int read_inside(struct reader *r, json_t *container, json_t **out) {
    TRY(made(r, container));
    int rc = r->depth >= MAX_DEPTH      ? bad(r, "more than %d levels", MAX_DEPTH)
             : json_is_array(container) ? (r->depth++, read_array(r, container))
                                        : (r->depth++, read_object(r, container));
    r->depth--;
    if (rc != QN_OK) json_decref(container);
    *out = container;
    return rc;
}

static int read_value(struct reader *r, json_t **out) {
    skip_blanks(r);
    const int c = peek(r);
    if (c < 0) return bad(r, "the text ends where a value is wanted");
    if (take(r, "{")) return read_inside(r, json_object(), out);
    if (take(r, "[")) return read_inside(r, json_array(), out);
    if (c == '"') {
        TRY(read_text(r));
        *out = json_stringn_nocheck(strbuf_text(r->bytes), r->bytes->n);
        return made(r, *out);
    }
    if (take(r, "null")) return *out = json_null(), QN_OK;
    if (take(r, "true")) return *out = json_true(), QN_OK;
    if (take(r, "false")) return *out = json_false(), QN_OK;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (take(r, constants[i].text))
            return *out = (json_t *)(uintptr_t)constants[i].value, QN_OK;
    return read_number(r, out);
}

static int read_root(struct reader *r, json_t **root) {
    json_t *v = NULL;
    const size_t end = utf8_end(r->text, r->n);
    if (end < r->n) return r->at = end, bad(r, "not UTF-8");
    if (take(r, "\xef\xbb\xbf")) return bad(r, "begins with a byte order mark; want plain UTF-8");
    TRY(read_value(r, &v));
    skip_blanks(r);
    if (r->at < r->n) {
        json_decref(v);
        return bad(r, "want the end of the text");
    }
    *root = v;
    return QN_OK;
}

static int read_all(struct diag *d, const char *name, const char *text, size_t n, bool unique,
                    json_t **root) {
    struct strbuf bytes = {0};
    struct reader r = {
        .d = d, .name = name, .text = text, .n = n, .unique = unique, .bytes = &bytes};
    *root = NULL;
    int rc = read_root(&r, root);
    strbuf_fini(&bytes);
    return rc;
}

int jsonio_parse(struct diag *d, const char *name, const char *text, size_t n, json_t **root) {
    return read_all(d, name, text, n, false, root);
}

int jsonio_parse_unique(struct diag *d, const char *name, const char *text, size_t n,
                        json_t **root) {
    return read_all(d, name, text, n, true, root);
}
