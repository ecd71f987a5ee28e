#include "codegen/cuda_tables.h"
#include "base/checked.h"
#include "codegen/emit.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { PLACE_ALIGN = 1024, PLACE_FREE = 0xffffffffu };

/* What planning needs at every step. */
struct planner {
    struct diag *d;
    const struct prog_header *program;
    struct cuda_place *places; /* layout PLACE_FREE: not placed yet */
    uint64_t at;
};

static const struct prog_tensor *tensor_of(const struct prog_header *p, uint32_t tensor) {
    return tensor == PROG_NONE ? NULL : &PROG(p, TENSOR)[tensor];
}

/* Whether a matrix product's activations are packed. */
static bool is_packed(const struct prog_header *p, const struct prog_op *op) {
    return cuda_has_pages(op->kind) && tensor_of(p, op->in[0])->dtype != DTYPE_F32;
}

/* The place of a weight operand; NULL when the operand is absent. */
static struct cuda_place *place_of(struct planner *pl, uint32_t tensor) {
    const struct prog_tensor *t = tensor_of(pl->program, tensor);
    return t == NULL ? NULL : &pl->places[t->where];
}

static uint64_t take(struct planner *pl, uint64_t bytes) {
    uint64_t at = pl->at;
    pl->at += (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    return at;
}

/* Up to three vectors, one right after the other, so that kernels index them as one. */
static void place_vectors(struct planner *pl, const uint32_t *tensors, int n) {
    uint64_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t at = pass == 0 ? 0 : take(pl, bytes);
        for (int i = 0; i < n; i++) {
            struct cuda_place *place = place_of(pl, tensors[i]);
            if (place == NULL || place->layout != PLACE_FREE) continue;
            uint64_t own = (uint64_t)tensor_of(pl->program, tensors[i])->shape[0] * 4;
            if (pass == 0)
                bytes += own;
            else
                *place = (struct cuda_place){.offset = at, .layout = CUDA_VECTOR};
            at += own;
        }
        if (bytes == 0) return;
    }
}

/* A matrix from row `row0` on of an image that begins at `offset`. */
static void place_matrix(struct planner *pl, uint32_t tensor, uint32_t layout, uint64_t offset,
                         uint32_t row0) {
    struct cuda_place *place = place_of(pl, tensor);
    if (place == NULL || place->layout != PLACE_FREE) return;
    *place = (struct cuda_place){
        .offset = offset,
        .layout = layout,
        .k_tiles = cuda_k_tiles(tensor_of(pl->program, tensor)->shape[1]),
        .row0 = row0,
    };
}

static bool is_placed(struct planner *pl, uint32_t tensor) {
    return place_of(pl, tensor)->layout != PLACE_FREE;
}

static uint64_t take_image(struct planner *pl, uint64_t row_blocks, uint32_t k) {
    return take(pl, row_blocks * cuda_k_tiles(k) * CUDA_PAGE_BYTES);
}

static void place_plain(struct planner *pl, uint32_t tensor) {
    if (is_placed(pl, tensor)) return;
    const struct prog_tensor *t = tensor_of(pl->program, tensor);
    /* Whole units of the LM head: its last one may lack rows, not pages. */
    uint64_t units = CEIL_DIV((uint64_t)t->shape[0], (uint64_t)LM_BLOCK);
    uint64_t at = take_image(pl, units * (LM_BLOCK / CUDA_PAGE_ROWS), t->shape[1]);
    place_matrix(pl, tensor, CUDA_ROWS, at, 0);
}

/* The three projections as one matrix. */
static void place_qkv_linear(struct planner *pl, const struct prog_op *op) {
    const struct model_spec *s = PROG(pl->program, MODEL);
    place_vectors(pl, &op->in[QKV_NORM], 1);
    place_vectors(pl, &op->in[QKV_BQ], 3);
    if (is_placed(pl, op->in[QKV_WQ])) return;
    uint64_t at = take_image(pl, CEIL_DIV(op->units, (uint32_t)CUDA_PAGE_ROWS), op->k);
    place_matrix(pl, op->in[QKV_WQ], CUDA_ROWS, at, 0);
    place_matrix(pl, op->in[QKV_WK], CUDA_ROWS, at, s->n_heads * s->head_dim);
    place_matrix(pl, op->in[QKV_WV], CUDA_ROWS, at, (s->n_heads + s->n_kv_heads) * s->head_dim);
}

static void place_mlp(struct planner *pl, const struct prog_op *op) {
    place_vectors(pl, &op->in[MLP_NORM], 1);
    place_vectors(pl, &op->in[MLP_BG], 2);
    if (is_placed(pl, op->in[MLP_WG])) return;
    uint64_t at = take_image(pl, (op->units + 7) / 8, op->k);
    place_matrix(pl, op->in[MLP_WG], CUDA_GATE, at, 0);
    place_matrix(pl, op->in[MLP_WU], CUDA_UP, at, 0);
}

static void place_op(struct planner *pl, const struct prog_op *op) {
    switch (op->kind) {
    case OP_EMBED:
        place_plain(pl, op->in[EMBED_TABLE]);
        place_vectors(pl, &op->in[EMBED_NEXT], 1);
        break;
    case OP_QKV_LINEAR: place_qkv_linear(pl, op); break;
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_WHOLE:
    case OP_QKV_HEADS: place_vectors(pl, &op->in[HEADS_Q_NORM], 2); break;
    case OP_LINEAR:
        place_plain(pl, op->in[LINEAR_W]);
        place_vectors(pl, &op->in[LINEAR_BIAS], 1);
        place_vectors(pl, &op->in[LINEAR_NEXT], 1);
        break;
    case OP_LINEAR_PARTS: place_plain(pl, op->in[PARTS_W]); break;
    case OP_LINEAR_SUM:
        place_vectors(pl, &op->in[SUM_BIAS], 1);
        place_vectors(pl, &op->in[SUM_NEXT], 1);
        break;
    case OP_GATED_MLP: place_mlp(pl, op); break;
    case OP_LM_HEAD:
        place_vectors(pl, &op->in[LM_NORM], 1);
        place_plain(pl, op->in[LM_W]);
        break;
    default: break;
    }
}

/* What the kernels cannot run. */
static int check_model(struct diag *d, const struct prog_header *p) {
    const struct model_spec *s = PROG(p, MODEL);
    if (s->head_dim % 8 != 0 || s->head_dim > 256)
        return fail(d, QN_EUNSUPPORTED,
                    "head_dim %u: the GPU kernels want a multiple of 8 up to 256", s->head_dim);
    if (s->hidden % 8 != 0 || s->intermediate % 8 != 0)
        return fail(d, QN_EUNSUPPORTED,
                    "hidden %u, intermediate %u: the GPU kernels want multiples of 8", s->hidden,
                    s->intermediate);
    if (p->kv_dtype != DTYPE_BF16 && p->kv_dtype != DTYPE_F16)
        return fail(d, QN_EUNSUPPORTED, "the GPU's KV cache is bfloat16 or float16");
    return QN_OK;
}

/* The sums of squares that an operator reads or writes. */
static uint32_t squares_of(const struct prog_op *op) {
    switch (op->kind) {
    case OP_EMBED:
    case OP_LINEAR:
    case OP_LINEAR_SUM: return op->out[STREAM_SQUARES];
    case OP_QKV_LINEAR: return op->in[QKV_LINEAR_SQUARES];
    case OP_GATED_MLP: return op->in[MLP_SQUARES];
    case OP_LM_HEAD: return op->in[LM_SQUARES];
    case OP_SUM_SQUARES: return op->in[0];
    default: return PROG_NONE;
    }
}

/* Whether each row of the operator is another request's. */
static bool is_alone(const struct prog_header *p, const struct prog_op *op) {
    const uint32_t at = (uint32_t)(op - PROG(p, OP));
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++) {
        const struct prog_variant *v = &PROG(p, VARIANT)[i];
        if (at - v->first_op < v->n_ops) return v->alone != 0;
    }
    return false;
}

/* ATTENTION_STEP of several rows, and _WHOLE, make keys and values in scratch, and add them to
 * cache pages. */
static bool can_step(const struct prog_header *p, const struct prog_op *op) {
    const struct model_spec *s = PROG(p, MODEL);
    const uint32_t heads = s->n_heads / s->n_kv_heads;
    return (op->kind == OP_ATTENTION_STEP && op->n_rows == 1) ||
           (heads <= 16 && emit_kv_pages(p) &&
            (op->n_rows <= cuda_step_rows(heads, s->head_dim) ||
             (op->n_rows <= CUDA_PLACES && is_alone(p, op))));
}

/* Parts are whole row blocks, a tile has all token rows. */
static bool can_cut(const struct prog_header *p, const struct prog_op *op) {
    const uint64_t rows = tensor_of(p, op->in[PARTS_W])->shape[0];
    const uint64_t parts = MIN(cuda_k_tiles(op->k), (uint32_t)PARTS);
    return is_packed(p, op) && op->n_rows <= PACK_NARROW && rows % CUDA_PAGE_ROWS == 0 &&
           op->units == parts * rows;
}

/* What an operator that the kernels cannot run lacks; NULL: they can. Matrix products take packed
 * activations, normed by who made them, or one row that scratch has room for, which they norm. */
static const char *check_op(const struct prog_header *p, const struct prog_op *op) {
    const struct prog_tensor *squares = tensor_of(p, squares_of(op));
    if ((op->kind == OP_ATTENTION_STEP || op->kind == OP_ATTENTION_WHOLE) && !can_step(p, op))
        return "the cache in pages, or the pieces of one row";
    if (op->kind == OP_LINEAR_SUM && PROG(p, MODEL)->hidden % SQUARES_COLUMNS != 0)
        return "whole blocks of squares";
    if (!cuda_has_pages(op->kind)) return NULL;
    if (op->kind == OP_LINEAR_PARTS)
        return can_cut(p, op) ? NULL : "packed activations of few rows, whole row blocks";
    if (!is_packed(p, op)) {
        if (op->n_rows > 1 || op->k > STAGED_COLUMNS) return "its activations packed";
        return squares != NULL ? "no norm ahead of a single row" : NULL;
    }
    if (op->kind == OP_LINEAR)
        return op->in[LINEAR_NEXT] != PROG_NONE && op->in[LINEAR_RESIDUAL] == PROG_NONE
                   ? "a residual stream where a norm comes next"
                   : NULL;
    if (squares == NULL) return "its activations normed";
    return op->n_rows > SQUARES_ROWS && squares->shape[1] != 1 ? "its squares added up" : NULL;
}

static int check_ops(struct diag *d, const struct prog_header *p) {
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

int cuda_tables_check(struct diag *d, const struct prog_header *p, uint32_t cc) {
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++)
        if (PROG(p, OP)[i].kind == OP_LINEAR_PARTS && cc / 10 != 9)
            return fail(d, QN_EUNSUPPORTED,
                        "the program has %s, for which sm_%u has no kernel: compile it with "
                        "linear=whole",
                        op_name(OP_LINEAR_PARTS), cc);
    bool used[N_FORMS];
    return cuda_form_used(d, p, cc, used);
}

int cuda_tables_plan(struct diag *d, const struct prog_header *program, struct cuda_place *places,
                     uint64_t *bytes) {
    TRY(check_model(d, program));
    TRY(check_ops(d, program));
    struct planner pl = {.d = d, .program = program, .places = places};
    for (uint64_t i = 0; i < program->section[SECTION_WEIGHT].count; i++)
        places[i].layout = PLACE_FREE;
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++)
        place_op(&pl, &PROG(program, OP)[i]);
    for (uint64_t i = 0; i < program->section[SECTION_WEIGHT].count; i++)
        if (places[i].layout == PLACE_FREE)
            return fail(d, QN_EINTERNAL, "weight %llu of the program has no use",
                        (unsigned long long)i);
    *bytes = pl.at;
    return QN_OK;
}

/* ---- the task table ---- */

struct filler {
    const struct prog_header *program;
    const struct cuda_place *places;
    const struct cuda_bases *bases;
    struct cuda_form_host forms;
    uint64_t table; /* EMBED's */
};

static uint64_t address(const struct filler *f, uint32_t tensor) {
    const struct prog_tensor *t = tensor_of(f->program, tensor);
    if (t == NULL) return 0;
    if (t->role == PROG_WEIGHT) return f->bases->weights + f->places[t->where].offset;
    if (t->role == PROG_ACTIVATION) return f->bases->workspace + t->where;
    return f->bases->kv + t->where * f->bases->kv_layer_bytes;
}

/* The table of embeddings, of which SAMPLE asks for the token's row; 0: the program has none. */
static uint64_t embed_table(const struct filler *f) {
    const struct prog_op *ops = PROG(f->program, OP);
    for (uint64_t i = 0; i < f->program->section[SECTION_OP].count; i++)
        if (ops[i].kind == OP_EMBED) return address(f, ops[i].in[EMBED_TABLE]);
    return 0;
}

/* Operands of each kind: the table in cuda_abi.h. */
static void fill_operands(const struct filler *f, const struct prog_op *op, struct cuda_task *t) {
    const uint32_t *in = op->in;
    t->out = address(f, op->out[0]);
    t->out2 = address(f, op->out[1]);
    t->more2 = address(f, squares_of(op));
    switch (op->kind) {
    case OP_EMBED:
        t->w = address(f, in[EMBED_TABLE]);
        t->norm = address(f, in[EMBED_NEXT]);
        break;
    case OP_QKV_HEADS:
        t->in = address(f, in[HEADS_QKV]);
        t->more = address(f, in[HEADS_Q_NORM]);
        t->more2 = address(f, in[HEADS_K_NORM]);
        break;
    case OP_QKV_LINEAR:
        t->in = address(f, in[QKV_X]);
        t->norm = address(f, in[QKV_NORM]);
        t->w = address(f, in[QKV_WQ]);
        t->bias = address(f, in[QKV_BQ]);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_SPLIT:
        t->in = address(f, in[ATTENTION_Q]);
        t->more = address(f, in[ATTENTION_KV]);
        break;
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_WHOLE:
        t->in = address(f, in[HEADS_QKV]);
        t->norm = address(f, in[HEADS_Q_NORM]);
        t->more2 = address(f, in[HEADS_K_NORM]);
        t->more = address(f, op->out[JOINED_OUT_KV]);
        break;
    case OP_ATTENTION_COMBINE: t->in = address(f, in[COMBINE_PART]); break;
    case OP_LINEAR:
        t->in = address(f, in[LINEAR_A]);
        t->w = address(f, in[LINEAR_W]);
        t->bias = address(f, in[LINEAR_BIAS]);
        t->more = address(f, in[LINEAR_RESIDUAL]);
        t->norm = address(f, in[LINEAR_NEXT]);
        break;
    case OP_LINEAR_PARTS:
        t->in = address(f, in[PARTS_A]);
        t->w = address(f, in[PARTS_W]);
        break;
    case OP_LINEAR_SUM:
        t->in = address(f, in[SUM_PARTS]);
        t->bias = address(f, in[SUM_BIAS]);
        t->more = address(f, in[SUM_RESIDUAL]);
        t->norm = address(f, in[SUM_NEXT]);
        break;
    case OP_GATED_MLP:
        t->in = address(f, in[MLP_X]);
        t->norm = address(f, in[MLP_NORM]);
        t->w = address(f, in[MLP_WG]);
        t->bias = address(f, in[MLP_BG]);
        t->more = address(f, in[MLP_BU]);
        break;
    case OP_PACK:
    case OP_PACK_LOGITS:
        t->in = address(f, in[PACK_X]);
        t->k = tensor_of(f->program, in[PACK_X])->shape[1];
        t->k_tiles = cuda_k_tiles(t->k);
        break;
    case OP_LM_HEAD:
        t->in = address(f, in[LM_X]);
        t->norm = address(f, in[LM_NORM]);
        t->w = address(f, in[LM_W]);
        break;
    case OP_SUM_SQUARES: t->in = address(f, in[0]); break;
    case OP_CLEAR: t->k = 4 * tensor_of(f->program, op->out[0])->shape[1]; break;
    case OP_SAMPLE:
        t->in = address(f, in[SAMPLE_LOGITS]);
        t->more = address(f, in[SAMPLE_PART]);
        t->w = f->table;
        break;
    default: break;
    }
}

static bool is_16_bit(const struct prog_tensor *t) {
    return t != NULL && t->role == PROG_ACTIVATION && t->dtype != DTYPE_F32;
}

/* What an operator stores packed or in pairs, if anything: its result; of the residual stream the
 * normed one. */
static const struct prog_tensor *rounded_out(const struct prog_header *p,
                                             const struct prog_op *op) {
    switch (op->kind) {
    case OP_EMBED:
    case OP_LINEAR:
    case OP_LINEAR_SUM: return tensor_of(p, op->out[STREAM_NORMED]);
    case OP_ATTENTION:
    case OP_ATTENTION_WHOLE:
    case OP_ATTENTION_COMBINE:
    case OP_GATED_MLP:
    case OP_PACK:
    case OP_PACK_LOGITS: return tensor_of(p, op->out[0]);
    default: return NULL;
    }
}

/* Groups of PACK_ROWS rows of packed activations. */
static uint16_t eights_of(const struct prog_tensor *t) {
    return is_16_bit(t) ? (uint16_t)(t->shape[0] / PACK_ROWS) : 0;
}

/* Of what it reads or writes. If it does both they have as many, but for PACK_LOGITS. */
static uint16_t n_eights(const struct prog_header *p, const struct prog_op *op) {
    const struct prog_tensor *out = rounded_out(p, op);
    return eights_of(is_16_bit(out) ? out : tensor_of(p, op->in[0]));
}

static uint32_t n_pieces(const struct prog_header *p, const struct prog_op *op) {
    switch (op->kind) {
    case OP_ATTENTION_SPLIT:
    case OP_ATTENTION_STEP: return tensor_of(p, op->out[0])->shape[2]; /* [T, n_heads, P, D + 2] */
    case OP_ATTENTION_COMBINE: return tensor_of(p, op->in[COMBINE_PART])->shape[2];
    case OP_PACK_LOGITS: return eights_of(tensor_of(p, op->in[PACK_X]));
    case OP_LINEAR_PARTS: return tensor_of(p, op->in[PARTS_W])->shape[0] / CUDA_PAGE_ROWS;
    case OP_LINEAR_SUM: return tensor_of(p, op->in[SUM_PARTS])->shape[1] / PROG(p, MODEL)->hidden;
    default: {
        const struct prog_tensor *squares = tensor_of(p, squares_of(op)); /* [T, parts] */
        return squares == NULL ? 0 : squares->shape[1];
    }
    }
}

/* Whether an event rides on data. It is counted all the same, as a hint of when to look. */
static bool is_hint(const struct prog_header *p, uint32_t event) {
    return event != PROG_NONE && PROG(p, EVENT)[event].carry == CARRY_FLAG;
}

static bool carries(const struct prog_tensor *t, enum prog_carry carry) {
    return t != NULL && t->carry == carry;
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
    if (carries(in, CARRY_FLAG)) flags |= CUDA_IN_FLAGGED;
    if (carries(in, CARRY_PAIR)) flags |= CUDA_IN_PAIRED;
    if (op->kind == OP_LINEAR && carries(tensor_of(p, op->in[LINEAR_RESIDUAL]), CARRY_FLAG))
        flags |= CUDA_MORE_FLAGGED;
    if (carries(out, CARRY_FLAG)) flags |= CUDA_OUT_FLAGGED;
    if (carries(rounded, CARRY_PAIR)) flags |= CUDA_OUT_PAIRED;
    if (op->kind == OP_LINEAR && carries(tensor_of(p, op->in[LINEAR_RESIDUAL]), CARRY_OWN))
        flags |= CUDA_MORE_OWN;
    if (is_16_bit(in)) flags |= CUDA_IN_PACKED;
    if (is_16_bit(rounded)) flags |= CUDA_OUT_PACKED;
    return flags;
}

bool cuda_tables_shape(const struct cuda_form_host *host, const struct prog_task *t,
                       struct cuda_task *out) {
    const struct prog_op *op = t->op == PROG_NONE ? NULL : &PROG(host->program, OP)[t->op];
    *out = (struct cuda_task){.kind = (uint8_t)t->kind,
                              .row0 = t->row0,
                              .row1 = t->row1,
                              .unit0 = t->unit0,
                              .unit1 = t->unit1};
    if (op != NULL) {
        out->units = op->units;
        out->k = op->k;
        out->k_tiles = cuda_k_tiles(op->k);
        out->eights = n_eights(host->program, op);
    }
    return cuda_form_fill(host, op, out);
}

static void fill_task(const struct filler *f, const struct prog_variant *v, uint32_t index,
                      struct cuda_task *out) {
    const struct prog_task *t = &PROG(f->program, TASK)[index];
    /* Who has the task knows that its iteration has begun. */
    const uint32_t wait = t->wait == v->start_event ? PROG_NONE : t->wait;
    const bool runs = cuda_tables_shape(&f->forms, t, out);
    assert(runs); /* cuda_form_used */
    (void)runs;
    out->flags = flags_of(f->program, v, t);
    out->wait = wait;
    out->wait_triggers = wait == PROG_NONE ? 0 : PROG(f->program, EVENT)[wait].n_triggers;
    out->trigger = t->trigger;
    out->index = index;
    if (t->op == PROG_NONE) return;
    const struct prog_op *op = &PROG(f->program, OP)[t->op];
    out->n_pieces = (uint16_t)n_pieces(f->program, op);
    fill_operands(f, op, out);
}

void cuda_tables_fill(const struct prog_header *program, const struct cuda_place *places,
                      const struct cuda_bases *bases, struct cuda_task *tasks) {
    struct filler f = {program, places, bases, cuda_form_host_for(program, bases->cc), 0};
    f.table = embed_table(&f);
    for (uint64_t i = 0; i < program->section[SECTION_VARIANT].count; i++) {
        const struct prog_variant *v = &PROG(program, VARIANT)[i];
        for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
            fill_task(&f, v, t, &tasks[t]);
    }
}
