/* jsonl.c - see jsonl.h. */
#include "cli/jsonl.h"

#include "base/checked.h"
#include "base/strbuf.h"

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

/* Reads the next line that is not empty; j->n is 0 at the end. The file may begin with a byte order
 * mark, as some editors write it. Errors: QN_EIO. */
static int read_line(struct diag *d, struct jsonl *j) {
    do {
        ssize_t n = getline(&j->line, &j->capacity, j->file);
        if (n < 0 && ferror(j->file)) return fail(d, QN_EIO, "%s: %s", j->name, strerror(errno));
        j->n = n < 0 ? 0 : (size_t)n;
        if (n < 0) return QN_OK;
        if (j->number++ == 0 && n >= 3 && memcmp(j->line, "\xef\xbb\xbf", 3) == 0) {
            j->n -= 3;
            memmove(j->line, j->line + 3, j->n + 1);
        }
    } while (strspn(j->line, " \t\r\n") == j->n);
    return QN_OK;
}

int jsonl_line(struct jsonl *j) {
    struct diag d = {0};
    return read_line(&d, j) == QN_OK ? EXIT_OK : cli_error("%s", d.message);
}

/* Where the value of a `"seed":` begins whose digits end at `end`; SIZE_MAX: there is no such
 * value.
 */
static size_t seed_before(const struct jsonl *j, size_t end) {
    static const char key[] = "\"seed\"";
    size_t start = MIN(end, j->n), at;
    while (start > 0 && j->line[start - 1] >= '0' && j->line[start - 1] <= '9') start--;
    for (at = start; at > 0 && strchr(" \t:", j->line[at - 1]) != NULL;) at--;
    const size_t n = sizeof key - 1;
    return at >= n && memcmp(j->line + at - n, key, n) == 0 ? start : SIZE_MAX;
}

/* jansson's integers are signed, so a seed from 2^63 on becomes the negative one with the same 64
 * bits. NULL: the line has another error. */
static json_t *read_wide_seed(const struct jsonl *j, json_error_t *e) {
    char number[24], *end;
    if (json_error_code(e) != json_error_numeric_overflow) return NULL;
    const size_t start = seed_before(j, (size_t)MAX(e->position, 0));
    if (start == SIZE_MAX) return NULL;
    errno = 0;
    const unsigned long long seed = strtoull(j->line + start, &end, 10);
    if (errno != 0) return NULL;
    snprintf(number, sizeof number, "%lld", (long long)seed);
    struct strbuf text = {0};
    strbuf_add(&text, j->line, start);
    strbuf_str(&text, number);
    strbuf_add(&text, end, j->n - (size_t)(end - j->line));
    json_t *value = text.failed ? NULL : json_loadb(text.text, text.n, JSON_ALLOW_NUL, e);
    strbuf_fini(&text);
    if (value == NULL || json_integer_value(json_object_get(value, "seed")) == (json_int_t)seed)
        return value;
    json_decref(value); /* the seed belongs to another object */
    return NULL;
}

int jsonl_read(struct diag *d, struct jsonl *j, json_t **object) {
    *object = NULL;
    TRY(read_line(d, j));
    if (j->n == 0) return QN_OK;
    json_error_t e;
    json_t *value = json_loadb(j->line, j->n, JSON_ALLOW_NUL, &e);
    if (!value) value = read_wide_seed(j, &e);
    if (!value) return fail(d, QN_EFORMAT, "column %d: %s", e.column, e.text);
    if (json_is_object(value)) {
        *object = value;
        return QN_OK;
    }
    json_decref(value);
    return fail(d, QN_EFORMAT, "want an object");
}

int jsonl_fail(const struct jsonl *j, const char *message) {
    return cli_error("%s: line %lu: %s", j->name, j->number, message);
}

int jsonl_next(struct jsonl *j, json_t **object) {
    struct diag d = {0};
    const int rc = jsonl_read(&d, j, object);
    if (rc == QN_EIO) return cli_error("%s", d.message);
    return rc == QN_OK ? EXIT_OK : jsonl_fail(j, d.message);
}

int jsonl_ids(struct diag *d, const char *what, const json_t *array, int32_t **ids, size_t *n) {
    *n = json_array_size(array);
    *ids = malloc((*n ? *n : 1) * sizeof **ids);
    if (!*ids) return fail_nomem(d, *n * sizeof **ids, what);
    for (size_t i = 0; i < *n; i++) {
        json_t *v = json_array_get(array, i);
        json_int_t id = json_integer_value(v);
        if (json_is_integer(v) && id >= 0 && id <= INT32_MAX) {
            (*ids)[i] = (int32_t)id;
            continue;
        }
        free(*ids);
        *ids = NULL;
        return fail(d, QN_EINVAL, "%s: element %zu is not a token id", what, i);
    }
    return QN_OK;
}
