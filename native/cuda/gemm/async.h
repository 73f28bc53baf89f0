/* gemm/async.h: copies from global to shared memory that use no registers and run beside what
 * follows, of sm_80 and newer. */
#ifndef DF_CUDA_GEMM_ASYNC_H
#define DF_CUDA_GEMM_ASYNC_H
#include "kernels.h"

#include <cuda_pipeline_primitives.h>

/* Begins to copy four floats; zeros where |from| is not |valid|, which is not read then. Both are
 * aligned to 16 bytes. (CUDA's own function has a branch for each number of zeros.) */
static __device__ __forceinline__ void df_async_four(float *to, const float *from, bool valid) {
#ifdef __CUDACC__
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const uint32_t bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
               : "memory");
#else
  if (valid)
    __pipeline_memcpy_async(to, from, 16);
  else
    *reinterpret_cast<float4 *>(to) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}

/* Waits for the copies of this thread; those of others are there after a barrier behind it. */
static __device__ __forceinline__ void df_async_wait() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
}

#endif
