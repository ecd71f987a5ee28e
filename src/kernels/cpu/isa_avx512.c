/* isa_avx512.c - AVX-512 with its bf16 dot product; and AMX, which only differs for bf16 weights.
 */
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/isa_amx.h"
#include "kernels/cpu/isa_simd.h"

const struct cpu_isa cpu_isa_avx512 = {
    .name = "avx512bf16",
    .pack_bytes = simd_pack_bytes,
    .pack = simd_pack,
    .gemm =
        {[DTYPE_F32] = simd_gemm_f32, [DTYPE_BF16] = simd_gemm_bf16, [DTYPE_F16] = simd_gemm_f16},
    .attend = simd_attend,
    .sum_squares = simd_sum_squares,
    .silu_mul = simd_silu_mul,
    .max_sumexp = simd_max_sumexp,
    .exp_of = simd_exp_of,
};

static size_t amx_pack_bytes(enum dtype weight, uint32_t n_tok, uint32_t k) {
    return weight == DTYPE_BF16 ? isa_amx_pack_bytes(n_tok, k) : simd_pack_bytes(weight, n_tok, k);
}

static void amx_pack(enum dtype weight, const float *const *x, const float *scale, uint32_t n_tok,
                     uint32_t k, void *dst) {
    if (weight == DTYPE_BF16)
        isa_amx_pack(x, scale, n_tok, k, dst);
    else
        simd_pack(weight, x, scale, n_tok, k, dst);
}

const struct cpu_isa cpu_isa_amx = {
    .name = "amx",
    .pack_bytes = amx_pack_bytes,
    .pack = amx_pack,
    .gemm = {[DTYPE_F32] = simd_gemm_f32, [DTYPE_BF16] = isa_amx_gemm, [DTYPE_F16] = simd_gemm_f16},
    .attend = simd_attend,
    .sum_squares = simd_sum_squares,
    .silu_mul = simd_silu_mul,
    .max_sumexp = simd_max_sumexp,
    .exp_of = simd_exp_of,
};
