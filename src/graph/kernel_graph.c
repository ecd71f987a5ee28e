#include "graph/kernel_graph.h"
#include "base/checked.h"
#include "graph/expert_list.h"
#include "graph/kv_row.h"

#include <math.h>
#include <string.h>

static struct op_attrs attrs_of(const struct model_spec *s) {
    const struct kv_row row = spec_kv_row(s, DTYPE_F32), *kv = &row;
    const uint32_t layer = s->n_layers;
    struct op_attrs a;
#define ATTR(kind, name, fixed, of_model, holds) a.name = (of_model);
#include "graph/attr.def"
    return a;
}

void kgraph_init(struct kgraph *g, struct arena *arena, const struct model_spec *spec,
                 uint32_t n_rows, uint32_t n_logit_rows, uint32_t context) {
    *g = (struct kgraph){.arena = arena,
                         .spec = *spec,
                         .n_rows = n_rows,
                         .n_logit_rows = n_logit_rows,
                         .context = context,
                         .n_pieces = CEIL_DIV(context, (uint32_t)ATTENTION_PIECE),
                         .attrs = attrs_of(spec)};
    g->attrs.band = n_logit_rows;
}

void kgraph_fini(struct kgraph *g) {
    ARRAY_FINI(&g->tensors);
    ARRAY_FINI(&g->ops);
    ARRAY_FINI(&g->parts);
    ARRAY_FINI(&g->blocks);
    ARRAY_FINI(&g->maps.list);
    map_fini(&g->weight_at);
}

/* ---- tensors ------------------------------------------------------------------------------ */

uint64_t tensor_elements(const struct tensor *t) {
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

uint64_t layout_bytes(enum layout layout, enum dtype dtype, int n_dims, const uint64_t *shape) {
    uint64_t n = 1;
    if (layout == LAYOUT_PACKED)
        return packed_rows(shape[0]) * packed_columns(shape[1]) * dtype_bytes(dtype);
    for (int i = 0; i < n_dims; i++) n *= shape[i];
    return n * dtype_bytes(dtype);
}

uint64_t tensor_bytes(const struct tensor *t) {
    return layout_bytes(t->layout, t->dtype, t->n_dims, t->shape);
}

/* The format of packed activations: F16 where the weights are F16, else BF16. */
static enum dtype packed_dtype(const struct kgraph *g) {
    return g->spec.weight_dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
}

static void pack(const struct kgraph *g, struct tensor *t) {
    t->layout = LAYOUT_PACKED;
    t->dtype = packed_dtype(g);
}

/* Whether the operator may store the activation [T, K] packed. EXPERT_GATE_UP's may have any K,
 * but a single row's that EXPERT_DOWN stages is not packed. */
static bool packs(const struct kgraph *g, const struct kop *op, const struct tensor *t) {
    if (op->kind != OP_EXPERT_GATE_UP) return t->shape[1] % PACK_K == 0;
    return g->n_rows > 1 || !expert_row_is_staged(t->shape[1], t->shape[0]);
}

void kgraph_pack_output(struct kgraph *g, int32_t tensor, bool *packed) {
    struct tensor *t = &g->tensors.items[tensor];
    const struct kop *op = &g->ops.items[t->producer];
    const struct op_info *info = op_info_of(op->kind);
    *packed = false;
    for (int i = 0; i < info->n_out; i++)
        if (op->out[i] == tensor) *packed = info->out[i].packable && packs(g, op, t);
    if (*packed) pack(g, t);
}

static int add_tensor(struct diag *d, struct kgraph *g, struct tensor t, int32_t *index) {
    char *name;
    TRY(arena_strdup(d, g->arena, t.name, &name));
    t.name = name;
    TRY(ARRAY_PUSH(d, &g->tensors, t));
    *index = (int32_t)g->tensors.n - 1;
    return QN_OK;
}

/* ---- weights ------------------------------------------------------------------------------ */

/* The weight of that name, which must have that shape; *index NO_TENSOR: there is none. */
static int find_weight(struct diag *d, const struct kgraph *g, const char *name, int n_dims,
                       uint64_t rows, uint64_t cols, int32_t *index) {
    uint64_t at;
    *index = NO_TENSOR;
    if (!map_find(&g->weight_at, name, strlen(name), &at)) return QN_OK;
    const struct tensor *t = &g->tensors.items[at];
    if (t->n_dims != n_dims || t->shape[0] != rows || (n_dims == 2 && t->shape[1] != cols))
        return fail(d, QN_ESHAPE, "weight %s is wanted in two shapes", name);
    *index = (int32_t)at;
    return QN_OK;
}

/* Adds the tensor of parts [first, first + n) of the last block. */
static int add_view(struct diag *d, struct kgraph *g, const char *name, uint32_t first, uint32_t n,
                    int32_t *index) {
    const struct weight_block *b = &g->blocks.items[g->blocks.n - 1];
    struct tensor t = {.name = name,
                       .role = TENSOR_WEIGHT,
                       .dtype = b->dtype,
                       .n_dims = b->n_dims,
                       .shape = {0, b->cols},
                       .producer = -1,
                       .block = (uint32_t)g->blocks.n - 1,
                       .first_part = first,
                       .n_parts = n};
    for (uint32_t i = first; i < first + n; i++) t.shape[0] += g->parts.items[i].rows;
    TRY(add_tensor(d, g, t, index));
    const char *key = g->tensors.items[*index].name;
    return map_put(d, &g->weight_at, key, strlen(key), (uint64_t)*index, NULL);
}

/* Appends a part's name and its source, so that blocks that differ in a source differ in name. */
static void add_name(struct strbuf *name, const struct kgraph_part *part) {
    const struct weight_source *s = &part->source;
    strbuf_str(name, part->name);
    if (weight_source_is_whole(s)) return;
    strbuf_printf(name, "[%u:%u:%u", s->from, s->run, s->skip);
    if (s->pairs != 0) strbuf_printf(name, ",pairs %u", s->pairs);
    strbuf_str(name, s->transposed ? ",transposed]" : "]");
}

/* "a+b": the name of a block. */
static int join_names(struct diag *d, struct kgraph *g, const struct kgraph_part *parts, int n,
                      char **out) {
    struct strbuf name = {0};
    for (int i = 0; i < n; i++) {
        if (i > 0) strbuf_char(&name, '+');
        add_name(&name, &parts[i]);
    }
    int rc = strbuf_status(d, &name);
    if (rc == QN_OK) rc = arena_strdup(d, g->arena, strbuf_text(&name), out);
    strbuf_fini(&name);
    return rc;
}

/* Adds a block of n parts, `run` rows of each in turn; run 0: one after the other. */
static int add_block(struct diag *d, struct kgraph *g, const struct kgraph_part *parts, int n,
                     uint32_t run, enum dtype dtype, int n_dims, uint64_t cols) {
    char *name, *copy;
    struct weight_block b = {.dtype = dtype,
                             .n_dims = n_dims,
                             .cols = n_dims == 2 ? (uint32_t)cols : 0,
                             .first_part = (uint32_t)g->parts.n,
                             .n_parts = (uint32_t)n};
    TRY(join_names(d, g, parts, n, &name));
    b.name = name;
    for (int i = 0; i < n; i++) {
        const uint32_t rows = (uint32_t)parts[i].rows;
        struct weight_part p = {.rows = rows,
                                .at = run != 0 ? run * (uint32_t)i : b.rows,
                                .run = run != 0 ? run : rows,
                                .stride = run != 0 ? run * (uint32_t)n : rows,
                                .source = parts[i].source};
        TRY(arena_strdup(d, g->arena, parts[i].name, &copy));
        p.name = copy;
        b.rows += run != 0 ? CEIL_DIV(rows, run) * run : rows; /* whole turns */
        TRY(ARRAY_PUSH(d, &g->parts, p));
    }
    return ARRAY_PUSH(d, &g->blocks, b);
}

int kgraph_weight(struct diag *d, struct kgraph *g, const char *name, enum dtype dtype, int n_dims,
                  uint64_t rows, uint64_t cols, int32_t *index) {
    const struct kgraph_part part = {.name = name, .rows = rows};
    return kgraph_weight_joined(d, g, &part, 1, dtype, n_dims, cols, index);
}

int kgraph_weight_joined(struct diag *d, struct kgraph *g, const struct kgraph_part *parts, int n,
                         enum dtype dtype, int n_dims, uint64_t cols, int32_t *index) {
    uint64_t rows = 0;
    for (int i = 0; i < n; i++) rows += parts[i].rows;
    if (n == 1) {
        char *name;
        TRY(join_names(d, g, parts, 1, &name));
        TRY(find_weight(d, g, name, n_dims, rows, cols, index));
        if (*index != NO_TENSOR) return QN_OK;
    }
    TRY(add_block(d, g, parts, n, 0, dtype, n_dims, cols));
    const struct weight_block *b = &g->blocks.items[g->blocks.n - 1];
    return add_view(d, g, b->name, b->first_part, b->n_parts, index);
}

int kgraph_weights_in_turns(struct diag *d, struct kgraph *g, const char *const *names, int n,
                            uint32_t run, enum dtype dtype, uint64_t rows, uint64_t cols,
                            int32_t *index) {
    struct kgraph_part parts[KGRAPH_MAX_PARTS] = {0};
    for (int i = 0; i < n; i++) parts[i] = (struct kgraph_part){.name = names[i], .rows = rows};
    TRY(add_block(d, g, parts, n, run, dtype, 2, cols));
    for (int i = 0; i < n; i++)
        TRY(add_view(d, g, names[i], g->blocks.items[g->blocks.n - 1].first_part + (uint32_t)i, 1,
                     &index[i]));
    return QN_OK;
}

int weight_stack_name(struct diag *d, struct arena *arena, const char *pattern, uint32_t i,
                      char **name) {
    const char *star = strchr(pattern, '*');
    if (star == NULL || strchr(star + 1, '*') != NULL)
        return fail(d, QN_EFORMAT, "weights %.200s: want a name with one `*`", pattern);
    return arena_printf(d, arena, name, "%.*s%u%s", (int)(star - pattern), pattern, i, star + 1);
}

/* Makes each part of the last block a stack of n tensors, `step` rows apart. Adds the stacks as
 * weights [n, rows, cols]. */
static int stack_block(struct diag *d, struct kgraph *g, uint64_t n, uint32_t step,
                       int32_t *index) {
    struct weight_block *b = &g->blocks.items[g->blocks.n - 1];
    b->rows = (uint32_t)n * step;
    for (uint32_t i = 0; i < b->n_parts; i++) {
        struct weight_part *p = &g->parts.items[b->first_part + i];
        p->stack = (uint32_t)n;
        p->step = step;
        const struct tensor t = {.name = p->name,
                                 .role = TENSOR_WEIGHT,
                                 .dtype = b->dtype,
                                 .n_dims = 3,
                                 .shape = {n, p->rows, b->cols},
                                 .producer = -1,
                                 .block = (uint32_t)g->blocks.n - 1,
                                 .first_part = b->first_part + i,
                                 .n_parts = 1};
        TRY(add_tensor(d, g, t, &index[i]));
    }
    return QN_OK;
}

int kgraph_weight_stacked(struct diag *d, struct kgraph *g, const char *pattern, uint64_t n,
                          enum dtype dtype, uint64_t rows, uint32_t grain, uint64_t cols,
                          int32_t *index) {
    const struct kgraph_part one = {.name = pattern, .rows = rows};
    TRY(add_block(d, g, &one, 1, 0, dtype, 2, cols));
    return stack_block(d, g, n, (uint32_t)align_up(rows, grain), index);
}

int kgraph_stacks_in_turns(struct diag *d, struct kgraph *g, const char *const *patterns,
                           int n_stacks, uint64_t n, uint32_t run, enum dtype dtype, uint64_t rows,
                           uint64_t cols, int32_t *index) {
    struct kgraph_part parts[KGRAPH_MAX_PARTS] = {0};
    for (int i = 0; i < n_stacks; i++)
        parts[i] = (struct kgraph_part){.name = patterns[i], .rows = rows};
    TRY(add_block(d, g, parts, n_stacks, run, dtype, 2, cols));
    return stack_block(d, g, n, g->blocks.items[g->blocks.n - 1].rows, index);
}

int kgraph_state(struct diag *d, struct kgraph *g, const char *name, int32_t *index) {
    const struct kv_row row = spec_kv_row(&g->spec, DTYPE_BF16);
    struct tensor t = {.name = name,
                       .role = TENSOR_STATE,
                       .dtype = DTYPE_BF16,
                       .layout = LAYOUT_BLOCKS,
                       .n_dims = 2,
                       .shape = {g->n_rows, kv_vectors(&row)},
                       .producer = -1};
    return add_tensor(d, g, t, index);
}

int kgraph_input(struct diag *d, struct kgraph *g, const char *name, int n_dims,
                 const uint64_t shape[TENSOR_MAX_DIMS], bool packed, int32_t *index) {
    struct tensor t = {.name = name, .role = TENSOR_ACTIVATION, .n_dims = n_dims, .producer = -1};
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    if (packed) pack(g, &t);
    return add_tensor(d, g, t, index);
}

/* ---- operators ---------------------------------------------------------------------------- */

static const struct tensor *tensor_at(const struct kgraph *g, int32_t index) {
    return index < 0 || (size_t)index >= g->tensors.n ? NULL : &g->tensors.items[index];
}

static struct map_shape shape_of(const struct tensor *t) {
    struct map_shape s = {0};
    if (t == NULL) return s;
    s.name = t->name;
    s.n_dims = (uint32_t)t->n_dims;
    memcpy(s.shape, t->shape, sizeof s.shape);
    return s;
}

/* An item of ATTENTION_STEP or _WHOLE makes the keys of all rows of its request (STEP_ROWS). */
static int check_rows(struct diag *d, const struct kgraph *g, const struct kop *op) {
    const bool step = op->kind == OP_ATTENTION_STEP;
    const bool whole = op->kind == OP_ATTENTION_WHOLE && !g->decode_only;
    if ((!step && !whole) || g->n_rows <= STEP_ROWS) return QN_OK;
    return fail(d, QN_EINVAL, "%s: want %d rows at most, have %u", op_name(op->kind), STEP_ROWS,
                g->n_rows);
}

/* Binds the operator's row of op.def to its operands. */
static int bind(struct diag *d, const struct kgraph *g, const struct kop *op, struct op_map *map) {
    struct map_source s = {.kind = op->kind,
                           .layer = op->layer,
                           .graph = {g->n_rows, g->n_logit_rows, g->n_pieces},
                           .attrs = op->attrs};
    for (int i = 0; i < OP_MAX_IN; i++) s.in[i] = shape_of(tensor_at(g, op->in[i]));
    for (int i = 0; i < OP_MAX_OUT; i++) s.out[i] = shape_of(tensor_at(g, op->out[i]));
    if (op->kind == OP_RESET_SENTINELS && s.out[0].n_dims == 0) s.out[0].shape[1] = RESET_WORDS;
    if (op->kind == OP_RESET_SENTINELS) s.out[0].n_dims = 2;
    TRY(check_rows(d, g, op));
    return op_map_bind(d, &s, map);
}

static enum tensor_role role_of(const struct op_slot *slot) {
    return slot->weight ? TENSOR_WEIGHT : slot->state ? TENSOR_STATE : TENSOR_ACTIVATION;
}

/* What is wrong with an operand for its slot; NULL: nothing. Weights that are vectors are F32. */
static const char *misfit(const struct kgraph *g, const struct tensor *t,
                          const struct op_slot *slot) {
    if (t->role != role_of(slot)) return "the wrong role";
    if (slot->weight) return t->n_dims == 1 && t->dtype != DTYPE_F32 ? "no 32-bit floats" : NULL;
    if (slot->state) return NULL;
    if (t->layout == LAYOUT_PACKED)
        return !slot->packable               ? "packed elements"
               : t->dtype != packed_dtype(g) ? "the wrong format"
                                             : NULL;
    if (slot->packed) return "unpacked elements";
    return t->dtype != (slot->integer ? DTYPE_I32 : DTYPE_F32) ? "the wrong format" : NULL;
}

/* Checks that required operands are present and that all operands fit their slots. */
static int check_operands(struct diag *d, const struct kgraph *g, const struct kop *op,
                          const struct op_info *info) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        const int32_t t = op->in[i];
        if (i >= info->n_in || t == NO_TENSOR) {
            if (i < info->n_in && !info->in[i].optional)
                return fail(d, QN_ESHAPE, "layer %d %s: operand %s is missing", op->layer,
                            info->name, info->in[i].name);
            continue;
        }
        if (tensor_at(g, t) == NULL)
            return fail(d, QN_EINVAL, "layer %d %s: operand %s is no tensor", op->layer, info->name,
                        info->in[i].name);
        const char *what = misfit(g, tensor_at(g, t), &info->in[i]);
        if (what != NULL)
            return fail(d, QN_EINVAL, "layer %d %s: operand %s (%s) has %s", op->layer, info->name,
                        info->in[i].name, tensor_at(g, t)->name, what);
    }
    return QN_OK;
}

/* The tensor of an output. */
static struct tensor output_of(const struct kgraph *g, const struct op_slot *slot,
                               const struct map_operand *m) {
    struct tensor t = {.role = TENSOR_ACTIVATION,
                       .dtype = slot->integer ? DTYPE_I32 : DTYPE_F32,
                       .n_dims = (int)m->n_dims};
    for (uint32_t i = 0; i < m->n_dims; i++) t.shape[i] = m->dim[i].extent;
    if (slot->packed) pack(g, &t);
    return t;
}

int kgraph_op(struct diag *d, struct kgraph *g, enum op_kind kind, int layer, const int32_t *in,
              int32_t *out) {
    struct op_map map;
    const struct op_info *info = op_info_of(kind);
    struct kop op = {.kind = kind, .layer = layer, .gang = 1, .attrs = g->attrs};
    for (int i = 0; i < OP_MAX_IN; i++) op.in[i] = i < info->n_in ? in[i] : NO_TENSOR;
    for (int i = 0; i < OP_MAX_OUT; i++) op.out[i] = NO_TENSOR;
    TRY(check_operands(d, g, &op, info));
    TRY(bind(d, g, &op, &map));
    TRY(op_maps_keep(d, &g->maps, g->arena, &map, &op.map));
    for (int i = 0; i < info->n_out; i++) {
        if (info->out[i].state) {
            op.out[i] = out[i];
            continue;
        }
        out[i] = NO_TENSOR;
        if (map.out[i].n_dims == 0) continue;
        struct tensor t = output_of(g, &info->out[i], &map.out[i]);
        char *name;
        TRY(arena_printf(d, g->arena, &name, "%d.%s.%s", layer, info->name, info->out[i].name));
        t.name = name;
        t.producer = (int)g->ops.n;
        TRY(add_tensor(d, g, t, &op.out[i]));
        out[i] = op.out[i];
    }
    return ARRAY_PUSH(d, &g->ops, op);
}

uint64_t kgraph_beside(const struct kgraph *g, int32_t op) {
    const struct kop *ops = g->ops.items;
    uint64_t needed = 0;
    int32_t n = 0; /* operators of the layer before this one */
    while (n < op && n < 63 && ops[op - 1 - n].layer == ops[op].layer) n++;
    for (int32_t i = -1; i < n; i++) {
        if (i >= 0 && (needed >> i & 1) == 0) continue;
        for (int k = 0; k < OP_MAX_IN; k++) {
            const int32_t t = ops[op - 1 - i].in[k];
            const int32_t producer = t == NO_TENSOR ? -1 : g->tensors.items[t].producer;
            if (producer >= op - n) needed |= 1ull << (op - 1 - producer);
        }
    }
    return ~needed & ((1ull << n) - 1);
}

/* ---- verify, dump, stats ------------------------------------------------------------------ */

static bool output_fits(const struct kgraph *g, const struct tensor *t, const struct op_slot *slot,
                        const struct map_operand *m, int producer) {
    if (slot->state) return t->role == TENSOR_STATE;
    if (t->producer != producer || misfit(g, t, slot) != NULL) return false;
    bool same = (uint32_t)t->n_dims == m->n_dims;
    for (uint32_t i = 0; same && i < m->n_dims; i++) same = t->shape[i] == m->dim[i].extent;
    return same;
}

static int verify_outputs(struct diag *d, const struct kgraph *g, size_t i,
                          const struct op_info *info, const struct op_map *map) {
    const struct kop *op = &g->ops.items[i];
    for (int k = 0; k < info->n_out; k++) {
        if (map->out[k].n_dims == 0 && op->out[k] == NO_TENSOR) continue;
        const struct tensor *t = tensor_at(g, op->out[k]);
        if (t == NULL)
            return fail(d, QN_EVERIFY, "operator %zu (layer %d %s) lacks output %s", i, op->layer,
                        info->name, info->out[k].name);
        if (!output_fits(g, t, &info->out[k], &map->out[k], (int)i))
            return fail(d, QN_EVERIFY, "operator %zu (layer %d %s): output %s is wrong", i,
                        op->layer, info->name, t->name);
    }
    return QN_OK;
}

int kgraph_verify(struct diag *d, const struct kgraph *g) {
    for (size_t i = 0; i < g->ops.n; i++) {
        const struct kop *op = &g->ops.items[i];
        struct op_map map;
        const struct op_info *info = op_info_of(op->kind);
        TRY(check_operands(d, g, op, info));
        TRY(bind(d, g, op, &map));
        if (memcmp(&map, op->map, sizeof map) != 0)
            return fail(d, QN_EVERIFY, "operator %zu (layer %d %s): its map is of other operands",
                        i, op->layer, info->name);
        for (int k = 0; k < info->n_in; k++)
            if (op->in[k] != NO_TENSOR && g->tensors.items[op->in[k]].producer >= (int)i)
                return fail(d, QN_EVERIFY, "operator %zu (layer %d %s) reads %s before it is made",
                            i, op->layer, info->name, g->tensors.items[op->in[k]].name);
        TRY(verify_outputs(d, g, i, info, &map));
    }
    return QN_OK;
}

static void dump_tensor(const struct kgraph *g, int32_t index, struct strbuf *out) {
    const struct tensor *t = &g->tensors.items[index];
    strbuf_printf(out, " %s:%s[", t->name, dtype_row(t->dtype)->name);
    for (int i = 0; i < t->n_dims; i++)
        strbuf_printf(out, "%s%llu", i > 0 ? "," : "", (unsigned long long)t->shape[i]);
    strbuf_str(out, t->layout == LAYOUT_PACKED ? "] packed" : "]");
}

void kgraph_dump(const struct kgraph *g, struct strbuf *out) {
    strbuf_printf(out, "kernel graph: %zu operators, %u rows%s, %u logit rows, %u positions\n",
                  g->ops.n, g->n_rows, g->decode_only ? ", each of another request" : "",
                  g->n_logit_rows, g->context);
    for (size_t i = 0; i < g->ops.n; i++) {
        const struct kop *op = &g->ops.items[i];
        strbuf_printf(out, "%4zu L%d %s:", i, op->layer, op_name(op->kind));
        for (int k = 0; k < OP_MAX_IN; k++)
            if (op->in[k] != NO_TENSOR) dump_tensor(g, op->in[k], out);
        strbuf_str(out, " ->");
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (op->out[k] != NO_TENSOR) dump_tensor(g, op->out[k], out);
        strbuf_char(out, '\n');
    }
}

void kgraph_stats(const struct kgraph *g, struct kgraph_stats *stats) {
    *stats = (struct kgraph_stats){.n_ops = g->ops.n, .n_tensors = g->tensors.n};
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct tensor *t = &g->tensors.items[i];
        if (t->role == TENSOR_WEIGHT) stats->weight_bytes += tensor_bytes(t);
        if (t->role == TENSOR_ACTIVATION) stats->activation_bytes += tensor_bytes(t);
    }
}
