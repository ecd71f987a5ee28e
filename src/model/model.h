/* model.h - a model directory, opened: its numbers, its family, its files.
 *
 *     struct model *m;
 *     TRY(model_open(d, "models/qwen3", NULL, &m));
 *     TRY(model_build_graph(d, m, &arena, 1, 1, 4096, 0, &graph));   ... kgraph_fini(&graph)
 *     model_free(m);
 *
 * Made at the start of a compile; lives as long as the weights, which point into its files.
 */
#ifndef QN_MODEL_MODEL_H
#define QN_MODEL_MODEL_H

#include "base/arena.h"
#include "base/status.h"
#include "graph/kernel_graph.h"
#include "model/family.h"
#include "model/generation_config.h"
#include "model/safetensors.h"

#include <stdbool.h>

struct model_options {
    bool dummy;        /* --load-format dummy: reads config.json only */
    const char *dtype; /* --dtype: auto (or NULL), bfloat16, float16 | half, float32 | float */
};

struct model {
    struct arena arena;
    const char *dir;
    const struct family *family;
    /* spec.weight_dtype is final: that of --dtype, else the dtype of the file's embedding. spec.eos
     * has the ids of config.json, then the ids that only generation_config.json has. */
    struct model_spec spec;
    struct generation_config generation;
    struct safetensors *files; /* NULL with dummy weights */
};

/* Opens a directory; options NULL: {0}. Checks that the files hold every weight that the config
 * implies, with its shape. Errors: QN_ENOENT, QN_EIO, QN_EFORMAT, QN_ESHAPE, QN_EUNSUPPORTED,
 * QN_EINVAL (dtype); the message names file and field. *out is NULL then. */
int model_open(struct diag *d, const char *dir, const struct model_options *options,
               struct model **out);
void model_free(struct model *m); /* NULL is fine */

/* Builds the kernel graph of one iteration with n_rows token rows, n_logit_rows of which want
 * logits, for contexts of up to max_model_len. The graph's strings belong to `arena`; the caller
 * releases its arrays with kgraph_fini, also after an error. Errors: QN_EINVAL, QN_ENOMEM. */
int model_build_graph(struct diag *d, const struct model *m, struct arena *arena, uint32_t n_rows,
                      uint32_t n_logit_rows, uint32_t max_model_len, uint32_t cuts,
                      struct kgraph *g);

#endif
