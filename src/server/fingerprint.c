/* fingerprint.c - see fingerprint.h. */
#include "server/fingerprint.h"

#include "base/checked.h"
#include "base/map.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4096, SAMPLES = 1024, MAX_FILES = 4096 };

/* Hashes the size, and pieces at equal distances from the beginning on. */
static uint64_t hash_file(const char *path, uint64_t hash) {
    unsigned char piece[PIECE];
    FILE *f = fopen(path, "rb");
    if (!f) return hash;
    fseeko(f, 0, SEEK_END);
    const uint64_t bytes = (uint64_t)MAX(ftello(f), (off_t)0);
    const uint64_t stride = MAX((uint64_t)PIECE, bytes / SAMPLES);
    hash = hash_bytes(&bytes, sizeof bytes, hash);
    for (uint64_t at = 0; at < bytes; at += stride) {
        if (fseeko(f, (off_t)at, SEEK_SET) != 0) break;
        hash = hash_bytes(piece, fread(piece, 1, PIECE, f), hash);
    }
    fclose(f);
    return hash;
}

static int counts(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return strcmp(entry->d_name, "config.json") == 0 || (dot && strcmp(dot, ".safetensors") == 0);
}

static uint64_t hash_dir(const char *dir, uint64_t hash) {
    struct dirent **entries = NULL;
    const int n = scandir(dir, &entries, counts, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        const int length = snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        if (length > 0 && length < (int)sizeof path && i < MAX_FILES) hash = hash_file(path, hash);
        free(entries[i]);
    }
    free(entries);
    return hash;
}

/* The device without the parts that do not change bits: "2 threads, avx512bf16" from its comma
 * on. */
static const char *kind_of(const char *device) {
    const char *threads = strstr(device, " thread"), *comma = threads ? strchr(threads, ',') : NULL;
    return comma ? comma : device;
}

void fingerprint_make(const qn_engine_info *i, char text[24]) {
    const char *const words[] = {qn_version(), i->backend, kind_of(i->device), i->dtype,
                                 i->kv_cache_dtype};
    const uint32_t numbers[] = {i->n_layers, i->hidden,     i->intermediate, i->vocab,
                                i->n_heads,  i->n_kv_heads, i->head_dim,     i->kv_block};
    uint64_t hash = 0;
    for (size_t k = 0; k < COUNT_OF(words); k++)
        hash = hash_bytes(words[k], strlen(words[k]) + 1, hash);
    hash = hash_bytes(numbers, sizeof numbers, hash);
    hash = hash_dir(i->model, hash);
    snprintf(text, 24, "fp_%016llx", (unsigned long long)hash);
}
