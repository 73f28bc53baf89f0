/* map/activation.c: y[i] = f(x[i]), shapes equal, any strides in, contiguous out.
 *
 * float loops over simd/vmath.h become vector code; the rare functions and float64 call the C
 * library.
 */
#include "map/walk.h"
#include "simd/vmath.h"

#include "kernels/unary.h" /* by the functions of simd/vmath.h */

/* Functions with parameters: name, declarations that read attributes, expression in x. */
#define F32_PARAMETER_OPS(X)                                                                       \
  X(leaky_relu, FLOAT_ATTRIBUTE(alpha, DF_LEAKY_RELU_ALPHA), x < 0.0f ? alpha * x : x)             \
  X(elu, FLOAT_ATTRIBUTE(alpha, DF_ELU_ALPHA), x < 0.0f ? alpha * df_expm1_below_zero(x) : x)      \
  X(selu, FLOAT_ATTRIBUTE(alpha, DF_SELU_ALPHA) FLOAT_ATTRIBUTE(gamma, DF_SELU_GAMMA),             \
    gamma *(x < 0.0f ? alpha * df_expm1_below_zero(x) : x))                                        \
  X(celu, FLOAT_ATTRIBUTE(alpha, DF_CELU_ALPHA),                                                   \
    x >= 0.0f || x != x ? x                                                                        \
    : alpha > 0.0f      ? alpha * df_expm1_below_zero(x / alpha)                                   \
                        : alpha * (df_exp(x / alpha) - 1.0f))                                      \
  X(thresholded_relu, FLOAT_ATTRIBUTE(alpha, DF_THRESHOLDED_RELU_ALPHA), x > alpha ? x : 0.0f)     \
  X(hard_sigmoid,                                                                                  \
    FLOAT_ATTRIBUTE(alpha, DF_HARD_SIGMOID_ALPHA) FLOAT_ATTRIBUTE(beta, DF_HARD_SIGMOID_BETA),     \
    df_clamp_01(x *alpha + beta))

#define FLOAT_ATTRIBUTE(name, index) const float name = (float)df_attr_float(call, index);

/* y[i] = |expression| in x = x[i]. The output may be the input: DF_IVDEP says that nothing else
 * overlaps. */
#define LOOP(TO, TI, expression)                                                                   \
  TO *to = out;                                                                                    \
  const TI *from = in[0];                                                                          \
  DF_IVDEP for (int64_t i = 0; i < n; i++) {                                                       \
    const TI x = from[i];                                                                          \
    to[i] = (TO)(expression);                                                                      \
  }

#define ROWS(name)                                                                                 \
  static void name##_rows(void *out, const void *const *in, const int64_t *step, int64_t n,        \
                          const df_call *call)
#define RUN(name)                                                                                  \
  static df_status name##_run(const df_call *call) { return df_map_run(call, 1, name##_rows); }
#define UNUSED_ROWS_ARGUMENTS                                                                      \
  (void)step;                                                                                      \
  (void)call;

#define DEFINE(name, TO, TI, expression)                                                           \
  ROWS(name){UNUSED_ROWS_ARGUMENTS LOOP(TO, TI, expression)} RUN(name)

#define DEFINE_F32(name, expression) DEFINE(name##_f32, float, float, expression)
#define DEFINE_F64(name, expression) DEFINE(name##_f64, double, double, expression)
DF_UNARY_F32(DEFINE_F32)
DF_UNARY_F64(DEFINE_F64)

#define DEFINE_I32(name, expression) DEFINE(name##_i32, int32_t, int32_t, expression)
#define DEFINE_I64(name, expression) DEFINE(name##_i64, int64_t, int64_t, expression)
#define U uint32_t
DF_UNARY_INT(DEFINE_I32)
#undef U
#define U uint64_t
DF_UNARY_INT(DEFINE_I64)
#undef U

#define DEFINE_F32_PARAMETER(name, declarations, expression)                                       \
  ROWS(name##_f32) {                                                                               \
    (void)step;                                                                                    \
    declarations LOOP(float, float, expression)                                                    \
  }                                                                                                \
  RUN(name##_f32)
F32_PARAMETER_OPS(DEFINE_F32_PARAMETER)

/* ---- Sine and cosine ------------------------------------------------------------------------ */

/* Where a number is too large for the vector formula, its neighbourhood goes one by one. */
#define DEFINE_TRIG(name)                                                                          \
  ROWS(name##_f32) {                                                                               \
    UNUSED_ROWS_ARGUMENTS                                                                          \
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
  RUN(name##_f32)
DEFINE_TRIG(sin)
DEFINE_TRIG(cos)

/* ---- GELU ----------------------------------------------------------------------------------- */

/* x Phi(x): approximate="none" by the error function, "tanh" by the usual formula. */
ROWS(gelu_f32) {
  (void)step;
  if (df_attr_is(call, DF_GELU_APPROXIMATE, "tanh")) {
    LOOP(float, float, df_gelu_tanh(x))
  } else {
    LOOP(float, float, df_gelu(x))
  }
}
RUN(gelu_f32)

/* ---- Tests and bits ------------------------------------------------------------------------- */

DEFINE(is_nan_f32, uint8_t, float, x != x)
DEFINE(is_nan_f64, uint8_t, double, x != x)

#define DEFINE_IS_INF(name, T)                                                                     \
  ROWS(name) {                                                                                     \
    (void)step;                                                                                    \
    const int negative = df_attr_int(call, DF_IS_INF_DETECT_NEGATIVE) != 0,                        \
              positive = df_attr_int(call, DF_IS_INF_DETECT_POSITIVE) != 0;                        \
    LOOP(uint8_t, T, (negative & (x == (T) - INFINITY)) | (positive & (x == (T)INFINITY)))         \
  }                                                                                                \
  RUN(name)
DEFINE_IS_INF(is_inf_f32, float)
DEFINE_IS_INF(is_inf_f64, double)

DEFINE(logical_not_bool, uint8_t, uint8_t, x == 0)
DEFINE(bitwise_not_8, uint8_t, uint8_t, ~x)
DEFINE(bitwise_not_16, uint16_t, uint16_t, ~x)
DEFINE(bitwise_not_32, uint32_t, uint32_t, ~x)
DEFINE(bitwise_not_64, uint64_t, uint64_t, ~x)

#define STEP(name, expression) {DF_STEP_##name, name##_f32_rows},
/* clang-format off */
const df_step_rows DF_NAME(df_unary_rows)[] = {
    DF_UNARY_F32(STEP) STEP(sin, ) STEP(cos, ) {0}};
/* clang-format on */

/* ---- Records -------------------------------------------------------------------------------- */

#define SAME(name, type) DF_KERNEL(#name, #type, "~" #type "->" #type, "0<0", name##_##type##_run),
#define RECORD_F32(name, expression) SAME(name, f32)
#define RECORD_F64(name, expression) SAME(name, f64)
#define RECORD_I32(name, expression) SAME(name, i32)
#define RECORD_I64(name, expression) SAME(name, i64)
#define RECORD_F32_PARAMETER(name, declarations, expression) SAME(name, f32)
#define TEST(name, type) DF_KERNEL(#name, #type, "~" #type "->bool", NULL, name##_##type##_run),
#define BITWISE_NOT(type, bits)                                                                    \
  DF_KERNEL("bitwise_not", #type, "~" #type "->" #type, "0<0", bitwise_not_##bits##_run),

/* clang-format off */
DF_KERNELS(activation) = {
    DF_UNARY_F32(RECORD_F32)
    F32_PARAMETER_OPS(RECORD_F32_PARAMETER)
    SAME(sin, f32) SAME(cos, f32) SAME(gelu, f32)
    DF_UNARY_F64(RECORD_F64)
    DF_UNARY_INT(RECORD_I32)
    DF_UNARY_INT(RECORD_I64)
    TEST(is_nan, f32) TEST(is_nan, f64) TEST(is_inf, f32) TEST(is_inf, f64)
    SAME(logical_not, bool)
    BITWISE_NOT(i8, 8) BITWISE_NOT(i16, 16) BITWISE_NOT(i32, 32) BITWISE_NOT(i64, 64)
    BITWISE_NOT(u8, 8) BITWISE_NOT(u16, 16) BITWISE_NOT(u32, 32) BITWISE_NOT(u64, 64)
    NULL};
