/* task_verify_touch.c - what the operators touch, as rectangles of bytes. */
#include "task/task_verify_proof.h"
#include "base/checked.h"

/* Rows [row0,row1) x bytes [col0,col1) of rows that are `pitch` bytes long. */
static struct rect rows_of(const struct proof *f, uint32_t index, uint32_t row0, uint32_t row1,
                           uint64_t col0, uint64_t col1, uint64_t pitch) {
    const struct prog_tensor *t = proof_tensor(f, index);
    const bool state = t->role == PROG_STATE;
    return (struct rect){.space = state ? 1 + (uint32_t)t->where : 0,
                         .at = (state ? 0 : t->where) + row0 * pitch + col0,
                         .run = col1 - col0,
                         .stride = pitch,
                         .n_rows = row1 - row0};
}

static uint64_t pitch_of(const struct prog_tensor *t) {
    return t->role == PROG_STATE ? t->shape[1] : t->bytes / t->shape[0];
}

struct rect task_verify_touch_whole(const struct proof *f, uint32_t index) {
    const struct prog_tensor *t = proof_tensor(f, index);
    return rows_of(f, index, 0, t->shape[0], 0, pitch_of(t), pitch_of(t));
}

static struct rect full_rows(const struct proof *f, uint32_t index, const struct prog_task *t) {
    const uint64_t pitch = pitch_of(proof_tensor(f, index));
    return rows_of(f, index, t->row0, t->row1, 0, pitch, pitch);
}

/* Columns in elements of `size` bytes (twice that if they carry flags), cut off at the row's end.
 */
static struct rect columns(const struct proof *f, uint32_t index, const struct prog_task *t,
                           uint64_t col0, uint64_t col1, uint64_t size) {
    const uint64_t pitch = pitch_of(proof_tensor(f, index));
    if (proof_tensor(f, index)->carry == CARRY_FLAG) size *= 2;
    return rows_of(f, index, t->row0, t->row1, MIN(col0 * size, pitch), MIN(col1 * size, pitch),
                   pitch);
}

/* The same of the tensor's own elements. */
static struct rect own_columns(const struct proof *f, uint32_t index, const struct prog_task *t,
                               uint64_t col0, uint64_t col1) {
    return columns(f, index, t, col0, col1, proof_tensor(f, index)->dtype == DTYPE_F32 ? 4 : 2);
}

static int touch(struct proof *f, uint32_t object, uint32_t task, struct rect r, bool write) {
    if (r.run == 0 || r.n_rows == 0) return QN_OK;
    r.write = write;
    r.op = PROG(f->p, TASK)[task].op;
    const struct access a = {object, task, r};
    return ARRAY_PUSH(f->d, &f->accesses, a);
}

static int touch_slice(struct proof *f, uint32_t object, uint32_t task) {
    struct rect r = task_verify_touch_whole(f, object);
    r.slice = PROG(f->p, TASK)[task].unit0;
    r.n_slices = PROG(f->p, TASK)[task].unit1;
    return touch(f, object, task, r, true);
}

/* Rows of the residual stream before a matrix product: as they are, or normed and their squares. */
static int touch_normed(struct proof *f, uint32_t x, uint32_t squares, uint32_t index) {
    const struct prog_task *t = &PROG(f->p, TASK)[index];
    TRY(touch(f, x, index, full_rows(f, x, t), false));
    return squares == PROG_NONE ? QN_OK : touch(f, squares, index, full_rows(f, squares, t), false);
}

/* The operators' reads and writes, from the definitions in op.def. */
int task_verify_touch(struct proof *f, uint32_t index) {
    const struct prog_task *t = &PROG(f->p, TASK)[index];
    if (t->kind == OP_NONE) return QN_OK;
    const struct prog_op *op = &PROG(f->p, OP)[t->op];
    const struct model_spec *s = PROG(f->p, MODEL);
    const uint64_t D = s->head_dim, u0 = t->unit0, u1 = t->unit1;
    switch ((enum op_kind)t->kind) {
    case OP_EMBED:
        for (int i = 0; i < OP_MAX_OUT; i++)
            if (op->out[i] != PROG_NONE)
                TRY(touch(f, op->out[i], index, full_rows(f, op->out[i], t), true));
        return QN_OK;
    case OP_QKV: {
        /* Units count query heads, key heads, value heads; the cache's columns count from the
         * first key head. */
        const uint64_t q0 = MIN(u0, s->n_heads), q1 = MIN(u1, s->n_heads);
        const uint64_t c0 = u0 - q0, c1 = u1 - q1;
        TRY(touch(f, op->in[QKV_X], index, full_rows(f, op->in[QKV_X], t), false));
        TRY(touch(f, op->out[QKV_OUT_Q], index,
                  columns(f, op->out[QKV_OUT_Q], t, q0 * D, q1 * D, 4), true));
        return touch(f, op->out[QKV_OUT_KV], index, columns(f, op->out[QKV_OUT_KV], t, c0, c1, 1),
                     true);
    }
    case OP_QKV_LINEAR:
        TRY(touch_normed(f, op->in[QKV_X], op->in[QKV_LINEAR_SQUARES], index));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0, u1, 4), true);
    case OP_QKV_HEADS: {
        const uint64_t q0 = MIN(u0, s->n_heads), q1 = MIN(u1, s->n_heads);
        TRY(touch(f, op->in[HEADS_QKV], index, columns(f, op->in[HEADS_QKV], t, u0 * D, u1 * D, 4),
                  false));
        TRY(touch(f, op->out[QKV_OUT_Q], index,
                  columns(f, op->out[QKV_OUT_Q], t, q0 * D, q1 * D, 4), true));
        return touch(f, op->out[QKV_OUT_KV], index,
                     columns(f, op->out[QKV_OUT_KV], t, u0 - q0, u1 - q1, 1), true);
    }
    case OP_ATTENTION:
    case OP_ATTENTION_SPLIT:
        TRY(touch(f, op->in[ATTENTION_Q], index, task_verify_touch_whole(f, op->in[ATTENTION_Q]),
                  false));
        TRY(touch(f, op->in[ATTENTION_KV], index, task_verify_touch_whole(f, op->in[ATTENTION_KV]),
                  false));
        return touch_slice(f, op->out[0], index);
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_WHOLE:
        /* The rest of the cache was there before the iteration. */
        TRY(touch(f, op->in[HEADS_QKV], index, task_verify_touch_whole(f, op->in[HEADS_QKV]),
                  false));
        TRY(touch_slice(f, op->out[0], index));
        return touch_slice(f, op->out[1], index);
    case OP_ATTENTION_COMBINE:
        TRY(touch(f, op->in[COMBINE_PART], index,
                  columns(f, op->in[COMBINE_PART], t, u0, u1,
                          4ull * proof_tensor(f, op->in[COMBINE_PART])->shape[2] * (D + 2)),
                  false));
        return touch(f, op->out[0], index, own_columns(f, op->out[0], t, u0 * D, u1 * D), true);
    case OP_LINEAR:
        TRY(touch(f, op->in[LINEAR_A], index, full_rows(f, op->in[LINEAR_A], t), false));
        if (op->in[LINEAR_RESIDUAL] != PROG_NONE)
            TRY(touch(f, op->in[LINEAR_RESIDUAL], index,
                      columns(f, op->in[LINEAR_RESIDUAL], t, u0, u1, 4), false));
        TRY(touch(f, op->out[STREAM_X], index, columns(f, op->out[STREAM_X], t, u0, u1, 4), true));
        if (op->out[STREAM_NORMED] == PROG_NONE) return QN_OK;
        TRY(touch(f, op->out[STREAM_NORMED], index,
                  own_columns(f, op->out[STREAM_NORMED], t, u0, u1), true));
        return touch(f, op->out[STREAM_SQUARES], index,
                     columns(f, op->out[STREAM_SQUARES], t, u0 / SQUARES_COLUMNS,
                             CEIL_DIV(u1, (uint64_t)SQUARES_COLUMNS), 4),
                     true);
    case OP_LINEAR_PARTS:
        TRY(touch(f, op->in[PARTS_A], index, full_rows(f, op->in[PARTS_A], t), false));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0, u1, 4), true);
    case OP_LINEAR_SUM:
        TRY(touch(f, op->in[SUM_PARTS], index, full_rows(f, op->in[SUM_PARTS], t), false));
        TRY(touch(f, op->in[SUM_RESIDUAL], index, full_rows(f, op->in[SUM_RESIDUAL], t), false));
        for (int i = STREAM_X; i <= STREAM_SQUARES; i++)
            TRY(touch(f, op->out[i], index, full_rows(f, op->out[i], t), true));
        return QN_OK;
    case OP_GATED_MLP:
        TRY(touch_normed(f, op->in[MLP_X], op->in[MLP_SQUARES], index));
        return touch(f, op->out[0], index, own_columns(f, op->out[0], t, u0, u1), true);
    case OP_PACK:
    case OP_PACK_LOGITS:
        TRY(touch(f, op->in[PACK_X], index,
                  t->kind == OP_PACK ? full_rows(f, op->in[PACK_X], t)
                                     : task_verify_touch_whole(f, op->in[PACK_X]),
                  false));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0 * PACK_K, u1 * PACK_K, 2),
                     true);
    case OP_SUM_SQUARES:
        TRY(touch(f, op->in[0], index, full_rows(f, op->in[0], t), false));
        return touch(f, op->out[0], index, full_rows(f, op->out[0], t), true);
    case OP_LM_HEAD:
        TRY(touch(f, op->in[LM_X], index, task_verify_touch_whole(f, op->in[LM_X]), false));
        if (op->in[LM_SQUARES] != PROG_NONE)
            TRY(touch(f, op->in[LM_SQUARES], index, task_verify_touch_whole(f, op->in[LM_SQUARES]),
                      false));
        TRY(touch(f, op->out[LM_OUT_LOGITS], index,
                  columns(f, op->out[LM_OUT_LOGITS], t, u0 * LM_BLOCK, u1 * LM_BLOCK, 4), true));
        return touch(f, op->out[LM_OUT_PART], index, columns(f, op->out[LM_OUT_PART], t, u0, u1, 8),
                     true);
    case OP_CLEAR: {
        const uint64_t pitch = pitch_of(proof_tensor(f, op->out[0]));
        TRY(touch(f, op->in[CLEAR_AFTER], index, task_verify_touch_whole(f, op->in[CLEAR_AFTER]),
                  false));
        return touch(f, op->out[0], index, rows_of(f, op->out[0], u0, u1, 0, pitch, pitch), true);
    }
    case OP_SAMPLE:
        TRY(touch(f, op->in[SAMPLE_LOGITS], index, full_rows(f, op->in[SAMPLE_LOGITS], t), false));
        TRY(touch(f, op->in[SAMPLE_PART], index, full_rows(f, op->in[SAMPLE_PART], t), false));
        return touch(f, op->out[0], index, full_rows(f, op->out[0], t), true);
    case OP_NONE:
    case N_OP_KINDS: break;
    }
    return fail(f->d, QN_EVERIFY, "task %u has no rule", index);
}
