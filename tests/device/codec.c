#include "device/codec.h"
#include "base/checked.h"
#include "kernels/cpu/convert.h"

#include <math.h>
#include <string.h>

void codec_poison(void *bytes, uint64_t n) {
    const uint32_t word = CODEC_POISON;
    uint64_t done = MIN(n, sizeof word);
    memcpy(bytes, &word, done);
    for (; done < n; done += MIN(done, n - done))
        memcpy((char *)bytes + done, bytes, MIN(done, n - done));
}

static bool is_packed(const struct prog_tensor *t) {
    return t->layout == LAYOUT_PACKED;
}

/* Pieces of 8 rows x 64 columns, 1 KB each: those of all rows for the first 64 columns first. In a
 * piece a step of 16 columns is 256 bytes: two halves of 8 rows x 16 bytes. Column 32 p + 8 j + 4 e
 * + 2 r + b, of the 64, is in step 2 p + e, half r, word j of its row, b the half word. */
static uint64_t packed_at(const struct prog_tensor *t, uint64_t row, uint64_t col) {
    const uint64_t pieces_down = (t->shape[0] + 7) / 8, piece = col / 64 * pieces_down + row / 8;
    const uint64_t p = col % 64 / 32, j = col % 32 / 8, e = col % 8 / 4, r = col % 4 / 2;
    return piece * 1024 + (2 * p + e) * 256 + r * 128 + row % 8 * 16 + j * 4 + col % 2 * 2;
}

static uint64_t columns_of(const struct prog_tensor *t) {
    uint64_t n = 1;
    for (int i = 1; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

struct codec_place codec_place_of(const struct prog_header *p, const struct prog_tensor *t,
                                  uint64_t row, uint64_t col) {
    (void)p;
    const uint64_t element = row * columns_of(t) + col;
    const uint64_t pair = t->where + element / 2 * 8;
    if (t->transport == TRANSPORT_FLAG)
        return (struct codec_place){t->where + element * 8, 4, t->where + element * 8 + 4};
    if (t->transport == TRANSPORT_PAIR)
        return (struct codec_place){pair + element % 2 * 2, 2, pair + 4};
    if (is_packed(t)) return (struct codec_place){t->where + packed_at(t, row, col), 2, 0};
    return (struct codec_place){t->where + element * 4, 4, 0};
}

/* The type of the bytes of an element. */
static enum dtype stored_as(const struct prog_header *p, const struct prog_tensor *t) {
    if (t->transport != TRANSPORT_PAIR) return (enum dtype)t->dtype;
    return PROG(p, MODEL)->weight_dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
}

void codec_put(const struct prog_header *p, const struct prog_tensor *t, char *workspace,
               uint64_t row, uint64_t col, double v, uint32_t flag) {
    const struct codec_place at = codec_place_of(p, t, row, col);
    const int32_t whole = (int32_t)v;
    if (t->dtype == DTYPE_I32)
        memcpy(workspace + at.at, &whole, sizeof whole);
    else
        convert_store(stored_as(p, t), workspace + at.at, 0, (float)v);
    if (at.flag_at != 0) memcpy(workspace + at.flag_at, &flag, 4);
}

double codec_get(const struct prog_header *p, const struct prog_tensor *t, const char *workspace,
                 uint64_t row, uint64_t col, uint32_t flag) {
    const struct codec_place at = codec_place_of(p, t, row, col);
    int32_t whole;
    if (at.flag_at != 0 && memcmp(workspace + at.flag_at, &flag, 4) != 0) return NAN;
    memcpy(&whole, workspace + at.at, at.size);
    if (t->dtype == DTYPE_I32) return whole;
    return (double)convert_load(stored_as(p, t), workspace + at.at, 0);
}

static bool has_wgmma;

void codec_set_arch(const char *arch) {
    has_wgmma = strcmp(arch, "sm_90a") == 0;
}

/* [block][k, v][KV head][position][element] */
uint64_t codec_kv_at(const struct prog_header *p, const struct iteration *it, uint32_t slot,
                     uint32_t position, uint32_t which, uint32_t kv_head, uint32_t d) {
    const struct kv_row *r = PROG(p, KV);
    const int32_t *table = it->block_table + (uint64_t)slot * it->max_blocks;
    const uint64_t block = (uint64_t)table[position / p->kv_block], width = r->k_width;
    const uint64_t vectors = kv_vectors(r), in = position % p->kv_block;
    const uint64_t row = (block * vectors + which * r->heads + kv_head) * p->kv_block + in;
    const bool swaps = p->target == TARGET_CUDA && width % 64 == 0;
    const uint64_t column = d % 64 ^ position % 8 * 8;
    uint64_t at = row * width + d;
    if (swaps && r->v_in_k) {
        if (p->kv_block % 16 == 0)
            at = row / 16 * (16 * width) + d / 64 * 1024 + row % 16 * 64 + column;
    } else if (swaps) {
        at = row * width + d / 64 * 64 + column;
        if (has_wgmma && width <= 128 && p->kv_block % 16 == 0)
            at = row / 8 * (8 * width) + d / 64 * 512 + row % 8 * 64 + column;
    }
    return at * dtype_bytes(r->dtype);
}
