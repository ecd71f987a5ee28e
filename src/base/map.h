/* map.h - a hash map from byte strings to 64-bit numbers, open addressing, insert-only.
 *
 * The keys are not copied: they must outlive the map (keep them in an arena).
 */
#ifndef QN_BASE_MAP_H
#define QN_BASE_MAP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map {
    struct map_slot *slots; /* capacity of them, a power of two; key == NULL marks an empty one */
    size_t n, capacity;
};

/* FNV-1a, 64 bits. Not for hostile keys where collisions would matter; limits bound the cost. */
uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed);

void map_fini(struct map *m);

/* Adds key -> value unless the map has the key; *holds (may be NULL) is set to the value that the
 * map then has. Errors: QN_ENOMEM. */
int map_put(struct diag *d, struct map *m, const void *key, size_t n, uint64_t value,
            uint64_t *holds);

/* Whether the map has the key; sets *value if so. */
bool map_find(const struct map *m, const void *key, size_t n, uint64_t *value);

#endif
