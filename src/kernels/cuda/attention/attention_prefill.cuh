/* attention_prefill.cuh - PREFILL: ATTENTION of many rows, a warp per step, all warps on one KV
 * head. Heads of more than 128 columns use MIXED instead (cuda_rows_fit).
 *
 * The sums are those of attention.cuh. In DECODE a piece's shares belong to eight warps. Here a
 * warp takes them one after the other for its own 16 query rows, so that a piece of keys and
 * values, once in shared memory, serves 128 query rows.
 *
 * Bytes: a piece of one KV head, 4 * ATTENTION_PIECE * head_dim, once per eight steps; operations:
 * 4 * ATTENTION_PIECE * head_dim per query row.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PREFILL_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PREFILL_CUH

#define HAS_PREFILL (QN_HEAD_DIM <= 128)
#if HAS_PREFILL
#include "kernels/cuda/attention/attention_prefill_mma.cuh"
#include "kernels/cuda/attention/attention_prefill_wgmma.cuh"
#endif

#endif
