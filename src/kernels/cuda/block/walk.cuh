/* walk.cuh - the order in which a task with weights takes its pages. Loader and compute warps both
 * follow it, from the descriptor alone.
 *
 * A task covers row blocks [block0, block1) of its image and token rows [row0, row1), the latter in
 * tiles. For each tile, row blocks are worked on in groups whose partial sums fit the scratch:
 *
 *   staged     (one row) the activations lie in shared memory as 16-bit floats; pages come row
 *              block by row block: one accumulator set at a time
 *   stream     (packed rows) every warp reads the activations of its k-tile from L2 and uses them
 *              for all row blocks of the group: pages come one step of each row block of the
 *              group, then the next step (cuda_abi.h). Where the last step has fewer than eight
 *              pages, void pages fill it
 *
 * Pages go to the compute warps in turn, so a slot of the ring always belongs to the same warp.
 * Both ways give each output the same sums: graph/partials.h.
 */
#ifndef QN_CUDA_BLOCK_WALK_CUH
#define QN_CUDA_BLOCK_WALK_CUH

#include "kernels/cuda/block/block.cuh"

#define LM_UNIT_BLOCKS (LM_BLOCK / CUDA_PAGE_ROWS)

DEV uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

/* The last row block + 1 of the group that begins at `block`; groups do not cross units. */
DEV uint32_t walk_group_end(uint32_t block, uint32_t block1, uint32_t group, uint32_t unit_blocks) {
    uint32_t end = min(block + group, block1);
    if (unit_blocks > group) end = min(end, block / unit_blocks * unit_blocks + unit_blocks);
    return end;
}

DEV uint32_t turn_after(uint32_t turn, uint32_t n_pages) {
    return (turn + n_pages) % WARPS;
}

#endif
