/* kernels/half.h: float16 and bfloat16 to and from float by integer arithmetic, without branches:
 * the same bits on every device, and loops over these become vector code. Rounding is to nearest,
 * ties to even; NaN stays NaN. */
#ifndef DF_KERNELS_HALF_H
#define DF_KERNELS_HALF_H
#include "kernels/bits.h"

DF_FN float df_from_half(uint16_t half) {
  int32_t magnitude = half & 0x7fff;
  int32_t normal = (magnitude << 13) + (112 << 23);
  int32_t special = normal + (112 << 23);              /* infinity, NaN */
  int32_t tiny = df_bits((float)magnitude * 0x1p-24f); /* denormal */
  int32_t bits = magnitude >= 0x7c00 ? special : magnitude < 0x400 ? tiny : normal;
  return df_float(bits | (int32_t)((uint32_t)(half & 0x8000) << 16));
}

DF_FN uint16_t df_to_half(float x) {
  int32_t bits = df_bits(x), magnitude = bits & INT32_MAX;
  int32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112 << 23)) >> 13;
  /* The last bit of 0.5f is that of denormal halves: the addition rounds to it. */
  int32_t tiny = df_bits(df_float(magnitude) + 0.5f) - df_bits(0.5f);
  int32_t half = magnitude < 0x38800000 ? tiny : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return (uint16_t)(half | (bits >> 16 & 0x8000));
}

DF_FN float df_from_bfloat(uint16_t bits) { return df_float((int32_t)((uint32_t)bits << 16)); }

DF_FN uint16_t df_to_bfloat(float x) {
  uint32_t bits = (uint32_t)df_bits(x);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
  return (uint16_t)((bits & INT32_MAX) > 0x7f800000 ? nan : rounded);
}

#endif
