/* json_write.c - see json_write.h. */
#include "server/json_write.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Writes a comma, if one is needed, and the key. */
static void begin(struct strbuf *b, const char *key) {
    if (b->n > 0 && !strchr("{[:, \n", b->text[b->n - 1])) strbuf_char(b, ',');
    if (!key) return;
    json_write_bytes(b, NULL, key, strlen(key));
    strbuf_char(b, ':');
}

void json_write_open(struct strbuf *b, const char *key, char bracket) {
    begin(b, key);
    strbuf_char(b, bracket);
}

void json_write_close(struct strbuf *b, char bracket) {
    strbuf_char(b, bracket);
}

static void escape(struct strbuf *b, unsigned char c) {
    static const char named[128] = {
        ['"'] = '"', ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['\b'] = 'b'};
    if (c < 128 && named[c])
        strbuf_add(b, (const char[]){'\\', named[c]}, 2);
    else
        strbuf_printf(b, "\\u%04x", c);
}

static bool is_plain(unsigned char c) {
    return c >= ' ' && c != '"' && c != '\\' && c != 127;
}

static void add_sound(struct strbuf *b, const char *text, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t plain = i;
        while (plain < n && is_plain((unsigned char)text[plain])) plain++;
        strbuf_add(b, text + i, plain - i);
        if (plain < n) escape(b, (unsigned char)text[plain++]);
        i = plain;
    }
}

void json_write_bytes(struct strbuf *b, const char *key, const char *text, size_t n) {
    begin(b, key);
    strbuf_char(b, '"');
    while (n > 0) {
        const size_t end = utf8_end(text, n), bad = end < n;
        add_sound(b, text, end);
        if (bad) strbuf_str(b, "\xef\xbf\xbd"); /* U+FFFD */
        text += end + bad;
        n -= end + bad;
    }
    strbuf_char(b, '"');
}

void json_write_text(struct strbuf *b, const char *key, const char *text) {
    if (text)
        json_write_bytes(b, key, text, strlen(text));
    else
        json_write_null(b, key);
}

void json_write_int(struct strbuf *b, const char *key, int64_t n) {
    begin(b, key);
    strbuf_printf(b, "%lld", (long long)n);
}

void json_write_number(struct strbuf *b, const char *key, double x, int digits) {
    if (!isfinite(x)) {
        json_write_null(b, key);
        return;
    }
    begin(b, key);
    strbuf_printf(b, "%.*g", digits, x);
}

void json_write_raw(struct strbuf *b, const char *key, const char *json) {
    begin(b, key);
    strbuf_str(b, json);
}

void json_write_bool(struct strbuf *b, const char *key, bool yes) {
    json_write_raw(b, key, yes ? "true" : "false");
}

void json_write_null(struct strbuf *b, const char *key) {
    json_write_raw(b, key, "null");
}

void json_write_value(struct strbuf *b, const char *key, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (text)
        json_write_raw(b, key, text);
    else
        json_write_null(b, key);
    free(text);
}
