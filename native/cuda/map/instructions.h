/* map/instructions.h: single instructions of a card for which C++ has no word, or a longer one. */
#ifndef DF_CUDA_MAP_INSTRUCTIONS_H
#define DF_CUDA_MAP_INSTRUCTIONS_H
#include "kernels.h"

/* 2^x to a few units of the last place; results below the smallest normal number are 0. */
static __device__ __forceinline__ float df_exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#endif
}

/* Two floats rounded to bfloat16, ties to even, the first one in the low half; integers would take
 * registers that rows are held in. */
static __device__ __forceinline__ uint32_t df_bfloat_pair(float first, float second) {
#ifdef __CUDACC__
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  return standin_bf16(second) << 16 | standin_bf16(first);
#endif
}

#endif
