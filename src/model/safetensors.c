#include "model/safetensors.h"

#include "base/checked.h"
#include "base/jsonio.h"
#include "model/model_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Bits per element of every dtype of the format; some take half a byte. */
static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    {"BF16", 16},   {"F16", 16},        {"F32", 32},        {"F64", 64},    {"I64", 64},
    {"I32", 32},    {"I16", 16},        {"I8", 8},          {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},          {"BOOL", 8},        {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},      {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"C64", 64},
};

/* One file while its header is read. */
struct reader {
    struct diag *d;
    struct safetensors *st;
    const char *path;
    uint32_t file_idx;
    const unsigned char *data; /* the data area */
    uint64_t data_bytes;
};

static int bad(const struct reader *r, const char *name, const char *text) {
    return fail(r->d, QN_EFORMAT, "%s: tensor %.200s: %s", r->path, name, text);
}

static int read_dtype(const struct reader *r, const json_t *o, struct safetensors_tensor *t,
                      unsigned *bits) {
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    if (dtype == NULL) return bad(r, t->name, "dtype: want a string");
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        if (strcmp(dtypes[i].name, dtype) != 0) continue;
        t->dtype = dtypes[i].name;
        *bits = dtypes[i].bits;
        return QN_OK;
    }
    return fail(r->d, QN_EUNSUPPORTED, "%s: tensor %.200s: dtype: '%.40s' is not known", r->path,
                t->name, dtype);
}

/* Reads the shape, and computes the bytes of a tensor with that shape. */
static int read_shape(const struct reader *r, const json_t *o, struct safetensors_tensor *t,
                      unsigned bits) {
    const json_t *shape = json_object_get(o, "shape");
    uint64_t n = 1;
    if (!json_is_array(shape)) return bad(r, t->name, "shape: want a list of sizes");
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS)
        return bad(r, t->name, "shape: more than 8 dimensions");
    t->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad(r, t->name, "shape: want a list of sizes");
        t->shape[i] = (uint64_t)json_integer_value(v);
        if (!checked_mul(n, t->shape[i], &n)) return bad(r, t->name, "shape: too large");
    }
    if (!checked_mul(n, bits, &n)) return bad(r, t->name, "shape: too large");
    if (n % 8 != 0) return bad(r, t->name, "shape: not a whole number of bytes");
    t->bytes = n / 8;
    return QN_OK;
}

static int read_offsets(const struct reader *r, const json_t *o, struct safetensors_tensor *t) {
    const json_t *offsets = json_object_get(o, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(end) ||
        json_integer_value(first) < 0 || json_integer_value(end) < json_integer_value(first))
        return bad(r, t->name, "data_offsets: want [first, end]");
    uint64_t at = (uint64_t)json_integer_value(first);
    uint64_t end_at = (uint64_t)json_integer_value(end), bytes = end_at - at;
    if (!range_inside(at, bytes, r->data_bytes))
        return fail(r->d, QN_EFORMAT,
                    "%s: tensor %.200s: data_offsets: [%llu, %llu] is outside the %llu bytes of "
                    "data (is the file complete?)",
                    r->path, t->name, (unsigned long long)at, (unsigned long long)end_at,
                    (unsigned long long)r->data_bytes);
    if (bytes != t->bytes)
        return fail(r->d, QN_EFORMAT,
                    "%s: tensor %.200s: data_offsets: want %llu bytes for dtype and shape, have "
                    "%llu",
                    r->path, t->name, (unsigned long long)t->bytes, (unsigned long long)bytes);
    t->data = r->data + at;
    return QN_OK;
}

static int read_tensor(const struct reader *r, const char *name, const json_t *o) {
    struct safetensors *st = r->st;
    struct safetensors_tensor t = {.file_idx = r->file_idx};
    unsigned bits = 0;
    uint64_t index = st->tensors.n, holds;
    char *copy;
    TRY(arena_strdup(r->d, &st->arena, name, &copy));
    t.name = copy;
    if (!json_is_object(o)) return bad(r, name, "want an object");
    TRY(read_dtype(r, o, &t, &bits));
    TRY(read_shape(r, o, &t, bits));
    TRY(read_offsets(r, o, &t));
    if (index >= SAFETENSORS_MAX_TENSORS)
        return fail(r->d, QN_ELIMIT, "%s: more than %d tensors", r->path, SAFETENSORS_MAX_TENSORS);
    TRY(map_put(r->d, &st->by_name, t.name, strlen(t.name), index, &holds));
    if (holds != index) { /* an earlier file has it, too */
        st->total_bytes += t.bytes - st->tensors.items[holds].bytes;
        st->tensors.items[holds] = t;
        return QN_OK;
    }
    st->total_bytes += t.bytes; /* <= n tensors x file size: no overflow */
    return ARRAY_PUSH(r->d, &st->tensors, t);
}

static uint64_t little_endian(const unsigned char *p) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | p[i];
    return n;
}

static int read_header(struct reader *r, const unsigned char *file, uint64_t bytes) {
    json_t *root, *o;
    const char *name;
    int rc = QN_OK;
    if (bytes < 8)
        return fail(r->d, QN_EFORMAT, "%s: want at least 8 bytes, have %llu", r->path,
                    (unsigned long long)bytes);
    uint64_t n = little_endian(file);
    if (n > SAFETENSORS_MAX_HEADER)
        return fail(r->d, QN_EFORMAT,
                    "%s: header: want at most %d bytes, have %llu (is this a safetensors file?)",
                    r->path, SAFETENSORS_MAX_HEADER, (unsigned long long)n);
    if (n > bytes - 8)
        return fail(r->d, QN_EFORMAT, "%s: header: %llu bytes do not fit into a file of %llu",
                    r->path, (unsigned long long)n, (unsigned long long)bytes);
    r->data = file + 8 + n;
    r->data_bytes = bytes - 8 - n;
    TRY(jsonio_parse_unique(r->d, r->path, (const char *)file + 8, n, &root));
    if (!json_is_object(root)) rc = fail(r->d, QN_EFORMAT, "%s: header: want an object", r->path);
    json_object_foreach(root, name, o) {
        if (strcmp(name, "__metadata__") == 0) continue;
        TRY_GOTO(rc, out, read_tensor(r, name, o));
    }
out:
    json_decref(root);
    return rc;
}

/* Adds a file's tensors; takes over `map`. */
static int add_file(struct diag *d, struct safetensors *st, const char *path, struct mapfile map) {
    struct reader r = {.d = d, .st = st, .file_idx = (uint32_t)st->files.n};
    struct safetensors_file file = {.map = map};
    char *copy;
    int rc = arena_strdup(d, &st->arena, path, &copy);
    file.path = r.path = copy;
    if (rc == QN_OK) rc = ARRAY_PUSH(d, &st->files, file);
    if (rc != QN_OK) {
        mapfile_close(&map);
        return rc;
    }
    return read_header(&r, map.data, map.bytes);
}

static int add_path(struct diag *d, struct safetensors *st, const char *path) {
    struct mapfile map;
    TRY(mapfile_open(d, path, 0, &map));
    return add_file(d, st, path, map);
}

/* ---- sharded checkpoints ---- */

static bool exists(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 || errno != ENOENT;
}

static bool name_stays_inside(const char *name) {
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

/* The files that weight_map names, each once; the names live in weight_map. */
struct shards {
    const char *name[SAFETENSORS_MAX_FILES];
    size_t n;
};

static int list_shards(struct diag *d, const char *index, json_t *weight_map, struct shards *list) {
    struct map seen = {0};
    const char *name;
    json_t *v;
    int rc = QN_OK;
    json_object_foreach(weight_map, name, v) {
        const char *file = json_string_value(v);
        uint64_t holds;
        if (file == NULL || strlen(file) != json_string_length(v) || !name_stays_inside(file))
            rc = fail(d, QN_EFORMAT,
                      "%s: weight_map.%.200s: want the name of a file in the same folder", index,
                      name);
        if (rc == QN_OK) rc = map_put(d, &seen, file, strlen(file), list->n, &holds);
        if (rc == QN_OK && holds == list->n && list->n == SAFETENSORS_MAX_FILES)
            rc = fail(d, QN_ELIMIT, "%s: more than %d files", index, SAFETENSORS_MAX_FILES);
        if (rc != QN_OK) break;
        if (holds == list->n) list->name[list->n++] = file;
    }
    map_fini(&seen);
    return rc;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Opens the files of the index in the order of their names, like transformers: of a tensor in
 * several files, the last one counts. A missing file is remembered, because its tensors may not be
 * needed. */
static int open_shards(struct diag *d, struct safetensors *st, const char *dir,
                       struct shards *list) {
    qsort(list->name, list->n, sizeof list->name[0], by_name);
    for (size_t i = 0; i < list->n; i++) {
        char *path;
        TRY(arena_printf(d, &st->arena, &path, "%s/%s", dir, list->name[i]));
        if (exists(path))
            TRY(add_path(d, st, path));
        else if (st->absent == NULL)
            st->absent = path;
    }
    if (st->files.n == 0) return fail(d, QN_ENOENT, "%s: %s", st->absent, strerror(ENOENT));
    return QN_OK;
}

/* weight_map says which files there are; each file itself says which tensors it holds. */
static int open_index(struct diag *d, struct safetensors *st, const char *dir, const char *index) {
    json_t *root, *weight_map;
    TRY(jsonio_load(d, index, SAFETENSORS_MAX_HEADER, &root));
    struct shards *list = calloc(1, sizeof *list);
    int rc = list != NULL ? jsonio_object(d, index, root, "weight_map", &weight_map)
                          : fail_nomem(d, sizeof *list, "the list of files");
    if (rc == QN_OK && json_object_size(weight_map) == 0)
        rc = fail(d, QN_EFORMAT, "%s: weight_map: want an object with entries", index);
    if (rc == QN_OK) rc = list_shards(d, index, weight_map, list);
    if (rc == QN_OK) rc = open_shards(d, st, dir, list);
    free(list);
    json_decref(root);
    return rc;
}

static int open_dir(struct diag *d, struct safetensors *st, const char *dir) {
    char *single, *index;
    TRY(arena_printf(d, &st->arena, &single, "%s/model.safetensors", dir));
    TRY(arena_printf(d, &st->arena, &index, "%s/model.safetensors.index.json", dir));
    st->path = exists(single) ? single : index;
    if (st->path == single) return add_path(d, st, single);
    if (exists(index)) return open_index(d, st, dir, index);
    return model_dir_no_weights(d, dir, "model.safetensors or model.safetensors.index.json");
}

/* ---- opening and closing ---- */

static struct safetensors *make(struct diag *d) {
    struct safetensors *st = calloc(1, sizeof *st);
    if (st == NULL) fail_nomem(d, sizeof *st, "a safetensors directory");
    return st;
}

/* Gives *out to the caller, or closes it after a failure. */
static int finish(int rc, struct safetensors **out) {
    if (rc == QN_OK) return rc;
    safetensors_close(*out);
    *out = NULL;
    return rc;
}

int safetensors_open(struct diag *d, const char *dir, struct safetensors **out) {
    struct safetensors *st = *out = make(d);
    if (st == NULL) return QN_ENOMEM;
    return finish(open_dir(d, st, dir), out);
}

int safetensors_parse(struct diag *d, const char *name, const unsigned char *data, uint64_t bytes,
                      struct safetensors **out) {
    struct safetensors *st = *out = make(d);
    if (st == NULL) return QN_ENOMEM;
    struct reader r = {.d = d, .st = st, .path = name};
    struct safetensors_file file = {.path = name, .map = {.guard = -1}};
    st->path = name;
    int rc = ARRAY_PUSH(d, &st->files, file);
    if (rc == QN_OK) rc = read_header(&r, data, bytes);
    return finish(rc, out);
}

void safetensors_close(struct safetensors *st) {
    if (st == NULL) return;
    for (size_t i = 0; i < st->files.n; i++) mapfile_close(&st->files.items[i].map);
    ARRAY_FINI(&st->files);
    ARRAY_FINI(&st->tensors);
    map_fini(&st->by_name);
    arena_fini(&st->arena);
    free(st);
}

void safetensors_set_prefix(struct safetensors *st, const char *prefix, const char *name) {
    if (safetensors_find(st, name) != NULL) return;
    st->prefix = prefix;
    if (safetensors_find(st, name) == NULL) st->prefix = NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name) {
    uint64_t i;
    const size_t n = st->prefix != NULL ? strlen(st->prefix) : 0;
    if (n > 0 && strncmp(name, st->prefix, n) == 0) name += n;
    return map_find(&st->by_name, name, strlen(name), &i) ? &st->tensors.items[i] : NULL;
}

/* Whether the matrix of weight `name` exists as the tensors that a quantizer splits it into. */
static bool has_parts(const struct safetensors *st, const char *name) {
    static const char *const parts[] = {"qweight", "weight_packed", "weight_scale", "scales"};
    const size_t n = strlen(name), end = strlen("weight");
    if (n < end || strcmp(name + n - end, "weight") != 0) return false;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char part[400];
        snprintf(part, sizeof part, "%.*s%s", (int)MIN(n - end, 300), name, parts[i]);
        if (safetensors_find(st, part) != NULL) return true;
    }
    return false;
}

int safetensors_need(struct diag *d, const struct safetensors *st, const char *name,
                     const struct safetensors_tensor **out, enum dtype *dtype) {
    static const char quantized[] =
        "the checkpoint is quantized (GPTQ, AWQ, MLX or the like); want "
        "one in bfloat16, float16 or float32";
    const struct safetensors_tensor *t = *out = safetensors_find(st, name);
    const bool parts = has_parts(st, name);
    if (t == NULL && parts)
        return fail(d, QN_EUNSUPPORTED, "%s: tensor %s is missing: %s", st->path, name, quantized);
    if (t == NULL)
        return fail(d, QN_EFORMAT, "%s: tensor %s is missing%s%s", st->path, name,
                    st->absent != NULL ? ", and so is " : "", st->absent != NULL ? st->absent : "");
    if (!safetensors_dtype(t, dtype))
        return fail(d, QN_EUNSUPPORTED, "%s: tensor %s: want BF16, F16 or F32, have %s%s%s",
                    safetensors_path(st, t), name, t->dtype, parts ? ": " : "",
                    parts ? quantized : "");
    return QN_OK;
}

const char *safetensors_path(const struct safetensors *st, const struct safetensors_tensor *t) {
    return st->files.items[t->file_idx].path;
}

bool safetensors_dtype(const struct safetensors_tensor *t, enum dtype *out) {
    return dtype_from_file(t->dtype, out);
}

bool safetensors_torn(const struct safetensors *st) {
    for (size_t i = 0; i < st->files.n; i++)
        if (mapfile_torn(&st->files.items[i].map)) return true;
    return false;
}

const char *safetensors_shape_text(const struct safetensors_tensor *t, char *text, size_t n) {
    size_t at = 0;
    int wrote = snprintf(text, n, "[");
    for (int i = 0; i < t->n_dims && wrote >= 0 && at + (size_t)wrote < n; i++) {
        at += (size_t)wrote;
        wrote = snprintf(text + at, n - at, "%s%llu", i > 0 ? ", " : "",
                         (unsigned long long)t->shape[i]);
    }
    at += wrote > 0 ? (size_t)wrote : 0;
    if (at < n) snprintf(text + at, n - at, "]");
    return text;
}
