/* expert_gather.cuh - EXPERT_GATHER. */
#ifndef QN_CUDA_EXPERT_EXPERT_GATHER_CUH
#define QN_CUDA_EXPERT_EXPERT_GATHER_CUH

#include "kernels/cuda/expert/expert_list.cuh"

#endif
