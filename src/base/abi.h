/* abi.h - integer types for headers that are also compiled for the device, where NVRTC brings no
 * <stdint.h>. A header that includes this one may hold plain structs, enums and inline functions
 * only. Structs that cross to the device are guarded by _Static_assert (ABI_SIZE). */
#ifndef QN_BASE_ABI_H
#define QN_BASE_ABI_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

/* A function of such a header. */
#ifdef __CUDACC__
#define ABI_FN __device__ __host__ static constexpr
#else
#define ABI_FN static inline
#endif

#ifdef __cplusplus
#define ABI_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " changed size")
#else
#define ABI_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " changed size")
#endif

#endif
