/* kernel_cache.c - see kernel_cache.h. */
#include "codegen/kernel_cache.h"

#include "base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE_MAGIC "quern-k" /* eight bytes with the NUL */

struct cache_head {
    char magic[8];
    struct cache_key key, image_hash;
    uint64_t image_bytes;
};

typedef unsigned __int128 u128;

void cache_hash_init(struct cache_key *key) {
    *key = (struct cache_key){.high = 0x6c62272e07bb0142u, .low = 0x62b821756295c58du};
}

static void hash_more(struct cache_key *key, const unsigned char *bytes, size_t n) {
    const u128 prime = ((u128)1 << 88) + 0x13b;
    u128 h = (u128)key->high << 64 | key->low;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ bytes[i]) * prime;
    }
    *key = (struct cache_key){.high = (uint64_t)(h >> 64), .low = (uint64_t)h};
}

void cache_hash_field(struct cache_key *key, const void *bytes, size_t n) {
    uint64_t length = n;
    hash_more(key, (const unsigned char *)&length, sizeof length);
    hash_more(key, bytes, n);
}

void cache_hash_text(struct cache_key *key, const char *text) {
    cache_hash_field(key, text, strlen(text));
}

static void hash_image(const char *image, size_t n, struct cache_key *hash) {
    cache_hash_init(hash);
    cache_hash_field(hash, image, n);
}

static void set_dir(struct kernel_cache *c, const char *base, const char *tail) {
    int n = snprintf(c->dir, sizeof c->dir, "%s%s", base, tail);
    if (n < 0 || (size_t)n >= sizeof c->dir || c->dir[0] != '/') c->dir[0] = '\0';
}

void kernel_cache_init(struct kernel_cache *c, bool off) {
    c->dir[0] = '\0';
    if (off) return;
    const char *own = getenv("QN_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (own != NULL) {
        set_dir(c, strcmp(own, "off") == 0 ? "" : own, "");
    } else if (xdg != NULL && *xdg != '\0') {
        set_dir(c, xdg, "/quern");
    } else if (home != NULL && *home != '\0') {
        set_dir(c, home, "/.cache/quern");
    }
}

bool kernel_cache_path(const struct kernel_cache *c, const struct cache_key *key, char path[512]) {
    if (c->dir[0] == '\0') return false;
    snprintf(path, 512, "%s/%016llx%016llx.cubin", c->dir, (unsigned long long)key->high,
             (unsigned long long)key->low);
    return true;
}

static bool same_key(const struct cache_key *a, const struct cache_key *b) {
    return a->high == b->high && a->low == b->low;
}

/* The image inside a file's bytes, or NULL if anything about it is wrong. */
static const char *sound_image(const struct mapfile *f, const struct cache_key *key, size_t *n) {
    struct cache_head head;
    if (f->bytes < sizeof head) return NULL;
    memcpy(&head, f->data, sizeof head);
    if (memcmp(head.magic, CACHE_MAGIC, 8) != 0 || !same_key(&head.key, key)) return NULL;
    if (head.image_bytes != f->bytes - sizeof head) return NULL;
    const char *image = (const char *)f->data + sizeof head;
    struct cache_key hash;
    *n = f->bytes - sizeof head;
    hash_image(image, *n, &hash);
    return same_key(&hash, &head.image_hash) ? image : NULL;
}

bool kernel_cache_find(const struct kernel_cache *c, const struct cache_key *key, char **image,
                       size_t *n) {
    char path[512];
    struct mapfile f;
    *image = NULL;
    *n = 0;
    if (!kernel_cache_path(c, key, path)) return false;
    if (mapfile_open(NULL, path, KERNEL_CACHE_MAX_IMAGE, &f) != QN_OK) return false;
    const char *bytes = sound_image(&f, key, n);
    if (bytes != NULL) *image = malloc(*n > 0 ? *n : 1);
    if (*image != NULL) memcpy(*image, bytes, *n);
    mapfile_close(&f);
    return *image != NULL;
}

/* mkdir -p; the last folder is the user's alone. */
static int make_folders(struct diag *d, const char *dir) {
    char path[400];
    size_t n = strlen(dir);
    memcpy(path, dir, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        char kept = path[i];
        path[i] = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST) {
            return fail(d, QN_EIO, "%s: %s", path, strerror(errno));
        }
        path[i] = kept;
    }
    return QN_OK;
}

static int write_all(struct diag *d, int file, const char *path, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        ssize_t written = write(file, p, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail(d, QN_EIO, "%s: %s", path, strerror(errno));
        p += written;
        n -= (size_t)written;
    }
    return QN_OK;
}

static int write_entry(struct diag *d, int file, const char *path, const struct cache_key *key,
                       const char *image, size_t n) {
    struct cache_head head = {.magic = CACHE_MAGIC, .key = *key, .image_bytes = n};
    hash_image(image, n, &head.image_hash);
    TRY(write_all(d, file, path, &head, sizeof head));
    return write_all(d, file, path, image, n);
}

int kernel_cache_put(struct diag *d, const struct kernel_cache *c, const struct cache_key *key,
                     const char *image, size_t n) {
    char path[512], temporary[560];
    if (!kernel_cache_path(c, key, path)) return QN_OK;
    TRY(make_folders(d, c->dir));
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) return fail(d, QN_EIO, "%s: %s", temporary, strerror(errno));
    int rc = write_entry(d, file, temporary, key, image, n);
    if (close(file) != 0 && rc == QN_OK) rc = fail(d, QN_EIO, "%s: %s", temporary, strerror(errno));
    if (rc == QN_OK && rename(temporary, path) != 0) {
        rc = fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    }
    if (rc != QN_OK) unlink(temporary);
    return rc;
}
