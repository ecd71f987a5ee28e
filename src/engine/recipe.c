#include "engine/recipe.h"

#include "base/arena.h"
#include "base/checked.h"
#include "graph/kernel_graph.h"

#include <stdlib.h>

/* The tensors that a program wants, in the order of SECTION_PART. */
struct list {
    struct diag *d;
    const struct prog_header *program;
    struct arena names; /* of stacks */
    struct weight_want *want;
    uint64_t *first; /* of each part's tensors */
    size_t n;
};

uint64_t recipe_tensors(const struct prog_header *program) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < program->section[SECTION_PART].count; i++)
        n += prog_part_tensors(&PROG(program, PART)[i]);
    return n;
}

static int want_part(struct list *l, const struct prog_weight *b, const struct prog_part *part,
                     bool follows) {
    for (uint32_t i = 0; i < prog_part_tensors(part); i++) {
        const char *name = program_string(l->program, part->name);
        char *numbered;
        if (part->stack != 0) {
            TRY(weight_stack_name(l->d, &l->names, name, i, &numbered));
            name = numbered;
        }
        l->want[l->n++] = (struct weight_want){.name = name,
                                               .dtype = (enum dtype)b->dtype,
                                               .n_dims = (int)b->n_dims,
                                               .rows = part->rows,
                                               .cols = MAX(b->cols, 1u),
                                               .follows = follows,
                                               .source = part->source};
    }
    return QN_OK;
}

/* Marks the matrices of routers; their gates have a part of their own. */
static void mark_routers(const struct list *l) {
    const struct prog_header *p = l->program;
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++) {
        const struct prog_op *op = &PROG(p, OP)[i];
        if (op->kind != OP_ROUTER) continue;
        const uint32_t part = PROG(p, TENSOR)[op->in[ROUTER_W]].part;
        l->want[l->first[part]].zipf = op->attrs.top_k;
    }
}

static int want_block(struct list *l, const struct prog_weight *b) {
    for (uint32_t i = b->first_part; i < b->first_part + b->n_parts; i++) {
        l->first[i] = l->n;
        TRY(want_part(l, b, &PROG(l->program, PART)[i],
                      l->program->target == TARGET_CPU && i > b->first_part));
    }
    return QN_OK;
}

int recipe_load(struct diag *d, const struct prog_header *program, const struct safetensors *files,
                const struct weights_options *options, struct weights **out) {
    const uint64_t n = recipe_tensors(program), n_parts = program->section[SECTION_PART].count;
    struct list l = {.d = d, .program = program};
    int rc = QN_OK;
    *out = NULL;
    l.want = calloc(n + 1, sizeof *l.want);
    l.first = calloc(n_parts + 1, sizeof *l.first);
    if (l.want == NULL || l.first == NULL)
        rc = fail_nomem(d, n * sizeof *l.want, "the list of weights");
    for (uint64_t i = 0; i < program->section[SECTION_WEIGHT].count && rc == QN_OK; i++)
        rc = want_block(&l, &PROG(program, WEIGHT)[i]);
    if (rc == QN_OK && options != NULL && options->zipf) mark_routers(&l);
    if (rc == QN_OK) rc = weights_load(d, files, l.want, l.n, options, out);
    arena_fini(&l.names);
    free(l.want);
    free(l.first);
    return rc;
}
