/* memory.cuh - loads and stores with their memory order and cache policy in the name.
 *
 * Data that other blocks wrote is read through L2 (`_l2`): the L1 of a multiprocessor is not
 * coherent. Ordering comes from the events, not from these loads.
 */
#ifndef QN_CUDA_PTX_MEMORY_CUH
#define QN_CUDA_PTX_MEMORY_CUH

#include "kernels/cuda/ptx/barrier.cuh"

/* The block's dynamic shared memory. In a kernel that has no other shared memory and is not
 * launched in clusters it always begins at SHARED_BEGIN of the shared window. Because this address
 * is a constant, no function and no mbarrier's address needs the block's rank in its cluster.
 * memory_check traps if the address is another. */
extern __shared__ __align__(1024) char shared_symbol[];
#define SHARED_BEGIN  (__CUDA_ARCH__ >= 900 ? 1024 : 0)
#define shared_memory ((char *)__cvta_shared_to_generic(SHARED_BEGIN))

DEV void memory_check(void) {
    if (ptx_shared_address(shared_symbol) != SHARED_BEGIN) asm volatile("trap;");
}

/* ASSUME: the compiler may count on x. UNLIKELY: x is rare, so its code lies out of the way. */
#define ASSUME(x) __builtin_assume(x)
/* KEEP: x is computed here, not where it is used. */
#define KEEP(x)     asm volatile("" : "+r"(x))
#define UNLIKELY(x) __builtin_expect(x, false)

/* threadIdx.x, read again: for code without a register to keep it or values made from it. */
DEV uint32_t thread_here(void) {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

DEV float load_l2(const float *p) {
    return __ldcg(p);
}
/* The same if `wanted`, otherwise 0 without an access. It has no branch, because the compiler would
 * wait for the value at the branch's end. */
DEV float load_l2_if(bool wanted, const float *p) {
    float v;
    asm volatile("{\n.reg .pred q;\nsetp.ne.u32 q, %1, 0;\nmov.f32 %0, 0f00000000;\n"
                 "@q ld.global.cg.f32 %0, [%2];\n}"
                 : "=f"(v)
                 : "r"((uint32_t)wanted), "l"(p)
                 : "memory");
    return v;
}
DEV float2 load2_l2(const float *p) {
    return __ldcg((const float2 *)p);
}
DEV float4 load4_l2(const float *p) {
    return __ldcg((const float4 *)p);
}
/* Four floats that the same thread stores and loads, so that program order is enough. Their line is
 * the last to leave the L2. */
DEV void store4_own(float *p, float4 v) {
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w), "l"(0x14F0000000000000ull)
                 : "memory");
}
DEV float4 load4_own(const float *p) {
    float4 v;
    asm volatile("ld.global.cg.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p), "l"(0x14F0000000000000ull)
                 : "memory");
    return v;
}
DEV uint32_t load_word_l2(const uint32_t *p) {
    return __ldcg(p);
}
DEV uint4 load_vector_l2(const void *p) {
    return __ldcg((const uint4 *)p);
}
DEV int32_t load_index_l2(const int32_t *p) {
    return __ldcg(p);
}
/* Fetches the line at p into the L2, if it is not there. */
DEV void prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Flagged data: {value, iteration} in 8 bytes, which are one access. Nothing else is ordered. */
DEV uint4 load_flagged_pair(const float *p) { /* two elements: value, flag, value, flag */
    uint64_t lo, hi;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(lo), "=l"(hi)
                 : "l"(p)
                 : "memory");
    return make_uint4((uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32));
}
DEV uint2 load_flagged(const float *p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return make_uint2((uint32_t)v, (uint32_t)(v >> 32));
}
DEV void store_flagged(float *p, float value, uint32_t flag) {
    uint64_t v = (uint64_t)flag << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* Two consecutive elements, at a multiple of 16 bytes. Either may become visible first. */
DEV void store_flagged2(float *p, float a, float b, uint32_t flag) {
    const uint64_t high = (uint64_t)flag << 32;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(p),
                 "l"(high | __float_as_uint(a)), "l"(high | __float_as_uint(b))
                 : "memory");
}

/* Words that may be sentinels (CUDA_SENTINEL). Each is an access of its own; nothing else is
 * ordered. Words that are stored this way may also be read behind a counter. */
DEV uint32_t load_word_polled(const void *p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
/* Four words, each an access of its own. */
DEV uint4 load_words4_polled(const void *p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEV void store_word(void *p, uint32_t v) {
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* A store of two words, which the compiler may move: with `st.relaxed` attention of many rows
 * spills 16 bytes more. */
DEV void store_words2(void *p, uint2 v) {
    *(uint2 *)p = v;
}
DEV void store_words4(void *p, uint4 v) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
DEV void store_plain(float *p, float v) {
    store_word(p, __float_as_uint(v));
}
DEV void store2_plain(float *p, float2 v) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v.x), "f"(v.y) : "memory");
}
/* Four floats by one store, which the compiler may split into four. */
DEV void store4_plain(float *p, float4 v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}
/* A float whose line is the last to leave the L2. */
DEV void store_kept(float *p, float v) {
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(p), "f"(v),
                 "l"(0x14F0000000000000ull)
                 : "memory");
}

DEV void add_release_gpu(uint32_t *p, uint32_t v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

DEV void add_relaxed_gpu(uint32_t *p, uint32_t v) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

DEV void add64_relaxed_gpu(uint64_t *p, uint64_t v) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* Words in shared memory that warps poll; ordered by hand where it matters. */
DEV uint32_t shared_load_volatile(const uint32_t *p) {
    return *(const volatile uint32_t *)p;
}
DEV void shared_store_volatile(uint32_t *p, uint32_t v) {
    *(volatile uint32_t *)p = v;
}
DEV uint32_t shared_load_acquire_cta(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
                 : "=r"(v)
                 : "r"(ptx_shared_address(p))
                 : "memory");
    return v;
}
DEV void shared_store_release_cta(uint32_t *p, uint32_t v) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(ptx_shared_address(p)), "r"(v)
                 : "memory");
}

DEV void pause_ns(uint32_t ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory");
}

/* Loads four matrices of eight rows of 16 bytes. Lane 8 m + i has the address of row i of matrix m.
 * Lane 4 g + j gets word j of row g of each matrix. */
DEV uint4 load_matrices(const void *row) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(ptx_shared_address(row))
                 : "memory");
    return v;
}
/* The same, transposed: lane 4 g + j gets column g of rows 2 j and 2 j + 1. */
DEV uint4 load_matrices_turned(const void *row) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(ptx_shared_address(row))
                 : "memory");
    return v;
}

/* 16 bytes of global into shared memory, asynchronously; see copy_commit, copy_wait. */
DEV void copy16_async(void *dst, const void *src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ptx_shared_address(dst)),
                 "l"(src)
                 : "memory");
}
/* The same for bytes that are read once: their line is the first to leave the L2. */
DEV void copy16_once_async(void *dst, const void *src) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     ptx_shared_address(dst)),
                 "l"(src), "l"(0x12F0000000000000ull)
                 : "memory");
}
/* 16 bytes of words that may be sentinels. */
DEV void copy16_polled_async(void *dst, const void *src) {
    copy16_async(dst, src);
}
DEV void copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Arrives at a barrier when this thread's copies so far have landed. */
DEV void copy_arrive(uint64_t *barrier) {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ptx_shared_address(barrier))
        : "memory");
}
/* Waits until at most N groups of this thread are unfinished. */
template <int N> DEV void copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
