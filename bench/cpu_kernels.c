/* bench_cpu_kernels - the CPU primitives against the bounds of this machine, measured in the same
 * run: memory read speed, and what the multiply units do when nothing else stands in the way.
 *
 *   bench_cpu_kernels [isa [threads [k tokens]]]
 *
 * gemm runs over a matrix far larger than the caches, in tiles as tasks do; attend over the cache
 * of one prompt. Each figure is the best of several passes. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernel.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_THREADS = 64, WEIGHT_BYTES = 192 << 20, TILE_ROWS = 64, PASSES = 5 };

struct bench {
    const struct cpu_isa *isa;
    int n_threads;
    char *weights; /* WEIGHT_BYTES in pages of 4 KB, as a mapped checkpoint has them */
    enum dtype dtype;
    enum cpu_sum sum;
    uint32_t k, n_tok;
    uint32_t only_k, only_tok; /* 0: all shapes */
    size_t bytes;              /* of the weights to go over */
    const void *pack;
    float *y;
    pthread_barrier_t barrier;
};

struct worker {
    struct bench *b;
    int idx;
    double seconds; /* of the last pass */
    double result;  /* keeps the work from being thrown away */
};

/* Time on the processor, so that another program's turns do not count. */
static double thread_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__attribute__((target("avx512f"))) static double read_wide(const char *p, size_t bytes) {
    __m512i s[8] = {0};
    for (size_t i = 0; i + 512 <= bytes; i += 512)
        for (int j = 0; j < 8; j++)
            s[j] = _mm512_or_si512(s[j], _mm512_loadu_si512(p + i + j * 64));
    for (int j = 1; j < 8; j++) s[0] = _mm512_or_si512(s[0], s[j]);
    return (double)_mm512_reduce_or_epi64(s[0]);
}

/* Four streams, the quarters of a MB: where AVX-512 is missing that is the fastest way. */
static double read_narrow(const char *p, size_t bytes) {
    enum { BLOCK = 1 << 20 };
    __m128i s[4] = {0};
    for (size_t block; bytes > 0; bytes -= block, p += block) { /* bytes: a multiple of 512 */
        block = bytes < BLOCK ? bytes : BLOCK;
        for (size_t i = 0; i < block / 4; i += sizeof s[0])
            for (size_t j = 0; j < 4; j++)
                s[j] = _mm_or_si128(s[j], _mm_loadu_si128((const void *)(p + j * block / 4 + i)));
    }
    s[0] = _mm_or_si128(_mm_or_si128(s[0], s[1]), _mm_or_si128(s[2], s[3]));
    return (double)_mm_cvtsi128_si64(s[0]);
}

static void run_read(struct worker *w) {
    size_t part = WEIGHT_BYTES / (size_t)w->b->n_threads & ~(size_t)511;
    const char *p = w->b->weights + part * (size_t)w->idx;
    w->result = __builtin_cpu_supports("avx512f") ? read_wide(p, part) : read_narrow(p, part);
}

__attribute__((target("avx512f,avx512bf16"))) static double dots(void) {
    __m512 acc[24] = {0};
    __m512bh x = {0};
    /* The compiler must not see that all sums are equal. */
    for (int j = 0; j < 24; j++) __asm__("" : "+v"(acc[j]));
    for (int i = 0; i < 1 << 20; i++)
        _Pragma("GCC unroll 24") for (int j = 0; j < 24; j++) acc[j] =
            _mm512_dpbf16_ps(acc[j], x, x);
    for (int j = 1; j < 24; j++) acc[0] = _mm512_add_ps(acc[0], acc[j]);
    return (double)_mm512_reduce_add_ps(acc[0]);
}

enum { DOT_FLOPS = 24 * 64 };
static void run_dots(struct worker *w) {
    w->result = dots();
}

static void run_gemm(struct worker *w) {
    struct bench *b = w->b;
    size_t row = (size_t)b->k * dtype_bytes(b->dtype);
    uint32_t tiles = (uint32_t)(b->bytes / row / TILE_ROWS), n_threads = (uint32_t)b->n_threads,
             idx = (uint32_t)w->idx;
    float *y = b->y + (size_t)idx * TILE_ROWS * b->n_tok;
    for (uint32_t i = tiles * idx / n_threads; i < tiles * (idx + 1) / n_threads; i++)
        b->isa->gemm[b->dtype](b->sum, b->weights + (size_t)i * TILE_ROWS * row, TILE_ROWS, b->k,
                               b->pack, b->n_tok, y, TILE_ROWS);
}

struct job {
    struct worker *w;
    void (*fn)(struct worker *w);
};

static void *job_run(void *p) {
    struct job *j = p;
    pthread_barrier_wait(&j->w->b->barrier);
    double t = thread_time();
    j->fn(j->w);
    j->w->seconds = thread_time() - t;
    return NULL;
}

/* Seconds of the slowest thread, best of PASSES. */
static double measure(struct bench *b, void (*fn)(struct worker *w)) {
    double best = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        struct worker workers[MAX_THREADS];
        struct job jobs[MAX_THREADS];
        pthread_t threads[MAX_THREADS];
        double slowest = 0;
        pthread_barrier_init(&b->barrier, NULL, (unsigned)b->n_threads);
        for (int i = 0; i < b->n_threads; i++) {
            workers[i] = (struct worker){.b = b, .idx = i};
            jobs[i] = (struct job){&workers[i], fn};
            pthread_create(&threads[i], NULL, job_run, &jobs[i]);
        }
        for (int i = 0; i < b->n_threads; i++) {
            pthread_join(threads[i], NULL);
            if (workers[i].seconds > slowest) slowest = workers[i].seconds;
        }
        pthread_barrier_destroy(&b->barrier);
        if (slowest < best) best = slowest;
    }
    return best;
}

static void *pages(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(p, bytes, MADV_NOHUGEPAGE);
    return p;
}

static void bench_gemm(struct bench *b, enum cpu_sum sum, double read_rate, double dot_rate) {
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    static const char *const names[] = {"F32", "BF16", "F16"};
    static const uint32_t ks[] = {1024, 3072, 4096}, toks[] = {1, 2, 4, 6, 8, 16, 32, 64, 128};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 9; j++) {
                if (b->only_k != 0 && (ks[i] != b->only_k || toks[j] != b->only_tok)) continue;
                if (b->only_k == 0 && dtypes[d] != DTYPE_BF16 &&
                    (i != 1 || (j != 0 && j != 4 && j != 8)))
                    continue;
                b->sum = sum, b->dtype = dtypes[d], b->k = ks[i], b->n_tok = toks[j];
                b->bytes = toks[j] > 8 ? WEIGHT_BYTES / 8 : WEIGHT_BYTES;
                float *x = calloc((size_t)b->n_tok * b->k, sizeof *x);
                const float *rows[128];
                for (uint32_t t = 0; t < b->n_tok; t++) rows[t] = x + (size_t)t * b->k;
                void *pack = aligned_alloc(64, cpu_pack_bound(b->n_tok, b->k));
                b->isa->pack(b->dtype, rows, NULL, b->n_tok, b->k, pack);
                b->pack = pack;
                b->y = calloc((size_t)b->n_threads * TILE_ROWS * b->n_tok, sizeof *b->y);
                double s = measure(b, run_gemm), bytes = (double)b->bytes;
                double flops = 2 * bytes / dtype_bytes(b->dtype) * b->n_tok;
                printf("%s %-4s k %4u n_tok %3u: %6.1f GB/s (%3.0f %% of read) %7.1f GFLOP/s",
                       sum == CPU_SUM_HALVES ? "halves" : "gemm", names[b->dtype], b->k, b->n_tok,
                       bytes / s * 1e-9, 100 * bytes / s / read_rate, flops / s * 1e-9);
                if (dot_rate > 0 && b->dtype == DTYPE_BF16)
                    printf(" (%3.0f %% of dpbf16)", 100 * flops / s / dot_rate);
                printf("\n");
                free(x), free(pack), free(b->y);
            }
}

/* One thread: every row of a prompt of n tokens, one KV head with two query heads. */
static void bench_attend(const struct cpu_isa *isa) {
    enum { N = 512, D = 128, HEADS = 2, BLOCK = 16 };
    static const char *const names[] = {"F32", "BF16", "F16"};
    float *q = calloc(HEADS * D, sizeof *q), *state = calloc(HEADS * (D + 2), sizeof *state);
    char *k = calloc(N * D, 4), *v = calloc(N * D, 4);
    for (int kv = 0; kv < 3; kv++) {
        const struct kv_row of = {.heads = 1, .k_width = D, .v_width = D, .dtype = (uint8_t)kv};
        double best = 1e9;
        for (int pass = 0; pass < PASSES; pass++) {
            double t = thread_time();
            for (uint32_t row = 0; row < N; row++)
                for (uint32_t p = 0; p <= row; p += BLOCK) {
                    size_t at = (size_t)p * D * dtype_bytes((uint32_t)kv);
                    isa->attend(&of, q, HEADS, k + at, v + at,
                                row + 1 - p < BLOCK ? row + 1 - p : BLOCK, state);
                }
            if (thread_time() - t < best) best = thread_time() - t;
        }
        double flops = 4.0 * N * (N + 1) / 2 * D * HEADS;
        printf("attend %-4s %d tokens, %d heads of %d: %.2f ms, %.1f GFLOP/s, one thread\n",
               names[kv], N, HEADS, D, best * 1e3, flops / best * 1e-9);
    }
    free(q), free(state), free(k), free(v);
}

int main(int argc, char **argv) {
    struct bench b = {.isa = cpu_isa_select(argc > 1 ? argv[1] : NULL), .n_threads = 1};
    if (argc > 2) b.n_threads = atoi(argv[2]);
    if (argc > 4) b.only_k = (uint32_t)atoi(argv[3]), b.only_tok = (uint32_t)atoi(argv[4]);
    if (b.isa == NULL || b.n_threads < 1 || b.n_threads > MAX_THREADS) {
        fprintf(stderr, "usage: bench_cpu_kernels [isa [threads [k tokens]]]\n");
        return 2;
    }
    b.weights = pages(WEIGHT_BYTES);
    memset(b.weights, 0, WEIGHT_BYTES);
    double read_rate = WEIGHT_BYTES / measure(&b, run_read), dot_rate = 0;
    if (__builtin_cpu_supports("avx512bf16"))
        dot_rate = (double)DOT_FLOPS * (1 << 20) * b.n_threads / measure(&b, run_dots);
    printf("%s, %d threads: read %.1f GB/s, dpbf16 %.1f GFLOP/s\n", b.isa->name, b.n_threads,
           read_rate * 1e-9, dot_rate * 1e-9);
    bench_gemm(&b, CPU_SUM_WHOLE, read_rate, dot_rate);
    bench_gemm(&b, CPU_SUM_HALVES, read_rate, dot_rate);
    if (b.only_k == 0) bench_attend(b.isa);
    munmap(b.weights, WEIGHT_BYTES);
    return 0;
}
