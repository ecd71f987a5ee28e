/* http_gate.c - see http_gate.h. */
#include "server/http_gate.h"

#include <string.h>
#include <strings.h>

static void scan_byte(struct gate_scan *s, char c) {
    if (c == '\n' && s->before[0] != '\r') s->bad = "a line of the header ends without CR";
    if (c != '\n' && s->before[0] == '\r') s->bad = "a CR in the header without LF";
    if (c == '\0') s->bad = "a zero byte in the header";
    s->over = c == '\n' && s->before[1] == '\n';
    s->started = true;
    s->before[2] = s->before[1];
    s->before[1] = s->before[0];
    s->before[0] = c;
}

void gate_scan_bytes(struct gate_scan *s, const char *bytes, size_t n) {
    for (size_t i = 0; i < n && !s->over && !s->bad; i++) scan_byte(s, bytes[i]);
}

/* A character of a token, RFC 9110. */
static bool is_token_char(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *text) {
    const char *at = text;
    while (is_token_char((unsigned char)*at)) at++;
    return at > text && *at == '\0';
}

static bool is_digits(const char *text) {
    const size_t n = strspn(text, "0123456789");
    return n > 0 && n < 19 && text[n] == '\0';
}

/* Visible characters, blanks and bytes above ASCII. */
static bool is_value(const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        if ((*at < ' ' && *at != '\t') || *at == 127) return false;
    return true;
}

static const char *check_target(const char *target) {
    const char *at = target;
    if (!target || target[0] != '/') return "the request's target must be a path";
    for (; *at; at++)
        if (*at <= ' ' || *at >= 127) return "the path has a character that is not ASCII";
    if (strstr(target, "%00")) return "the path has an escaped zero byte";
    if (at - target > 4096) return "the path is longer than 4096 bytes";
    return NULL;
}

struct seen {
    unsigned host, length, encoding;
};

static const char *check_header(const struct gate_header *h, struct seen *seen) {
    if (!is_token(h->name)) return "a header's name is not a token";
    if (!is_value(h->value)) return "a header's value has a control character";
    if (strcasecmp(h->name, "host") == 0) seen->host++;
    if (strcasecmp(h->name, "content-length") == 0) {
        seen->length++;
        if (!is_digits(h->value)) return "Content-Length is not a number";
    }
    if (strcasecmp(h->name, "transfer-encoding") == 0) {
        seen->encoding++;
        if (strcasecmp(h->value, "chunked") != 0) return "Transfer-Encoding is not 'chunked'";
    }
    return NULL;
}

const char *gate_check(const struct gate_head *h) {
    struct seen seen = {0};
    const char *bad = check_target(h->target);
    const bool modern = h->major == 1 && h->minor == 1;
    if (h->n_headers > GATE_MAX_HEADERS) return "more than 128 headers";
    for (size_t i = 0; i < h->n_headers && !bad; i++) bad = check_header(&h->headers[i], &seen);
    if (bad) return bad;
    if (!modern && !(h->major == 1 && h->minor == 0)) return "the version is not HTTP/1.0 or 1.1";
    if (seen.host > 1) return "more than one Host";
    if (modern && seen.host == 0) return "no Host";
    if (seen.length > 1) return "more than one Content-Length";
    if (seen.encoding > 1) return "more than one Transfer-Encoding";
    if (seen.length && seen.encoding) return "both Content-Length and Transfer-Encoding";
    if (!modern && seen.encoding) return "Transfer-Encoding in HTTP/1.0";
    return NULL;
}
