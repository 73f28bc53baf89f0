/* simd/vmath.h: float functions without branches, calls or tables, so that the compiler turns a
 * loop over them into vector code on every instruction set.
 *
 * Polynomials are minimax fits with coefficients rounded to float. The largest error seen over a
 * dense sample of all floats, against float64, in units of the last place (denormal results
 * included): exp 1.0, expm1 (x <= 0) 0.9, log 0.8, log1p (0 <= x <= 1) 1.2, tanh 1.9, sigmoid 2.3,
 * erf 1.1, sin and cos 1.5 (|x| < DF_TRIG_LIMIT; beyond it use the C library), pow 0.51 NaN in
 * gives NaN out; infinities and zeros give what C99 says.
 *
 * Adding 1.5 * 2^23 to a small float rounds it to an integer, which then stands in the low bits:
 * this needs neither a rounding instruction nor a conversion.
 */
#ifndef DF_CPU_SIMD_VMATH_H
#define DF_CPU_SIMD_VMATH_H
#include "kernels/bits.h"

#include <math.h>

#define DF_ROUNDER 0x1.8p23f
#define DF_ROUNDER_F64 0x1.8p52
#define DF_TRIG_LIMIT 1e6f

static inline uint64_t df_bits_f64(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline double df_double(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* |magnitude| with the sign of |sign|. */
static inline float df_with_sign(float magnitude, float sign) {
  return df_float((df_bits(magnitude) & INT32_MAX) | (df_bits(sign) & INT32_MIN));
}

/* e^r - 1 for |r| <= ln2 / 2. */
static inline float df_expm1_near_zero(float r) {
  float p = 0x1.6a3fb6p-10f;
  p = p * r + 0x1.1239e0p-7f;
  p = p * r + 0x1.5558bep-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  return p * (r * r) + r;
}

/* e^x = 2^n e^r; 2^n is applied in two halves, so that denormals round once and overflow gives inf.
 */
static inline float df_exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  float shifted = x * 0x1.715476p+0f + DF_ROUNDER;
  float n = shifted - DF_ROUNDER;
  float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float y = df_expm1_near_zero(r) + 1.0f;
  int32_t power = df_bits(shifted) - df_bits(DF_ROUNDER);
  int32_t half = power >> 1;
  return y * df_float((int32_t)((uint32_t)(half + 127) << 23)) *
         df_float((int32_t)((uint32_t)(power - half + 127) << 23));
}

/* The same bits for x <= 0, and a little above, in two thirds of the operations: 2^(n + 65) is a
 * normal number, which a shift gives, and what is left is the same for all. */
static inline float df_exp_below_zero(float x) {
  const float rounder = DF_ROUNDER + 192.0f; /* n + 65, and what exponents are stored with */
  x = x < -104.0f ? -104.0f : x;
  float shifted = x * 0x1.715476p+0f + rounder;
  float n = shifted - rounder;
  float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float y = df_expm1_near_zero(r) + 1.0f;
  return y * df_float((int32_t)((uint32_t)df_bits(shifted) << 23)) * 0x1p-65f;
}

/* e^x as *power + the result, 2^n and 2^n (e^r - 1), for x <= 0; below -30 as for -30. */
static inline float df_exp_terms(float x, float *power) {
  x = x < -30.0f ? -30.0f : x;
  float shifted = x * 0x1.715476p+0f + DF_ROUNDER;
  float n = shifted - DF_ROUNDER;
  float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  *power = df_float((int32_t)((uint32_t)(df_bits(shifted) - df_bits(DF_ROUNDER) + 127) << 23));
  return df_expm1_near_zero(r) * *power;
}

/* e^x - 1 for x <= 0 (0 above), as 2^n (e^r - 1) + (2^n - 1). */
static inline float df_expm1_below_zero(float x) {
  float power, rest = df_exp_terms(x > 0.0f ? 0.0f : x, &power);
  return rest + (power - 1.0f);
}

/* x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2)): log x = n ln2 + f - f^2/2 + f^3 P(f). */
static inline float df_log(float x) {
  int denormal = x < 0x1p-126f;
  float scaled = denormal ? x * 0x1p23f : x;
  int32_t above = (int32_t)((uint32_t)df_bits(scaled) - 0x3f3504f3u); /* the bits of sqrt(1/2) */
  float n = (float)((above >> 23) - (denormal ? 23 : 0));
  float f = df_float((above & 0x7fffff) + 0x3f3504f3) - 1.0f;
  float p = 0x1.147204p-4f;
  p = p * f + -0x1.de00e4p-4f;
  p = p * f + 0x1.e6bff2p-4f;
  p = p * f + -0x1.fc28dep-4f;
  p = p * f + 0x1.233ba4p-3f;
  p = p * f + -0x1.555c44p-3f;
  p = p * f + 0x1.99a476p-3f;
  p = p * f + -0x1.000006p-2f;
  p = p * f + 0x1.555548p-2f;
  float square = f * f;
  float tail = p * (square * f) + n * 0x1.7f7d1cp-20f;
  float y = n * 0x1.62e4p-1f + (f + (tail - 0.5f * square));
  y = x < INFINITY ? y : x; /* also NaN */
  y = x == 0.0f ? -INFINITY : y;
  return x < 0.0f ? NAN : y;
}

/* log(1 + x) for 0 <= x <= 1: what rounding took from 1 + x comes back as a correction. */
static inline float df_log1p(float x) {
  float u = 1.0f + x;
  return df_log(u) + (x - (u - 1.0f)) / u;
}

/* (e^-2|x| - 1) / (e^-2|x| + 1), of whose terms each is rounded once: nothing cancels near zero,
 * and no digit is lost near one. */
static inline float df_tanh(float x) {
  float power, rest = df_exp_terms(-2.0f * fabsf(x), &power);
  return df_with_sign((rest + (power - 1.0f)) / (rest + (power + 1.0f)), x);
}

/* 1 / (1 + e^-x), with an exponential that never overflows. */
static inline float df_sigmoid(float x) {
  float e = df_exp_below_zero(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* x + x P(x^2) near zero, 1 - e^(-|x| Q(|x|)) elsewhere. */
static inline float df_erf(float x) {
  float square = x * x;
  float p = 0x1.4fa924p-14f;
  p = p * square + -0x1.a61810p-11f;
  p = p * square + 0x1.544b08p-8f;
  p = p * square + -0x1.b80124p-6f;
  p = p * square + 0x1.ce2d64p-4f;
  p = p * square + -0x1.812740p-2f;
  p = p * square + 0x1.06eba8p-3f;
  float near_zero = p * x + x;
  float a = fabsf(x);
  a = a > 4.0f ? 4.0f : a;
  float q = -0x1.c20e10p-13f;
  q = q * a + 0x1.a60ea2p-9f;
  q = q * a + -0x1.774bb6p-6f;
  q = q * a + 0x1.af4196p-4f;
  q = q * a + 0x1.457a5cp-1f;
  q = q * a + 0x1.20e6b0p+0f;
  float far = 1.0f - df_exp(-a * q);
  return fabsf(x) < 0.92f ? near_zero : df_with_sign(far, x);
}

/* sin(x + shift * pi / 2) for |x| < DF_TRIG_LIMIT. The remainder is taken in double: the first part
 * of pi / 2 has 33 bits, so that its product with the quadrant is exact. */
static inline float df_sin_shifted(float x, int32_t shift) {
  double shifted = (double)x * 0x1.45f306dc9c883p-1 + DF_ROUNDER_F64;
  double n = shifted - DF_ROUNDER_F64;
  float r = (float)(((double)x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34);
  int32_t quadrant = (int32_t)(uint32_t)df_bits_f64(shifted) + shift;
  float square = r * r;
  float s = -0x1.994388p-13f;
  s = s * square + 0x1.11073ap-7f;
  s = s * square + -0x1.555546p-3f;
  s = square == 0.0f ? r : s * (square * r) + r; /* sin(-0) is -0 */
  float c = 0x1.99eb4ap-16f;
  c = c * square + -0x1.6c0c32p-10f;
  c = c * square + 0x1.55554ap-5f;
  c = c * (square * square) + (1.0f - 0.5f * square);
  float y = quadrant & 1 ? c : s;
  return df_float(df_bits(y) ^ (int32_t)((uint32_t)(quadrant & 2) << 30));
}

static inline float df_sin(float x) { return df_sin_shifted(x, 0); }
static inline float df_cos(float x) { return df_sin_shifted(x, 1); }

/* log2(x) for positive finite x that was a float. */
static inline double df_log2_f64(double x) {
  const uint64_t sqrt_half = 0x3fe6a09e667f3bcd, bias = UINT64_C(1024) << 52; /* sqrt(1/2) */
  uint64_t above = df_bits_f64(x) - sqrt_half + bias;
  uint64_t power = above >> 52;
  double n = df_double(power | UINT64_C(0x4330000000000000)) - (0x1p52 + 1024.0);
  double m = df_double((above & ((UINT64_C(1) << 52) - 1)) + sqrt_half);
  double s = (m - 1.0) / (m + 1.0);
  double square = s * s;
  double p = 0.2829007491962022;
  p = p * square + 0.31990567282479554;
  p = p * square + 0.4122092523896186;
  p = p * square + 0.5770779423736435;
  p = p * square + 0.9617966941132549;
  p = p * square + 2.88539008177785;
  return p * s + n;
}

/* 2^x for |x| <= 200. */
static inline double df_exp2_f64(double x) {
  double shifted = x + DF_ROUNDER_F64;
  double r = x - (shifted - DF_ROUNDER_F64);
  double p = 1.5196134046196762e-05;
  p = p * r + 0.00015466781520181194;
  p = p * r + 0.0013333935356338112;
  p = p * r + 0.009618038059639279;
  p = p * r + 0.05550410365392082;
  p = p * r + 0.24022651067002931;
  p = p * r + 0.6931471807047632;
  p = p * r + 1.0;
  return p * df_double((df_bits_f64(shifted) + 1023) << 52);
}

/* x^y = 2^(y log2 |x|) in double, with the sign and the special cases of C99. */
static inline float df_pow(float x, float y) {
  float ax = fabsf(x), ay = fabsf(y);
  double log2x = df_log2_f64((double)ax);
  log2x = ax == 0.0f ? -(double)INFINITY : log2x;
  log2x = ax < INFINITY ? log2x : (double)ax;
  double power = (double)y * log2x;
  power = power > 200.0 ? 200.0 : power;
  power = power < -200.0 ? -200.0 : power;
  float z = (float)df_exp2_f64(power);
  int integral = (ay >= 0x1p23f) | ((ay + 0x1p23f) - 0x1p23f == ay);
  float half = 0.5f * ay;
  int odd = integral & (ay < 0x1p24f) & ((half + 0x1p23f) - 0x1p23f != half);
  z = ((x < 0.0f) & (ax < INFINITY) & !integral) ? NAN : z;
  z = df_float(df_bits(z) ^ (odd ? df_bits(x) & INT32_MIN : 0));
  int one = (x == 1.0f) | (y == 0.0f) | ((ax == 1.0f) & (ay == INFINITY));
  return one ? 1.0f : z;
}

#endif
