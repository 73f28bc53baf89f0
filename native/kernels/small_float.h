/* kernels/small_float.h: floats of 8 bits and fewer to and from float by integer arithmetic,
 * without branches on data: the same bits on every device, and loops over these become vector code.
 * An element lies in the low bits of a byte. The formats are those of the Open Compute Project's
 * "OCP 8-bit Floating Point" and "Microscaling Formats", and the "fnuz" ones of
 * https://arxiv.org/abs/2206.02915. */
#ifndef DF_KERNELS_SMALL_FLOAT_H
#define DF_KERNELS_SMALL_FLOAT_H
#include "kernels/bits.h"

/* X(dtype, name, bits of the mantissa, bias of the exponent, bits of a number without its sign, its
 * largest finite code, code of what overflows, code of NaN): the two last are DF_ONE_NAN where the
 * format has one zero and one NaN. Float4 has neither infinity nor NaN: all that is larger
 * gives its largest number, NaN 0. */
#define DF_SMALL_FLOATS(X)                                                                         \
  X(DF_FLOAT8E4M3FN, e4m3fn, 3, 7, 7, 0x7e, 0x7f, 0x7f)                                            \
  X(DF_FLOAT8E4M3FNUZ, e4m3fnuz, 3, 8, 7, 0x7f, DF_ONE_NAN, DF_ONE_NAN)                            \
  X(DF_FLOAT8E5M2, e5m2, 2, 15, 7, 0x7b, 0x7c, 0x7e)                                               \
  X(DF_FLOAT8E5M2FNUZ, e5m2fnuz, 2, 16, 7, 0x7f, DF_ONE_NAN, DF_ONE_NAN)                           \
  X(DF_FLOAT4E2M1, e2m1, 1, 1, 3, 7, 7, 0)

enum { DF_ONE_NAN = 0x80 };

/* The float that |code| stands for; the arguments behind it are those of DF_SMALL_FLOATS. */
DF_FN float df_from_small(uint8_t code, int mantissa, int bias, int sign, int most, int beyond,
                          int nan) {
  const int32_t magnitude = code & ((1 << sign) - 1);
  const int32_t normal = (magnitude << (23 - mantissa)) + ((127 - bias) << 23);
  const float step = df_float((128 - bias - mantissa) << 23); /* of denormal numbers */
  const int32_t tiny = df_bits((float)magnitude * step);
  int32_t bits = magnitude < 1 << mantissa ? tiny : normal;
  const int32_t infinite = magnitude == beyond && beyond != nan;
  bits = magnitude > most ? (infinite ? 0x7f800000 : 0x7fc00000) : bits;
  bits = nan == DF_ONE_NAN && code == DF_ONE_NAN ? 0x7fc00000 : bits;
  return df_float(bits | (int32_t)((uint32_t)(code >> sign & 1) << 31));
}

/* The code of |x|, rounded to nearest, ties to even; what is then too large gives the largest
 * number, or with |saturate| 0 infinity or NaN, as the format has them. */
DF_FN uint8_t df_to_small(float x, int saturate, int mantissa, int bias, int sign, int most,
                          int beyond, int nan) {
  const int32_t bits = df_bits(x), magnitude = bits & INT32_MAX;
  const int shift = 23 - mantissa;
  const int32_t shifted = magnitude - ((127 - bias) << 23);
  const int32_t normal = (shifted + (1 << (shift - 1)) - 1 + (shifted >> shift & 1)) >> shift;
  /* The last bit of this number is that of the format's denormal ones: the addition rounds to it.
   */
  const int32_t magic = (151 - bias - mantissa) << 23;
  const int32_t tiny = df_bits(df_float(magnitude) + df_float(magic)) - magic;
  int32_t code = magnitude < (128 - bias) << 23 ? tiny : normal;
  code = code > most ? (saturate ? most : beyond) : code;
  code = magnitude > 0x7f800000 ? nan : code;
  const int32_t negative = (int32_t)((uint32_t)bits >> 31) << sign;
  return (uint8_t)(nan == DF_ONE_NAN && code == 0 ? 0 : code | negative);
}

/* ---- float8 e8m0: 2 to the power of (code - 127); 255 is NaN -------------------------------- */

enum { DF_ROUND_UP, DF_ROUND_DOWN, DF_ROUND_NEAREST }; /* to a power of two; nearest: ties up */

DF_FN float df_from_e8m0(uint8_t code) {
  const int32_t power = code ? code << 23 : 1 << 22;
  return df_float(code == 255 ? 0x7fc00000 : power);
}

/* The code of |x|'s magnitude; what is out of range gives the nearest end, or with |saturate| 0
 * NaN, and so does 0. */
DF_FN uint8_t df_to_e8m0(float x, int saturate, int rounding) {
  const int32_t magnitude = df_bits(x) & INT32_MAX;
  /* Denormal floats as normal ones of a lower exponent, which is negative then. */
  const int32_t below = df_bits((float)magnitude) - (149 << 23);
  const int32_t finite = magnitude > 0x7f800000 ? 0x7f800000 : magnitude;
  const int32_t bits = magnitude < 1 << 23 ? below : finite;
  const int32_t half = rounding == DF_ROUND_UP        ? (1 << 23) - 1
                       : rounding == DF_ROUND_NEAREST ? 1 << 22
                                                      : 0;
  const int32_t power = (bits + half) >> 23;
  int32_t code = power < 0 ? (saturate ? 0 : 255) : power;
  code = power > 254 ? (saturate ? 254 : 255) : code;
  return (uint8_t)(magnitude > 0x7f800000 ? 255 : code);
}

#endif
