/* simd/vmath_angles.h: the tangent and functions that give angles, as simd/vmath.h has others.
 *
 * The largest error seen over a dense sample of all floats, against float64, in units of the last
 * place: tan 2.4 (|x| < DF_TRIG_LIMIT; beyond it use the C library), atan 1.1, asin 1.6, acos 1.1.
 * NaN in gives NaN out; infinities, zeros and numbers out of range give what C99 says.
 */
#ifndef DF_CPU_SIMD_VMATH_ANGLES_H
#define DF_CPU_SIMD_VMATH_ANGLES_H
#include "simd/vmath.h"

/* pi / 2 is their sum. */
#define DF_QUARTER_HIGH 0x1.921fb6p+0f
#define DF_QUARTER_LOW -0x1.777a5cp-25f

/* An odd polynomial of what is left of x beside a multiple of pi / 2, see df_sin_shifted; -1 / t
 * for odd multiples. */
static inline float df_tan(float x) {
  double shifted = (double)x * 0x1.45f306dc9c883p-1 + DF_ROUNDER_F64;
  double n = shifted - DF_ROUNDER_F64;
  float r = (float)(((double)x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34);
  float square = r * r;
  float p = 0x1.fd8fa2p-9f;
  p = p * square + 0x1.20d3d6p-10f;
  p = p * square + 0x1.486402p-7f;
  p = p * square + 0x1.61e9b2p-6f;
  p = p * square + 0x1.ba5942p-5f;
  p = p * square + 0x1.11106cp-3f;
  p = p * square + 0x1.555556p-2f;
  float t = p * (square * r) + r;
  return (uint32_t)df_bits_f64(shifted) & 1 ? -1.0f / t : t;
}

/* An odd polynomial of |x| or, above 1, of 1 / |x|, which then pi / 2 is less. */
static inline float df_atan(float x) {
  float a = fabsf(x), inverse = 1.0f / a;
  int above = a > 1.0f;
  float t = above ? inverse : a;
  float square = t * t;
  float p = 0x1.bbab1ep-10f;
  p = p * square + -0x1.4b1c42p-7f;
  p = p * square + 0x1.ce2572p-6f;
  p = p * square + -0x1.a1f138p-5f;
  p = p * square + 0x1.256f7cp-4f;
  p = p * square + -0x1.6ff086p-4f;
  p = p * square + 0x1.c6a61cp-4f;
  p = p * square + -0x1.2490b8p-3f;
  p = p * square + 0x1.9999bep-3f;
  p = p * square + -0x1.555556p-2f;
  p = p * (square * t);
  float beside = DF_QUARTER_HIGH - (t + (p - DF_QUARTER_LOW));
  return df_with_sign(above ? beside : t + p, x);
}

/* (asin s - s) / s for s^2 = |square| <= 1/4. */
static inline float df_asin_over(float square) {
  float p = 0x1.19f7c0p-5f;
  p = p * square + 0x1.10e64cp-6f;
  p = p * square + 0x1.ff87bap-6f;
  p = p * square + 0x1.6d40c2p-5f;
  p = p * square + 0x1.3334c6p-4f;
  p = p * square + 0x1.555554p-3f;
  return p * square;
}

/* Above 1/2 by asin x = pi / 2 - 2 asin sqrt((1 - x) / 2). */
static inline float df_asin(float x) {
  float a = fabsf(x), half = 0.5f - 0.5f * a;
  int above = a > 0.5f;
  float square = above ? half : a * a;
  float s = above ? sqrtf(half) : a;
  float p = s * df_asin_over(square);
  float beside = DF_QUARTER_HIGH - (2.0f * s + (2.0f * p - DF_QUARTER_LOW));
  return df_with_sign(above ? beside : s + p, x);
}

static inline float df_acos(float x) {
  float a = fabsf(x), half = 0.5f - 0.5f * a;
  int above = a > 0.5f;
  float square = above ? half : a * a;
  float s = above ? sqrtf(half) : x;
  float p = s * df_asin_over(square);
  float near_zero = DF_QUARTER_HIGH - (s + (p - DF_QUARTER_LOW));
  float twice = 2.0f * (s + p);
  float far = x < 0.0f ? 2.0f * (DF_QUARTER_HIGH - (s + (p - DF_QUARTER_LOW))) : twice;
  return above ? far : near_zero;
}

#endif
