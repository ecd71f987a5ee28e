/* task_verify_touch.c - what the operators touch, as rectangles of bytes: op.def's access maps, by
 * the proof's own evaluator (task_verify_map.c).
 */
#include "base/checked.h"
#include "task/task_verify_map.h"

/* Stored rows of a tensor: a packed one has a multiple of PACK_ROWS. */
static uint64_t stored_rows(const struct prog_tensor *t) {
    const uint64_t n = t->shape[0];
    return t->layout == LAYOUT_PACKED ? (n + PACK_ROWS - 1) / PACK_ROWS * PACK_ROWS : n;
}

/* Bytes of a stored row; of a KV cache, cells. */
static uint64_t pitch_of(const struct prog_tensor *t) {
    return t->role == PROG_STATE ? t->shape[1] : t->bytes / stored_rows(t);
}

/* Bytes of one step in a tensor's second dimension, with all of further dimensions. */
static uint64_t column_bytes(const struct prog_tensor *t) {
    if (t->role == PROG_STATE) return 1;
    uint64_t n = t->dtype == DTYPE_F32 || t->dtype == DTYPE_I32 ? 4 : 2;
    if (t->transport == TRANSPORT_FLAG) n *= 2;
    for (int i = 2; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

/* Rows [row0,row1) x bytes [col0,col1) of a tensor. */
static struct rect rect_of(const struct prog_tensor *t, uint64_t row0, uint64_t row1, uint64_t col0,
                           uint64_t col1) {
    const uint64_t pitch = pitch_of(t);
    const bool state = t->role == PROG_STATE;
    return (struct rect){.space = state ? 1 + (uint32_t)t->where : 0,
                         .at = (state ? 0 : t->where) + row0 * pitch + col0,
                         .run = col1 - col0,
                         .stride = pitch,
                         .n_rows = row1 - row0};
}

struct rect task_verify_touch_whole(const struct proof *f, uint32_t index) {
    const struct prog_tensor *t = proof_tensor(f, index);
    return rect_of(t, 0, t->shape[0], 0, pitch_of(t));
}

/* The rectangle of an operand that a task touches. A row's last column includes the row's
 * padding. */
static struct rect touched(const struct prog_tensor *t, const struct verify_operand *o,
                           const struct prog_task *task) {
    const struct verify_interval rows = task_verify_map_range(&o->dim[0], task);
    struct verify_interval columns = {0, 1};
    if (o->n_dims > 1) columns = task_verify_map_range(&o->dim[1], task);
    if (rows.first >= rows.last || columns.first >= columns.last) return (struct rect){0};
    const bool last = o->n_dims < 2 || columns.last == t->shape[1];
    return rect_of(t, rows.first, rows.last, columns.first * column_bytes(t),
                   last ? pitch_of(t) : columns.last * column_bytes(t));
}

static int add(struct proof *f, uint32_t object, uint32_t task, struct rect r, bool write) {
    if (r.run == 0 || r.n_rows == 0) return QN_OK;
    r.write = write;
    r.op = PROG(f->p, TASK)[task].op;
    const struct access a = {object, task, r};
    return ARRAY_PUSH(f->d, &f->accesses, a);
}

static int touch(struct proof *f, uint32_t object, uint32_t index, const struct verify_operand *o,
                 bool write) {
    const struct prog_task *t = &PROG(f->p, TASK)[index];
    const struct prog_tensor *tensor = proof_tensor(f, object);
    if (tensor->role == PROG_WEIGHT) return QN_OK; /* immutable */
    if (!write || op_split_of(t->kind) != SPLIT_SLICES)
        return add(f, object, index, touched(tensor, o, t), write);
    struct rect r = task_verify_touch_whole(f, object);
    r.slice = t->unit0;
    r.n_slices = t->unit1;
    return add(f, object, index, r, true);
}

int task_verify_touch(struct proof *f, uint32_t index) {
    const struct prog_task *t = &PROG(f->p, TASK)[index];
    if (t->kind == OP_NONE) return QN_OK;
    const struct prog_op *op = &PROG(f->p, OP)[t->op];
    const struct verify_map *m = &f->maps[t->op - f->v->first_op];
    for (int i = 0; i < m->info->n_in; i++)
        if (op->in[i] != PROG_NONE) TRY(touch(f, op->in[i], index, &m->in[i], false));
    for (int i = 0; i < m->info->n_out; i++)
        if (op->out[i] != PROG_NONE) TRY(touch(f, op->out[i], index, &m->out[i], true));
    return QN_OK;
}
