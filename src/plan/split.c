/* split.c - see split.h. */
#include "plan/split.h"
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "plan/cost.h"

#include <assert.h>

/* Columns that a CUDA block merges at a time, 64 a warp, in contexts of up to MERGED_PIECES pieces.
 */
enum { MERGED_COLUMNS = 512, MERGED_PIECES = 8 };

/* 16 weight rows make one row block of the tensor cores' layout; the gated MLP interleaves 8 gate
 * and 8 up rows in one. */
uint32_t split_grain(enum op_kind kind) {
    switch (kind) {
    case OP_QKV_LINEAR:
    case OP_LINEAR:
    case OP_LINEAR_SPLITK:
    case OP_ROUTER:
    case OP_EXPERT_DOWN:
    case OP_LATENT_HEADS:
    case OP_LATENT_MERGE:
    case OP_LATENT_VALUES: return 16;
    case OP_GATED_MLP: return 8;
    default: return 1;
    }
}

/* Most tasks of a LINEAR that adds to the residual stream: one for each row block, or as many as
 * the user asks for. */
static uint32_t linear_tasks(const struct kgraph *k, const struct split_wish *wish) {
    const uint32_t blocks = CEIL_DIV(k->spec.hidden, split_grain(OP_LINEAR));
    return wish->linear_tasks != 0 ? MIN(wish->linear_tasks, blocks) : blocks;
}

/* Merge apart (docs/place.md): MERGE is for the workers without a task of the next LINEAR, if they
 * can merge a row at once. The other workers prepare their task of LINEAR meanwhile. */
static uint32_t workers_to_merge_apart(const struct device *d, const struct kgraph *k,
                                       const struct split_wish *wish) {
    const uint32_t all = d->n_workers;
    const uint32_t idle = all - MIN(all, linear_tasks(k, wish));
    const uint32_t once = CEIL_DIV(k->spec.n_heads * k->spec.head_dim, (uint32_t)MERGED_COLUMNS);
    if (idle < once || k->context > MERGED_PIECES * ATTENTION_PIECE) return all;
    return MIN(idle, 2 * once);
}

/* Halves (docs/place.md): where at most half of the workers have a task of LINEAR, the operators
 * before and after it are for the other half. Each half prepares its tasks while the other works.
 */
uint32_t split_workers(const struct device *d, const struct kgraph *k, const struct kop *op,
                       const struct split_wish *wish) {
    const uint32_t all = d->n_workers;
    if (k->n_rows > 1) return all;
    if (op->kind == OP_ATTENTION_MERGE)
        return device_has_short_ring(d) ? workers_to_merge_apart(d, k, wish) : all;
    if (!wish->halves || !device_holds_layer(d, &k->spec)) return all;
    if (op->kind != OP_QKV_LINEAR && op->kind != OP_GATED_MLP) return all;
    const uint32_t busy = linear_tasks(k, wish);
    return busy <= all / 2 ? all - busy : all;
}

uint32_t split_leaving(const struct kop *op, uint32_t want, uint32_t others) {
    const uint32_t blocks = CEIL_DIV(kop_units(op), split_grain(op->kind));
    const uint32_t left = MIN(want, others), largest = CEIL_DIV(blocks, want);
    return CEIL_DIV(blocks, largest) <= left ? left : want;
}

/* An operator over contexts has at most one slice for each piece and head. A worker without a slice
 * goes straight on to the next product. */
uint32_t split_slices(const struct kgraph *k, const struct kop *op, uint32_t want) {
    uint64_t items = (uint64_t)k->n_rows * k->spec.n_kv_heads;
    if (op->kind == OP_ATTENTION_SPLIT && spec_is_latent(&k->spec))
        items *= (uint64_t)k->n_pieces * CEIL_DIV(k->spec.n_heads, 16u);
    else if (op->kind == OP_ATTENTION_STEP)
        items *= (uint64_t)k->n_pieces * CEIL_DIV(k->spec.n_heads / k->spec.n_kv_heads, 16u);
    else if (op->kind != OP_ATTENTION_WHOLE)
        return want;
    return items < want ? (uint32_t)items : want;
}

struct split_cut split_evenly(uint32_t n_grains, uint32_t rows, uint32_t units) {
    return (struct split_cut){{{n_grains, rows, units, 1}}};
}

/* Cuts across x down blocks for `want` tasks, 1 or more. Returns the blocks of the largest. */
static uint32_t cut_blocks(uint32_t across, uint32_t down, uint32_t want, struct split_band *cut) {
    uint32_t least = UINT32_MAX;
    for (uint32_t rows = 1; rows <= MIN(across, want); rows++) {
        const uint32_t units = MIN(want / rows, down);
        const uint32_t most = CEIL_DIV(across, rows) * CEIL_DIV(down, units);
        if (most >= least) continue;
        least = most;
        cut->rows = rows;
        cut->units = units;
    }
    return least;
}

/* A cut with a row tile for each of `across` tiles of tokens. Its unit tiles are made of whole half
 * tiles, of 64 weight rows, because tensor cores multiply all of one that is not full; or of
 * grains, if these are larger. A second band has to take 2.5 % off the largest task: with 2.1 % a
 * prompt of 2,048 tokens of Qwen3-8B took as long as before (H200). Returns the weight rows of that
 * task. */
static uint32_t cut_by_tokens(const struct split_product *p, uint32_t across,
                              struct split_cut *cut) {
    const uint32_t whole = MAX(PACK_TILE / 2 / p->grain_rows, 1u);
    const uint32_t n = CEIL_DIV(p->n_grains, whole);
    const uint32_t units = MIN(MAX(p->want / across, 1u), n);
    const uint32_t left = p->want - MIN(p->want, units * across);
    uint32_t each = CEIL_DIV(n, units);
    *cut = (struct split_cut){{{p->n_grains, across, CEIL_DIV(n, each), whole}}};
    for (uint32_t most = each * 39 / 40; left > 0 && most > 0; most--) {
        struct split_band rest = {.whole = whole};
        if (cut_blocks(across, n - units * most, left, &rest) > most) break;
        rest.grains = p->n_grains - units * most * whole;
        *cut = (struct split_cut){{{units * most * whole, across, units, whole}, rest}};
        each = most;
    }
    return each * whole * p->grain_rows;
}

struct split_cut split_product(const struct split_product *p, uint64_t *cost) {
    assert(p->n_grains > 0 && p->want > 0);
    struct split_cut best = split_evenly(p->n_grains, 1, 1);
    uint64_t best_cost = UINT64_MAX;
    const uint32_t of_tokens = CEIL_DIV(p->n_rows, (uint32_t)PACK_TILE);
    const uint32_t share = p->n_grains * p->grain_rows / p->want;
    for (uint32_t rows = 1; rows <= p->most_rows;
         rows = rows < of_tokens && 2 * rows > of_tokens ? of_tokens : 2 * rows) {
        const uint32_t each = CEIL_DIV(p->n_grains, MIN(MAX(p->want / rows, 1u), p->n_grains));
        struct split_cut cut = split_evenly(p->n_grains, rows, CEIL_DIV(p->n_grains, each));
        uint32_t weight_rows = each * p->grain_rows;
        if (rows == of_tokens && rows > 1) weight_rows = cut_by_tokens(p, of_tokens, &cut);
        const uint64_t now = cost_tile_rows(CEIL_DIV(p->n_rows, rows), weight_rows, share);
        if (now >= best_cost) continue;
        best_cost = now;
        best = cut;
    }
    if (cost != NULL) *cost = best_cost;
    return best;
}

struct split_product split_fused(const struct model_spec *s, uint32_t n_rows, uint32_t want) {
    const uint32_t eights = CEIL_DIV(n_rows, (uint32_t)PACK_ROWS);
    const uint32_t wide = eights / (PACK_NARROW / PACK_ROWS + 1); /* more rows than a narrow tile */
    return (struct split_product){.n_rows = eights * PACK_ROWS,
                                  .n_grains = s->n_heads + 2 * s->n_kv_heads,
                                  .grain_rows = s->head_dim,
                                  .most_rows =
                                      MIN(CEIL_DIV(n_rows, (uint32_t)PACK_TILE), MAX(wide, 1u)),
                                  .want = want};
}

struct split_product split_projections(const struct model_spec *s, uint32_t n_rows, uint32_t want) {
    struct split_product p = split_fused(s, n_rows, want);
    const uint32_t grain = split_grain(OP_QKV_LINEAR);
    p.n_grains = CEIL_DIV(p.n_grains * p.grain_rows, grain);
    p.grain_rows = grain;
    p.most_rows = MIN(p.n_rows / PACK_ROWS, want);
    return p;
}

bool split_reads_packed(const struct kgraph *k, const struct kop *op) {
    return cuda_has_pages(op->kind) && k->tensors.items[op->in[0]].layout == LAYOUT_PACKED;
}

/* Where weights stream, rows stay together: a task has tensor core columns for all rows, and half
 * of the rows would leave columns empty. */
struct split_cut split_packed(const struct kgraph *k, const struct kop *op, uint32_t n_rows,
                              uint32_t n_blocks, uint32_t want) {
    const bool is_head = op->kind == OP_LM_HEAD;
    /* A prompt has one logit row: its LM head is for all workers. */
    if (is_head && (n_rows <= PACK_TILE || n_rows < k->n_rows))
        return split_evenly(n_blocks, 1, MIN(want, n_blocks));
    struct split_product p = {n_rows, n_blocks, is_head ? LM_BLOCK : 16,
                              MIN(n_rows / PACK_ROWS, want), want};
    if (op->kind == OP_QKV_FUSED) p = split_fused(&k->spec, n_rows, want);
    if (device_streams(n_rows)) p.most_rows = 1;
    return split_product(&p, NULL);
}

bool split_is_of_experts(enum op_kind kind) {
    return kind == OP_ROUTER || kind == OP_EXPERT_DOWN;
}

/* A task of ROUTER goes through its rows eight by eight. Its weights are few, so all tasks find
 * them in L2. A task of EXPERT_DOWN goes through all rows of each listed expert. */
struct split_cut split_experts(const struct kop *op, uint32_t n_rows, uint32_t n_blocks,
                               uint32_t want) {
    const uint32_t eights = CEIL_DIV(n_rows, (uint32_t)PACK_ROWS);
    const uint32_t rows = op->kind == OP_ROUTER ? MIN(eights, MAX(want / n_blocks, 1u)) : 1;
    return split_evenly(n_blocks, rows, MIN(want, n_blocks));
}
