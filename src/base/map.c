#include "base/map.h"

#include <stdlib.h>
#include <string.h>

struct map_slot {
    const void *key;
    size_t n;
    uint64_t hash, value;
};

uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed) {
    uint64_t h = 0xcbf29ce484222325ull ^ seed;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3ull;
    return h ^ h >> 29;
}

void map_fini(struct map *m) {
    free(m->slots);
    *m = (struct map){0};
}

/* The slot that holds the key, or the empty one where it belongs. */
static struct map_slot *probe(const struct map *m, const void *key, size_t n, uint64_t hash) {
    for (size_t i = hash;; i++) {
        struct map_slot *s = &m->slots[i & (m->capacity - 1)];
        if (s->key == NULL) return s;
        if (s->hash == hash && s->n == n && memcmp(s->key, key, n) == 0) return s;
    }
}

static int grow(struct diag *d, struct map *m) {
    struct map bigger = {.capacity = m->capacity > 0 ? m->capacity * 2 : 16};
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (bigger.slots == NULL) return fail_nomem(d, bigger.capacity * sizeof *m->slots, "a map");
    for (size_t i = 0; i < m->capacity; i++) {
        const struct map_slot *s = &m->slots[i];
        if (s->key != NULL) *probe(&bigger, s->key, s->n, s->hash) = *s;
    }
    free(m->slots);
    bigger.n = m->n;
    *m = bigger;
    return QN_OK;
}

int map_put(struct diag *d, struct map *m, const void *key, size_t n, uint64_t value,
            uint64_t *holds) {
    if (m->n * 2 >= m->capacity) TRY(grow(d, m));
    uint64_t hash = hash_bytes(key, n, 0);
    struct map_slot *s = probe(m, key, n, hash);
    if (s->key == NULL) {
        *s = (struct map_slot){.key = key, .n = n, .hash = hash, .value = value};
        m->n++;
    }
    if (holds != NULL) *holds = s->value;
    return QN_OK;
}

bool map_find(const struct map *m, const void *key, size_t n, uint64_t *value) {
    if (m->n == 0) return false;
    const struct map_slot *s = probe(m, key, n, hash_bytes(key, n, 0));
    if (s->key == NULL) return false;
    *value = s->value;
    return true;
}
