/* Any bytes as the header of a request: the scan of bytes, at once and in pieces, which must agree;
 * then lines of them as the headers that the library has read. What passes has no control character
 * in a value. */
#include "server/http_gate.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void scan(const char *bytes, size_t n) {
    struct gate_scan whole = {0}, pieces = {0};
    gate_scan_bytes(&whole, bytes, n);
    for (size_t at = 0; at < n; at++) gate_scan_bytes(&pieces, bytes + at, 1);
    if (whole.over != pieces.over || whole.bad != pieces.bad) abort();
}

static void check(char *text) {
    struct gate_header headers[GATE_MAX_HEADERS + 1];
    struct gate_head head = {.major = 1, .minor = 1, .target = "/", .headers = headers};
    char *line = strtok(text, "\n");
    if (line) head.target = line;
    while ((line = strtok(NULL, "\n")) != NULL && head.n_headers <= GATE_MAX_HEADERS) {
        char *colon = strchr(line, ':');
        if (colon) *colon = '\0';
        headers[head.n_headers++] = (struct gate_header){line, colon ? colon + 1 : ""};
    }
    if (gate_check(&head)) return;
    for (size_t i = 0; i < head.n_headers; i++)
        for (const char *c = headers[i].value; *c; c++)
            if (*c == '\r' || *c == '\x01') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *text = malloc(n + 1);
    if (!text) return 0;
    if (n > 0) memcpy(text, data, n);
    text[n] = '\0';
    scan(text, n);
    check(text);
    free(text);
    return 0;
}
