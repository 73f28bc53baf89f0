/* kernels/unary.h: formulas of elementwise ops with one operand: X(op, expression in x).
 *
 * A device defines df_exp, df_log, df_log1p (of numbers in [0, 1]), df_tanh, df_sigmoid and df_erf
 * before it includes this. Sine and cosine are its own too. */
#ifndef DF_KERNELS_UNARY_H
#define DF_KERNELS_UNARY_H
#include "kernels/function.h"

#include <math.h>

/* Functions of the C library of which each needs much code. */
#define DF_LIBRARY_F32(X)                                                                          \
  X(tan, tanf(x))                                                                                  \
  X(asin, asinf(x))                                                                                \
  X(acos, acosf(x))                                                                                \
  X(atan, atanf(x))                                                                                \
  X(sinh, sinhf(x))                                                                                \
  X(cosh, coshf(x))                                                                                \
  X(asinh, asinhf(x))                                                                              \
  X(acosh, acoshf(x))                                                                              \
  X(atanh, atanhf(x))

#define DF_ARITHMETIC_F32(X)                                                                       \
  X(abs, fabsf(x))                                                                                 \
  X(neg, -x)                                                                                       \
  X(exp, df_exp(x))                                                                                \
  X(log, df_log(x))                                                                                \
  X(sqrt, sqrtf(x))                                                                                \
  X(reciprocal, 1.0f / x)                                                                          \
  X(tanh, df_tanh(x))                                                                              \
  X(erf, df_erf(x))                                                                                \
  X(floor, floorf(x))                                                                              \
  X(ceil, ceilf(x))                                                                                \
  X(round, rintf(x))                                                                               \
  X(sign, x != x ? x : (float)((x > 0.0f) - (x < 0.0f)))

#define DF_ACTIVATION_F32(X)                                                                       \
  X(sigmoid, df_sigmoid(x))                                                                        \
  X(relu, x < 0.0f ? 0.0f : x)                                                                     \
  X(softplus, df_softplus(x))                                                                      \
  X(softsign, x / (1.0f + fabsf(x)))                                                               \
  X(hard_swish, x *df_clamp_01(x * (1.0f / 6.0f) + 0.5f))                                          \
  X(mish, x *df_tanh(df_softplus(x)))

#define DF_ARITHMETIC_F64(X)                                                                       \
  X(abs, fabs(x))                                                                                  \
  X(neg, -x)                                                                                       \
  X(exp, exp(x))                                                                                   \
  X(log, log(x))                                                                                   \
  X(sqrt, sqrt(x))                                                                                 \
  X(reciprocal, 1.0 / x)                                                                           \
  X(sin, sin(x))                                                                                   \
  X(cos, cos(x))                                                                                   \
  X(tanh, tanh(x))                                                                                 \
  X(erf, erf(x))                                                                                   \
  X(floor, floor(x))                                                                               \
  X(ceil, ceil(x))                                                                                 \
  X(round, rint(x))                                                                                \
  X(sign, x != x ? x : (double)((x > 0.0) - (x < 0.0)))

#define DF_ACTIVATION_F64(X)                                                                       \
  X(sigmoid, 1.0 / (1.0 + exp(-x)))                                                                \
  X(relu, x < 0.0 ? 0.0 : x)

/* Also of the C library, on devices where its code costs nothing. */
#define DF_LIBRARY_F64(X)                                                                          \
  X(tan, tan(x))                                                                                   \
  X(asin, asin(x))                                                                                 \
  X(acos, acos(x))                                                                                 \
  X(atan, atan(x))                                                                                 \
  X(sinh, sinh(x))                                                                                 \
  X(cosh, cosh(x))                                                                                 \
  X(asinh, asinh(x))                                                                               \
  X(acosh, acosh(x))                                                                               \
  X(atanh, atanh(x))                                                                               \
  X(softplus, (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x))))                                          \
  X(softsign, x / (1.0 + fabs(x)))

#define DF_UNARY_F32(X) DF_ARITHMETIC_F32(X) DF_LIBRARY_F32(X) DF_ACTIVATION_F32(X)
#define DF_UNARY_F64(X) DF_ARITHMETIC_F64(X) DF_ACTIVATION_F64(X)

/* Negation goes through unsigned numbers: the least integer stays what it is, as in NumPy.
 * U is the type without sign of x. */
#define DF_UNARY_INT(X)                                                                            \
  X(abs, x < 0 ? 0 - (U)x : (U)x)                                                                  \
  X(neg, 0 - (U)x)                                                                                 \
  X(sign, (x > 0) - (x < 0))

DF_FN float df_clamp_01(float x) {
  x = x < 0.0f ? 0.0f : x;
  return x > 1.0f ? 1.0f : x;
}

/* log(1 + e^x). */
DF_FN float df_softplus(float x) { return (x > 0.0f ? x : 0.0f) + df_log1p(df_exp(-fabsf(x))); }

/* x Phi(x) by the error function, and by the usual formula with tanh. */
DF_FN float df_gelu(float x) { return 0.5f * x * (1.0f + df_erf(x * 0.7071067812f)); }
DF_FN float df_gelu_tanh(float x) {
  return 0.5f * x * (1.0f + df_tanh(0.7978845608f * (x + 0.044715f * (x * x * x))));
}

/* Their slopes: Phi(x) + x phi(x), and that of the formula. */
DF_FN float df_gelu_slope(float x) {
  const float density = 0.3989422804f * df_exp(-0.5f * x * x);
  return 0.5f * (1.0f + df_erf(x * 0.7071067812f)) + x * density;
}
DF_FN float df_gelu_tanh_slope(float x) {
  const float gate = df_tanh(0.7978845608f * (x + 0.044715f * (x * x * x)));
  const float inner = 0.7978845608f * (1.0f + 0.134145f * (x * x));
  return 0.5f * (1.0f + gate) + 0.5f * x * (1.0f - gate * gate) * inner;
}

#endif
