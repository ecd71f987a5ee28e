/* codec.h - numbers to bytes and back: how a tensor of a program lies in memory. Written from what
 * program.h, rt_batch.h and cuda_abi.h say about layouts, with none of the code that uses them.
 *
 *   plain    elements one after the other, in the tensor's type
 *   flagged  {float, number of the iteration}
 *   paired   {two 16-bit floats of the weights' type, number of the iteration}
 *   packed   pieces of 8 rows x 64 columns in the order of tensor cores (cuda_abi.h)
 */
#ifndef QN_TESTS_DEVICE_CODEC_H
#define QN_TESTS_DEVICE_CODEC_H

#include "device/iteration.h"

/* A 32-bit word that is no number, neither as a float nor as two 16-bit ones of either kind; not an
 * sentinel, and no iteration's number. */
#define CODEC_POISON 0x7fc17fc1u
void codec_poison(void *bytes, uint64_t n);

/* Bytes [at, at + size) of the workspace have an element of an activation. */
struct codec_place {
    uint64_t at;
    uint32_t size;
    uint64_t flag_at; /* of the iteration's number beside it; 0: none */
};
/* col counts all inner dimensions. */
struct codec_place codec_place_of(const struct prog_header *p, const struct prog_tensor *t,
                                  uint64_t row, uint64_t col);

/* Stores and loads one element; flag: the iteration's number. codec_get of one whose flag is
 * another gives NaN. */
void codec_put(const struct prog_header *p, const struct prog_tensor *t, char *workspace,
               uint64_t row, uint64_t col, double v, uint32_t flag);
double codec_get(const struct prog_header *p, const struct prog_tensor *t, const char *workspace,
                 uint64_t row, uint64_t col, uint32_t flag);

/* Where element d of a key (which 0) or a value (1) of a KV head lies in its layer's cache: bytes.
 * A GPU's caches have chunks of 16 bytes swapped, and an order of lines that depends on its
 * architecture (kernels/cuda/data/kv.cuh), which codec_set_arch has to know. */
void codec_set_arch(const char *arch);
uint64_t codec_kv_at(const struct prog_header *p, const struct iteration *it, uint32_t slot,
                     uint32_t position, uint32_t which, uint32_t kv_head, uint32_t d);

#endif
