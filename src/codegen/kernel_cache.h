/* kernel_cache.h - compiled kernel images on disk, so that a second start compiles nothing.
 *
 *   <dir>/<32 hex digits of the key>.cubin:
 *     +--------------------+----------------+
 *     | struct cache_head  | image          |      head: magic, key, length and hash of the image
 *     +--------------------+----------------+
 *
 * The key covers everything that the image depends on, so an entry is never stale, only unused. An
 * entry is written under a temporary name and renamed, so readers see all of it or nothing. Length
 * and hash reveal a damaged entry, which counts as absent and is written anew. Several processes
 * may use one directory at a time.
 */
#ifndef QN_CODEGEN_KERNEL_CACHE_H
#define QN_CODEGEN_KERNEL_CACHE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* FNV-1a with 128 bits (Fowler, Noll, Vo; draft-eastlake-fnv). Start with cache_hash_init, feed
 * fields with cache_hash_field, which hashes the length too: ("ab","c") differs from ("a","bc"). */
struct cache_key {
    uint64_t high, low;
};
void cache_hash_init(struct cache_key *key);
void cache_hash_field(struct cache_key *key, const void *bytes, size_t n);
void cache_hash_text(struct cache_key *key, const char *text);

/* A directory of images. `dir` empty: the cache is off, every find misses, every put does nothing.
 */
struct kernel_cache {
    char dir[400];
};

enum { KERNEL_CACHE_MAX_IMAGE = 256 << 20 };

/* Sets the directory: $QN_CACHE_DIR (empty or "off": no cache), else $XDG_CACHE_HOME/quern, else
 * $HOME/.cache/quern; off when none of them is set or usable. Creates nothing. */
void kernel_cache_init(struct kernel_cache *c, bool off);

/* Whether the image is there and sound; *image (n bytes) is then the caller's (free()). A damaged
 * entry is a miss. */
bool kernel_cache_find(const struct kernel_cache *c, const struct cache_key *key, char **image,
                       size_t *n);

/* Stores an image. A full disk or a read-only home is no reason to fail a start: the caller may
 * ignore the status. Errors: QN_EIO, QN_ENOMEM. */
int kernel_cache_put(struct diag *d, const struct kernel_cache *c, const struct cache_key *key,
                     const char *image, size_t n);

/* The entry's path; for tests and messages. False when the cache is off. */
bool kernel_cache_path(const struct kernel_cache *c, const struct cache_key *key, char path[512]);

#endif
