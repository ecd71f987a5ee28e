/* router.c - ROUTER: logits of experts. One unit is one row of the router.
 *
 * 16-bit weights multiply 16-bit activations, whose rounding would choose other experts for one row
 * in seventy. So a row is packed as two rows: the rounded one, and the remainder. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/tile.h"

#include <math.h>

struct router_scratch {
    float *halves; /* [2 * block, H] the rounded rows, then the remainders */
    void *pack;    /* of them, or of a block of rows */
    float *y;      /* [2 * block, tile_chunk(2 * block)] dot products */
    size_t bytes;
};

/* Rows of a block: half of what other blocks may have, since both halves of a row are packed. */
static uint32_t block_of(const struct prog_op *op) {
    const uint32_t block = tile_block_rows(op->k) / 2;
    return op->n_rows < block ? op->n_rows : block;
}

static struct router_scratch layout(void *base, uint32_t block, uint32_t k) {
    struct tile_scratch s = {.base = base};
    struct router_scratch l = {0};
    l.halves = tile_take(&s, (size_t)2 * block * k * sizeof(float));
    l.pack = tile_take(&s, cpu_pack_bound(2 * block, k));
    l.y = tile_take(&s, (size_t)2 * block * tile_chunk(2 * block) * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_router_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, block_of(op), op->k).bytes;
}

/* Splits n rows of x * norm into halves; x[n + i] gets the remainder of x[i]. */
static void split(const float *norm, uint32_t n, uint32_t k, float *halves, const float **x) {
    for (uint32_t r = 0; r < n; r++) {
        float *high = halves + (size_t)r * k, *low = halves + (size_t)(n + r) * k;
        for (uint32_t i = 0; i < k; i++) {
            const float v = x[r][i] * norm[i];
            high[i] = convert_from_bf16(convert_to_bf16(v));
            low[i] = v - high[i];
        }
        x[r] = high;
        x[n + r] = low;
    }
}

/* Multiplies the units of a task with n packed rows from row r on; two: and with the remainders
 * packed behind them. */
static void multiply(const struct cpu_task *t, const struct router_scratch *l, uint32_t r,
                     uint32_t n, bool two, const float *inv) {
    const enum dtype dtype = tile_in_dtype(t, ROUTER_W);
    const uint32_t k = t->op->k, units = t->op->units, packed = two ? 2 * n : n;
    const uint32_t chunk = tile_chunk(2 * block_of(t->op));
    float *logits = tile_out(t, 0); /* [T, units] */
    for (uint32_t u = t->task->unit0; u < t->task->unit1; u += chunk) {
        const uint32_t m = t->task->unit1 - u < chunk ? t->task->unit1 - u : chunk;
        t->isa->gemm[dtype](CPU_SUM_WHOLE, tile_weight_row(tile_in(t, ROUTER_W), dtype, u, k), m, k,
                            l->pack, packed, l->y, chunk);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t c = 0; c < m; c++) {
                const float low = two ? l->y[(size_t)(n + i) * chunk + c] : 0;
                logits[(size_t)(r + i) * units + u + c] =
                    (l->y[(size_t)i * chunk + c] + low) * inv[i];
            }
    }
}

void cpu_router(const struct cpu_task *t) {
    const float *input = tile_in(t, ROUTER_X); /* [T, H] */
    const float *norm = tile_in(t, ROUTER_NORM);
    const enum dtype dtype = tile_in_dtype(t, ROUTER_W);
    const bool two = dtype == DTYPE_BF16;
    const uint32_t k = t->op->k, block = block_of(t->op);
    const uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    const struct router_scratch l = layout(t->scratch, block, k);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        const uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        float inv[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) {
            x[i] = input + (size_t)(r + i) * k;
            inv[i] = tile_inverse_rms(t, x[i], k);
        }
        if (two) split(norm, n, k, l.halves, x);
        t->isa->pack(dtype, x, two ? NULL : norm, two ? 2 * n : n, k, l.pack);
        multiply(t, &l, r, n, two, inv);
    }
}
