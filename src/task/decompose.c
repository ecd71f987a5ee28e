/* decompose.c - operators become tasks (MPK section 4.1, "operator decomposition").
 *
 * An operator's output is cut into row_tiles x unit_tiles rectangles; each is one task. The number
 * of tasks is about tasks_per_worker * n_workers; among the ways to reach it, the one that loads
 * the fewest bytes wins: every row tile reads all the weights, every unit tile reads all the
 * activations. Unit tiles are multiples of the operator's grain, so that a task's weights are whole
 * blocks of every backend's layout and a tile boundary never splits what must stay together.
 */
#include "base/checked.h"
#include "plan/cost.h"
#include "plan/split.h"
#include "task/task_graph.h"

#include <assert.h>

/* Token rows that a tile is a multiple of. */
static uint32_t row_grain(const struct tgraph *g, const struct kop *op) {
    return split_reads_packed(g->kernel, op) ? PACK_ROWS : 1;
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

/* The cut that loads the fewest bytes. One that leaves workers idle counts as if it loaded more. */
static struct split_cut cut_by_bytes(const struct tgraph *g, const struct kop *op, uint32_t n_rows,
                                     uint32_t n_blocks, uint32_t want) {
    struct split_cut best = split_evenly(n_blocks, 1, MIN(want, n_blocks));
    uint64_t best_bytes = UINT64_MAX;
    for (uint32_t rows = 1; rows <= MIN(n_rows, want); rows *= 2) {
        const uint32_t units = MIN(MAX(want / rows, 1u), n_blocks);
        const uint64_t idle = want - MIN(want, rows * units);
        const uint64_t bytes = loaded_bytes(g, op, rows, units) * (want + idle) / want;
        if (bytes >= best_bytes) continue;
        best_bytes = bytes;
        best = split_evenly(n_blocks, rows, units);
    }
    return best;
}

static struct split_cut choose_cut(const struct tgraph *g, const struct kop *op, uint32_t want) {
    assert(want > 0); /* at least one worker, and one task per worker */
    const uint32_t n_rows = CEIL_DIV(kop_rows(op), row_grain(g, op));
    const uint32_t n_blocks = CEIL_DIV(kop_units(op), split_grain(op->kind));
    const struct tile_override *o = &g->options.tiles[op->kind];
    if (op_split_of(op->kind) == SPLIT_SLICES)
        return split_evenly(n_blocks, 1,
                            o->unit_tiles != 0 ? o->unit_tiles : split_slices(g->kernel, op, want));
    if (op_split_of(op->kind) == SPLIT_ROWS)
        return split_evenly(n_blocks, MIN(n_rows, o->row_tiles != 0 ? o->row_tiles : want), 1);
    /* The other workers have tasks of SAMPLE. */
    if (op->kind == OP_RESET_SENTINELS && want > g->kernel->n_logit_rows)
        return split_evenly(n_blocks, 1, MIN(want - g->kernel->n_logit_rows, n_blocks));
    struct split_cut cut;
    if (g->options.device.kind == DEVICE_CUDA && split_is_of_experts(op->kind))
        cut = split_experts(op, n_rows, n_blocks, want);
    else if (split_reads_packed(g->kernel, op))
        cut = split_packed(g->kernel, op, n_rows * PACK_ROWS, n_blocks, want);
    else
        cut = cut_by_bytes(g, op, n_rows, n_blocks, want);
    if (o->row_tiles != 0 || o->unit_tiles != 0)
        cut =
            split_evenly(n_blocks, o->row_tiles != 0 ? MIN(o->row_tiles, n_rows) : cut.band[0].rows,
                         o->unit_tiles != 0 ? MIN(o->unit_tiles, n_blocks) : cut.band[0].units);
    return cut;
}

/* Rounds the number of tasks down to whole gangs, to one gang at least. Of tiles, a gang has
 * neighbours in one row of tiles. `most`: parts that tasks can be made of. */
static int make_gangs(struct diag *d, const struct tgraph *g, const struct kop *op, uint64_t most,
                      struct split_band *band) {
    uint32_t *n = op_split_of(op->kind) == SPLIT_ROWS ? &band->rows : &band->units;
    if (op->gang == 1) return QN_OK;
    *n = MAX(*n / op->gang, 1u) * op->gang;
    if (*n <= most && op->gang <= g->options.device.n_workers) return QN_OK;
    return fail(d, QN_EINVAL,
                "layer %d %s: want gangs of %u tasks; there are %u workers, %llu parts", op->layer,
                op_name(op->kind), op->gang, g->options.device.n_workers, (unsigned long long)most);
}

/* Number of tasks of the operators beside `op`, which are cut already. */
static uint32_t tasks_beside(const struct tgraph *g, int32_t op) {
    uint32_t n = 0;
    for (uint64_t beside = kgraph_beside(g->kernel, op); beside != 0; beside &= beside - 1) {
        const struct task_range *r = &g->op_tasks[op - 1 - __builtin_ctzll(beside)];
        n += (uint32_t)(r->last - r->first);
    }
    return n;
}

/* Number of slices of the operator after `op`, if that is ATTENTION_WHOLE and few workers have one;
 * else 0. Where this operator leaves them alone, one request takes 1.2 % less of Llama-3.2-1B and 1
 * to 3 % less of Qwen3-30B-A3B (H200). Before ATTENTION_STEP Llama took 0.6 % more. */
static uint32_t slices_after(const struct tgraph *g, int32_t op) {
    const struct device *d = &g->options.device;
    const struct kgraph *k = g->kernel;
    if (op + 1 >= (int32_t)k->ops.n) return 0;
    const struct kop *next = &k->ops.items[op + 1];
    if (next->kind != OP_ATTENTION_WHOLE) return 0;
    const uint32_t n = split_slices(k, next, d->n_workers);
    return cost_is_of_few(d, n) ? n : 0;
}

/* Tasks that all workers but `busy` of them have of an operator. */
static uint32_t workers_but(const struct tgraph *g, uint32_t busy) {
    const uint32_t all = g->options.device.n_workers;
    return (all - MIN(all, busy)) * g->options.tasks_per_worker;
}

/* Adds the tasks of one of an operator's bands, whose grains begin with number `first`. */
static int add_band(struct diag *d, struct tgraph *g, int32_t op_idx, const struct split_band *band,
                    uint64_t first) {
    const struct kop *op = &g->kernel->ops.items[op_idx];
    const uint64_t row_size = row_grain(g, op), n_rows = CEIL_DIV(kop_rows(op), row_size);
    const uint64_t size = split_grain(op->kind), n_units = kop_units(op);
    const uint64_t wholes = CEIL_DIV((uint64_t)band->grains, (uint64_t)band->whole);
    for (uint32_t r = 0; r < band->rows; r++)
        for (uint32_t u = 0; u < band->units; u++) {
            const uint64_t from = wholes * u / band->units * band->whole;
            const uint64_t to = MIN(wholes * (u + 1) / band->units * band->whole, band->grains);
            struct task t = {
                .kind = op->kind,
                .op = op_idx,
                .row0 = (uint32_t)(n_rows * r / band->rows * row_size),
                .row1 = (uint32_t)MIN(n_rows * (r + 1) / band->rows * row_size, kop_rows(op)),
                .unit0 = (uint32_t)((first + from) * size),
                .unit1 = (uint32_t)MIN((first + to) * size, n_units),
                .wait = NO_EVENT,
                .trigger = NO_EVENT,
                .worker = NO_WORKER};
            if (op_split_of(op->kind) == SPLIT_SLICES) {
                t.unit0 = u;
                t.unit1 = band->units;
            }
            TRY(ARRAY_PUSH(d, &g->tasks, t));
        }
    return QN_OK;
}

static int add_tasks(struct diag *d, struct tgraph *g, int32_t op_idx) {
    const struct kop *op = &g->kernel->ops.items[op_idx];
    const struct split_wish wish = {g->options.halves, g->options.tiles[OP_LINEAR].unit_tiles};
    const enum op_split split = op_split_of(op->kind);
    uint32_t want =
        split_workers(&g->options.device, g->kernel, op, &wish) * g->options.tasks_per_worker;
    if (g->kernel->n_rows == 1 && split == SPLIT_TILES)
        want = split_leaving(op, want,
                             workers_but(g, tasks_beside(g, op_idx) + slices_after(g, op_idx)));
    struct split_cut cut = choose_cut(g, op, want);
    const uint64_t parts = split == SPLIT_SLICES ? want
                           : split == SPLIT_ROWS ? CEIL_DIV(kop_rows(op), row_grain(g, op))
                                                 : CEIL_DIV(kop_units(op), split_grain(op->kind));
    TRY(make_gangs(d, g, op, parts, &cut.band[0]));
    TRY(add_band(d, g, op_idx, &cut.band[0], 0));
    return cut.band[1].grains == 0 ? QN_OK
                                   : add_band(d, g, op_idx, &cut.band[1], cut.band[0].grains);
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
