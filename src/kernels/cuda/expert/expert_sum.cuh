/* expert_sum.cuh - EXPERT_SUM. */
#ifndef QN_CUDA_EXPERT_EXPERT_SUM_CUH
#define QN_CUDA_EXPERT_EXPERT_SUM_CUH

#include "kernels/cuda/expert/expert_list.cuh"

#endif
