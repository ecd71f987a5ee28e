/* stop.c - see stop.h. Stop strings are short and pieces are a few bytes, so this looks at every
 * position of held + piece: no automaton. */
#include "engine/stop.h"

#include "base/checked.h"
#include "base/utf8.h"
#include "engine/api.h"

#include <stdlib.h>
#include <string.h>

int stop_init(struct diag *d, struct stop_matcher *m, const char *const *texts, size_t n,
              bool included) {
    *m = (struct stop_matcher){.included = included};
    if (n == 0) return QN_OK;
    m->texts = calloc(n, sizeof *m->texts);
    if (!m->texts) return fail_nomem(d, n * sizeof *m->texts, "stop strings");
    for (size_t i = 0; i < n; i++) {
        size_t bytes = texts[i] ? strlen(texts[i]) : 0;
        if (bytes == 0) return fail(d, QN_EINVAL, "stop: string %zu is empty", i + 1);
        if (bytes > QN_MAX_STOP_BYTES)
            return fail(d, QN_ELIMIT, "stop: string %zu has %zu bytes, at most %d are allowed",
                        i + 1, bytes, QN_MAX_STOP_BYTES);
        if (utf8_end(texts[i], bytes) < bytes)
            return fail(d, QN_EINVAL, "stop: string %zu is not UTF-8: byte 0x%02x at %zu", i + 1,
                        (unsigned char)texts[i][utf8_end(texts[i], bytes)],
                        utf8_end(texts[i], bytes));
        m->texts[i] = strdup(texts[i]);
        if (!m->texts[i]) return fail_nomem(d, bytes, "stop strings");
        m->n = i + 1;
    }
    return QN_OK;
}

void stop_fini(struct stop_matcher *m) {
    for (size_t i = 0; i < m->n; i++) free(m->texts[i]);
    free(m->texts);
    strbuf_fini(&m->held);
    *m = (struct stop_matcher){0};
}

/* The longest stop string that text[0, n) begins with. */
static const char *complete_at(const struct stop_matcher *m, const char *text, size_t n) {
    const char *best = NULL;
    for (size_t i = 0; i < m->n; i++) {
        size_t bytes = strlen(m->texts[i]);
        if (bytes > n || memcmp(text, m->texts[i], bytes) != 0) continue;
        if (!best || bytes > strlen(best)) best = m->texts[i];
    }
    return best;
}

/* Whether text[0, n) is the beginning of a stop string. */
static bool begins_one(const struct stop_matcher *m, const char *text, size_t n) {
    for (size_t i = 0; i < m->n; i++)
        if (strlen(m->texts[i]) > n && memcmp(text, m->texts[i], n) == 0) return true;
    return false;
}

const char *stop_push(struct stop_matcher *m, const char *text, size_t n, struct strbuf *out) {
    if (m->n == 0) {
        strbuf_add(out, text, n);
        return NULL;
    }
    strbuf_add(&m->held, text, n);
    const char *held = strbuf_text(&m->held);
    size_t left = m->held.n, keep = 0;
    for (size_t at = 0; at < left; at++) {
        const char *found = complete_at(m, held + at, left - at);
        if (!found) continue;
        strbuf_add(out, held, at + (m->included ? strlen(found) : 0));
        return found;
    }
    while (keep < left && !begins_one(m, held + keep, left - keep)) keep++;
    strbuf_add(out, held, keep);
    if (keep > 0 && left > keep) memmove(m->held.text, held + keep, left - keep);
    if (keep > 0 && left > 0) {
        m->held.n = left - keep;
        m->held.text[m->held.n] = '\0';
    }
    return NULL;
}

void stop_flush(struct stop_matcher *m, struct strbuf *out) {
    strbuf_add(out, strbuf_text(&m->held), m->held.n);
    strbuf_clear(&m->held);
}
