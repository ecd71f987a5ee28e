/* isa_amx.c - bf16 gemm on AMX tiles; the rest of that isa is in isa_avx512.c.
 *
 * Weights are the A operand: sixteen rows times 32 elements, loaded straight from the checkpoint.
 * Activations are the B operand and must lie as pairs; pack makes groups of sixteen tokens (the
 * last group has fewer):
 *
 *   group [k / 32 steps][16 pairs][tokens of the group][2]
 *
 * A tile product adds the pairs in order, whatever the number of rows and columns of the tiles, so
 * a result depends on k alone. A block is 32 weight rows times 32 tokens:
 *
 *            B 6      B 7
 *   A 4      C 0      C 1
 *   A 5      C 2      C 3
 */
#include "kernels/cpu/isa_amx.h"

#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/simd_pack.h"

#include <stdbool.h>
#include <string.h>

enum { GROUP = 16, STEP = 32, AT_HAND = 3 /* cpu_partials_merges */ };

/* The compiler does not know that tile loads read memory. This keeps earlier stores in front of
 * them. */
INLINE void stores_done(void) {
    __asm__ volatile("" ::: "memory");
}

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "the layout is the processor's");

static size_t steps_of(uint32_t k) {
    return ((size_t)k + STEP - 1) / STEP;
}

size_t isa_amx_pack_bytes(uint32_t n_tok, uint32_t k) {
    return n_tok * steps_of(k) * 64;
}

/* One token of a group: its pairs lie `tokens` pairs apart. */
static void pack_token(const float *x, const float *scale, uint32_t k, uint32_t tokens,
                       uint32_t *dst) {
    __m512i index =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32((int)tokens));
    for (uint32_t i = 0; i < k; i += STEP, dst += (size_t)GROUP * tokens) {
        vf a = pack_load(x, scale, i, k), b = pack_load(x, scale, i + VL, k);
        __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        if (tokens == 1)
            _mm512_storeu_si512(dst, pairs);
        else
            _mm512_i32scatter_epi32(dst, index, pairs, 4);
    }
}

void isa_amx_pack(const float *const *x, const float *scale, uint32_t n_tok, uint32_t k,
                  void *dst) {
    for (uint32_t t = 0; t < n_tok; t++) {
        uint32_t first = t / GROUP * GROUP;
        uint32_t tokens = n_tok - first < GROUP ? n_tok - first : GROUP;
        char *group = (char *)dst + first * steps_of(k) * 64;
        pack_token(x[t], scale, k, tokens, (uint32_t *)group + (t - first));
    }
}

/* The current block. Rows and tokens of its second halves may be 0. */
struct block {
    const char *w;      /* first weight row */
    uint32_t k, k0, k1; /* length of the rows; columns of a partial sum */
    uint32_t rows[2], tokens[2];
    const char *x[2]; /* the two groups */
    bool fetch;       /* prefetch the next block's weights while this one's are used */
};

static void configure(const struct block *b) {
    _Alignas(64) struct tile_config c = {.palette = 1};
    for (int i = 0; i < 4; i++) {
        c.rows[i] = (uint8_t)b->rows[i / 2];
        c.row_bytes[i] = (uint16_t)(b->tokens[i % 2] * 4);
    }
    for (int i = 0; i < 2; i++) {
        c.rows[4 + i] = (uint8_t)b->rows[i];
        c.row_bytes[4 + i] = 64;
        c.rows[6 + i] = GROUP;
        c.row_bytes[6 + i] = (uint16_t)(b->tokens[i] * 4);
    }
    for (int i = 0; i < 8; i++) /* an unused tile has neither rows nor columns */
        if (c.rows[i] == 0 || c.row_bytes[i] == 0) c.rows[i] = 0, c.row_bytes[i] = 0;
    stores_done();
    _tile_loadconfig(&c);
}

/* One step of 32 elements: a[i] points at the first weight row of half i, `stride` bytes between
 * rows. R and T are the halves in use. */
INLINE void tile_step(int R, int T, const char *const a[2], size_t stride, const char *const x[2],
                      const struct block *b) {
    _tile_loadd(4, a[0], stride);
    _tile_loadd(6, x[0], (size_t)b->tokens[0] * 4);
    _tile_dpbf16ps(0, 4, 6);
    if (T == 2) {
        _tile_loadd(7, x[1], (size_t)b->tokens[1] * 4);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (R == 2) {
        _tile_loadd(5, a[1], stride);
        _tile_dpbf16ps(2, 5, 6);
        if (T == 2) _tile_dpbf16ps(3, 5, 7);
    }
}

/* The last k % 32 elements of every row of the block, zeros behind them. */
static void copy_tail(const struct block *b, uint16_t tail[2 * GROUP][STEP]) {
    uint32_t done = b->k / STEP * STEP;
    memset(tail, 0, sizeof(uint16_t[2 * GROUP][STEP]));
    for (uint32_t r = 0; r < b->rows[0] + b->rows[1]; r++)
        memcpy(tail[r], b->w + ((size_t)r * b->k + done) * 2, (size_t)(b->k - done) * 2);
}

/* Prefetches the lines that lie two halves further on, into the L2 cache. */
INLINE void fetch_ahead(const char *a, size_t stride, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++) _mm_prefetch(a + (2 * GROUP + r) * stride, _MM_HINT_T1);
}

INLINE void tile_steps(int R, int T, const struct block *b) {
    size_t stride = (size_t)b->k * 2;
    _tile_zero(0);
    if (T == 2) _tile_zero(1);
    if (R == 2) _tile_zero(2);
    if (R == 2 && T == 2) _tile_zero(3);
    const char *a[2] = {b->w + (size_t)b->k0 * 2, b->w + GROUP * stride + (size_t)b->k0 * 2};
    const char *x[2];
    for (int j = 0; j < 2; j++) x[j] = b->x[j] + (size_t)(b->k0 / STEP) * b->tokens[j] * 64;
    for (uint32_t i = b->k0; i + STEP <= b->k1; i += STEP) {
        if (b->fetch)
            for (int j = 0; j < R; j++) fetch_ahead(a[j], stride, GROUP);
        tile_step(R, T, a, stride, x, b);
        for (int j = 0; j < 2; j++) a[j] += STEP * 2, x[j] += (size_t)b->tokens[j] * 64;
    }
    if (b->k1 % STEP != 0) {
        uint16_t tail[2 * GROUP][STEP];
        copy_tail(b, tail);
        stores_done();
        const char *rest[2] = {(const char *)tail[0], (const char *)tail[GROUP]};
        tile_step(R, T, rest, sizeof tail[0], x, b);
    }
}

/* y[t * ldy + r] = c[r][t]: columns of the tile are gathered. */
static void store_tile(float c[GROUP][GROUP], uint32_t rows, uint32_t tokens, float *y,
                       size_t ldy) {
    __m512i index = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
    for (uint32_t t = 0; t < tokens; t++) {
        vf column = _mm512_i32gather_ps(index, &c[0][t], 4);
        if (rows == GROUP)
            vf_store(y + t * ldy, column);
        else
            vf_store_n(y + t * ldy, column, rows);
    }
}

/* The tiles C of a block, in memory. */
struct sums {
    float c[4][GROUP][GROUP];
};

/* Multiplies columns [k0, k1). Tiles that the block does not use are left as they are. */
static void run_columns(const struct block *b, struct sums *s) {
    bool two_rows = b->rows[1] != 0, two_groups = b->tokens[1] != 0;
    if (two_rows && two_groups)
        tile_steps(2, 2, b);
    else if (two_rows)
        tile_steps(2, 1, b);
    else if (two_groups)
        tile_steps(1, 2, b);
    else
        tile_steps(1, 1, b);
    _tile_stored(0, s->c[0], sizeof s->c[0][0]);
    if (two_groups) _tile_stored(1, s->c[1], sizeof s->c[0][0]);
    if (two_rows) _tile_stored(2, s->c[2], sizeof s->c[0][0]);
    if (two_rows && two_groups) _tile_stored(3, s->c[3], sizeof s->c[0][0]);
}

/* to += from, for the rows and tokens of the block. */
static void add_sums(const struct block *b, struct sums *to, const struct sums *from) {
    for (uint32_t i = 0; i < 4; i++) {
        if (b->tokens[i % 2] == 0) continue;
        for (uint32_t r = 0; r < b->rows[i / 2]; r++)
            vf_store(to->c[i][r], vf_add(vf_load(to->c[i][r]), vf_load(from->c[i][r])));
    }
}

/* y: the result of the block's first row and token. */
static void run_block(const struct cpu_partials *p, struct block *b, float *y, size_t ldy) {
    struct sums sums[AT_HAND];
    uint32_t n_sums = 0;
    b->k1 = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        b->k0 = b->k1;
        b->k1 = p->end[i];
        run_columns(b, &sums[n_sums++]);
        for (uint32_t m = cpu_partials_merges(p, i); m > 0; m--, n_sums--)
            add_sums(b, &sums[n_sums - 2], &sums[n_sums - 1]);
    }
    for (uint32_t i = 0; i < 4; i++)
        if (b->rows[i / 2] != 0)
            store_tile(sums[0].c[i], b->rows[i / 2], b->tokens[i % 2],
                       y + i % 2 * GROUP * ldy + i / 2 * GROUP, ldy);
}

/* Splits what is left into two halves of at most sixteen. */
static void halves(uint32_t left, uint32_t half[2]) {
    half[0] = left < GROUP ? left : GROUP;
    half[1] = left - half[0] < GROUP ? left - half[0] : GROUP;
}

void isa_amx_gemm(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k, const void *x,
                  uint32_t n_tok, float *y, size_t ldy) {
    const struct cpu_partials partials = cpu_partials_of(sum, k);
    struct block last = {0};
    for (uint32_t n = 0; n < n_out; n += 2 * GROUP) {
        struct block b = {.w = (const char *)w + (size_t)n * k * 2, .k = k};
        halves(n_out - n, b.rows);
        for (uint32_t t = 0; t < n_tok; t += 2 * GROUP) {
            halves(n_tok - t, b.tokens);
            b.fetch = t == 0; /* measured: without it prompts take up to three times as long */
            b.x[0] = (const char *)x + t * steps_of(k) * 64;
            b.x[1] = b.x[0] + GROUP * steps_of(k) * 64;
            if (memcmp(last.rows, b.rows, sizeof b.rows) != 0 ||
                memcmp(last.tokens, b.tokens, sizeof b.tokens) != 0)
                configure(&b);
            last = b;
            run_block(&partials, &b, y + t * ldy + n, ldy);
        }
    }
    _tile_release(); /* so that the system need not save tiles */
}
