/* isa_avx2.c - AVX2, FMA and F16C. */
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/isa_simd.h"

const struct cpu_isa cpu_isa_avx2 = {
    .name = "avx2",
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
