/* page_copy.cuh - one page from global into shared memory, completing on a barrier.
 *
 * sm_90 and later: bulk copies, a page by each lane that calls. Before that: 16-byte asynchronous
 * copies by all lanes of a warp together. Either way the barrier's phase completes when all bytes
 * have landed; the barrier was initialised with page_copy_arrivals().
 */
#ifndef QN_CUDA_PTX_PAGE_COPY_CUH
#define QN_CUDA_PTX_PAGE_COPY_CUH

#define HAS_BULK_COPIES (__CUDA_ARCH__ >= 900)

#if HAS_BULK_COPIES
#include "kernels/cuda/ptx/page_copy_bulk.cuh"
#else
#include "kernels/cuda/ptx/page_copy_warp.cuh"
#endif

#endif
