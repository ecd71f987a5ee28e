/* expert_gate_up.c - EXPERT_GATE_UP: a slice of the work list. Each item multiplies the
 * rows that chose its expert, gathered by their addresses. */
#include "graph/expert_list.h"
#include "kernels/cpu/tile.h"

#include <assert.h>
#include <string.h>

size_t cpu_expert_gate_up_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return mlp_scratch_at(NULL, tile_op_block(op, op->k), op->k).bytes;
}

/* The rows of slots [slot, slot + n), packed; inv[n]: their 1 / rms. */
static void gather(const struct cpu_task *t, uint32_t slot, uint32_t n, void *pack, float *inv) {
    const float *input = tile_in(t, GATE_UP_X);       /* [T, H] */
    const int32_t *slots = tile_in(t, GATE_UP_SLOTS); /* [T * top_k] */
    const float *x[TILE_MAX_ROWS];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = (uint32_t)slots[slot + i] / t->op->attrs.top_k;
        assert(row < t->batch->rows.n_rows);
        x[i] = input + (size_t)row * t->op->k;
    }
    tile_pack_norm(t, tile_in_dtype(t, GATE_UP_WG), x, tile_in(t, GATE_UP_NORM), n, t->op->k, pack,
                   inv);
}

/* Multiplies rows of the item's gate and up with n packed rows, those of slots from `slot` on. */
static void run_item(const struct cpu_task *t, const struct mlp_scratch *l,
                     const struct expert_item *item, uint32_t slot, uint32_t n, const float *inv) {
    const uint32_t k = t->op->k, width = tile_in_shape(t, GATE_UP_WG)[1];
    const uint32_t chunk = tile_chunk(tile_op_block(t->op, k));
    const enum dtype dtype = tile_in_dtype(t, GATE_UP_WG);
    const void *wg = tile_expert(t, GATE_UP_WG, item->expert);
    const void *wu = tile_expert(t, GATE_UP_WU, item->expert);
    float *h = (float *)tile_out(t, 0) + (size_t)slot * width; /* [T * top_k, I] */
    for (uint32_t u = item->row0; u < item->row1; u += chunk) {
        const uint32_t m = item->row1 - u < chunk ? item->row1 - u : chunk;
        cpu_gemm_fn *gemm = t->isa->gemm[dtype];
        gemm(CPU_SUM_WHOLE, tile_weight_row(wg, dtype, u, k), m, k, l->pack, n, l->gate, chunk);
        gemm(CPU_SUM_WHOLE, tile_weight_row(wu, dtype, u, k), m, k, l->pack, n, l->up, chunk);
        for (uint32_t i = 0; i < n; i++) {
            float *gate = l->gate + (size_t)i * chunk, *up = l->up + (size_t)i * chunk;
            for (uint32_t c = 0; c < m; c++) gate[c] *= inv[i], up[c] *= inv[i];
            t->isa->silu_mul(gate, up, m);
            memcpy(h + (size_t)i * width + u, gate, m * sizeof(float));
        }
    }
}

void cpu_expert_gate_up(const struct cpu_task *t) {
    const uint32_t *list = tile_in_shape(t, GATE_UP_LIST), *wg = tile_in_shape(t, GATE_UP_WG);
    const uint32_t block = tile_op_block(t->op, t->op->k);
    const struct mlp_scratch l = mlp_scratch_at(t->scratch, block, t->op->k);
    struct expert_walk walk =
        expert_walk_slice(tile_in(t, GATE_UP_LIST), list[0], wg[0], wg[1], t->op->attrs.placed,
                          t->task->unit0, t->task->unit1);
    struct expert_item item;
    float inv[TILE_MAX_ROWS];
    while (expert_walk_next(&walk, &item))
        for (uint32_t s = item.slot0; s < item.slot1; s += block) {
            const uint32_t n = item.slot1 - s < block ? item.slot1 - s : block;
            gather(t, s, n, l.pack, inv);
            run_item(t, &l, &item, s, n, inv);
        }
}
