/* wgmma.cuh - Hopper's matrix products by four warps together, which run while the warps go on.
 *
 * Registers that such a product reads or adds to belong to it from wgmma_fence until a wgmma_wait
 * that covers it.
 */
#ifndef QN_CUDA_PTX_WGMMA_CUH
#define QN_CUDA_PTX_WGMMA_CUH

#include "kernels/cuda/ptx/mma.cuh"

/* Blackwell has no wgmma. */
#define HAS_WGMMA (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000)

#if HAS_WGMMA

/* Descriptor of B in shared memory without a swizzle: matrices of 8 columns x 8 k, each 128
 * contiguous bytes, column by column (transposed: k by k). The second half of k lies `k_step` bytes
 * further, the next 8 columns `n_step` bytes. */
DEV uint64_t wgmma_matrix(const void *base, uint32_t offset, uint32_t k_step, uint32_t n_step) {
    return (uint64_t)(n_step >> 4) << 32 |
           ((k_step >> 4) << 16 | (ptx_shared_address(base) + offset) >> 4);
}
/* Descriptor of a matrix of 128-byte lines with the swizzle of 128 bytes: chunks of 16 bytes are
 * swapped by the line's place among eight, which begin at a multiple of 1024 bytes. eight: bytes
 * from eight lines to the next eight. A line has 64 k of one column (transposed: 64 columns of one
 * k). */
DEV uint64_t wgmma_lines(const void *base, uint32_t offset, uint32_t eight) {
    return 1ull << 62 | (uint64_t)(eight >> 4) << 32 |
           (1u << 16 | (ptx_shared_address(base) + offset) >> 4);
}
/* The same descriptor `bytes` further. The address is in the low word. */
DEV uint64_t wgmma_further(uint64_t matrix, uint32_t bytes) {
    return (matrix & 0xffffffff00000000) | ((uint32_t)matrix + (bytes >> 4));
}

/* Before the first of some products whose registers other instructions have written. */
DEV void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Makes the products so far a group. */
DEV void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N groups are unfinished. */
template <int N> DEV void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from moving reads of these sums before this. */
template <int WO> DEV void wgmma_settle(float (&d)[WO][4]) {
#pragma unroll
    for (int i = 0; i < WO; i++)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

#define D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_128(TYPES)                                                                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " "                          \
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,"             \
                 "%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,"            \
                 "%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"            \
                 "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "                                  \
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"                                          \
                 : D4(0), D4(1), D4(2), D4(3), D4(4), D4(5), D4(6), D4(7), D4(8), D4(9), D4(10),   \
                   D4(11), D4(12), D4(13), D4(14), D4(15)                                          \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add))

/* d[64 x 128] = a[64 x 16] b[16 x 128], plus d if `add`. Warp w of the four has 16 rows from 16 w
 * on; a and d[i] are its registers as in mma_16x8x16, d[i] for 8 columns from 8 i on. */
template <int E> DEV void wgmma_64x128x16(float (&d)[16][4], uint4 a, uint64_t b, bool add) {
    if (E == E_BF16)
        WGMMA_128("bf16.bf16");
    else
        WGMMA_128("f16.f16");
}

#define WGMMA_48(TYPES)                                                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPES " "                           \
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,"             \
                 "%19,%20,%21,%22,%23}, {%24,%25,%26,%27}, %28, p, 1, 1, 0;\n}"                    \
                 : D4(0), D4(1), D4(2), D4(3), D4(4), D4(5)                                        \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add))

/* d[64 x 48] = a[64 x 16] b[16 x 48], plus d if `add`. */
template <int E> DEV void wgmma_64x48x16(float (&d)[6][4], uint4 a, uint64_t b, bool add) {
    if (E == E_BF16)
        WGMMA_48("bf16.bf16");
    else
        WGMMA_48("f16.f16");
}

#define WGMMA_128_SHARED(TYPES)                                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " "                          \
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,"             \
                 "%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,"            \
                 "%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"            \
                 "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "                                  \
                 "%64, %65, p, 1, 1, 0, 0;\n}"                                                     \
                 : D4(0), D4(1), D4(2), D4(3), D4(4), D4(5), D4(6), D4(7), D4(8), D4(9), D4(10),   \
                   D4(11), D4(12), D4(13), D4(14), D4(15)                                          \
                 : "l"(a), "l"(b), "r"((int)add))

/* The same with A's 64 rows in shared memory, laid out like B's columns. */
template <int E>
DEV void wgmma_64x128x16_shared(float (&d)[16][4], uint64_t a, uint64_t b, bool add) {
    if (E == E_BF16)
        WGMMA_128_SHARED("bf16.bf16");
    else
        WGMMA_128_SHARED("f16.f16");
}

#define WGMMA_32_TURNED(TYPES)                                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPES " "                           \
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "                       \
                 "{%16,%17,%18,%19}, %20, p, 1, 1, 1;\n}"                                          \
                 : D4(0), D4(1), D4(2), D4(3)                                                      \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add))

/* d[64 x 32] = a[64 x 16] b[16 x 32], plus d if `add`. The matrices of b are transposed. */
template <int E> DEV void wgmma_64x32x16_turned(float (&d)[4][4], uint4 a, uint64_t b, bool add) {
    if (E == E_BF16)
        WGMMA_32_TURNED("bf16.bf16");
    else
        WGMMA_32_TURNED("f16.f16");
}
#undef D4

#endif

#endif
