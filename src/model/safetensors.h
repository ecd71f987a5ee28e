/* safetensors.h - the tensors of a model directory, in place in the mapped files.
 *
 *   file:  | n: u64 little-endian | n bytes of JSON | data ......................... |
 *          JSON: {"<name>": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [first, end]},
 *                 "__metadata__": {...}}          offsets count from the start of the data
 *
 * A directory has model.safetensors, or model.safetensors.index.json whose weight_map names its
 * files. Only the files say which tensors exist; an index may name others. No declaration in a file
 * is trusted: n and the offsets are checked against the file's real size, a tensor's range against
 * its dtype and shape. Format: https://github.com/huggingface/safetensors, section "Format".
 */
#ifndef QN_MODEL_SAFETENSORS_H
#define QN_MODEL_SAFETENSORS_H

#include "base/arena.h"
#include "base/array.h"
#include "base/map.h"
#include "base/mapfile.h"
#include "base/status.h"
#include "graph/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SAFETENSORS_MAX_HEADER = 100 * 1000 * 1000, /* bytes; the format's own limit */
    SAFETENSORS_MAX_DIMS = 8,
    SAFETENSORS_MAX_FILES = 2048,
    SAFETENSORS_MAX_TENSORS = 1 << 20,
};

struct safetensors_tensor {
    const char *name;  /* ends with NUL, holds none */
    const char *dtype; /* as the format spells it: "BF16"; a constant */
    int n_dims;        /* 0: a scalar */
    uint64_t shape[SAFETENSORS_MAX_DIMS];
    const unsigned char *data; /* not necessarily aligned to the dtype */
    uint64_t bytes;
    uint32_t file_idx;
};

struct safetensors_file {
    const char *path;
    struct mapfile map;
};

struct safetensors {
    struct arena arena; /* names */
    const char *path;   /* the single file, or the index: for messages about missing tensors */
    const char *absent; /* a missing file that the index names; NULL: none */
    const char *prefix; /* of names, missing in the files; NULL: none */
    ARRAY(struct safetensors_tensor) tensors;
    ARRAY(struct safetensors_file) files;
    struct map by_name;
    uint64_t total_bytes; /* of all tensors */
};

/* Opens all files of a model directory. Errors: mapfile_open's, QN_EFORMAT, QN_ELIMIT; the message
 * names file and tensor. On success the caller owns *out. */
int safetensors_open(struct diag *d, const char *dir, struct safetensors **out);
/* Reads one file's bytes in memory, which must outlive *out; `name` stands for the path in
 * messages. */
int safetensors_parse(struct diag *d, const char *name, const unsigned char *data, uint64_t bytes,
                      struct safetensors **out);
void safetensors_close(struct safetensors *st); /* NULL is fine */

/* From here on names that begin with `prefix` (a constant) are looked up without it, if the files
 * hold the tensor `name` only without it: files that were saved from a model without its head. */
void safetensors_set_prefix(struct safetensors *st, const char *prefix, const char *name);
/* NULL when there is none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
/* A required tensor, in a dtype that quern computes with. Errors: QN_EFORMAT, QN_EUNSUPPORTED; the
 * message names file and tensor and says where a checkpoint is quantized. */
int safetensors_need(struct diag *d, const struct safetensors *st, const char *name,
                     const struct safetensors_tensor **out, enum dtype *dtype);
/* The path of the file that holds t. */
const char *safetensors_path(const struct safetensors *st, const struct safetensors_tensor *t);
/* Whether quern computes with t's dtype (F32, BF16, F16). */
bool safetensors_dtype(const struct safetensors_tensor *t, enum dtype *out);
/* Whether a file has shrunk under its map, so that zeros were read. */
bool safetensors_torn(const struct safetensors *st);
/* "[1024, 64]" into text; returns text. */
const char *safetensors_shape_text(const struct safetensors_tensor *t, char *text, size_t n);

#endif
