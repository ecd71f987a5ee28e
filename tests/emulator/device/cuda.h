/* cuda.h - what CUDA C++ has and C++ has not, as far as the kernels use it. Included before the
 * kernels' first line; brings no system header, as NVRTC brings none. */
#ifndef QN_TESTS_EMULATOR_DEVICE_CUDA_H
#define QN_TESTS_EMULATOR_DEVICE_CUDA_H

#define __device__
#define __host__
#define __global__
#define __shared__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __align__(n)    __attribute__((aligned(n)))

#include "tests/emulator/machine.h"

#define threadIdx (emu_self->thread_index)
#define blockIdx  (emu_self->block_index)
#define blockDim  (emu_self->block_dim)
#define gridDim   (emu_self->grid_dim)

/* block/control.cuh: a poll is a turn of all threads. */
#define QN_LOOK_EVERY 4

/* What an enumerator of a value is in an expression (nvrtc.c makes constants of it). */
template <bool FITS> struct emu_fit { using type = int; };
template <> struct emu_fit<false> { using type = unsigned; };
template <long long VALUE> using emu_int = typename emu_fit<(VALUE <= 0x7fffffff)>::type;

/* ---- vectors ---- */

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
static inline float2 make_float2(float x, float y) {
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
static inline uint2 make_uint2(uint32_t x, uint32_t y) {
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}

/* ---- arithmetic ---- */

template <class T> static inline T min(T a, T b) {
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b) {
    return a < b ? b : a;
}
#define EMU_MATH1(name)                                                                            \
    static inline float name(float x) {                                                            \
        return __builtin_##name(x);                                                                \
    }
EMU_MATH1(expf)
EMU_MATH1(logf)
EMU_MATH1(sqrtf)
EMU_MATH1(fabsf)
static inline double exp(double x) {
    return __builtin_exp(x);
}
static inline double log(double x) {
    return __builtin_log(x);
}
static inline double sqrt(double x) {
    return __builtin_sqrt(x);
}
static inline float fmaf(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
static inline float fmaxf(float a, float b) {
    return __builtin_fmaxf(a, b);
}
static inline float fminf(float a, float b) {
    return __builtin_fminf(a, b);
}
static inline bool isfinite(float x) {
    return __builtin_isfinite(x);
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __uint_as_float(uint32_t v) {
    return __builtin_bit_cast(float, v);
}
static inline float __int_as_float(int32_t v) {
    return __builtin_bit_cast(float, v);
}
static inline uint32_t __float_as_uint(float v) {
    return __builtin_bit_cast(uint32_t, v);
}
static inline int __popc(uint32_t v) {
    return __builtin_popcount(v);
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t pick) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> 8 * (pick >> 4 * i & 7) & 255) << 8 * i;
    return r;
}

/* ---- loads: cache hints mean nothing here ---- */

template <class T> static inline T __ldg(const T *p) {
    return *p;
}
template <class T> static inline T __ldcg(const T *p) {
    return *p;
}
template <class T> static inline T __ldcs(const T *p) {
    return *p;
}

/* ---- warps: all lanes take part ---- */

static inline void __syncthreads() {
    emu_sync(0, emu_self->block_dim.x);
}
static inline void __syncwarp() {
    emu_sync_warp();
}
static inline uint32_t emu_lane() {
    return emu_self->thread_index.x % 32;
}
template <class T> static inline T emu_shuffle(T v, uint32_t from) {
    static_assert(sizeof(T) % 4 == 0, "words");
    uint32_t words[sizeof(T) / 4];
    __builtin_memcpy(words, &v, sizeof v);
    for (uint32_t i = 0; i < sizeof(T) / 4; i++) words[i] = emu_exchange(words[i])[from];
    __builtin_memcpy(&v, words, sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(uint32_t, T v, uint32_t from) {
    return emu_shuffle(v, from % 32);
}
template <class T> static inline T __shfl_xor_sync(uint32_t, T v, uint32_t mask) {
    return emu_shuffle(v, emu_lane() ^ mask);
}
template <class T> static inline T __shfl_up_sync(uint32_t, T v, uint32_t by) {
    return emu_shuffle(v, emu_lane() >= by ? emu_lane() - by : emu_lane());
}
template <class T> static inline T __shfl_down_sync(uint32_t, T v, uint32_t by) {
    return emu_shuffle(v, emu_lane() + by < 32 ? emu_lane() + by : emu_lane());
}
static inline uint32_t __ballot_sync(uint32_t, int predicate) {
    const uint32_t *all = emu_exchange(predicate != 0);
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 32; i++) mask |= all[i] << i;
    return mask;
}
static inline bool __all_sync(uint32_t mask, int predicate) {
    return __ballot_sync(mask, predicate) == ~0u;
}
static inline bool __any_sync(uint32_t mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
static inline uint32_t __match_any_sync(uint32_t, uint32_t v) {
    const uint32_t *all = emu_exchange(v);
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 32; i++) mask |= (uint32_t)(all[i] == v) << i;
    return mask;
}
static inline uint32_t __reduce_max_sync(uint32_t, uint32_t v) {
    const uint32_t *all = emu_exchange(v);
    for (uint32_t i = 0; i < 32; i++) v = all[i] > v ? all[i] : v;
    return v;
}
static inline uint32_t __reduce_min_sync(uint32_t, uint32_t v) {
    const uint32_t *all = emu_exchange(v);
    for (uint32_t i = 0; i < 32; i++) v = all[i] < v ? all[i] : v;
    return v;
}
static inline uint32_t __reduce_add_sync(uint32_t, uint32_t v) {
    const uint32_t *all = emu_exchange(v);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 32; i++) sum += all[i];
    return sum;
}

/* ---- atomics: relaxed, as CUDA's are ---- */

template <class T, class Change> static inline T emu_atomic(T *p, Change change) {
    T was = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &was, change(was), false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return was;
}
template <class T> static inline T atomicAdd(T *p, T v) {
    return emu_atomic(p, [=](T was) { return was + v; });
}
template <class T> static inline T atomicOr(T *p, T v) {
    return emu_atomic(p, [=](T was) { return was | v; });
}
template <class T> static inline T atomicMax(T *p, T v) {
    return emu_atomic(p, [=](T was) { return max(was, v); });
}
template <class T> static inline T atomicMin(T *p, T v) {
    return emu_atomic(p, [=](T was) { return min(was, v); });
}

/* ---- entries ---- */

template <class P> static void emu_call(void (*kernel)(P), void **arguments) {
    kernel(*(P *)arguments[0]);
}
template <class P> static constexpr unsigned emu_parameter_bytes(void (*)(P)) {
    return sizeof(P);
}
#define EMU_ENTRY(name)                                                                            \
    extern "C" void emu_entry_##name(void **arguments) {                                           \
        emu_call(name, arguments);                                                                 \
    }                                                                                              \
    extern "C" const unsigned emu_bytes_##name = emu_parameter_bytes(name);

#endif
