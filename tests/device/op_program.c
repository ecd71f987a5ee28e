#include "device/op_program.h"
#include "base/checked.h"
#include "base/map.h"
#include "device/op_test.h"
#include "graph/expert_list.h"
#include "kernels/cpu/convert.h"
#include "task/program_make.h"
#include "task/task_verify.h"

#include <stdlib.h>
#include <string.h>

/* ---- operands by the names of their slots ---- */

static const struct op_operand operands[] = {
    {"table", {S_VOCAB, S_HIDDEN}},
    {"next", {S_HIDDEN}},
    {"norm", {S_HIDDEN}},
    {"x", {S_ROWS, S_HIDDEN}},
    {"squares", {S_ROWS, S_SQUARES}},
    {"wq", {S_HEADS, S_HIDDEN}},
    {"wk", {S_KV, S_HIDDEN}},
    {"wv", {S_KV, S_HIDDEN}},
    {"bq", {S_HEADS}},
    {"bk", {S_KV}},
    {"bv", {S_KV}},
    {"q_norm", {S_HEAD}},
    {"k_norm", {S_HEAD}},
    {"qkv", {S_ROWS, S_QKV}},
    {"q", {S_ROWS, S_HEADS}},
    {"a", {S_ROWS, S_K}},
    {"w", {S_HIDDEN, S_K}},
    {"bias", {S_HIDDEN}},
    {"residual", {S_ROWS, S_HIDDEN}},
    {"parts", {S_ROWS, S_PARTS}},
    {"wg", {S_INTER, S_HIDDEN}},
    {"wu", {S_INTER, S_HIDDEN}},
    {"bg", {S_INTER}},
    {"bu", {S_INTER}},
    {"logits", {S_LOGITS, S_VOCAB}},
    {"part", {S_LOGITS, S_BLOCKS, S_TWO}},
    {"list", {S_LISTED, S_LIST_WORDS}},
    {"slots", {S_SLOTS}},
    {"shared", {S_ROWS, S_HIDDEN}},
};

/* The shape that the operator's tests give, else the one that all operators have. */
static const struct op_operand *operand_of(const char *name, enum op_kind kind) {
    const struct op_operand *own = op_test_of(kind)->shapes;
    for (int i = 0; i < OP_TEST_SHAPES && own[i].name != NULL; i++)
        if (strcmp(own[i].name, name) == 0) return &own[i];
    for (size_t i = 0; i < COUNT_OF(operands); i++)
        if (strcmp(operands[i].name, name) == 0) return &operands[i];
    return NULL;
}

static uint64_t size_of(const struct kgraph *g, const struct op_form *f, enum op_size size) {
    const struct model_spec *s = &g->spec;
    const uint64_t heads = (uint64_t)s->n_heads * s->head_dim;
    const uint64_t k = f->wide_k ? s->intermediate : heads;
    switch (size) {
    case S_NONE: return 0;
    case S_ROWS: return g->n_rows;
    case S_LOGITS: return g->attrs.band;
    case S_HIDDEN: return s->hidden;
    case S_HEADS: return heads;
    case S_KV: return (uint64_t)s->n_kv_heads * s->head_dim;
    case S_QKV: return (uint64_t)spec_qkv_units(s) * s->head_dim;
    case S_HEAD: return s->head_dim;
    case S_INTER: return s->intermediate;
    case S_VOCAB: return s->vocab;
    case S_BLOCKS: return CEIL_DIV(s->vocab, (uint32_t)LM_BLOCK);
    case S_K: return k;
    case S_SQUARES: return f->summed ? 1 : CEIL_DIV(s->hidden, (uint32_t)SQUARES_COLUMNS);
    case S_PARTS: return (uint64_t)partial_count(partial_tiles((uint32_t)k)) * s->hidden;
    case S_N_HEADS: return s->n_heads;
    case S_PIECES: return g->n_pieces;
    case S_STATE: return g->attrs.DV + PART_HEAD;
    case S_KEY: return g->attrs.D;
    case S_KEYS: return (uint64_t)s->n_heads * g->attrs.D;
    case S_VALUE: return g->attrs.DV;
    case S_VALUES: return (uint64_t)s->n_heads * g->attrs.DV;
    case S_NOPE: return s->head_dim - spec_rope_dim(s);
    case S_RANK: return MAX(s->latent.q_rank, 48u);
    case S_JOINED: return MAX(s->latent.q_rank, 48u) + g->attrs.D;
    case S_OUT: return (uint64_t)s->n_heads * spec_v_dim(s);
    case S_ONE: return 1;
    case S_TWO: return 2;
    case S_ROUTED: return s->experts.n + s->experts.shared_gate;
    case S_EXPERTS: return s->experts.n;
    case S_TOP_K: return s->experts.top_k;
    case S_WIDTH: return s->experts.width;
    case S_LISTED: return expert_list_rows(g->n_rows, s->experts.n, s->experts.top_k);
    case S_LIST_WORDS: return EXPERT_WORDS;
    case S_SLOTS: return (uint64_t)g->n_rows * s->experts.top_k;
    case S_WEIGHTS: return s->experts.top_k + s->experts.shared_gate;
    case S_CHOSEN: return (uint64_t)s->experts.top_k * s->hidden;
    }
    return 0;
}

/* Whether the form has an optional operand; biases and norms of heads are the model's. */
static bool has_slot(const struct model_spec *s, const struct op_form *f, const char *name) {
    const struct {
        const char *name;
        bool has;
    } rules[] = {
        {"norm", !f->packed || f->kind == OP_EXPERT_GATE_UP || f->kind == OP_ROUTER},
        {"squares", f->packed},
        {"next", f->packed && !f->bare},
        {"residual", !f->bare},
        {"bq", s->qkv_bias},
        {"bk", s->qkv_bias},
        {"bv", s->qkv_bias},
        {"q_norm", s->qk_norm},
        {"k_norm", s->qk_norm},
        {"bias", f->kind == OP_QKV_LINEAR || f->kind == OP_QKV_FUSED ? s->qkv_bias
                 : f->wide_k                                         ? s->mlp_bias
                                                                     : s->o_bias},
        {"bg", s->mlp_bias},
        {"bu", s->mlp_bias},
        {"shared", s->experts.shared_width != 0},
        {"after", false},
    };
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (strcmp(rules[i].name, name) == 0) return rules[i].has;
    return true;
}

/* Packed: what a matrix product takes, and what PACK_LOGITS may find packed. */
static bool is_packed(const struct op_form *f, const char *name) {
    if (f->kind == OP_PACK || f->kind == OP_LATENT_VALUES || f->kind == OP_LATENT_NORM)
        return false;
    return f->packed && (strcmp(name, "x") == 0 || strcmp(name, "a") == 0);
}

static int add_weight(struct diag *d, struct kgraph *g, const char *slot, const uint64_t *shape,
                      bool images, int32_t *index) {
    char *name;
    if (shape[2] != 0) {
        TRY(arena_printf(d, g->arena, &name, "%s.*", slot));
        return kgraph_weight_stacked(d, g, name, shape[0], (enum dtype)g->spec.weight_dtype,
                                     shape[1], images ? 2 * KGRAPH_TURN : 1, shape[2], index);
    }
    TRY(arena_printf(d, g->arena, &name, "%s.%llux%llu", slot, (unsigned long long)shape[0],
                     (unsigned long long)shape[1]));
    return kgraph_weight(d, g, name, shape[1] != 0 ? (enum dtype)g->spec.weight_dtype : DTYPE_F32,
                         shape[1] != 0 ? 2 : 1, shape[0], shape[1], index);
}

static int add_operand(struct diag *d, struct kgraph *g, const struct op_form *f,
                       const struct op_slot *slot, bool images, int32_t *index) {
    if (slot->state) return kgraph_state(d, g, "kv", index);
    const struct op_operand *s = operand_of(slot->name, f->kind);
    uint64_t shape[TENSOR_MAX_DIMS] = {0};
    int n = 0;
    if (s == NULL) return fail(d, QN_EINTERNAL, "no shape for operand %s", slot->name);
    for (; n < TENSOR_MAX_DIMS && s->shape[n] != S_NONE; n++) shape[n] = size_of(g, f, s->shape[n]);
    if (slot->weight) return add_weight(d, g, slot->name, shape, images, index);
    const bool staged = g->n_rows == 1 && n == 2 && expert_row_is_staged(shape[1], shape[0]);
    const bool packed = slot->packed || is_packed(f, slot->name) ||
                        (images && f->kind == OP_EXPERT_DOWN && slot->packable && !staged);
    if (packed && f->kind == OP_LM_HEAD) shape[0] = g->n_logit_rows;
    TRY(kgraph_input(d, g, slot->name, n, shape, packed, index));
    if (slot->integer) g->tensors.items[*index].dtype = DTYPE_I32;
    return QN_OK;
}

/* A GPU's gate and up lie in turns; those of experts, which slices share out, in stacks. */
static int add_turns(struct diag *d, struct kgraph *g, enum op_kind kind, int32_t *in) {
    static const char *const names[] = {"wg", "wu"}, *const patterns[] = {"wg.*", "wu.*"};
    const struct op_info *info = op_info_of(kind);
    const struct model_spec *s = &g->spec;
    const enum dtype dtype = (enum dtype)s->weight_dtype;
    for (int i = 0; i < info->n_in; i++) {
        if (strcmp(info->in[i].name, "wg") != 0) continue;
        if (op_split_of(kind) != SPLIT_SLICES)
            return kgraph_weights_in_turns(d, g, names, 2, KGRAPH_TURN, dtype, s->intermediate,
                                           s->hidden, &in[i]);
        return kgraph_stacks_in_turns(d, g, patterns, 2, s->experts.n, KGRAPH_TURN, dtype,
                                      s->experts.width, s->hidden, &in[i]);
    }
    return QN_OK;
}

static int build(struct diag *d, struct kgraph *g, const struct op_form *f, bool images) {
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT];
    const struct op_info *info = op_info_of(f->kind);
    for (int i = 0; i < OP_MAX_IN; i++) in[i] = NO_TENSOR;
    for (int i = 0; i < OP_MAX_OUT; i++) out[i] = NO_TENSOR;
    if (images) TRY(add_turns(d, g, f->kind, in));
    for (int i = 0; i < info->n_in; i++)
        if (in[i] != NO_TENSOR)
            continue;
        else if (!info->in[i].optional || has_slot(&g->spec, f, info->in[i].name))
            TRY(add_operand(d, g, f, &info->in[i], images, &in[i]));
    for (int i = 0; i < info->n_out; i++)
        if (info->out[i].state) TRY(kgraph_state(d, g, "kv", &out[i]));
    TRY(kgraph_op(d, g, f->kind, 0, in, out));
    for (int i = 0; i < info->n_out && (f->packed || (images && f->kind == OP_EXPERT_GATE_UP));
         i++) {
        bool packed;
        if (out[i] != NO_TENSOR && info->out[i].packable) kgraph_pack_output(g, out[i], &packed);
    }
    return QN_OK;
}

/* ---- stages ---- */

static int compile_stages(struct diag *d, struct tgraph *g) {
    static int (*const stages[])(struct diag *, struct tgraph *) = {
        decompose, memory_plan, depend, event_fuse, normalize, linearize, place, transport};
    for (int i = 0; i < N_TASK_STAGES; i++) {
        TRY(stages[i](d, g));
        TRY(tgraph_verify(d, g, (enum task_stage)i));
    }
    return QN_OK;
}

static enum dtype kv_dtype_of(const struct model_spec *spec) {
    return spec->weight_dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
}

static int compile_variant(struct diag *d, const struct model_spec *spec,
                           const struct op_machine *machine, struct op_program *p, uint32_t i) {
    const struct op_variant *v = &p->variants[i];
    struct kgraph *k = &p->kernel[i];
    const bool cuda = machine->target == TARGET_CUDA;
    struct task_options options = {
        .device = cuda ? device_cuda(machine->wide ? 90 : 80, machine->n_workers, 0)
                       : device_cpu(machine->n_workers),
        .kv_dtype = kv_dtype_of(spec),
        .tasks_per_worker = 1,
        .launch = LAUNCH_ALL_AOT,
        .coarse_events = true};
    options.tiles[v->form->kind] = v->form->tiles;
    kgraph_init(k, &p->arena, spec, v->rows, v->logit_rows, v->context);
    k->decode_only = v->form->decode_only;
    k->attrs.band_first = v->form->band_first;
    k->attrs.band -= v->form->band_first;
    TRY(build(d, k, v->form, cuda));
    TRY(kgraph_verify(d, k));
    tgraph_init(&p->tasks[i], &p->arena, k, &options);
    return compile_stages(d, &p->tasks[i]);
}

/* ---- order ---- */

static int in_order(const void *a, const void *b) {
    const struct op_variant *x = a, *y = b;
    if (x->rows != y->rows) return x->rows < y->rows ? -1 : 1;
    if (x->form->decode_only != y->form->decode_only) return x->form->decode_only ? -1 : 1;
    return x->context < y->context ? -1 : x->context > y->context;
}

/* A program has one variant for each number of rows and contexts. So of those with the same, all
 * but the last are for some positions fewer, which is no piece less. */
static void part_contexts(struct op_program *p, const struct op_machine *machine) {
    for (uint32_t i = 0; i < p->n_variants; i++)
        if (p->variants[i].context == 0) p->variants[i].context = machine->max_model_len;
    qsort(p->variants, p->n_variants, sizeof *p->variants, in_order);
    for (uint32_t i = p->n_variants; i-- > 0;) {
        struct op_variant *v = &p->variants[i];
        const struct op_variant *next = i + 1 < p->n_variants ? v + 1 : NULL;
        if (v->form->decode_only) continue;
        if (next == NULL || next->rows != v->rows)
            v->context = machine->max_model_len;
        else if (v->context >= next->context)
            v->context = next->context - 1;
    }
}

/* ---- transport ---- */

static uint8_t riding(const struct prog_tensor *t, const struct op_slot *slot, uint32_t n_rows) {
    if (t->role != PROG_ACTIVATION || t->dtype != DTYPE_F32 || !slot->flagged)
        return TRANSPORT_COUNTER;
    const bool pairs = n_rows == 1 && t->n_dims == 2 && t->shape[1] % 2 == 0 &&
                       (uint64_t)t->shape[0] * t->shape[1] <= STAGED_COLUMNS;
    return slot->paired && pairs ? TRANSPORT_PAIR : TRANSPORT_FLAG;
}

static void let_ride(struct prog_header *p, uint32_t tensor, const struct op_slot *slot,
                     uint32_t n_rows) {
    struct prog_tensor *t = (struct prog_tensor *)PROG(p, TENSOR) + tensor;
    const uint8_t transport = tensor == PROG_NONE ? TRANSPORT_COUNTER : riding(t, slot, n_rows);
    if (transport == TRANSPORT_COUNTER) return;
    t->transport = transport;
    if (transport == TRANSPORT_FLAG) t->bytes *= 2;
    t->where = align_up(p->workspace_bytes, 256);
    p->workspace_bytes = t->where + align_up(t->bytes, 256);
}

/* Within a program of one operator nothing rides on data: no event lies between two of its tasks.
 * So after the proof the operands are moved to bytes of their own, as transport would. */
static void set_transport(struct op_program *p) {
    for (uint32_t i = 0; i < p->n_variants; i++) {
        if (!p->variants[i].form->rides) continue;
        const struct prog_op *op = &PROG(p->program, OP)[PROG(p->program, VARIANT)[i].first_op];
        const struct op_info *info = op_info_of(op->kind);
        const uint32_t n_rows = p->variants[i].rows;
        for (int k = 0; k < info->n_in; k++) let_ride(p->program, op->in[k], &info->in[k], n_rows);
        for (int k = 0; k < info->n_out; k++)
            let_ride(p->program, op->out[k], &info->out[k], n_rows);
    }
}

/* ---- weights ---- */

static bool contains(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

struct op_values op_values_of(const char *name) {
    return (struct op_values){.seed = hash_bytes(name, strcspn(name, "."), 0),
                              .factor = contains(name, "norm") || contains(name, "next"),
                              .positive = contains(name, "squares")};
}

double op_value(const struct op_values *v, uint64_t i) {
    uint64_t h = (v->seed ^ i) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
    if (v->factor) return (double)(2 + h % 5) / 4;
    if (v->positive) return (double)(1 + h % 16) / 2;
    return ((double)(h % 17) - 8) / 8;
}

static const struct prog_weight *block_of(const struct prog_header *p, uint32_t part) {
    const struct prog_weight *w = PROG(p, WEIGHT);
    while (part - w->first_part >= w->n_parts) w++;
    return w;
}

static int make_weights(struct diag *d, struct op_program *p) {
    const uint64_t n = p->program->section[SECTION_PART].count;
    if (n > COUNT_OF(p->weights)) return fail(d, QN_ELIMIT, "%llu weights", (unsigned long long)n);
    for (uint32_t k = 0; k < n; k++) {
        const struct prog_weight *w = block_of(p->program, k);
        const struct prog_part *part = &PROG(p->program, PART)[k];
        const char *name = program_string(p->program, part->name);
        const uint64_t elements =
            (uint64_t)part->rows * prog_part_tensors(part) * (w->n_dims == 2 ? w->cols : 1);
        const struct op_values values = op_values_of(name);
        p->weights[k] = malloc(elements * dtype_bytes(w->dtype));
        if (p->weights[k] == NULL) return fail_nomem(d, elements, name);
        for (uint64_t i = 0; i < elements; i++)
            convert_store((enum dtype)w->dtype, p->weights[k], i, (float)op_value(&values, i));
    }
    return QN_OK;
}

int op_program_make(struct diag *d, const struct model_spec *spec, const struct op_machine *machine,
                    const struct op_variant *variants, uint32_t n, struct op_program *out) {
    const struct program_config config = {.target = machine->target,
                                          .n_workers = machine->n_workers,
                                          .n_slots = machine->n_slots,
                                          .max_model_len = machine->max_model_len,
                                          .kv_block = machine->kv_block,
                                          .kv_dtype = kv_dtype_of(spec),
                                          .n_ranks = 1,
                                          .model_path = ""};
    *out = (struct op_program){.n_variants = n};
    memcpy(out->variants, variants, n * sizeof *variants);
    part_contexts(out, machine);
    for (uint32_t i = 0; i < n; i++) TRY(compile_variant(d, spec, machine, out, i));
    TRY(program_make(d, &config, out->tasks, n, &out->program));
    TRY(program_check(d, "the operators' program", out->program, out->program->total_bytes));
    TRY(task_verify(d, out->program, NULL));
    set_transport(out);
    return make_weights(d, out);
}

void op_program_fini(struct op_program *p) {
    for (uint32_t i = 0; i < p->n_variants; i++) {
        tgraph_fini(&p->tasks[i]);
        kgraph_fini(&p->kernel[i]);
    }
    for (size_t i = 0; i < COUNT_OF(p->weights); i++) free(p->weights[i]);
    arena_fini(&p->arena);
    free(p->program);
    *p = (struct op_program){0};
}
