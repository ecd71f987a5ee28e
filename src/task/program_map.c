/* program_map.c - op.def's access maps for the operators of a program. */
#include "task/program_map.h"
#include "base/checked.h"

#include <string.h>

static struct map_shape shape_of(const struct prog_header *p, uint32_t tensor) {
    struct map_shape s = {0};
    if (tensor == PROG_NONE) return s;
    const struct prog_tensor *t = &PROG(p, TENSOR)[tensor];
    s.name = program_string(p, t->name);
    s.n_dims = t->n_dims;
    for (int i = 0; i < t->n_dims; i++) s.shape[i] = t->shape[i];
    return s;
}

int program_map(struct diag *d, const struct prog_header *p, const struct prog_variant *v,
                const struct prog_op *op, struct op_map *map) {
    struct map_source s = {
        .kind = op->kind,
        .layer = op->layer,
        .graph = {v->n_rows, v->n_logit_rows, CEIL_DIV(v->context, (uint32_t)ATTENTION_PIECE)},
        .attrs = op->attrs};
    for (int i = 0; i < OP_MAX_IN; i++) s.in[i] = shape_of(p, op->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) s.out[i] = shape_of(p, op->out[i]);
    return op_map_bind(d, &s, map);
}

int program_maps_make(struct diag *d, const struct prog_header *p, struct program_maps *maps) {
    struct op_map map;
    *maps = (struct program_maps){0};
    TRY(ARENA_NEW(d, &maps->arena, &maps->of, p->section[SECTION_OP].count));
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++) {
        const struct prog_variant *v = &PROG(p, VARIANT)[i];
        for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++) {
            TRY(program_map(d, p, v, &PROG(p, OP)[o], &map));
            TRY(op_maps_keep(d, &maps->distinct, &maps->arena, &map, &maps->of[o].map));
        }
    }
    return QN_OK;
}

void program_maps_fini(struct program_maps *maps) {
    ARRAY_FINI(&maps->distinct.list);
    arena_fini(&maps->arena);
    *maps = (struct program_maps){0};
}

int program_weight_rows(const struct prog_op *op, const struct op_map *map, uint32_t unit0,
                        uint32_t unit1, struct prog_weight_rows rows[OP_MAX_IN]) {
    int n = 0;
    for (int i = 0; i < OP_MAX_IN; i++) {
        const struct map_operand *m = &map->in[i];
        if (op->in[i] == PROG_NONE || !m->weight || m->n_dims != 2 || m->dim[0].index != MAP_UNITS)
            continue;
        const struct map_range r = op_map_range(&m->dim[0], 0, 0, unit0, unit1);
        if (r.first < r.last)
            rows[n++] = (struct prog_weight_rows){op->in[i], (uint32_t)r.first, (uint32_t)r.last};
    }
    return n;
}

void program_block_rows(const struct prog_header *p, const struct prog_tensor *t, uint32_t row0,
                        uint32_t row1, uint32_t *first, uint32_t *last) {
    uint64_t before = 0, low = UINT64_MAX, high = 0; /* `before`: rows of the parts so far */
    for (uint32_t i = t->part; i < t->part + t->n_parts; i++) {
        const struct prog_part *part = &PROG(p, PART)[i];
        const uint64_t r0 = MAX((uint64_t)row0, before) - before;
        const uint64_t r1 = MIN(MAX((uint64_t)row1, before) - before, (uint64_t)part->rows);
        before += part->rows;
        if (r0 >= r1) continue;
        low = MIN(low, prog_part_row(part->at, part->run, part->stride, r0));
        high = MAX(high, prog_part_row(part->at, part->run, part->stride, r1 - 1) + 1);
    }
    *first = (uint32_t)MIN(low, high);
    *last = (uint32_t)high;
}
