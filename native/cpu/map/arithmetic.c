/* map/arithmetic.c: z = f(x, y) with NumPy broadcasting, any strides in, contiguous out; selection,
 * clipping. */
#include "kernels/binary.h"
#include "map/walk.h"
#include "simd/vmath.h"

#include "kernels/unary.h" /* by the functions of simd/vmath.h */

#include <stdlib.h>

#define ROWS(name)                                                                                 \
  static void name##_rows(void *out, const void *const *in, const int64_t *step, int64_t n,        \
                          const df_call *call)
#define RUN(name, inputs)                                                                          \
  static df_status name##_run(const df_call *call) { return df_map_run(call, inputs, name##_rows); }

/* One loop for two rows, one each for a scalar on the left and on the right. */
#define EACH DF_IVDEP for (int64_t i = 0; i < n; i++)
#define LOOPS(TO, TI, expression)                                                                  \
  TO *to = out;                                                                                    \
  const TI *left = in[0], *right = in[1];                                                          \
  if (step[0] && step[1]) {                                                                        \
    EACH {                                                                                         \
      const TI a = left[i], b = right[i];                                                          \
      to[i] = (TO)(expression);                                                                    \
    }                                                                                              \
  } else if (step[0]) {                                                                            \
    const TI b = *right;                                                                           \
    EACH {                                                                                         \
      const TI a = left[i];                                                                        \
      to[i] = (TO)(expression);                                                                    \
    }                                                                                              \
  } else {                                                                                         \
    const TI a = *left;                                                                            \
    EACH {                                                                                         \
      const TI b = right[i];                                                                       \
      to[i] = (TO)(expression);                                                                    \
    }                                                                                              \
  }

#define DEFINE(name, TO, TI, expression)                                                           \
  ROWS(name) {                                                                                     \
    (void)call;                                                                                    \
    LOOPS(TO, TI, expression)                                                                      \
  }                                                                                                \
  RUN(name, 2)

#define DEFINE_F32(name, expression) DEFINE(name##_f32, float, float, expression)
#define DEFINE_F64(name, expression) DEFINE(name##_f64, double, double, expression)
#define DEFINE_I32(name, expression) DEFINE(name##_i32, int32_t, int32_t, expression)
#define DEFINE_I64(name, expression) DEFINE(name##_i64, int64_t, int64_t, expression)
#define DEFINE_BOOL(name, expression) DEFINE(name##_bool, uint8_t, uint8_t, expression)
DF_BINARY_FLOAT(DEFINE_F32)
DF_BINARY_FLOAT(DEFINE_F64)
#define U uint32_t
DF_BINARY_INT(DEFINE_I32)
#undef U
#define U uint64_t
DF_BINARY_INT(DEFINE_I64)
#undef U
DF_LOGIC(DEFINE_BOOL)

#define DEFINE_COMPARE_F32(name, expression) DEFINE(name##_f32, uint8_t, float, expression)
#define DEFINE_COMPARE_F64(name, expression) DEFINE(name##_f64, uint8_t, double, expression)
#define DEFINE_COMPARE_I32(name, expression) DEFINE(name##_i32, uint8_t, int32_t, expression)
#define DEFINE_COMPARE_I64(name, expression) DEFINE(name##_i64, uint8_t, int64_t, expression)
DF_COMPARISONS(DEFINE_COMPARE_F32)
DF_COMPARISONS(DEFINE_COMPARE_F64)
DF_COMPARISONS(DEFINE_COMPARE_I32)
DF_COMPARISONS(DEFINE_COMPARE_I64)
DEFINE(equal_bool, uint8_t, uint8_t, (a != 0) == (b != 0))

#define DEFINE_MOD(type, T, function)                                                              \
  ROWS(mod_##type) {                                                                               \
    const int like_c = df_attr_int(call, DF_MOD_FMOD) != 0;                                        \
    LOOPS(T, T, function(a, b, like_c))                                                            \
  }                                                                                                \
  RUN(mod_##type, 2)
DEFINE_MOD(f32, float, df_mod_float)
DEFINE_MOD(f64, double, df_mod_float)
DEFINE_MOD(i32, int32_t, df_mod_int)
DEFINE_MOD(i64, int64_t, df_mod_int)

/* dx = dy where y > 0, else 0. */
DEFINE(relu_grad_f32, float, float, b > 0.0f ? a : 0.0f)

/* dx = dy (Phi(x) + x phi(x)), or the slope of the approximation by tanh; |a| is dy, |b| is x. */
ROWS(gelu_grad_f32) {
  if (df_attr_is(call, DF_GELU_APPROXIMATE, "tanh")) {
    LOOPS(float, float, a *df_gelu_tanh_slope(b))
  } else {
    LOOPS(float, float, a *df_gelu_slope(b))
  }
}
RUN(gelu_grad_f32, 2)

/* y = x where x >= 0, else slope x. */
DEFINE(prelu_f32, float, float, a < 0.0f ? a * b : a)

#define STEP(name, expression) {DF_STEP_##name, name##_f32_rows},
/* clang-format off */
const df_step_rows DF_NAME(df_binary_rows)[] = {
    DF_BINARY_FLOAT(STEP) STEP(relu_grad, ) {0}};
/* clang-format on */

/* ---- Powers --------------------------------------------------------------------------------- */

/* The exponents that models use most have exact short forms. */
ROWS(pow_f32) {
  (void)call;
  if (!step[1]) {
    const float exponent = *(const float *)in[1];
    float *to = out;
    const float *from = in[0];
    if (exponent == 2.0f) {
      EACH to[i] = from[i] * from[i];
      return;
    }
    if (exponent == 3.0f) {
      EACH to[i] = from[i] * from[i] * from[i];
      return;
    }
    if (exponent == 1.0f) {
      EACH to[i] = from[i];
      return;
    }
    if (exponent == -1.0f) {
      EACH to[i] = 1.0f / from[i];
      return;
    }
  }
  LOOPS(float, float, df_pow(a, b))
}
RUN(pow_f32, 2)
DEFINE(pow_f64, double, double, pow(a, b))

/* ---- where(condition, x, y) ----------------------------------------------------------------- */

#define DEFINE_WHERE(name, T)                                                                      \
  static void name(T *to, const uint8_t *c, const T *x, const T *y, const int64_t *step,           \
                   int64_t n) {                                                                    \
    if (step[0] && step[1] && step[2]) {                                                           \
      EACH to[i] = c[i] ? x[i] : y[i];                                                             \
    } else if (step[0] && step[1]) {                                                               \
      const T b = *y;                                                                              \
      EACH to[i] = c[i] ? x[i] : b;                                                                \
    } else if (step[0] && step[2]) {                                                               \
      const T a = *x;                                                                              \
      EACH to[i] = c[i] ? a : y[i];                                                                \
    } else {                                                                                       \
      EACH to[i] = c[i * step[0]] ? x[i * step[1]] : y[i * step[2]];                               \
    }                                                                                              \
  }
DEFINE_WHERE(where_8, uint8_t)
DEFINE_WHERE(where_16, uint16_t)
DEFINE_WHERE(where_32, uint32_t)
DEFINE_WHERE(where_64, uint64_t)

ROWS(where) {
  switch (df_item_bytes(call->outputs[0].dtype)) {
  case 1:
    where_8(out, in[0], in[1], in[2], step, n);
    break;
  case 2:
    where_16(out, in[0], in[1], in[2], step, n);
    break;
  case 4:
    where_32(out, in[0], in[1], in[2], step, n);
    break;
  default:
    where_64(out, in[0], in[1], in[2], step, n);
  }
}
RUN(where, 3)

static const char *where_accepts(const df_node *node) {
  int64_t bytes = df_item_bytes(node->outputs[0].dtype);
  return bytes == 0 || bytes > 8 ? "elements must have 1, 2, 4 or 8 bytes" : NULL;
}

/* ---- clip(x, low?, high?) = min(max(x, low), high); a NaN wins, in x or a bound ------------- */

/* |low| and |high| hold a scalar or are absent. */
static inline const void *bound(const df_call *call, int32_t index) {
  return index < call->n_inputs ? call->inputs[index].data : NULL;
}

#define DEFINE_CLIP(type, T, least, most)                                                          \
  ROWS(clip_##type) {                                                                              \
    (void)step;                                                                                    \
    const T *low_at = bound(call, 1), *high_at = bound(call, 2);                                   \
    const T low = low_at ? *low_at : least, high = high_at ? *high_at : most;                      \
    T *to = out;                                                                                   \
    const T *from = in[0];                                                                         \
    EACH {                                                                                         \
      T x = from[i];                                                                               \
      x = x < low || low != low ? low : x;                                                         \
      to[i] = x > high || high != high ? high : x;                                                 \
    }                                                                                              \
  }                                                                                                \
  RUN(clip_##type, 1)
DEFINE_CLIP(f32, float, -INFINITY, INFINITY)
DEFINE_CLIP(f64, double, -(double)INFINITY, (double)INFINITY)
DEFINE_CLIP(i32, int32_t, INT32_MIN, INT32_MAX)
DEFINE_CLIP(i64, int64_t, INT64_MIN, INT64_MAX)

/* ---- Records -------------------------------------------------------------------------------- */

#define SAME(name, type)                                                                           \
  DF_KERNEL(#name, #type, "~" #type ",~" #type "->" #type, "0<0,0<1", name##_##type##_run),
#define COMPARE(name, type)                                                                        \
  DF_KERNEL(#name, #type, "~" #type ",~" #type "->bool", NULL, name##_##type##_run),
#define CLIP(type)                                                                                 \
  DF_KERNEL("clip", #type, "~" #type "," #type "?," #type "?->" #type, "0<0", clip_##type##_run),
#define SAME_F32(name, expression) SAME(name, f32)
#define SAME_F64(name, expression) SAME(name, f64)
#define SAME_I32(name, expression) SAME(name, i32)
#define SAME_I64(name, expression) SAME(name, i64)
#define SAME_BOOL(name, expression) SAME(name, bool)
#define COMPARE_F32(name, expression) COMPARE(name, f32)
#define COMPARE_F64(name, expression) COMPARE(name, f64)
#define COMPARE_I32(name, expression) COMPARE(name, i32)
#define COMPARE_I64(name, expression) COMPARE(name, i64)

/* clang-format off */
DF_KERNELS(arithmetic) = {
    DF_BINARY_FLOAT(SAME_F32) DF_BINARY_FLOAT(SAME_F64)
    DF_BINARY_INT(SAME_I32) DF_BINARY_INT(SAME_I64)
    DF_LOGIC(SAME_BOOL)
    DF_COMPARISONS(COMPARE_F32) DF_COMPARISONS(COMPARE_F64)
    DF_COMPARISONS(COMPARE_I32) DF_COMPARISONS(COMPARE_I64)
    COMPARE(equal, bool)
    SAME(mod, f32) SAME(mod, f64) SAME(mod, i32) SAME(mod, i64)
    SAME(pow, f32) SAME(pow, f64)
    SAME(relu_grad, f32) SAME(gelu_grad, f32) SAME(prelu, f32)
    CLIP(f32) CLIP(f64) CLIP(i32) CLIP(i64)
    DF_KERNEL_IF("where", "any", "~bool,~any,~any->any", "0<1,0<2", where_accepts, where_run),
    NULL};
