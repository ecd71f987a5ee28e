/* weights.h - the weights of a program, in the memory and the format that its kernels need.
 *
 *   tensor in a file of the wanted dtype  ->  a pointer into the map, nothing is copied
 *   another dtype (or not aligned),
 *   or rows of it (weight_source.h)       ->  converted into memory of the weights object
 *   no files (--load-format dummy)        ->  pseudo-random values there, the same on every run
 *
 * Made after compiling, before the first iteration; the backend reads it. The files must stay open
 * as long as it lives.
 */
#ifndef QN_MODEL_WEIGHTS_H
#define QN_MODEL_WEIGHTS_H

#include "base/status.h"
#include "graph/model_spec.h"
#include "graph/weight_source.h"
#include "model/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weight_want {
    const char *name; /* in the checkpoint */
    enum dtype dtype; /* F32, BF16 or F16 */
    int n_dims;       /* 1: [rows], 2: [rows, cols] row-major */
    uint64_t rows, cols;
    bool follows;  /* begins in memory where the weight before it ends; same dtype and columns */
    uint32_t zipf; /* dummy: a router that prefers some of its `rows` experts; the value is the
                    * experts of a token (dummy_router.h); 0: no such router */
    struct weight_source source; /* the part of the checkpoint's tensor */
};

struct weights_options {
    int n_threads;      /* 0: one per CPU, at most 64 */
    bool lazy;          /* leave mapped pages unread until their first use */
    bool zipf;          /* dummy routers prefer some experts */
    bool others_absent; /* dummy: only these routers get memory; weights_at is NULL for others */
    /* Called by the loading thread, with done == total at the end; may be NULL. */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes);
    void *user;
};

struct weights;

/* Finds the tensor of a wanted weight, and its dtype in the file, without reading data. Errors as
 * weights_load's: missing, another shape, a dtype that cannot be converted. */
int weights_find(struct diag *d, const struct safetensors *files, const struct weight_want *want,
                 const struct safetensors_tensor **out, enum dtype *dtype);

/* Loads every wanted weight. files NULL: dummy weights (matrices uniform with standard
 * deviation 0.02, seeded by their name; norms 1; biases 0). Errors: QN_EFORMAT (missing tensor),
 * QN_ESHAPE with both shapes, QN_EUNSUPPORTED (a dtype that cannot be converted, values too large
 * for float16), QN_ENOMEM; the message names file and tensor. options NULL: {0}. */
int weights_load(struct diag *d, const struct safetensors *files, const struct weight_want *want,
                 size_t n, const struct weights_options *options, struct weights **out);
void weights_free(struct weights *w); /* NULL is fine */

/* Weight i of the list: rows * cols elements of the wanted dtype, aligned to the dtype, and to 64
 * bytes where the memory is owned. NULL: weights_options.others_absent. */
const void *weights_at(const struct weights *w, size_t i);
/* Whether a file has shrunk since: some weights then read as zeros, and results are void. */
bool weights_torn(const struct weights *w);

#endif
