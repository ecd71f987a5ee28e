/* jsonl.c - see jsonl.h. */
#include "cli/jsonl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int jsonl_open(struct jsonl *j, const char *path) {
    bool standard = strcmp(path, "-") == 0;
    *j = (struct jsonl){.name = standard ? "stdin" : path};
    j->file = standard ? stdin : fopen(path, "rb");
    return j->file ? EXIT_OK : cli_error("%s: %s", path, strerror(errno));
}

void jsonl_close(struct jsonl *j) {
    if (j->file && j->file != stdin) fclose(j->file);
    free(j->line);
    *j = (struct jsonl){0};
}

int jsonl_line(struct jsonl *j) {
    do {
        ssize_t n = getline(&j->line, &j->capacity, j->file);
        if (n < 0 && ferror(j->file)) return cli_error("%s: %s", j->name, strerror(errno));
        j->n = n < 0 ? 0 : (size_t)n;
        if (n < 0) return EXIT_OK;
        j->number++;
    } while (strspn(j->line, " \t\r\n") == j->n);
    return EXIT_OK;
}

int jsonl_next(struct jsonl *j, json_t **object) {
    *object = NULL;
    int rc = jsonl_line(j);
    if (rc != EXIT_OK || j->n == 0) return rc;
    json_error_t e;
    *object = json_loadb(j->line, j->n, JSON_ALLOW_NUL, &e);
    if (!*object)
        return cli_error("%s: line %lu: column %d: %s", j->name, j->number, e.column, e.text);
    if (json_is_object(*object)) return EXIT_OK;
    json_decref(*object);
    *object = NULL;
    return cli_error("%s: line %lu: want an object", j->name, j->number);
}

int jsonl_ids(const struct jsonl *j, const char *what, const json_t *array, int32_t **ids,
              size_t *n) {
    *n = json_array_size(array);
    *ids = malloc((*n ? *n : 1) * sizeof **ids);
    if (!*ids) return cli_error("out of memory");
    for (size_t i = 0; i < *n; i++) {
        json_t *v = json_array_get(array, i);
        json_int_t id = json_integer_value(v);
        if (json_is_integer(v) && id >= 0 && id <= INT32_MAX) {
            (*ids)[i] = (int32_t)id;
            continue;
        }
        free(*ids);
        *ids = NULL;
        return cli_error("%s: line %lu: %s: element %zu is not a token id", j->name, j->number,
                         what, i);
    }
    return EXIT_OK;
}
