/* isa_amx.h - what AMX does differently: bf16 packing and gemm. See struct cpu_isa. */
#ifndef QN_KERNELS_CPU_ISA_AMX_H
#define QN_KERNELS_CPU_ISA_AMX_H

#include "kernels/cpu/cpu_kernel.h"

size_t isa_amx_pack_bytes(uint32_t n_tok, uint32_t k);
void isa_amx_pack(const float *const *x, const float *scale, uint32_t n_tok, uint32_t k, void *dst);
void isa_amx_gemm(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k, const void *x,
                  uint32_t n_tok, float *y, size_t ldy);

#endif
