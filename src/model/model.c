#include "model/model.h"

#include "graph/expert_list.h"
#include "model/hf_config.h"
#include "model/model_dir.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

/* The user's dtype, if given, else the dtype of the file's embedding. */
static int choose_dtype(struct diag *d, struct model *m, const char *wanted) {
    enum dtype dtype = m->spec.weight_dtype;
    if (wanted != NULL && strcmp(wanted, "auto") != 0) {
        if (!dtype_from_hf(wanted, &dtype))
            return fail(d, QN_EINVAL, "dtype: want auto, bfloat16, float16 or float32, have '%s'",
                        wanted);
    } else if (m->files != NULL) {
        const struct safetensors_tensor *t;
        TRY(safetensors_need(d, m->files, m->family->weights->embed, &t, &dtype));
    }
    m->spec.weight_dtype = dtype;
    return QN_OK;
}

static int check_part(struct diag *d, const struct model *m, struct arena *arena,
                      const struct weight_block *b, const struct weight_part *part) {
    struct weight_want want = {.name = part->name,
                               .dtype = b->dtype,
                               .n_dims = b->n_dims,
                               .rows = part->rows,
                               .cols = b->cols,
                               .source = part->source};
    const struct safetensors_tensor *found;
    enum dtype dtype;
    if (part->stack == 0) return weights_find(d, m->files, &want, &found, &dtype);
    for (uint32_t i = 0; i < part->stack; i++) {
        char *name;
        TRY(weight_stack_name(d, arena, part->name, i, &name));
        want.name = name;
        TRY(weights_find(d, m->files, &want, &found, &dtype));
    }
    return QN_OK;
}

/* Checks that the files hold every weight that the config implies, with its shape, so that a config
 * which promises more than that does not reach the compiler. */
static int check_weights(struct diag *d, const struct model *m) {
    struct arena arena = {0};
    struct kgraph g;
    int rc = model_build_graph(d, m, &arena, 1, 1, 1, false, &g);
    for (size_t i = 0; i < g.blocks.n && rc == QN_OK; i++) {
        const struct weight_block *b = &g.blocks.items[i];
        for (uint32_t k = b->first_part; k < b->first_part + b->n_parts && rc == QN_OK; k++) {
            rc = check_part(d, m, &arena, b, &g.parts.items[k]);
        }
    }
    kgraph_fini(&g);
    arena_fini(&arena);
    return rc;
}

/* Adds ids that generation_config.json has and config.json lacks. */
static void add_eos(struct model_spec *s, const struct generation_config *c) {
    for (uint32_t i = 0; i < c->n_eos; i++) {
        bool known = false;
        for (uint32_t k = 0; k < s->n_eos; k++) known |= s->eos[k] == c->eos[i];
        if (!known && s->n_eos < SPEC_MAX_EOS) s->eos[s->n_eos++] = c->eos[i];
    }
}

static int open_into(struct diag *d, struct model *m, const char *dir,
                     const struct model_options *options) {
    struct hf_config config;
    char *copy, *path;
    TRY(model_dir_check(d, dir));
    TRY(arena_strdup(d, &m->arena, dir, &copy));
    TRY(arena_printf(d, &m->arena, &path, "%s/config.json", dir));
    m->dir = copy;
    TRY(hf_config_load(d, path, &config));
    m->family = config.family;
    m->spec = config.spec;
    TRY(generation_config_load(d, dir, m->spec.vocab, &m->generation));
    add_eos(&m->spec, &m->generation);
    if (!options->dummy) TRY(safetensors_open(d, dir, &m->files));
    if (m->files != NULL)
        safetensors_set_prefix(m->files, m->family->weights->prefix, m->family->weights->embed);
    /* The config leaves tie_word_embeddings out, and the checkpoint has no head. */
    if (m->files != NULL && !config.tied_given &&
        safetensors_find(m->files, m->family->weights->head) == NULL)
        m->spec.tied = 1;
    TRY(choose_dtype(d, m, options->dtype));
    return m->files != NULL ? check_weights(d, m) : QN_OK;
}

int model_open(struct diag *d, const char *dir, const struct model_options *options,
               struct model **out) {
    static const struct model_options none;
    struct model *m = *out = calloc(1, sizeof *m);
    if (m == NULL) return fail_nomem(d, sizeof *m, "a model");
    int rc = open_into(d, m, dir, options != NULL ? options : &none);
    if (rc != QN_OK) {
        model_free(m);
        *out = NULL;
    }
    return rc;
}

void model_free(struct model *m) {
    if (m == NULL) return;
    safetensors_close(m->files);
    arena_fini(&m->arena);
    free(m);
}

int model_build_graph(struct diag *d, const struct model *m, struct arena *arena, uint32_t n_rows,
                      uint32_t n_logit_rows, uint32_t max_model_len, uint32_t cuts,
                      struct kgraph *g) {
    kgraph_init(g, arena, &m->spec, n_rows, n_logit_rows, max_model_len);
    g->decode_only = (cuts & KGRAPH_DECODE_ONLY) != 0;
    g->attrs.placed = cuts & KGRAPH_STATIC ? EXPERT_STATIC : EXPERT_SLICED;
    if (n_rows == 0 || n_logit_rows == 0 || n_logit_rows > n_rows)
        return fail(d, QN_EINVAL, "graph: want 1 <= logit rows <= rows, have %u and %u",
                    n_logit_rows, n_rows);
    if (max_model_len == 0 || max_model_len > SPEC_MAX_MODEL_LEN)
        return fail(d, QN_EINVAL, "max_model_len: want a number from 1 to %d, have %u",
                    SPEC_MAX_MODEL_LEN, max_model_len);
    return m->family->build(d, g, m->family, cuts);
}
