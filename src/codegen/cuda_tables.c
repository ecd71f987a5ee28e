#include "codegen/cuda_tables.h"
#include "base/checked.h"
#include "codegen/emit.h"
#include "base/arena.h"
#include "graph/expert_list.h"
#include "graph/kernel_graph.h"
#include "task/program_map.h"

#include <stdbool.h>
#include <string.h>

enum { PLACE_ALIGN = 1024, EXPERT_MOST_HIDDEN = 11008 };

static const struct prog_tensor *tensor_of(const struct prog_header *p, uint32_t tensor) {
    return tensor == PROG_NONE ? NULL : &PROG(p, TENSOR)[tensor];
}

static bool is_packed_tensor(const struct prog_tensor *t) {
    return t != NULL && t->layout == LAYOUT_PACKED;
}

/* Whether a matrix product's activations are packed. */
static bool is_packed(const struct prog_header *p, const struct prog_op *op) {
    return cuda_has_pages(op->kind) && is_packed_tensor(tensor_of(p, op->in[0]));
}

/* ---- operands ---- */

/* For each word of struct cuda_task its operand's name in op.def; "": none. */
struct words {
    const char *w, *in, *norm, *bias, *more, *more2, *out, *out2;
};
#define OPERANDS(ID, w, in, norm, bias, more, more2, out, out2)                                    \
    [OP_##ID] = {#w, #in, #norm, #bias, #more, #more2, #out, #out2},
static const struct words words[N_OP_KINDS] = {
#include "kernels/cuda/form.def"
};

/* The names of the operands in struct cuda_beyond; "": none. */
#define BEYOND(ID, ...)                           [OP_##ID] = {BEYOND_NAMES(__VA_ARGS__)},
#define BEYOND_NAMES(list, slots, weight, shared) #list, #slots, #weight, #shared
static const char *const beyond[N_OP_KINDS][N_BEYOND] = {
#include "kernels/cuda/form.def"
};

static bool has_beyond(const struct prog_op *op) {
    return beyond[op->kind][0] != NULL;
}

/* The operator's tensor of that name; PROG_NONE: it has none, or the name is "". */
static uint32_t tensor_named(const struct prog_op *op, const struct op_info *info,
                             const char *name) {
    if (name == NULL || *name == '\0') return PROG_NONE;
    for (int i = 0; i < info->n_out; i++)
        if (strcmp(info->out[i].name, name) == 0) return op->out[i];
    for (int i = 0; i < info->n_in; i++)
        if (strcmp(info->in[i].name, name) == 0) return op->in[i];
    return PROG_NONE;
}

/* The sums of squares that an operator reads or writes. */
static uint32_t squares_of(const struct prog_op *op) {
    const struct op_info *info = op_info_of(op->kind);
    return tensor_named(op, info, "squares");
}

/* The first result that an operator stores packed or in pairs; NULL: none. If the operator writes
 * the residual stream, it is `normed`. */
static const struct prog_tensor *rounded_out(const struct prog_header *p,
                                             const struct prog_op *op) {
    const struct op_info *info = op_info_of(op->kind);
    for (int i = 0; i < info->n_out; i++)
        if (info->out[i].packable || info->out[i].paired) return tensor_of(p, op->out[i]);
    return NULL;
}

/* ---- places ---- */

/* Bytes of a block: a vector, or an image. An image has whole units of the LM head: its last unit
 * may lack rows, but no pages. */
static uint64_t block_bytes(const struct prog_weight *w) {
    if (w->n_dims == 1) return (uint64_t)w->rows * 4;
    const uint64_t row_blocks =
        CEIL_DIV((uint64_t)w->rows, (uint64_t)LM_BLOCK) * (LM_BLOCK / CUDA_PAGE_ROWS);
    return row_blocks * cuda_k_tiles(w->cols) * CUDA_PAGE_BYTES;
}

/* Whether two matrices of an operator lie in turns of half a row block. */
static bool in_turns(const struct prog_header *p, const struct prog_op *op, int wg, int wu) {
    const struct prog_tensor *gate = tensor_of(p, op->in[wg]), *up = tensor_of(p, op->in[wu]);
    const struct prog_part *g = &PROG(p, PART)[gate->part], *u = &PROG(p, PART)[up->part];
    return gate->where == up->where && g->at == 0 && u->at == KGRAPH_TURN &&
           g->run == KGRAPH_TURN && u->run == KGRAPH_TURN && g->stride == CUDA_PAGE_ROWS &&
           u->stride == CUDA_PAGE_ROWS;
}

/* All layers must have the same KV row, because its strides are constants of the image, and
 * elements of 16 bits. */
static int check_kv(struct diag *d, const struct prog_header *p) {
    const struct kv_row *r = PROG(p, KV);
    for (uint64_t i = 0; i < p->section[SECTION_KV].count; i++) {
        if (r[i].dtype != DTYPE_BF16 && r[i].dtype != DTYPE_F16)
            return fail(d, QN_EUNSUPPORTED, "the GPU's KV cache is bfloat16 or float16");
        if (memcmp(&r[i], r, sizeof *r) != 0)
            return fail(d, QN_EUNSUPPORTED,
                        "KV rows 0 and %llu differ: the GPU kernels want one for all layers",
                        (unsigned long long)i);
    }
    return QN_OK;
}

/* Latents are copied and multiplied 16 bytes at a time. What RoPE leaves of a query head must fit a
 * page's columns. */
static int check_latent(struct diag *d, const struct prog_header *p) {
    const struct model_spec *s = PROG(p, MODEL);
    const struct latent_spec *l = &s->latent;
    const uint32_t nope = s->head_dim - l->rope;
    if (!spec_is_latent(s)) return QN_OK;
    if (l->kv_rank % 8 == 0 && l->rope % 8 == 0 && nope % 8 == 0 && nope <= CUDA_PAGE_K &&
        l->q_rank % 8 == 0)
        return QN_OK;
    return fail(
        d, QN_EUNSUPPORTED,
        "kv_lora_rank %u, q_lora_rank %u, qk_rope_head_dim %u, qk_nope_head_dim %u: the GPU "
        "kernels want multiples of 8, the last one up to %d",
        l->kv_rank, l->q_rank, l->rope, nope, CUDA_PAGE_K);
}

/* Refuses models that the kernels cannot run. */
static int check_model(struct diag *d, const struct prog_header *p) {
    const struct model_spec *s = PROG(p, MODEL);
    if (s->head_dim % 8 != 0 || s->head_dim > 256)
        return fail(d, QN_EUNSUPPORTED,
                    "head_dim %u: the GPU kernels want a multiple of 8 up to 256", s->head_dim);
    if (s->hidden % 8 != 0)
        return fail(d, QN_EUNSUPPORTED, "hidden %u: the GPU kernels want a multiple of 8",
                    s->hidden);
    TRY(check_latent(d, p));
    return check_kv(d, p);
}

/* Whether the experts' h [slots, width] is packed, or a single row's that EXPERT_DOWN stages. */
static bool is_h_as_wanted(const struct prog_tensor *h, uint32_t n_rows) {
    const bool staged = n_rows == 1 && expert_row_is_staged(h->shape[1], h->shape[0]);
    return is_packed_tensor(h) != staged;
}

/* Scratch holds the squares of a pass's slots, which bounds the hidden size. A place of the work
 * list, whose items are row blocks of eight rows of gate, is one 32-bit word. */
static const char *check_gate_up(const struct prog_header *p, const struct prog_op *op) {
    const struct model_spec *s = PROG(p, MODEL);
    const uint64_t places = ((uint64_t)s->experts.width + CUDA_PAGE_ROWS / 2 - 1) /
                            (CUDA_PAGE_ROWS / 2) *
                            (s->experts.n + (uint64_t)op->n_rows * s->experts.top_k);
    if (!in_turns(p, op, GATE_UP_WG, GATE_UP_WU)) return "gate and up in turns of eight rows";
    if (s->hidden > EXPERT_MOST_HIDDEN) return "a hidden size of up to 11,008";
    if (op->attrs.placed != emit_placing(p)) return "all experts placed alike";
    if (!is_h_as_wanted(tensor_of(p, op->out[0]), op->n_rows))
        return "its result packed, unless it is a single row's that is staged";
    return places > UINT32_MAX ? "fewer experts or token rows" : NULL;
}

static const char *check_down(const struct prog_header *p, const struct prog_op *op) {
    if (!is_h_as_wanted(tensor_of(p, op->in[DOWN_H]), op->n_rows))
        return "its activations packed, unless they are a single row's that are staged";
    if (op->n_rows > 1 && op->in[DOWN_NEXT] == PROG_NONE)
        return "of several rows a norm that comes next";
    return NULL;
}

/* Whether each row of the operator is another request's. */
static bool is_decode_only(const struct prog_header *p, const struct prog_op *op) {
    const uint32_t at = (uint32_t)(op - PROG(p, OP));
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++) {
        const struct prog_variant *v = &PROG(p, VARIANT)[i];
        if (at - v->first_op < v->n_ops) return v->decode_only != 0;
    }
    return false;
}

/* ATTENTION_STEP and _WHOLE make the keys and values of all rows of a request in scratch. */
static bool can_step(const struct prog_header *p, const struct prog_op *op) {
    return op->n_rows <= STEP_ROWS || (op->n_rows <= CUDA_PLACES && is_decode_only(p, op));
}

/* The parts of LINEAR_SPLITK are whole row blocks. */
static bool can_cut(const struct prog_header *p, const struct prog_op *op) {
    const uint64_t rows = tensor_of(p, op->in[PARTS_W])->shape[0];
    const uint64_t parts = partial_count(cuda_k_tiles(op->k));
    return is_packed(p, op) && op->n_rows <= SPLITK_ROWS && rows % CUDA_PAGE_ROWS == 0 &&
           op->units == parts * rows;
}

/* Whether an operator depends on the window of positions that its rows see. */
static bool has_window(uint32_t kind) {
    return kind == OP_ATTENTION || kind == OP_ATTENTION_SPLIT || kind == OP_ATTENTION_STEP ||
           kind == OP_ATTENTION_WHOLE || kind == OP_ATTENTION_MERGE;
}

/* An image whose layers all have one window has it as a constant: the model's. */
static bool is_window_known(const struct prog_header *p, const struct prog_op *op) {
    const struct model_spec *s = PROG(p, MODEL);
    return !has_window(op->kind) || op->layer < 0 || (uint32_t)op->layer >= s->n_layers ||
           op->attrs.window == spec_window(s, (uint32_t)op->layer);
}

/* Whether each head has its own matrices. The activations of such operators are rows. */
static bool is_of_latents(uint32_t kind) {
    return kind == OP_LATENT_HEADS || kind == OP_LATENT_VALUES || kind == OP_LATENT_MERGE;
}

/* Groups of PACK_ROWS rows of packed activations. */
static uint32_t eights_of(const struct prog_tensor *t) {
    return is_packed_tensor(t) ? CEIL_DIV(t->shape[0], (uint32_t)PACK_ROWS) : 0;
}

/* Groups of rows of the packed activations that an operator reads or writes. If it does both, the
 * numbers are the same, except for PACK_LOGITS. */
static uint32_t n_eights(const struct prog_header *p, const struct prog_op *op) {
    const struct prog_tensor *out = rounded_out(p, op);
    return eights_of(is_packed_tensor(out) ? out : tensor_of(p, op->in[0]));
}

static uint32_t n_pieces(const struct prog_header *p, const struct prog_op *op) {
    switch (op->kind) {
    case OP_ATTENTION_SPLIT:
    case OP_ATTENTION_STEP: return tensor_of(p, op->out[0])->shape[2]; /* [T, n_heads, P, part] */
    case OP_LATENT_MERGE:
    case OP_ATTENTION_MERGE: return tensor_of(p, op->in[MERGE_PART])->shape[2];
    case OP_PACK_LOGITS: return eights_of(tensor_of(p, op->in[PACK_X]));
    case OP_ROUTE:
    case OP_ROUTE_TOP_K: return (uint32_t)op->layer;
    case OP_LATENT_NORM: return tensor_of(p, op->in[LATENT_NORM_X])->shape[1];
    case OP_LATENT_HEADS: return tensor_of(p, op->in[LATENT_C])->shape[1];
    case OP_LINEAR_SPLITK: return tensor_of(p, op->in[PARTS_W])->shape[0] / CUDA_PAGE_ROWS;
    case OP_SPLITK_SUM: return tensor_of(p, op->in[SUM_PARTS])->shape[1] / PROG(p, MODEL)->hidden;
    default: {
        const struct prog_tensor *squares = tensor_of(p, squares_of(op)); /* [T, parts] */
        return squares == NULL ? 0 : squares->shape[1];
    }
    }
}

/* The reason why the kernels cannot run an operator; NULL: they can. Matrix products take packed
 * activations that their writer has normed, or one row that fits scratch, which they norm. */
static const char *check_op(const struct prog_header *p, const struct prog_op *op) {
    const struct prog_tensor *squares = tensor_of(p, squares_of(op));
    if (op->gang != 1) return "each task by itself, no gangs";
    if (n_eights(p, op) > UINT16_MAX || n_pieces(p, op) > UINT16_MAX)
        return "fewer token rows, experts of a row, or columns";
    if (!is_window_known(p, op)) return "the window that the model has for the layer";
    if ((op->kind == OP_ATTENTION_STEP || op->kind == OP_ATTENTION_WHOLE) && !can_step(p, op))
        return "few rows, or rows of different requests";
    if (op->kind == OP_ATTENTION_SPLIT && !spec_is_latent(PROG(p, MODEL)))
        return "heads and attention in one operator (qkv=joined)";
    if ((op->kind == OP_SPLITK_SUM || op->kind == OP_EXPERT_SUM) &&
        PROG(p, MODEL)->hidden % SQUARES_COLUMNS != 0)
        return "whole blocks of squares";
    if (op->kind == OP_GROUPED_GATE_UP && !in_turns(p, op, GROUPED_UP_WG, GROUPED_UP_WU))
        return "gate and up in turns of eight rows";
    if ((op->kind == OP_ROUTE || op->kind == OP_ROUTE_LIST) && op->attrs.top_k > CUDA_MOST_TOP_K)
        return "up to 512 experts of a row";
    if (op->kind == OP_EXPERT_GATE_UP) return check_gate_up(p, op);
    if (op->kind == OP_EXPERT_DOWN) return check_down(p, op);
    if (!cuda_has_pages(op->kind) || op->kind == OP_ROUTER || is_of_latents(op->kind)) return NULL;
    if (op->kind == OP_GATED_MLP && op->units % 8 != 0) return "a multiple of 8 units";
    if (op->kind == OP_GATED_MLP && emit_mlp_width(p) == 0 && op->units > STAGED_COLUMNS)
        return "several widths that are no wider than a single row in scratch";
    if (op->kind == OP_GATED_MLP && !in_turns(p, op, MLP_WG, MLP_WU))
        return "gate and up in turns of eight rows";
    if (op->kind == OP_LINEAR_SPLITK)
        return can_cut(p, op) ? NULL : "packed activations of few rows, whole row blocks";
    if (!is_packed(p, op)) {
        if (op->n_rows > 1 || op->k > STAGED_COLUMNS) return "its activations packed";
        return squares != NULL ? "no norm ahead of a single row" : NULL;
    }
    if (op->kind == OP_LINEAR) {
        const bool stream = op->in[LINEAR_RESIDUAL] != PROG_NONE;
        if (op->in[LINEAR_NEXT] == PROG_NONE) return NULL;
        return stream ? NULL : "a residual stream where a norm comes next";
    }
    if (squares == NULL) return "its activations normed";
    return op->n_rows > SQUARES_ROWS && squares->shape[1] != 1 ? "its squares added up" : NULL;
}

static int check_ops(struct diag *d, const struct prog_header *p) {
    const uint32_t width = emit_linear_width(p, EMIT_LINEAR_WIDTHS);
    if (width != 0)
        return fail(d, QN_EUNSUPPORTED,
                    "operator %s of %u columns: the GPU kernels of a program are compiled for %d "
                    "lengths of its dot products at most",
                    op_name(OP_LINEAR), width, EMIT_LINEAR_WIDTHS);
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++) {
        const struct prog_op *op = &PROG(p, OP)[i];
        const char *want = check_op(p, op);
        if (want != NULL)
            return fail(d, QN_EUNSUPPORTED,
                        "operator %s of %u rows and %u columns: the GPU kernels want %s",
                        op_name(op->kind), op->n_rows, op->k, want);
    }
    return QN_OK;
}

int cuda_tables_check(struct diag *d, const struct prog_header *p, const struct cuda_bases *bases) {
    const uint32_t cc = bases->cc;
    if (bases->rank >= p->n_ranks)
        return fail(d, QN_EUNSUPPORTED, "rank %u: the program is for %u GPUs", bases->rank,
                    p->n_ranks);
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++)
        if (PROG(p, OP)[i].kind == OP_LINEAR_SPLITK && cc / 10 != 9)
            return fail(d, QN_EUNSUPPORTED,
                        "the program has %s, for which sm_%u has no kernel: compile it with "
                        "linear=whole",
                        op_name(OP_LINEAR_SPLITK), cc);
    bool used[N_FORMS];
    return cuda_form_used(d, p, cc, used);
}

uint64_t cuda_tables_bytes(const struct prog_header *program) {
    uint64_t rows = 0;
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++)
        rows += has_beyond(&PROG(program, OP)[i]);
    return program->section[SECTION_TASK].count * sizeof(struct cuda_task) +
           rows * sizeof(struct cuda_beyond);
}

int cuda_tables_plan(struct diag *d, const struct prog_header *program, struct cuda_place *places,
                     uint64_t *bytes) {
    TRY(check_model(d, program));
    TRY(check_ops(d, program));
    *bytes = 0;
    for (uint64_t i = 0; i < program->section[SECTION_WEIGHT].count; i++) {
        const struct prog_weight *w = &PROG(program, WEIGHT)[i];
        places[i] = (struct cuda_place){.offset = *bytes,
                                        .k_tiles = w->n_dims == 2 ? cuda_k_tiles(w->cols) : 0};
        *bytes += align_up(block_bytes(w), PLACE_ALIGN);
    }
    return QN_OK;
}

/* ---- the task table ---- */

struct filler {
    const struct prog_header *program;
    const struct cuda_place *places;
    const struct cuda_bases *bases;
    uint64_t table; /* EMBED's */
    const struct program_maps *maps;
    struct cuda_form_host forms;
    uint64_t *beyond;           /* of each operator, the address of its struct cuda_beyond */
    struct cuda_task *operands; /* of each operator, what its tasks share (fill_operands) */
};

static uint64_t address(const struct filler *f, uint32_t tensor) {
    const struct prog_tensor *t = tensor_of(f->program, tensor);
    if (t == NULL) return 0;
    if (t->role == PROG_WEIGHT) return f->bases->weights + f->places[t->where].offset;
    if (t->role == PROG_ACTIVATION) return f->bases->workspace + t->where;
    return f->bases->kv + program_kv_at(f->program, t->where, f->bases->n_kv_blocks);
}

/* The logit row of row 0 of an operator's tasks. In descriptors of LM_HEAD and SAMPLE, rows are
 * logit rows of the iteration, whatever the band. */
static uint32_t first_logit_row(const struct prog_op *op) {
    return op->kind == OP_LM_HEAD || op->kind == OP_SAMPLE ? op->attrs.band_first : 0;
}

/* The same as address(). Of a tensor that holds only a band's rows: where logit row 0 would lie. */
static uint64_t address_of_rows(const struct filler *f, const struct prog_op *op, uint32_t tensor) {
    const struct prog_tensor *t = tensor_of(f->program, tensor);
    const uint64_t at = address(f, tensor);
    if (t == NULL || t->role != PROG_ACTIVATION || t->shape[0] != op->attrs.band) return at;
    return at - first_logit_row(op) * (t->bytes / t->shape[0]);
}

/* The address of the table of embeddings, of which SAMPLE prefetches the token's row; 0: the
 * program has none. */
static uint64_t embed_table(const struct filler *f) {
    const struct prog_op *ops = PROG(f->program, OP);
    for (uint64_t i = 0; i < f->program->section[SECTION_OP].count; i++)
        if (ops[i].kind == OP_EMBED) return address(f, ops[i].in[EMBED_TABLE]);
    return 0;
}

/* The operands' addresses, by form.def's table. */
static struct cuda_task operands_of(const struct filler *f, const struct prog_op *op) {
    struct cuda_task o = {0};
    const struct words *names = &words[op->kind];
    const struct {
        uint64_t *word;
        const char *name;
    } all[] = {{&o.w, names->w},       {&o.in, names->in},     {&o.norm, names->norm},
               {&o.bias, names->bias}, {&o.more, names->more}, {&o.more2, names->more2},
               {&o.out, names->out},   {&o.out2, names->out2}};
    const struct op_info *info = op_info_of(op->kind);
    for (size_t i = 0; i < COUNT_OF(all); i++)
        *all[i].word = address_of_rows(f, op, tensor_named(op, info, all[i].name));
    if (op->kind == OP_SAMPLE) o.w = f->table;
    if (has_beyond(op)) o.bias = f->beyond[op - PROG(f->program, OP)];
    return o;
}

/* Fills the rows behind the task table, and f->beyond with their addresses. */
static int fill_beyond(struct diag *d, struct filler *f, struct arena *arena,
                       struct cuda_task *tasks) {
    const struct prog_op *ops = PROG(f->program, OP);
    const uint64_t n_tasks = f->program->section[SECTION_TASK].count;
    struct cuda_beyond *rows = (struct cuda_beyond *)(tasks + n_tasks);
    uint64_t next = f->bases->tasks + n_tasks * sizeof *tasks;
    TRY(ARENA_NEW(d, arena, &f->beyond, f->program->section[SECTION_OP].count));
    for (uint64_t i = 0; i < f->program->section[SECTION_OP].count; i++) {
        if (!has_beyond(&ops[i])) continue;
        const struct op_info *info = op_info_of(ops[i].kind);
        for (int k = 0; k < N_BEYOND; k++)
            rows->at[k] = address(f, tensor_named(&ops[i], info, beyond[ops[i].kind][k]));
        f->beyond[i] = next;
        next += sizeof *rows;
        rows++;
    }
    return QN_OK;
}

/* Sets the row blocks of its image that a task reads, [block0, block1). LINEAR_SPLITK numbers its
 * row blocks on from part to part, EXPERT_DOWN within one expert; of GROUPED_*, a task has all row
 * blocks of an expert. The LM head's last unit may lack rows, but no row blocks. */
static void fill_blocks(const struct filler *f, const struct prog_op *op, const struct op_map *map,
                        struct cuda_task *t) {
    struct prog_weight_rows rows[OP_MAX_IN];
    if (op->kind == OP_EXPERT_DOWN) {
        t->block0 = t->unit0 / CUDA_PAGE_ROWS;
        t->block1 = CEIL_DIV(t->unit1, (uint32_t)CUDA_PAGE_ROWS);
    }
    if (cuda_is_grouped(op->kind)) {
        const uint64_t of_expert =
            op->kind == OP_GROUPED_DOWN
                ? tensor_of(f->program, op->in[GROUPED_DOWN_WD])->shape[1]
                : 2 * align_up(tensor_of(f->program, op->in[GROUPED_UP_WG])->shape[1], KGRAPH_TURN);
        t->block1 = (uint32_t)CEIL_DIV(of_expert, (uint64_t)CUDA_PAGE_ROWS);
    }
    if (!cuda_has_pages(op->kind)) return;
    const int n = program_weight_rows(op, map, t->unit0, t->unit1, rows);
    uint32_t low = UINT32_MAX, high = 0;
    for (int i = 0; i < n; i++) {
        uint32_t first, last;
        program_block_rows(f->program, tensor_of(f->program, rows[i].tensor), rows[i].row0,
                           rows[i].row1, &first, &last);
        low = MIN(low, first);
        high = MAX(high, last);
    }
    if (op->kind == OP_LINEAR_SPLITK) {
        low = t->unit0;
        high = t->unit1;
    }
    low = MIN(low, high); /* LATENT_HEADS: turned columns have no rows */
    t->block0 = low / CUDA_PAGE_ROWS;
    t->block1 = CEIL_DIV(high, (uint32_t)CUDA_PAGE_ROWS);
    if (op->kind == OP_LM_HEAD) t->block1 = t->unit1 * (LM_BLOCK / CUDA_PAGE_ROWS);
}

/* Fills f->operands. */
static int list_operands(struct diag *d, struct filler *f, struct arena *arena) {
    const struct prog_op *ops = PROG(f->program, OP);
    const uint64_t n = f->program->section[SECTION_OP].count;
    TRY(ARENA_NEW(d, arena, &f->operands, n));
    for (uint64_t i = 0; i < n; i++) {
        f->operands[i] = operands_of(f, &ops[i]);
        f->operands[i].n_pieces = (uint16_t)n_pieces(f->program, &ops[i]);
    }
    return QN_OK;
}

static void fill_operands(const struct cuda_task *o, struct cuda_task *t) {
    t->w = o->w;
    t->in = o->in;
    t->norm = o->norm;
    t->bias = o->bias;
    t->more = o->more;
    t->more2 = o->more2;
    t->out = o->out;
    t->out2 = o->out2;
    t->n_pieces = o->n_pieces;
}

/* Whether an event is carried by data. It is counted all the same, as a hint of when to look. */
static bool is_hint(const struct prog_header *p, uint32_t event) {
    return event != PROG_NONE && PROG(p, EVENT)[event].transport == TRANSPORT_FLAG;
}

static bool travels_by(const struct prog_tensor *t, enum prog_transport transport) {
    return t != NULL && t->transport == transport;
}

static uint16_t flags_of(const struct prog_header *p, const struct prog_variant *v,
                         const struct prog_task *t) {
    uint16_t flags = 0;
    if (t->trigger != PROG_NONE && t->trigger == v->end_event) flags |= CUDA_TRIGGER_WATCHED;
    if (is_hint(p, t->wait)) flags |= CUDA_WAIT_HINT;
    if (is_hint(p, t->trigger)) flags |= CUDA_TRIGGER_HINT;
    if (t->op == PROG_NONE) return flags;
    const struct prog_op *op = &PROG(p, OP)[t->op];
    /* the activations come first */
    const struct prog_tensor *in = tensor_of(p, op->in[0]), *out = tensor_of(p, op->out[0]);
    const struct prog_tensor *rounded = rounded_out(p, op);
    const struct prog_tensor *more =
        tensor_of(p, tensor_named(op, op_info_of(op->kind), words[op->kind].more));
    const struct prog_tensor *shared =
        tensor_of(p, tensor_named(op, op_info_of(op->kind), beyond[op->kind][BEYOND_SHARED]));
    if (travels_by(in, TRANSPORT_FLAG)) flags |= CUDA_IN_FLAGGED;
    if (travels_by(in, TRANSPORT_PAIR)) flags |= CUDA_IN_PAIRED;
    if (travels_by(more, TRANSPORT_FLAG)) flags |= CUDA_MORE_FLAGGED;
    if (travels_by(out, TRANSPORT_FLAG)) flags |= CUDA_OUT_FLAGGED;
    if (travels_by(rounded, TRANSPORT_PAIR)) flags |= CUDA_OUT_PAIRED;
    if (travels_by(shared, TRANSPORT_FLAG)) flags |= CUDA_SHARED_FLAGGED;
    if (travels_by(more, TRANSPORT_OWN)) flags |= CUDA_MORE_OWN;
    if (op->kind == OP_EXPERT_GATE_UP &&
        (travels_by(more, TRANSPORT_FLAG) || travels_by(more, TRANSPORT_SENTINEL)))
        flags |= CUDA_LOGITS_POLLED;
    if (is_packed_tensor(in)) flags |= CUDA_IN_PACKED;
    if (is_packed_tensor(rounded)) flags |= CUDA_OUT_PACKED;
    return flags;
}

/* Sets k and k_tiles. k is the length of the dot products, except: columns that PACK and
 * LATENT_NORM read, columns of LATENT_HEADS' raw, bytes of a unit of RESET_SENTINELS, positions
 * that a row of attention sees, rows of ROUTE and ROUTE_LIST. */
static void fill_lengths(const struct prog_header *p, const struct prog_op *op,
                         struct cuda_task *t) {
    t->k = op->k;
    if (op->kind == OP_PACK || op->kind == OP_PACK_LOGITS)
        t->k = tensor_of(p, op->in[PACK_X])->shape[1];
    if (op->kind == OP_LATENT_NORM) t->k = tensor_of(p, op->in[LATENT_NORM_W])->shape[0];
    t->k_tiles = cuda_k_tiles(t->k);
    if (op->kind == OP_ROUTE || op->kind == OP_ROUTE_LIST) t->k = tensor_of(p, op->in[0])->shape[0];
    if (op->kind == OP_LATENT_HEADS) t->k = tensor_of(p, op->in[LATENT_RAW])->shape[1];
    if (op->kind == OP_RESET_SENTINELS) t->k = 4 * tensor_of(p, op->out[0])->shape[1];
    if (has_window(op->kind)) t->k = op->attrs.window;
}

void cuda_tables_shape(const struct prog_header *p, const struct prog_task *t,
                       struct cuda_task *out) {
    *out = (struct cuda_task){.kind = (uint8_t)t->kind,
                              .row0 = t->row0,
                              .row1 = t->row1,
                              .unit0 = t->unit0,
                              .unit1 = t->unit1};
    if (t->op == PROG_NONE) return;
    const struct prog_op *op = &PROG(p, OP)[t->op];
    out->row0 += first_logit_row(op);
    out->row1 += first_logit_row(op);
    out->units = op->units;
    fill_lengths(p, op, out);
    out->eights = (uint16_t)n_eights(p, op);
}

static void fill_task(const struct filler *f, const struct prog_variant *v, uint32_t index,
                      struct cuda_task *out) {
    const struct prog_task *t = &PROG(f->program, TASK)[index];
    const struct prog_op *op = t->op == PROG_NONE ? NULL : &PROG(f->program, OP)[t->op];
    /* A block that runs the task knows that its iteration has begun. */
    const uint32_t wait = t->wait == v->start_event ? PROG_NONE : t->wait;
    cuda_tables_shape(f->program, t, out);
    out->flags = flags_of(f->program, v, t);
    out->wait = wait;
    out->wait_triggers = wait == PROG_NONE ? 0 : PROG(f->program, EVENT)[wait].n_triggers;
    out->trigger = t->trigger;
    out->index = index;
    if (op != NULL) {
        fill_operands(&f->operands[t->op], out);
        fill_blocks(f, op, f->maps->of[t->op].map, out);
    }
    cuda_form_fill(&f->forms, op, out);
}

/* Marks the tasks of a worker's list for whose list of experts its loader has waited earlier. */
static void mark_known_lists(const struct prog_header *p, const struct prog_list *list,
                             struct cuda_task *tasks) {
    uint32_t known = PROG_NONE; /* tensor */
    for (uint32_t i = list->first; i < list->first + list->n; i++) {
        const uint32_t task = PROG(p, AOT)[i], o = PROG(p, TASK)[task].op;
        const struct prog_op *op = o == PROG_NONE ? NULL : &PROG(p, OP)[o];
        if (op != NULL && op->kind == OP_EXPERT_GATE_UP) known = op->in[GATE_UP_LIST];
        if (op != NULL && op->kind == OP_EXPERT_DOWN && op->in[DOWN_LIST] == known)
            tasks[task].flags |= CUDA_LIST_KNOWN;
    }
}

int cuda_tables_fill(struct diag *d, const struct prog_header *program,
                     const struct cuda_place *places, const struct cuda_bases *bases,
                     struct cuda_task *tasks) {
    struct program_maps maps;
    struct arena arena = {0};
    struct filler f = {.program = program,
                       .places = places,
                       .bases = bases,
                       .maps = &maps,
                       .forms = cuda_form_host_for(program, bases->cc)};
    f.table = embed_table(&f);
    int rc = program_maps_make(d, program, &maps);
    if (rc == QN_OK) rc = fill_beyond(d, &f, &arena, tasks);
    if (rc == QN_OK) rc = list_operands(d, &f, &arena);
    for (uint64_t i = 0; i < program->section[SECTION_VARIANT].count && rc == QN_OK; i++) {
        const struct prog_variant *v = &PROG(program, VARIANT)[i];
        for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
            fill_task(&f, v, t, &tasks[t]);
    }
    for (uint64_t i = 0; i < program->section[SECTION_LIST].count && rc == QN_OK; i++)
        mark_known_lists(program, &PROG(program, LIST)[i], tasks);
    program_maps_fini(&maps);
    arena_fini(&arena);
    return rc;
}
