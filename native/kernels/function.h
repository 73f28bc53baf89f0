/* kernels/function.h: DF_FN, before functions that C for the CPU and CUDA's C++ both compile, there
 * for the card as well. */
#ifndef DF_KERNELS_FUNCTION_H
#define DF_KERNELS_FUNCTION_H

#ifdef __cplusplus
#include <cuda_runtime.h>
#define DF_FN static __host__ __device__ __forceinline__
#else
#define DF_FN static inline
#endif

#endif
