#include "grammar/vocab.h"

#include "base/checked.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

void vocab_fini(struct vocab *v) {
    free(v->plain.nodes);
    free(v->plain.ids);
    free(v->other.nodes);
    free(v->other.ids);
    free(v->plain_masks);
    *v = (struct vocab){0};
}

static const uint8_t *text_of(const struct vocab *v, int32_t id) {
    return (const uint8_t *)v->bytes + v->at[id];
}

static uint32_t length_of(const struct vocab *v, int32_t id) {
    return v->at[id + 1] - v->at[id];
}

/* Characters of a plain token; 0: the token is not plain. */
static uint32_t plain_length(const struct vocab *v, int32_t id) {
    const uint8_t *text = text_of(v, id);
    const uint32_t n = length_of(v, id);
    uint32_t chars = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (text[i] < 0x80 && !vocab_is_plain(text[i])) return 0;
        chars += (text[i] & 0xc0) != 0x80;
    }
    return utf8_end((const char *)text, n) == n && chars <= VOCAB_PLAIN_MAX ? chars : 0;
}

/* ---- order -------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b, void *user) {
    const struct vocab *v = user;
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const uint32_t n_x = length_of(v, x), n_y = length_of(v, y);
    const int order = memcmp(text_of(v, x), text_of(v, y), MIN(n_x, n_y));
    if (order != 0) return order;
    return n_x != n_y ? (n_x > n_y) - (n_x < n_y) : (x > y) - (x < y);
}

static int list_ids(struct diag *d, struct vocab *v) {
    const size_t bytes = (v->n_tokens + 1) * sizeof(int32_t);
    v->plain.ids = malloc(bytes);
    v->other.ids = malloc(bytes);
    if (!v->plain.ids || !v->other.ids) return fail_nomem(d, 2 * bytes, "the vocabulary's texts");
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        const uint32_t n = length_of(v, (int32_t)i);
        struct vocab_trie *t = plain_length(v, (int32_t)i) ? &v->plain : &v->other;
        if (n == 0 || n > VOCAB_TOKEN_MAX) continue;
        t->ids[t->n_ids++] = (int32_t)i;
        v->longest = MAX(v->longest, n);
    }
    qsort_r(v->plain.ids, v->plain.n_ids, sizeof *v->plain.ids, by_text, v);
    qsort_r(v->other.ids, v->other.n_ids, sizeof *v->other.ids, by_text, v);
    return QN_OK;
}

/* ---- nodes -------------------------------------------------------------------------------- */

/* Length in bytes of the beginning that two tokens share; a = -1: there is no first token. */
static uint32_t common(const struct vocab *v, int32_t a, int32_t b) {
    uint32_t n = 0;
    if (a < 0) return 0;
    const uint32_t most = MIN(length_of(v, a), length_of(v, b));
    while (n < most && text_of(v, a)[n] == text_of(v, b)[n]) n++;
    return n;
}

/* Closes the nodes of `path` that are deeper than `depth`: their subtrees end at node n. */
static void close_nodes(struct vocab_trie *t, const uint32_t *path, uint32_t from, uint32_t depth,
                        uint32_t n) {
    for (uint32_t k = from; k > depth; k--) t->nodes[path[k]].skip = n;
}

static int make_trie(struct diag *d, const struct vocab *v, struct vocab_trie *t) {
    uint32_t path[VOCAB_TOKEN_MAX + 1] = {0}, depth = 0, n = 0;
    int32_t before = -1;
    for (uint32_t i = 0; i < t->n_ids; before = t->ids[i++])
        n += length_of(v, t->ids[i]) - common(v, before, t->ids[i]);
    t->nodes = calloc(n + 1, sizeof *t->nodes);
    if (!t->nodes) return fail_nomem(d, (n + 1) * sizeof *t->nodes, "the vocabulary's texts");
    before = -1;
    for (uint32_t i = 0; i < t->n_ids; before = t->ids[i++]) {
        const int32_t id = t->ids[i];
        const uint32_t shared = common(v, before, id), length = length_of(v, id);
        close_nodes(t, path, depth, shared, t->n_nodes);
        for (uint32_t k = shared; k < length; k++) {
            path[k + 1] = t->n_nodes;
            t->nodes[t->n_nodes++] = (struct vocab_node){
                .first = i, .byte = text_of(v, id)[k], .depth = (uint8_t)(k + 1)};
        }
        depth = length;
        t->nodes[path[depth]].n_own += t->nodes[path[depth]].n_own < UINT16_MAX;
    }
    close_nodes(t, path, depth, 0, t->n_nodes);
    t->nodes[t->n_nodes] = (struct vocab_node){.skip = t->n_nodes, .first = t->n_ids};
    return QN_OK;
}

static int make_plain_masks(struct diag *d, struct vocab *v) {
    v->plain_masks = calloc((VOCAB_PLAIN_MAX + 1) * (size_t)v->n_words, sizeof *v->plain_masks);
    if (!v->plain_masks) return fail_nomem(d, v->n_words * sizeof *v->plain_masks, "masks");
    for (uint32_t i = 0; i < v->plain.n_ids; i++) {
        const uint32_t id = (uint32_t)v->plain.ids[i], n = plain_length(v, v->plain.ids[i]);
        v->plain_masks[(size_t)n * v->n_words + id / 32] |= 1u << id % 32;
    }
    for (size_t i = v->n_words; i < (VOCAB_PLAIN_MAX + 1) * (size_t)v->n_words; i++)
        v->plain_masks[i] |= v->plain_masks[i - v->n_words];
    return QN_OK;
}

int vocab_make(struct diag *d, const char *bytes, const uint32_t *at, uint32_t n_tokens,
               struct vocab *v) {
    *v = (struct vocab){
        .n_tokens = n_tokens, .n_words = (n_tokens + 31) / 32, .bytes = bytes, .at = at};
    int rc = list_ids(d, v);
    if (rc == QN_OK) rc = make_trie(d, v, &v->plain);
    if (rc == QN_OK) rc = make_trie(d, v, &v->other);
    if (rc == QN_OK) rc = make_plain_masks(d, v);
    if (rc != QN_OK) vocab_fini(v);
    return rc;
}
