#include "engine/recipe.h"

#include "base/checked.h"

#include <stdlib.h>

static void want_block(const struct prog_header *p, const struct prog_weight *b,
                       struct weight_want *want) {
    for (uint32_t i = b->first_part; i < b->first_part + b->n_parts; i++) {
        const struct prog_part *part = &PROG(p, PART)[i];
        want[i] = (struct weight_want){.name = program_string(p, part->name),
                                       .dtype = (enum dtype)b->dtype,
                                       .n_dims = (int)b->n_dims,
                                       .rows = part->rows,
                                       .cols = MAX(b->cols, 1u),
                                       .source = part->source,
                                       .follows = p->target == TARGET_CPU && i > b->first_part};
    }
}

int recipe_load(struct diag *d, const struct prog_header *program, const struct safetensors *files,
                const struct weights_options *options, struct weights **out) {
    const size_t n = program->section[SECTION_PART].count;
    struct weight_want *want = calloc(n + 1, sizeof *want);
    if (want == NULL) return fail_nomem(d, n * sizeof *want, "the list of weights");
    for (uint64_t i = 0; i < program->section[SECTION_WEIGHT].count; i++)
        want_block(program, &PROG(program, WEIGHT)[i], want);
    int rc = weights_load(d, files, want, n, options, out);
    free(want);
    return rc;
}
