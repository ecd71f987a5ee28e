/* plan.cuh - how a linear task walks through its weights. Loader and compute warps both derive it
 * from the descriptor alone, so that they agree on the order of pages.
 *
 * A task covers row blocks [block0, block1) of its image and token rows [row0, row1), the latter in
 * tiles. For each tile, row blocks are worked on in groups whose partial sums fit the scratch:
 *
 *   staged   (few rows) the activations lie in shared memory as 16-bit floats; pages come row block
 *            by row block: one accumulator set at a time
 *   direct   every warp reads the activations of its k-tile from L2 and uses them for all row blocks
 *            of the group: pages come eight k-tiles of each row block of the group, then the next eight
 *
 * Both give each output the same sums: two chains per k-tile (even and odd steps), their sum
 * continued over the k-tiles of one partial, partials added in order.
 */
#ifndef QN_CUDA_COMMON_PLAN_CUH
#define QN_CUDA_COMMON_PLAN_CUH

#include "kernels/cuda/common/block.cuh"

#define HEAD_BLOCKS    ((QN_HEAD_DIM / 2 + 7) / 8)
#define LM_UNIT_BLOCKS (LM_BLOCK / CUDA_PAGE_ROWS)

struct linear_plan {
    uint32_t block0, block1; /* row blocks of the image */
    uint32_t unit_blocks;    /* row blocks that are finished together; 0: each alone */
    uint32_t tile;           /* token rows at a time */
    uint32_t group;          /* row blocks at a time */
    uint32_t n_tiles8;       /* direct: columns of 8 tokens (1, 2, 4, 8); 0: staged */
    uint32_t act_stride;     /* staged: bytes from one token's activations to the next */
    uint32_t unit_bytes;     /* scratch for the results of one unit */
};

DEV bool kind_has_weights(uint32_t kind) {
    return kind == OP_QKV || kind == OP_LINEAR || kind == OP_GATED_MLP || kind == OP_LM_HEAD;
}

DEV uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

/* Bytes of the partial sums of one row block for n tokens. */
DEV uint32_t partial_bytes(uint32_t n) { return PARTIALS * CUDA_PAGE_ROWS * 4 * n; }

DEV struct linear_plan plan_linear(uint32_t kind, uint32_t unit0, uint32_t unit1, uint32_t rows,
                                   uint32_t k_tiles) {
    struct linear_plan p;
    uint32_t unit_rows = 0;
    p.unit_blocks = 0;
    if (kind == OP_QKV) {
        p.unit_blocks = HEAD_BLOCKS;
        unit_rows = QN_HEAD_DIM;
    } else if (kind == OP_LM_HEAD) {
        p.unit_blocks = LM_UNIT_BLOCKS;
        unit_rows = LM_BLOCK;
    }
    if (p.unit_blocks != 0) {
        p.block0 = unit0 * p.unit_blocks;
        p.block1 = unit1 * p.unit_blocks;
    } else {
        uint32_t per_block = kind == OP_GATED_MLP ? 8 : CUDA_PAGE_ROWS;
        p.block0 = unit0 / per_block;
        p.block1 = ceil_div(unit1, per_block);
    }
    /* 64 bytes apart modulo 128, so that two tokens' 64-byte pieces never share banks */
    p.act_stride = k_tiles * CUDA_PAGE_K * 2 + 64;
    uint32_t fixed = rows * (p.act_stride + 4 * unit_rows);
    if (rows <= 8 && fixed + partial_bytes(rows) <= SCRATCH_BYTES) {
        p.tile = rows;
        p.n_tiles8 = 0;
        p.unit_bytes = 4 * unit_rows * rows;
        p.group = min((SCRATCH_BYTES - fixed) / partial_bytes(rows), 12u);
    } else {
        uint32_t n = rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8;
        while (n > 1 && 8 * n * 4 * unit_rows + partial_bytes(8 * n) > SCRATCH_BYTES) n /= 2;
        p.n_tiles8 = n;
        p.tile = 8 * n;
        p.unit_bytes = 4 * unit_rows * p.tile;
        p.group = (SCRATCH_BYTES - p.unit_bytes) / partial_bytes(p.tile);
        p.group = min(p.group, n == 1 ? 4u : n == 2 ? 2u : n == 4 ? min(2u, (uint32_t)RING_DEPTH) : 1u);
    }
    if (p.unit_blocks != 0) p.group = min(p.group, p.unit_blocks);
    return p;
}

/* The last row block + 1 of the group that begins at `block`; groups do not cross units. */
DEV uint32_t plan_group_end(const struct linear_plan *p, uint32_t block) {
    uint32_t end = min(block + p->group, p->block1);
    if (p->unit_blocks != 0)
        end = min(end, block / p->unit_blocks * p->unit_blocks + p->unit_blocks);
    return end;
}

/* The warp that gets k-tile 0 of the row block after `n` pages more. */
DEV uint32_t plan_turn(uint32_t turn, uint32_t n) { return (turn + n) % WARPS; }

#endif
