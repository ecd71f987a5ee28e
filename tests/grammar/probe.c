/* probe.c - masks for tests in Python: grammar_probe VOCAB < cases > answers, a JSON line each.
 *
 * VOCAB is a JSON file: an array of tokens as hexadecimal digits, "" for one that stands for no
 * text. The last token ends a text.
 *
 *     {"kind": 1, "text": "..", "prefix": "7b22"}      the mask after the prefix
 *         -> {"ids": [..], "accepts": false} or {"error": "..", "code": -1}
 *     {"kind": 1, "text": "..", "seed": 1, "tokens": 200}    a text of allowed tokens by chance
 *         -> {"text": "7b22..", "ended": true, "ns": [CPU time of each mask], "compile_ns": ..}
 */
#include "base/checked.h"
#include "base/jsonio.h"
#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct probe {
    struct vocab vocab;
    char *bytes;
    uint32_t *at;
    int32_t end;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Appends the bytes that hexadecimal digits stand for. */
static size_t unhex(const char *hex, char *to) {
    size_t n = 0;
    for (unsigned byte; hex[2 * n] && sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
        to[n] = (char)byte;
    return n;
}

static int open_vocab(struct diag *d, const char *path, struct probe *p) {
    json_t *list;
    TRY(jsonio_load(d, path, 64 << 20, &list));
    const size_t n = json_array_size(list);
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += json_string_length(json_array_get(list, i)) / 2;
    p->bytes = malloc(total + 1);
    p->at = calloc(n + 1, sizeof *p->at);
    for (size_t i = 0; i < n; i++) {
        const char *hex = json_string_value(json_array_get(list, i));
        p->at[i + 1] = p->at[i] + (uint32_t)unhex(hex, p->bytes + p->at[i]);
    }
    p->end = (int32_t)n - 1;
    json_decref(list);
    return vocab_make(d, p->bytes, p->at, (uint32_t)n, &p->vocab);
}

static bool is_allowed(const uint32_t *mask, uint32_t id) {
    return mask[id / 32] >> id % 32 & 1;
}

static int mask_after(struct diag *d, struct probe *p, struct matcher *m, const json_t *line,
                      json_t *out) {
    const char *hex = json_string_value(json_object_get(line, "prefix"));
    char *prefix = malloc(strlen(hex) / 2 + 1);
    const uint32_t *mask;
    int rc = matcher_bytes(d, m, prefix, unhex(hex, prefix));
    free(prefix);
    TRY(rc);
    TRY(matcher_mask(d, m, &mask));
    json_t *ids = json_array();
    for (uint32_t i = 0; i < p->vocab.n_tokens; i++)
        if (is_allowed(mask, i)) json_array_append_new(ids, json_integer(i));
    json_object_set_new(out, "ids", ids);
    json_object_set_new(out, "accepts", json_boolean(matcher_accepts(m)));
    return QN_OK;
}

/* One of the allowed tokens, each as likely as the others. */
static int32_t pick(const struct probe *p, const uint32_t *mask, uint64_t *seed) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->vocab.n_words; i++) n += (uint32_t)__builtin_popcount(mask[i]);
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    uint32_t k = (uint32_t)((*seed >> 33) % n);
    for (uint32_t i = 0;; i++)
        if (is_allowed(mask, i) && k-- == 0) return (int32_t)i;
}

static int random_text(struct diag *d, struct probe *p, struct matcher *m, const json_t *line,
                       json_t *out) {
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(line, "seed"));
    const json_int_t n = json_integer_value(json_object_get(line, "tokens"));
    json_t *times = json_array();
    char *hex = calloc((size_t)n * VOCAB_TOKEN_MAX * 2 + 1, 1), *to = hex;
    bool ended = false;
    int rc = QN_OK;
    for (json_int_t i = 0; i < n && !ended && rc == QN_OK; i++) {
        const uint32_t *mask;
        const uint64_t before = now_ns();
        rc = matcher_mask(d, m, &mask);
        if (rc != QN_OK) break;
        json_array_append_new(times, json_integer((json_int_t)(now_ns() - before)));
        const bool over = i > n / 2 && matcher_accepts(m);
        const int32_t id = over ? p->end : pick(p, mask, &seed);
        ended = id == p->end;
        if (ended) break;
        for (uint32_t k = p->at[id]; k < p->at[id + 1]; k++)
            to += sprintf(to, "%02x", (uint8_t)p->bytes[k]);
        rc = matcher_token(d, m, id);
    }
    json_object_set_new(out, "text", json_string(hex));
    json_object_set_new(out, "ended", json_boolean(ended));
    json_object_set_new(out, "ns", times);
    free(hex);
    return rc;
}

static json_t *answer(struct probe *p, const json_t *line) {
    struct diag d = {0};
    const json_t *text = json_object_get(line, "text");
    json_t *out = json_object();
    struct code code;
    struct matcher *m = NULL;
    const uint64_t before = now_ns();
    int rc =
        grammar_compile(&d, (enum grammar_kind)json_integer_value(json_object_get(line, "kind")),
                        json_string_value(text), json_string_length(text), &code);
    json_object_set_new(out, "compile_ns", json_integer((json_int_t)(now_ns() - before)));
    if (rc == QN_OK) rc = matcher_new(&d, &code, &p->vocab, &p->end, 1, &m);
    if (rc == QN_OK)
        rc = json_object_get(line, "seed") ? random_text(&d, p, m, line, out)
                                           : mask_after(&d, p, m, line, out);
    if (rc != QN_OK) json_object_set_new(out, "error", json_string(d.message));
    if (rc != QN_OK) json_object_set_new(out, "code", json_integer(rc));
    matcher_free(m);
    code_fini(&code);
    return out;
}

int main(int argc, char **argv) {
    struct diag d = {0};
    struct probe p = {0};
    char *line = NULL;
    size_t capacity = 0;
    if (argc != 2 || open_vocab(&d, argv[1], &p) != QN_OK) {
        fprintf(stderr, "probe: %s\n", d.message);
        return 1;
    }
    while (getline(&line, &capacity, stdin) > 0) {
        json_error_t error;
        json_t *in = json_loads(line, 0, &error), *out = answer(&p, in);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    vocab_fini(&p.vocab);
    free(p.bytes);
    free(p.at);
    return 0;
}
