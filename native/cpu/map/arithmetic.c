/* map/arithmetic.c: arithmetic and functions of mathematics, any strides in, contiguous out; with
 * two operands NumPy's broadcasting.
 *
 * Loops on float over simd/vmath.h and its like become vector code; the rare functions and float64
 * call the C library. */
#include "kernels/binary.h"
#include "map/loops.h"
#include "simd/vmath_angles.h"

#include "kernels/unary.h" /* by the functions of simd/vmath.h */

#define UNARY_F32(name, expression) DF_DEFINE_UNARY(name##_f32, float, float, expression)
#define UNARY_F64(name, expression) DF_DEFINE_UNARY(name##_f64, double, double, expression)
#define UNARY_I32(name, expression) DF_DEFINE_UNARY(name##_i32, int32_t, int32_t, expression)
#define UNARY_I64(name, expression) DF_DEFINE_UNARY(name##_i64, int64_t, int64_t, expression)
/* Of the functions of the C library those that have a vector formula, and the others. */
#define LIBRARY_F32(name, expression) LIBRARY_##name(name, expression)
#define LIBRARY_tan(name, expression) /* below */
#define LIBRARY_asin(name, expression) UNARY_F32(name, df_asin(x))
#define LIBRARY_acos(name, expression) UNARY_F32(name, df_acos(x))
#define LIBRARY_atan(name, expression) UNARY_F32(name, df_atan(x))
#define LIBRARY_sinh UNARY_F32
#define LIBRARY_cosh UNARY_F32
#define LIBRARY_asinh UNARY_F32
#define LIBRARY_acosh UNARY_F32
#define LIBRARY_atanh UNARY_F32
#define BINARY_F32(name, expression) DF_DEFINE_BINARY(name##_f32, float, float, expression)
#define BINARY_F64(name, expression) DF_DEFINE_BINARY(name##_f64, double, double, expression)
#define BINARY_I32(name, expression) DF_DEFINE_BINARY(name##_i32, int32_t, int32_t, expression)
#define BINARY_I64(name, expression) DF_DEFINE_BINARY(name##_i64, int64_t, int64_t, expression)
DF_ARITHMETIC_F32(UNARY_F32)
DF_LIBRARY_F32(LIBRARY_F32)
DF_ARITHMETIC_F64(UNARY_F64)
DF_LIBRARY_F64(UNARY_F64)
DF_BINARY_FLOAT(BINARY_F32)
DF_BINARY_FLOAT(BINARY_F64)
#define U uint32_t
#define DIVIDE df_divide_i32
DF_UNARY_INT(UNARY_I32)
DF_BINARY_INT(BINARY_I32)
#undef DIVIDE
#undef U
#define U uint64_t
#define DIVIDE df_divide_int
DF_UNARY_INT(UNARY_I64)
DF_BINARY_INT(BINARY_I64)
#undef DIVIDE
#undef U

#define DEFINE_MOD(type, T, function)                                                              \
  DF_ROWS(mod_##type) {                                                                            \
    const int like_c = df_attr_int(call, DF_MOD_FMOD) != 0;                                        \
    DF_LOOP_2(T, T, function(a, b, like_c))                                                        \
  }                                                                                                \
  DF_ROWS_RUN(mod_##type, 2)
DEFINE_MOD(f64, double, df_mod_float)
DEFINE_MOD(i32, int32_t, df_mod_int)
DEFINE_MOD(i64, int64_t, df_mod_int)

/* What is left of |a|, as C's fmodf gives it to the bit, where the quotient is below 2^28: a double
 * then holds its product with b, and is not rounded to an integer that it is below. */
static inline float rest_of(float a, float b, int *large) {
  const float x = fabsf(a), y = fabsf(b);
  const double quotient = (double)x / (double)y;
  *large |= !(quotient < 0x1p28);
  const double integer = (double)(int32_t)(quotient < 0x1p28 ? quotient : 0.0);
  const float rest = (float)((double)x - integer * (double)y);
  return df_with_sign(x < y ? x : rest, a);
}

DF_ROWS(mod_f32) {
  enum { BLOCK = 512 };
  const int like_c = df_attr_int(call, DF_MOD_FMOD) != 0;
  float *to = out, rests[BLOCK], broadcast[2][BLOCK];
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0; !step[k] && i < df_min(n, BLOCK); i++)
      broadcast[k][i] = *(const float *)in[k];
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t count = df_min(BLOCK, n - begin);
    const float *a = step[0] ? (const float *)in[0] + begin : broadcast[0];
    const float *b = step[1] ? (const float *)in[1] + begin : broadcast[1];
    int large = 0;
    for (int64_t i = 0; i < count; i++)
      rests[i] = rest_of(a[i], b[i], &large);
    for (int64_t i = 0; large && i < count; i++) {
      int own = 0;
      (void)rest_of(a[i], b[i], &own);
      if (own)
        rests[i] = fmodf(a[i], b[i]);
    }
    if (like_c) {
      memcpy(to + begin, rests, (size_t)count * sizeof *to);
      continue;
    }
    DF_IVDEP
    for (int64_t i = 0; i < count; i++) {
      const float rest = rests[i], divisor = b[i];
      float moved = (rest < 0.0f) != (divisor < 0.0f) ? rest + divisor : rest;
      moved = rest == 0.0f ? df_with_sign(0.0f, divisor) : moved;
      to[begin + i] = divisor == 0.0f ? rest : moved;
    }
  }
}
DF_ROWS_RUN(mod_f32, 2)

/* ---- Sine, cosine and tangent --------------------------------------------------------------- */

/* Where a number is too large for the vector formula, its neighbourhood goes one by one. */
#define DEFINE_TRIG(name)                                                                          \
  DF_ROWS(name##_f32) {                                                                            \
    (void)step;                                                                                    \
    (void)call;                                                                                    \
    float *to = out;                                                                               \
    const float *from = in[0];                                                                     \
    enum { BLOCK = 512 };                                                                          \
    for (int64_t begin = 0; begin < n; begin += BLOCK) {                                           \
      int64_t end = df_min(n, begin + BLOCK);                                                      \
      int large = 0;                                                                               \
      for (int64_t i = begin; i < end; i++)                                                        \
        large |= fabsf(from[i]) >= DF_TRIG_LIMIT;                                                  \
      if (!large) {                                                                                \
        DF_IVDEP for (int64_t i = begin; i < end; i++) to[i] = df_##name(from[i]);                 \
      } else {                                                                                     \
        for (int64_t i = begin; i < end; i++)                                                      \
          to[i] = fabsf(from[i]) >= DF_TRIG_LIMIT ? name##f(from[i]) : df_##name(from[i]);         \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  DF_ROWS_RUN(name##_f32, 1)
DEFINE_TRIG(sin)
DEFINE_TRIG(cos)
DEFINE_TRIG(tan)

/* ---- Powers --------------------------------------------------------------------------------- */

/* The exponents that models use most have exact short forms. */
DF_ROWS(pow_f32) {
  (void)call;
  if (!step[1]) {
    const float exponent = *(const float *)in[1];
    float *to = out;
    const float *from = in[0];
    if (exponent == 2.0f) {
      DF_EACH to[i] = from[i] * from[i];
      return;
    }
    if (exponent == 3.0f) {
      DF_EACH to[i] = from[i] * from[i] * from[i];
      return;
    }
    if (exponent == 1.0f) {
      DF_EACH to[i] = from[i];
      return;
    }
    if (exponent == -1.0f) {
      DF_EACH to[i] = 1.0f / from[i];
      return;
    }
  }
  DF_LOOP_2(float, float, df_pow(a, b))
}
DF_ROWS_RUN(pow_f32, 2)
DF_DEFINE_BINARY(pow_f64, double, double, pow(a, b))

/* ---- clip(x, low?, high?) = min(max(x, low), high); a NaN wins, in x or a bound ------------- */

/* |low| and |high| hold a scalar or are absent. */
static inline const void *bound(const df_call *call, int32_t index) {
  return index < call->n_inputs ? call->inputs[index]->data : NULL;
}

#define DEFINE_CLIP(type, T, least, most)                                                          \
  DF_ROWS(clip_##type) {                                                                           \
    (void)step;                                                                                    \
    const T *low_at = bound(call, 1), *high_at = bound(call, 2);                                   \
    const T low = low_at ? *low_at : least, high = high_at ? *high_at : most;                      \
    T *to = out;                                                                                   \
    const T *from = in[0];                                                                         \
    DF_EACH {                                                                                      \
      T x = from[i];                                                                               \
      x = x < low || low != low ? low : x;                                                         \
      to[i] = x > high || high != high ? high : x;                                                 \
    }                                                                                              \
  }                                                                                                \
  DF_ROWS_RUN(clip_##type, 1)
DEFINE_CLIP(f32, float, -INFINITY, INFINITY)
DEFINE_CLIP(f64, double, -(double)INFINITY, (double)INFINITY)
DEFINE_CLIP(i32, int32_t, INT32_MIN, INT32_MAX)
DEFINE_CLIP(i64, int64_t, INT64_MIN, INT64_MAX)

/* ---- Steps of programs ---------------------------------------------------------------------- */

#define STEP_1(name, expression) {DF_STEP_##name, 1, name##_f32_rows},
#define STEP_2(name, expression) {DF_STEP_##name, 2, name##_f32_rows},
/* clang-format off */
const df_step_rows DF_NAME(df_arithmetic_steps)[] = {
    DF_ARITHMETIC_F32(STEP_1) DF_LIBRARY_F32(STEP_1) STEP_1(sin, ) STEP_1(cos, ) DF_BINARY_FLOAT(STEP_2) {0}};
/* clang-format on */

/* ---- Records -------------------------------------------------------------------------------- */

#define CLIP(type)                                                                                 \
  DF_KERNEL("clip", #type, "~" #type "," #type "?," #type "?->" #type, "0<0", clip_##type##_run),
#define RECORD_1_F32(name, expression) DF_SAME_1(name, f32)
#define RECORD_1_F64(name, expression) DF_SAME_1(name, f64)
#define RECORD_1_I32(name, expression) DF_SAME_1(name, i32)
#define RECORD_1_I64(name, expression) DF_SAME_1(name, i64)
#define RECORD_2_F32(name, expression) DF_SAME_2(name, f32)
#define RECORD_2_F64(name, expression) DF_SAME_2(name, f64)
#define RECORD_2_I32(name, expression) DF_SAME_2(name, i32)
#define RECORD_2_I64(name, expression) DF_SAME_2(name, i64)

/* clang-format off */
DF_KERNELS(arithmetic) = {
    DF_ARITHMETIC_F32(RECORD_1_F32) DF_LIBRARY_F32(RECORD_1_F32) DF_ARITHMETIC_F64(RECORD_1_F64)
    DF_LIBRARY_F64(RECORD_1_F64)
    DF_UNARY_INT(RECORD_1_I32) DF_UNARY_INT(RECORD_1_I64)
    DF_SAME_1(sin, f32) DF_SAME_1(cos, f32)
    DF_BINARY_FLOAT(RECORD_2_F32) DF_BINARY_FLOAT(RECORD_2_F64)
    DF_BINARY_INT(RECORD_2_I32) DF_BINARY_INT(RECORD_2_I64)
    DF_SAME_2(mod, f32) DF_SAME_2(mod, f64) DF_SAME_2(mod, i32) DF_SAME_2(mod, i64)
    DF_SAME_2(pow, f32) DF_SAME_2(pow, f64)
    CLIP(f32) CLIP(f64) CLIP(i32) CLIP(i64)
    NULL};
