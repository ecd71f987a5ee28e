/* model_util.h - temporary model directories for the tests of src/model. */
#ifndef TESTS_MODEL_UTIL_H
#define TESTS_MODEL_UTIL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fresh directory; the name is written into `dir`. */
static inline void util_make_dir(char dir[static 64]) {
    strcpy(dir, "/tmp/quern-model-XXXXXX");
    if (mkdtemp(dir) == NULL) abort();
}

static inline void util_write(const char *dir, const char *name, const void *bytes, size_t n) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || (n > 0 && fwrite(bytes, 1, n, f) != n) || fclose(f) != 0) abort();
}

static inline void util_write_text(const char *dir, const char *name, const char *text) {
    util_write(dir, name, text, strlen(text));
}

/* Removes the directory and the files in `names` (ends with NULL). */
static inline void util_remove_dir(const char *dir, const char *const *names) {
    char path[400];
    for (; *names != NULL; names++) {
        snprintf(path, sizeof path, "%s/%s", dir, *names);
        unlink(path);
    }
    rmdir(dir);
}

/* Fails the test with a message; cmocka's own fail_msg needs the macro that status.h forbids. */
#define UTIL_FAIL(...)                                                                             \
    do {                                                                                           \
        print_error(__VA_ARGS__);                                                                  \
        print_error("\n");                                                                         \
        _fail(__FILE__, __LINE__);                                                                 \
    } while (0)

#endif
