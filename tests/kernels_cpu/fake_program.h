/* fake_program.h - a program with one operator of each kind, its tensors and a batch, for tests of
 * single kernels. All activations, weights and the KV cache are random. */
#ifndef QN_TESTS_FAKE_PROGRAM_H
#define QN_TESTS_FAKE_PROGRAM_H

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_MAX_TENSORS = 48, FAKE_MAX_ROWS = 512, FAKE_MAX_SLOTS = 8 };

struct fake_config {
    struct model_spec spec;
    uint32_t n_rows, n_logit_rows; /* T, L of the variant */
    uint32_t max_model_len, kv_block;
    struct kv_row kv; /* of the KV cache; spec_kv_row's, or for ATTENTION, SPLIT, MERGE any */
};

struct fake_block { /* laid out as a program: header, then tables */
    struct prog_header header;
    _Alignas(64) struct model_spec spec;
    _Alignas(64) struct kv_row kv;
    _Alignas(64) struct prog_tensor tensors[FAKE_MAX_TENSORS];
    _Alignas(64) struct prog_op ops[N_OP_KINDS];
};

struct fake {
    struct fake_config config;
    struct fake_block *program;
    uint32_t n_tensors;
    void *tensors[FAKE_MAX_TENSORS];
    struct rt_batch batch;
    struct cpu_rope rope;
    float *cos, *sin;
    void *scratch;
    uint64_t random;
    int32_t token[FAKE_MAX_ROWS], slot[FAKE_MAX_ROWS], position[FAKE_MAX_ROWS];
    int32_t logit_row[FAKE_MAX_ROWS];
    struct rt_slot slots[FAKE_MAX_SLOTS];
    struct rt_request requests[FAKE_MAX_SLOTS];
};

static inline float fake_random(struct fake *f) { /* about normal */
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        f->random = f->random * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(f->random >> 40) * 0x1p-24f;
    }
    return (sum - 2) * 1.7f;
}

/* A tensor of random values times `size`; allocated to the byte, so that sanitizers see overruns.
 */
static inline uint32_t fake_tensor(struct fake *f, enum dtype dtype, float size, uint32_t a,
                                   uint32_t b, uint32_t c, uint32_t d) {
    uint32_t i = f->n_tensors++;
    struct prog_tensor *t = &f->program->tensors[i];
    size_t n = (size_t)a * b * c * d;
    *t = (struct prog_tensor){.dtype = (uint8_t)dtype, .n_dims = 4, .shape = {a, b, c, d}};
    t->bytes = n * dtype_bytes(dtype);
    f->tensors[i] = malloc(t->bytes);
    if (dtype == DTYPE_I32)
        memset(f->tensors[i], 0xff, t->bytes);
    else
        for (size_t e = 0; e < n; e++)
            convert_store(dtype, f->tensors[i], e, fake_random(f) * size);
    return i;
}

static inline struct prog_op *fake_op(struct fake *f, enum op_kind kind, uint32_t units, uint32_t k,
                                      uint32_t n_rows) {
    struct prog_op *op = &f->program->ops[kind];
    const struct model_spec *s = &f->config.spec;
    *op = (struct prog_op){.kind = (uint16_t)kind, .units = units, .k = k, .n_rows = n_rows};
    op->attrs = (struct op_attrs){.heads = s->n_heads,
                                  .kv = s->n_kv_heads,
                                  .D = s->head_dim,
                                  .window = s->sliding_window,
                                  .scale = 1.0f / sqrtf((float)f->config.kv.k_width),
                                  .eps = s->rms_eps};
    for (int i = 0; i < OP_MAX_IN; i++) op->in[i] = PROG_NONE;
    for (int i = 0; i < OP_MAX_OUT; i++) op->out[i] = PROG_NONE;
    return op;
}

static inline void *fake_in(const struct fake *f, enum op_kind kind, int slot) {
    uint32_t i = f->program->ops[kind].in[slot];
    return i == PROG_NONE ? NULL : f->tensors[i];
}
static inline void *fake_out(const struct fake *f, enum op_kind kind, int slot) {
    return f->tensors[f->program->ops[kind].out[slot]];
}

static inline void fake_ops_attention(struct fake *f) {
    const struct model_spec *s = &f->config.spec;
    const struct kv_row *row = &f->config.kv;
    uint32_t T = f->config.n_rows, D = s->head_dim, q_size = s->n_heads * D, F32 = DTYPE_F32;
    uint32_t o_size = s->n_heads * row->v_width;
    uint32_t kv_size = s->n_kv_heads * D, W = s->weight_dtype, H = s->hidden;
    struct prog_op *op = fake_op(f, OP_QKV, spec_qkv_units(s), H, T);
    op->in[QKV_X] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op->in[QKV_NORM] = fake_tensor(f, F32, 1, H, 1, 1, 1);
    op->in[QKV_WQ] = fake_tensor(f, W, 0.3f, q_size, H, 1, 1);
    op->in[QKV_WK] = fake_tensor(f, W, 0.3f, kv_size, H, 1, 1);
    op->in[QKV_WV] = fake_tensor(f, W, 0.3f, kv_size, H, 1, 1);
    if (s->qkv_bias) {
        op->in[QKV_BQ] = fake_tensor(f, F32, 1, q_size, 1, 1, 1);
        op->in[QKV_BK] = fake_tensor(f, F32, 1, kv_size, 1, 1, 1);
        op->in[QKV_BV] = fake_tensor(f, F32, 1, kv_size, 1, 1, 1);
    }
    if (s->qk_norm) {
        op->in[QKV_Q_NORM] = fake_tensor(f, F32, 1, D, 1, 1, 1);
        op->in[QKV_K_NORM] = fake_tensor(f, F32, 1, D, 1, 1, 1);
    }
    uint32_t q = op->out[QKV_OUT_Q] = fake_tensor(f, F32, 1, T, s->n_heads * row->k_width, 1, 1);
    uint64_t block = kv_block_elements(row, f->config.kv_block);
    uint32_t kv = op->out[QKV_OUT_KV] =
        fake_tensor(f, (enum dtype)row->dtype, 1, f->batch.n_kv_blocks, (uint32_t)block, 1, 1);
    f->program->tensors[kv].role = PROG_STATE;
    op = fake_op(f, OP_ATTENTION, 1, 0, T);
    op->in[ATTENTION_Q] = q, op->in[ATTENTION_KV] = kv;
    op->out[0] = fake_tensor(f, F32, 1, T, o_size, 1, 1);
    op = fake_op(f, OP_ATTENTION_SPLIT, 1, 0, T);
    op->in[ATTENTION_Q] = q, op->in[ATTENTION_KV] = kv;
    uint32_t P = (f->config.max_model_len + ATTENTION_PIECE - 1) / ATTENTION_PIECE;
    uint32_t part = op->out[0] = fake_tensor(f, F32, 1, T, s->n_heads, P, row->v_width + PART_HEAD);
    op = fake_op(f, OP_ATTENTION_MERGE, s->n_heads, 0, T);
    op->in[MERGE_PART] = part;
    op->out[0] = fake_tensor(f, F32, 1, T, o_size, 1, 1);
}

static inline void fake_ops_linear(struct fake *f) {
    const struct model_spec *s = &f->config.spec;
    uint32_t T = f->config.n_rows, L = f->config.n_logit_rows, F32 = DTYPE_F32;
    uint32_t W = s->weight_dtype, H = s->hidden, I = s->intermediate;
    struct prog_op *op = fake_op(f, OP_EMBED, 1, 0, T);
    op->in[EMBED_TABLE] = fake_tensor(f, W, 1, s->vocab, H, 1, 1);
    op->out[0] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op = fake_op(f, OP_LINEAR, H, I, T);
    op->in[LINEAR_A] = fake_tensor(f, F32, 1, T, I, 1, 1);
    op->in[LINEAR_W] = fake_tensor(f, W, 0.3f, H, I, 1, 1);
    if (s->mlp_bias) op->in[LINEAR_BIAS] = fake_tensor(f, F32, 1, H, 1, 1, 1);
    if (!s->o_bias) op->in[LINEAR_RESIDUAL] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op->out[0] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op = fake_op(f, OP_GATED_MLP, I, H, T);
    op->in[MLP_X] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op->in[MLP_NORM] = fake_tensor(f, F32, 1, H, 1, 1, 1);
    op->in[MLP_WG] = fake_tensor(f, W, 0.3f, I, H, 1, 1);
    op->in[MLP_WU] = fake_tensor(f, W, 0.3f, I, H, 1, 1);
    if (s->mlp_bias) {
        op->in[MLP_BG] = fake_tensor(f, F32, 1, I, 1, 1, 1);
        op->in[MLP_BU] = fake_tensor(f, F32, 1, I, 1, 1, 1);
    }
    op->out[0] = fake_tensor(f, F32, 1, T, I, 1, 1);
    op = fake_op(f, OP_ROUTER, 37, H, T);
    op->in[ROUTER_X] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op->in[ROUTER_NORM] = fake_tensor(f, F32, 1, H, 1, 1, 1);
    op->in[ROUTER_W] = fake_tensor(f, W, 0.3f, 37, H, 1, 1);
    op->out[0] = fake_tensor(f, F32, 1, T, 37, 1, 1);
    uint32_t n_blocks = (s->vocab + LM_BLOCK - 1) / LM_BLOCK;
    op = fake_op(f, OP_LM_HEAD, n_blocks, H, L);
    op->in[LM_X] = fake_tensor(f, F32, 1, T, H, 1, 1);
    op->in[LM_NORM] = fake_tensor(f, F32, 1, H, 1, 1, 1);
    op->in[LM_W] = fake_tensor(f, W, 0.3f, s->vocab, H, 1, 1);
    uint32_t logits = op->out[LM_OUT_LOGITS] = fake_tensor(f, F32, 1, L, s->vocab, 1, 1);
    uint32_t part = op->out[LM_OUT_PART] = fake_tensor(f, F32, 1, L, n_blocks, 2, 1);
    op = fake_op(f, OP_SAMPLE, 1, 0, L);
    op->in[SAMPLE_LOGITS] = logits, op->in[SAMPLE_PART] = part;
    op->out[0] = fake_tensor(f, DTYPE_I32, 1, L, 1, 1, 1);
}

/* Slots own their blocks in a scattered order. */
static inline void fake_batch(struct fake *f) {
    struct rt_batch *b = &f->batch;
    uint32_t len = f->config.max_model_len;
    *b = (struct rt_batch){.n_slots = FAKE_MAX_SLOTS, .max_model_len = len};
    b->kv_block = f->config.kv_block;
    b->max_blocks = (len + b->kv_block - 1) / b->kv_block;
    b->n_kv_blocks = b->max_blocks * FAKE_MAX_SLOTS;
    b->slots = f->slots, b->requests = f->requests;
    b->tokens = calloc((size_t)FAKE_MAX_SLOTS * len, sizeof *b->tokens);
    b->logprobs = calloc((size_t)FAKE_MAX_SLOTS * len, sizeof *b->logprobs);
    b->block_table = malloc(b->n_kv_blocks * sizeof *b->block_table);
    for (uint32_t i = 0; i < b->n_kv_blocks; i++) {
        uint32_t slot = i / b->max_blocks, j = i % b->max_blocks;
        b->block_table[i] = (int32_t)(b->n_kv_blocks - 1 - (j * FAKE_MAX_SLOTS + slot));
    }
    b->rows.token = f->token, b->rows.slot = f->slot, b->rows.position = f->position;
    b->rows.logit_row = f->logit_row;
}

static inline struct fake *fake_new(const struct fake_config *config) {
    struct fake *f = calloc(1, sizeof *f);
    f->config = *config;
    f->random = 7;
    f->program = aligned_alloc(64, (sizeof *f->program + 63) / 64 * 64);
    memset(f->program, 0, sizeof *f->program);
    struct prog_section *sections = f->program->header.section;
    sections[SECTION_MODEL] = (struct prog_section){offsetof(struct fake_block, spec), 1};
    sections[SECTION_KV] = (struct prog_section){offsetof(struct fake_block, kv), 1};
    sections[SECTION_TENSOR].offset = offsetof(struct fake_block, tensors);
    sections[SECTION_OP] = (struct prog_section){offsetof(struct fake_block, ops), N_OP_KINDS};
    f->program->spec = config->spec;
    f->program->kv = config->kv;
    fake_batch(f);
    fake_ops_attention(f);
    fake_ops_linear(f);
    sections[SECTION_TENSOR].count = f->n_tensors;
    uint32_t half = config->spec.head_dim / 2;
    f->cos = malloc((size_t)config->max_model_len * half * sizeof *f->cos);
    f->sin = malloc((size_t)config->max_model_len * half * sizeof *f->sin);
    cpu_rope_fill(&config->spec, config->max_model_len, f->cos, f->sin);
    f->rope = (struct cpu_rope){f->cos, f->sin};
    f->scratch = aligned_alloc(64, cpu_scratch_bytes(&f->program->header));
    return f;
}

static inline void fake_free(struct fake *f) {
    for (uint32_t i = 0; i < f->n_tensors; i++) free(f->tensors[i]);
    free(f->batch.tokens), free(f->batch.logprobs), free(f->batch.block_table);
    free(f->cos), free(f->sin), free(f->scratch), free(f->program);
    free(f);
}

static inline void fake_row(struct fake *f, int32_t token, int32_t slot, int32_t position) {
    uint32_t r = f->batch.rows.n_rows++;
    f->token[r] = token, f->slot[r] = slot, f->position[r] = position;
}

/* Runs one task of the operator of that kind. */
static inline void fake_task(const struct fake *f, const struct cpu_isa *isa, enum op_kind kind,
                             uint32_t row0, uint32_t row1, uint32_t unit0, uint32_t unit1) {
    struct prog_task task = {.kind = (uint16_t)kind, .op = kind};
    task.row0 = row0, task.row1 = row1, task.unit0 = unit0, task.unit1 = unit1;
    struct cpu_task t = {.program = &f->program->header};
    t.op = &f->program->ops[kind];
    t.task = &task;
    t.tensors = f->tensors;
    t.batch = &f->batch;
    t.isa = isa;
    t.rope = &f->rope;
    t.scratch = f->scratch;
    cpu_task_run(&t);
}

/* The whole operator as one task. */
static inline void fake_run(const struct fake *f, const struct cpu_isa *isa, enum op_kind kind) {
    bool slices = kind == OP_ATTENTION || kind == OP_ATTENTION_SPLIT;
    const struct prog_op *op = &f->program->ops[kind];
    fake_task(f, isa, kind, 0, op->n_rows, 0, slices ? 1 : op->units);
}

/* The same in tasks of `rows` rows and `units` units (or `units` slices). */
static inline void fake_run_cut(const struct fake *f, const struct cpu_isa *isa, enum op_kind kind,
                                uint32_t rows, uint32_t units) {
    const struct prog_op *op = &f->program->ops[kind];
    if (kind == OP_ATTENTION || kind == OP_ATTENTION_SPLIT) {
        for (uint32_t i = units; i-- > 0;) fake_task(f, isa, kind, 0, op->n_rows, i, units);
        return;
    }
    for (uint32_t r = 0; r < op->n_rows; r += rows)
        for (uint32_t u = 0; u < op->units; u += units)
            fake_task(f, isa, kind, r, r + rows < op->n_rows ? r + rows : op->n_rows, u,
                      u + units < op->units ? u + units : op->units);
}

#endif
