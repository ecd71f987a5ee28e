/* operand.cuh - loads and stores of activations: the only code that knows how they travel.
 *
 * They are F32 tensors with one of four transports (task/transport.c):
 *
 *   plain     guarded by event counters: by the time a task runs they can be read through L2
 *   flagged   every element is {value, iteration}; a reader polls until the element has the number
 *             of the running iteration. Polling costs one trip to L2 once the value is stored.
 *   paired    flagged, but every two elements are {16-bit floats, iteration}; for a single row,
 *             whose readers all round it to 16 bits anyway
 *   sentinel  for several rows, packed or not: as plain, but a word has all bits set until it is
 *             stored
 */
#ifndef QN_CUDA_DATA_OPERAND_CUH
#define QN_CUDA_DATA_OPERAND_CUH

#include "kernels/cuda/block/walk.cuh"

/* An activation, or a row of one, that other blocks wrote. */
struct operand {
    const float *at;
    uint32_t flag; /* the flag that its elements must have; 0: it has none */
};

/* Operand at an address; `flagged` is its bit of the task's flags. */
DEV struct operand operand_of(uint64_t address, const struct cuda_task *task, uint32_t flagged) {
    struct operand a = {(const float *)address, 0};
    if (task->flags & flagged) a.flag = SHARED->flag;
    return a;
}

/* Operand at an address, with flags. A flag is the number of an iteration: not 0. */
DEV struct operand operand_flagged(uint64_t address) {
    const struct operand a = {(const float *)address, SHARED->flag};
    ASSUME(a.flag != 0);
    return a;
}

DEV struct operand operand_from(struct operand a, uint64_t element) {
    a.at += a.flag != 0 ? 2 * element : element;
    return a;
}

/* Whether the launch ends. A polling thread then gives up and returns any value. */
DEV bool operand_given_up(void) {
    return block_stops();
}

/* Whether a word is not stored yet. */
DEV bool word_is_sentinel(uint32_t v) {
    return v == CUDA_SENTINEL;
}

/* Loads element i and its flag; a plain element comes with the flag 0. */
DEV uint2 operand_ask(struct operand a, uint64_t i) {
    if (a.flag == 0) return make_uint2(__float_as_uint(load_l2(a.at + i)), 0);
    return load_flagged(a.at + 2 * i);
}

/* The same, but a sentinel comes with a flag that is not the operand's. A plain word is never a
 * sentinel. */
DEV uint2 operand_ask_word(struct operand a, uint64_t i) {
    if (a.flag != 0) return load_flagged(a.at + 2 * i);
    const uint32_t v = load_word_polled(a.at + i);
    return make_uint2(v, word_is_sentinel(v));
}

DEV float operand_await(struct operand a, uint64_t i, uint2 v) {
    while (v.y != a.flag && !operand_given_up()) v = load_flagged(a.at + 2 * i);
    return __uint_as_float(v.x);
}

/* The value of element i once it is there, by its flag or as a word. v: what its last load gave. */
DEV float operand_await_word(struct operand a, uint64_t i, uint2 v) {
    while (v.y != a.flag && !operand_given_up()) v = operand_ask_word(a, i);
    return __uint_as_float(v.x);
}

/* Loads elements 2 i and 2 i + 1: with their flags, or, of a plain operand, in the first two words.
 * A plain element is not moved to the place of a flagged one, because the move would wait for the
 * load. */
DEV uint4 operand_ask2(struct operand a, uint32_t i) {
    if (a.flag != 0) return load_flagged_pair(a.at + 4 * i);
    const uint2 v = __ldcg((const uint2 *)a.at + i);
    return make_uint4(v.x, v.y, 0, 0);
}

DEV bool operand_there2(struct operand a, uint4 v) {
    return a.flag == 0 || (v.y == a.flag && v.w == a.flag);
}

DEV float2 operand_pair(struct operand a, uint4 v) {
    return make_float2(__uint_as_float(v.x), __uint_as_float(a.flag == 0 ? v.y : v.z));
}

DEV float2 operand_await2(struct operand a, uint32_t i, uint4 v) {
    while (!operand_there2(a, v) && !operand_given_up()) v = load_flagged_pair(a.at + 4 * i);
    return operand_pair(a, v);
}

DEV float2 operand_load2(struct operand a, uint32_t i) {
    return operand_await2(a, i, operand_ask2(a, i));
}

/* Waits for elements at[0], at[1] and so on, by flags or sentinels. Each poll loads all of them, so
 * the wait ends one trip after the last is stored. */
template <int N>
DEV void operand_load_all(struct operand a, const uint32_t (&at)[N], float (&to)[N]) {
    bool there;
    do {
        uint2 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = operand_ask_word(a, at[i]);
        there = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            there = there && v[i].y == a.flag;
            to[i] = __uint_as_float(v[i].x);
        }
    } while (!there && !operand_given_up());
}

/* Floats [4 i, 4 i + 4). */
struct operand_words {
    uint4 lo, hi;
};

DEV struct operand_words operand_ask4(struct operand a, uint32_t i) {
    return operand_words{load_flagged_pair(a.at + 8 * i), load_flagged_pair(a.at + 8 * i + 4)};
}

DEV bool operand_there4(struct operand a, const struct operand_words *w) {
    return w->lo.y == a.flag && w->lo.w == a.flag && w->hi.y == a.flag && w->hi.w == a.flag;
}

/* Loads N of a row's `end` float4s for the thread: numbers first + 256 u, zeros beyond the end. All
 * that are missing are loaded again together, so the wait ends one trip after the last is stored,
 * whichever it is. */
template <int N>
DEV void operand_load_share(struct operand a, uint32_t first, uint32_t end, float4 v[N]) {
    if (a.flag == 0) {
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t at = first + u * COMPUTE_THREADS;
            v[u] = at < end ? load4_l2(a.at + 4 * at) : make_float4(0, 0, 0, 0);
        }
        return;
    }
    struct operand_words w[N] = {};
    uint32_t missing = 0;
#pragma unroll
    for (int u = 0; u < N; u++) missing |= (first + u * COMPUTE_THREADS < end) << u;
#pragma unroll 1
    do {
#pragma unroll
        for (int u = 0; u < N; u++)
            if (missing >> u & 1) w[u] = operand_ask4(a, first + u * COMPUTE_THREADS);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (operand_there4(a, &w[u])) missing &= ~(1u << u);
    } while (missing != 0 && !operand_given_up());
#pragma unroll
    for (int u = 0; u < N; u++)
        v[u] = make_float4(__uint_as_float(w[u].lo.x), __uint_as_float(w[u].lo.z),
                           __uint_as_float(w[u].hi.x), __uint_as_float(w[u].hi.z));
}

/* Stores element `at` of a task's result. */
DEV void operand_store(const struct cuda_task *task, uint64_t at, float v) {
    float *out = (float *)task->out;
    if (task->flags & CUDA_OUT_FLAGGED)
        store_flagged(out + 2 * at, v, SHARED->flag);
    else
        store_plain(out + at, v);
}

/* Stores elements 0 and 1 at a place in a result. */
DEV void operand_put2(struct operand to, float2 v) {
    float *out = (float *)to.at;
    if (to.flag == 0) {
        *(float2 *)out = v;
        return;
    }
    store_flagged(out, v.x, to.flag);
    store_flagged(out + 2, v.y, to.flag);
}

/* Stores elements 0 and 1 at a place in a result, whose form the caller has looked up. The place is
 * a multiple of two elements. */
template <bool FLAGGED> DEV void words_put2(float *to, float a, float b, uint32_t flag) {
    if (FLAGGED)
        store_flagged2(to, a, b, flag);
    else
        store2_plain(to, make_float2(a, b));
}

DEV void operand_store4(const struct cuda_task *task, uint64_t at, float4 v) {
    if ((task->flags & CUDA_OUT_FLAGGED) == 0) {
        store_words4((float *)task->out + at,
                     make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                                __float_as_uint(v.w)));
        return;
    }
    operand_store(task, at, v.x);
    operand_store(task, at + 1, v.y);
    operand_store(task, at + 2, v.z);
    operand_store(task, at + 3, v.w);
}

DEV void store_flagged_pair(float *to, float v0, float v1, uint32_t flag) {
    store_flagged(to, __uint_as_float(pack_pair<WEIGHT_E>(v0, v1)), flag);
}

/* Stores elements `at` and at + 1 of a single row as a pair; `at` is even. */
DEV void operand_store_pair(const struct cuda_task *task, uint64_t at, float v0, float v1) {
    store_flagged_pair((float *)task->out + at, v0, v1, SHARED->flag);
}

#endif
