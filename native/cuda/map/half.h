/* map/half.h: float16 and bfloat16 to and from float by integer arithmetic, the same bits on every
 * device. Rounding is to nearest, ties to even; NaN stays NaN. */
#ifndef DF_CUDA_MAP_HALF_H
#define DF_CUDA_MAP_HALF_H
#include "kernels.h"

static __device__ __forceinline__ float df_from_half(uint16_t half) {
  const int32_t magnitude = half & 0x7fff;
  const int32_t normal = (magnitude << 13) + (112 << 23);
  const int32_t special = normal + (112 << 23);                                  /* infinity, NaN */
  const int32_t tiny = __float_as_int(static_cast<float>(magnitude) * 0x1p-24f); /* denormal */
  const int32_t bits = magnitude >= 0x7c00 ? special : magnitude < 0x400 ? tiny : normal;
  return __int_as_float(bits | static_cast<int32_t>(static_cast<uint32_t>(half & 0x8000) << 16));
}

static __device__ __forceinline__ uint16_t df_to_half(float x) {
  const int32_t bits = __float_as_int(x), magnitude = bits & INT32_MAX;
  const int32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23)) >> 13;
  /* The unit of 0.5f is that of denormal halves: the addition rounds to it. */
  const int32_t tiny = __float_as_int(__int_as_float(magnitude) + 0.5f) - __float_as_int(0.5f);
  int32_t half = magnitude < 0x38800000 ? tiny : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

static __device__ __forceinline__ float df_from_bfloat(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

static __device__ __forceinline__ uint16_t df_to_bfloat(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
  return static_cast<uint16_t>((bits & INT32_MAX) > 0x7f800000 ? nan : rounded);
}

#endif
