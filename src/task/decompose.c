/* decompose.c - operators become tasks (MPK section 4.1, "operator decomposition").
 *
 * An operator's output is cut into row_tiles x unit_tiles rectangles; each is one task. The number
 * of tasks is about tasks_per_worker * n_workers; among the ways to reach it, the one that loads
 * the fewest bytes wins: every row tile reads all the weights, every unit tile reads all the
 * activations. Unit tiles are multiples of the operator's grain, so that a task's weights are whole
 * blocks of every backend's layout and a tile boundary never splits what must stay together.
 */
#include "base/checked.h"
#include "task/task_graph.h"

#include <assert.h>

/* Output units that a tile is a multiple of. 16 weight rows make one row block of the tensor
 * cores' layout; the gated MLP interleaves 8 gate and 8 up rows in one. */
static uint32_t grain(const struct kop *op) {
    switch (op->kind) {
    case OP_QKV_LINEAR:
    case OP_LINEAR:
    case OP_LINEAR_PARTS: return 16;
    case OP_GATED_MLP: return 8;
    default: return 1;
    }
}

/* Whether an operator multiplies packed activations. */
static bool reads_packed(const struct tgraph *g, const struct kop *op) {
    if (op->kind != OP_QKV_LINEAR && op->kind != OP_LINEAR && op->kind != OP_LINEAR_PARTS &&
        op->kind != OP_GATED_MLP && op->kind != OP_LM_HEAD)
        return false;
    return g->kernel->tensors.items[op->in[0]].layout == LAYOUT_PACKED;
}

/* Token rows that a tile is a multiple of. */
static uint32_t row_grain(const struct tgraph *g, const struct kop *op) {
    return reads_packed(g, op) ? PACK_ROWS : 1;
}

/* Bytes that one operator's tasks load when cut into row_tiles x unit_tiles. */
static uint64_t loaded_bytes(const struct tgraph *g, const struct kop *op, uint32_t row_tiles,
                             uint32_t unit_tiles) {
    const struct task whole = {
        .op = (int32_t)(op - g->kernel->ops.items), .row1 = kop_rows(op), .unit1 = kop_units(op)};
    struct region access[TASK_MAX_ACCESS];
    uint64_t activations = 0;
    int n = task_access(g->kernel, &whole, access);
    for (int i = 0; i < n; i++)
        if (!access[i].write) activations += 4 * region_elements(g->kernel, &access[i]);
    return task_weight_bytes(g->kernel, &whole) * row_tiles + activations * unit_tiles;
}

struct tiles {
    uint32_t rows, units;
};

/* What a task of packed activations costs: token rows and weight rows that pass through shared
 * memory, tile by tile. (On an H100 that is the bound: 16 flops a byte of a tile of 128 x 128 ask
 * for as much as the L2 gives.) */
static uint64_t packed_cost(uint32_t token_rows, uint32_t weight_rows) {
    const uint32_t across = CEIL_DIV(token_rows, (uint32_t)PACK_TILE);
    const uint32_t down = CEIL_DIV(weight_rows, (uint32_t)PACK_TILE);
    return (uint64_t)down * token_rows + (uint64_t)across * weight_rows;
}

/* The cut whose largest task costs least. Where weights stream, rows are not cut: a task has tensor
 * core columns for all rows at once (matmul_stream.cuh), and half of the rows would
 * leave half of the columns empty. */
static struct tiles choose_packed(const struct tgraph *g, uint32_t n_rows, uint32_t n_blocks,
                                  uint32_t want) {
    struct tiles best = {1, 1};
    uint64_t best_cost = UINT64_MAX;
    const bool streams = rows_stream(n_rows, g->kernel->spec.hidden, g->options.wide);
    const uint32_t most = streams ? 1 : MIN(n_rows / PACK_ROWS, want);
    for (uint32_t rows = 1; rows <= most; rows *= 2) {
        const uint32_t each = CEIL_DIV(n_blocks, MIN(want / rows, n_blocks));
        /* No more tasks than it takes. */
        const uint64_t cost = packed_cost(CEIL_DIV(n_rows, rows), each * 16);
        if (cost >= best_cost) continue;
        best_cost = cost;
        best = (struct tiles){rows, CEIL_DIV(n_blocks, each)};
    }
    return best;
}

/* Slices of an operator that can have work. Attention has at most one slice for each piece of the
 * context and head; a worker without a slice goes straight on to its next multiplication. */
static uint32_t most_slices(const struct tgraph *g, const struct kop *op, uint32_t want) {
    const struct kgraph *k = g->kernel;
    uint64_t items = (uint64_t)k->n_rows * k->spec.n_kv_heads;
    if (op->kind == OP_ATTENTION_STEP)
        items *= (uint64_t)k->n_pieces * CEIL_DIV(k->spec.n_heads / k->spec.n_kv_heads, 16u);
    else if (op->kind != OP_ATTENTION_WHOLE)
        return want;
    return items < want ? (uint32_t)items : want;
}

static struct tiles choose_tiles(const struct tgraph *g, const struct kop *op, uint32_t want) {
    assert(want > 0); /* a worker, and a task for it */
    const uint32_t n_rows = CEIL_DIV(kop_rows(op), row_grain(g, op));
    const uint32_t n_blocks = CEIL_DIV(kop_units(op), grain(op));
    const struct tile_override *o = &g->options.tiles[op->kind];
    if (op_split_of(op->kind) == SPLIT_SLICES)
        return (struct tiles){1, o->unit_tiles != 0 ? o->unit_tiles : most_slices(g, op, want)};
    if (op_split_of(op->kind) == SPLIT_ROWS)
        return (struct tiles){MIN(n_rows, o->row_tiles != 0 ? o->row_tiles : want), 1};
    /* The workers that it leaves have SAMPLE. */
    if (op->kind == OP_CLEAR && want > g->kernel->n_logit_rows)
        return (struct tiles){1, MIN(want - g->kernel->n_logit_rows, n_blocks)};
    struct tiles best = {1, MIN(want, n_blocks)};
    uint64_t best_bytes = UINT64_MAX;
    for (uint32_t rows = 1; rows <= MIN(n_rows, want); rows *= 2) {
        const uint32_t units = MIN(MAX(want / rows, 1u), n_blocks);
        /* A cut that leaves workers idle is taken only where no cut keeps them busy. */
        const uint64_t idle = want - MIN(want, rows * units);
        const uint64_t bytes = loaded_bytes(g, op, rows, units) * (want + idle) / want;
        if (bytes < best_bytes) {
            best_bytes = bytes;
            best = (struct tiles){rows, units};
        }
    }
    if (reads_packed(g, op) && op->kind != OP_LM_HEAD)
        best = choose_packed(g, n_rows * PACK_ROWS, n_blocks, want);
    if (o->row_tiles != 0) best.rows = MIN(o->row_tiles, n_rows);
    if (o->unit_tiles != 0) best.units = MIN(o->unit_tiles, n_blocks);
    return best;
}

/* What a CUDA block merges at a time of a context of up to so many pieces, a warp 64 columns. */
enum { MERGED_COLUMNS = 512, MERGED_PIECES = 8 };

/* Tasks that a LINEAR which adds to the residual stream can have: its row blocks, or what is asked
 * for. */
static uint32_t linear_tasks(const struct tgraph *g) {
    const uint32_t blocks =
        CEIL_DIV(g->kernel->spec.hidden, grain(&(struct kop){.kind = OP_LINEAR}));
    const uint32_t asked = g->options.tiles[OP_LINEAR].unit_tiles;
    return asked != 0 ? MIN(asked, blocks) : blocks;
}

/* Number of workers for COMBINE. If the workers without a task of the next LINEAR can merge a row
 * at once, COMBINE is theirs alone: all other workers then wait with their LINEAR task prepared
 * (docs/measurements.md, "Placement"). */
static uint32_t workers_to_merge(const struct tgraph *g) {
    const struct kgraph *k = g->kernel;
    const uint32_t all = g->options.n_workers;
    const uint32_t idle = all - MIN(all, linear_tasks(g));
    const uint32_t once = CEIL_DIV(k->spec.n_heads * k->spec.head_dim, (uint32_t)MERGED_COLUMNS);
    if (idle < once || k->context > MERGED_PIECES * ATTENTION_PIECE) return all;
    return MIN(idle, 2 * once);
}

/* Number of workers for an operator. Where a LINEAR has tasks for at most half of the workers, the
 * operators before and after it are for the other half (place.c): each half prepares its tasks
 * while the other one works. The price: each task has more to multiply. */
static uint32_t workers_for(const struct tgraph *g, const struct kop *op) {
    const struct kgraph *k = g->kernel;
    const uint32_t all = g->options.n_workers;
    if (k->n_rows > 1) return all;
    if (op->kind == OP_ATTENTION_COMBINE) return g->options.apart ? workers_to_merge(g) : all;
    if (!g->options.alternate) return all;
    if (op->kind != OP_QKV_LINEAR && op->kind != OP_GATED_MLP) return all;
    const uint32_t busy = linear_tasks(g);
    return busy <= all / 2 ? all - busy : all;
}

/* As many tasks as make whole gangs: of tiles those of one row of them, side by side. `most`: parts
 * that there are to make tasks of. */
static int make_gangs(struct diag *d, const struct tgraph *g, const struct kop *op, uint64_t most,
                      struct tiles *tiles) {
    uint32_t *n = op_split_of(op->kind) == SPLIT_ROWS ? &tiles->rows : &tiles->units;
    if (op->gang == 1) return QN_OK;
    *n = MAX(*n / op->gang, 1u) * op->gang;
    if (*n <= most && op->gang <= g->options.n_workers) return QN_OK;
    return fail(d, QN_EINVAL,
                "layer %d %s: want gangs of %u tasks; there are %u workers, %llu parts", op->layer,
                op_name(op->kind), op->gang, g->options.n_workers, (unsigned long long)most);
}

static int add_tasks(struct diag *d, struct tgraph *g, int32_t op_idx) {
    const struct kop *op = &g->kernel->ops.items[op_idx];
    const uint32_t want = workers_for(g, op) * g->options.tasks_per_worker;
    struct tiles tiles = choose_tiles(g, op, want);
    const uint64_t row_size = row_grain(g, op);
    const uint64_t n_rows = CEIL_DIV(kop_rows(op), row_size), n_units = kop_units(op);
    const uint64_t size = grain(op), n_blocks = CEIL_DIV(n_units, size);
    const enum op_split split = op_split_of(op->kind);
    const uint64_t parts = split == SPLIT_SLICES ? want : split == SPLIT_ROWS ? n_rows : n_blocks;
    TRY(make_gangs(d, g, op, parts, &tiles));
    for (uint32_t r = 0; r < tiles.rows; r++)
        for (uint32_t u = 0; u < tiles.units; u++) {
            struct task t = {
                .kind = op->kind,
                .op = op_idx,
                .row0 = (uint32_t)(n_rows * r / tiles.rows * row_size),
                .row1 = (uint32_t)MIN(n_rows * (r + 1) / tiles.rows * row_size, kop_rows(op)),
                .unit0 = (uint32_t)(n_blocks * u / tiles.units * size),
                .unit1 = (uint32_t)MIN(n_blocks * (u + 1) / tiles.units * size, n_units),
                .wait = NO_EVENT,
                .trigger = NO_EVENT,
                .worker = NO_WORKER};
            if (op_split_of(op->kind) == SPLIT_SLICES) {
                t.unit0 = u;
                t.unit1 = tiles.units;
            }
            TRY(ARRAY_PUSH(d, &g->tasks, t));
        }
    return QN_OK;
}

int decompose(struct diag *d, struct tgraph *g) {
    TRY(ARENA_NEW(d, g->arena, &g->op_tasks, g->kernel->ops.n));
    for (int32_t i = 0; i < (int32_t)g->kernel->ops.n; i++) {
        g->op_tasks[i].first = (int32_t)g->tasks.n;
        TRY(add_tasks(d, g, i));
        g->op_tasks[i].last = (int32_t)g->tasks.n;
    }
    return QN_OK;
}
