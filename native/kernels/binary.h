/* kernels/binary.h: formulas of elementwise ops with two operands: X(op, expression in a and b). */
#ifndef DF_KERNELS_BINARY_H
#define DF_KERNELS_BINARY_H
#include "kernels/extremum.h"
#include "kernels/function.h"

#include <math.h>
#include <stdint.h>

#define DF_BINARY_FLOAT(X)                                                                         \
  X(add, a + b)                                                                                    \
  X(sub, a - b)                                                                                    \
  X(mul, a *b)                                                                                     \
  X(div, a / b)                                                                                    \
  X(maximum, DF_MAXIMUM(a, b))                                                                     \
  X(minimum, DF_MINIMUM(a, b))

/* Wraps around through U, the type without sign; DIVIDE is one of the quotients below. */
#define DF_BINARY_INT(X)                                                                           \
  X(add, (U)a + (U)b)                                                                              \
  X(sub, (U)a - (U)b)                                                                              \
  X(mul, (U)a *(U)b)                                                                               \
  X(div, DIVIDE(a, b))                                                                             \
  X(maximum, a > b ? a : b)                                                                        \
  X(minimum, a < b ? a : b)

#define DF_COMPARISONS(X)                                                                          \
  X(equal, a == b)                                                                                 \
  X(less, a < b)                                                                                   \
  X(less_equal, a <= b)                                                                            \
  X(greater, a > b)                                                                                \
  X(greater_equal, a >= b)

#define DF_LOGIC(X)                                                                                \
  X(logical_and, (a != 0) & (b != 0))                                                              \
  X(logical_or, (a != 0) | (b != 0))                                                               \
  X(logical_xor, (a != 0) ^ (b != 0))

/* Integer quotients: towards zero; by zero gives 0, as NumPy does. -1 has a case of its own since
 * the least integer divided by it does not fit. */
DF_FN int64_t df_divide_int(int64_t a, int64_t b) {
  if (b == 0)
    return 0;
  return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

/* Likewise by a division of floats, which vectors have: a quotient that isn't whole is further from
 * the next whole number than it is rounded by. Of at most 16 bits: */
DF_FN int32_t df_divide_16(int32_t a, int32_t b) {
  return (int32_t)(b == 0 ? 0.0f : (float)a / (float)b);
}

DF_FN int32_t df_divide_i32(int32_t a, int32_t b) {
  const double quotient = b == 0 ? 0.0 : (double)a / (double)b;
  return (int32_t)(quotient > INT32_MAX ? INT32_MIN : quotient);
}

DF_FN uint32_t df_divide_u32(uint32_t a, uint32_t b) {
  return (uint32_t)(b == 0 ? 0.0 : (double)a / (double)b);
}

/* The remainder with the sign of the divisor (Python) or of the dividend (C). */
DF_FN int64_t df_mod_int(int64_t a, int64_t b, int like_c) {
  if (b == 0 || b == -1)
    return 0;
  int64_t rest = a % b;
  return !like_c && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

DF_FN double df_mod_float(double a, double b, int like_c) {
  double rest = fmod(a, b);
  if (like_c || b == 0.0)
    return rest;
  if (rest == 0.0)
    return copysign(0.0, b);
  return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}

#endif
