/* map/activation.c: activations, any strides in, contiguous out. */
#include "map/loops.h"
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

#define DEFINE_F32(name, expression) DF_DEFINE_UNARY(name##_f32, float, float, expression)
#define DEFINE_F64(name, expression) DF_DEFINE_UNARY(name##_f64, double, double, expression)
DF_ACTIVATION_F32(DEFINE_F32)
DF_ACTIVATION_F64(DEFINE_F64)

#define DEFINE_F32_PARAMETER(name, declarations, expression)                                       \
  DF_ROWS(name##_f32) {                                                                            \
    (void)step;                                                                                    \
    declarations DF_LOOP_1(float, float, expression)                                               \
  }                                                                                                \
  DF_ROWS_RUN(name##_f32, 1)
F32_PARAMETER_OPS(DEFINE_F32_PARAMETER)

DF_DEFINE_UNARY(relu_i8, int8_t, int8_t, x < 0 ? 0 : x)
DF_DEFINE_UNARY(relu_i16, int16_t, int16_t, x < 0 ? 0 : x)
DF_DEFINE_UNARY(relu_i32, int32_t, int32_t, x < 0 ? 0 : x)
DF_DEFINE_UNARY(relu_i64, int64_t, int64_t, x < 0 ? 0 : x)

/* x Phi(x): approximate="none" by the error function, "tanh" by the usual formula. */
DF_ROWS(gelu_f32) {
  (void)step;
  if (df_attr_is(call, DF_GELU_APPROXIMATE, "tanh")) {
    DF_LOOP_1(float, float, df_gelu_tanh(x))
  } else {
    DF_LOOP_1(float, float, df_gelu(x))
  }
}
DF_ROWS_RUN(gelu_f32, 1)

/* dx = dy where y > 0, else 0. */
DF_DEFINE_BINARY(relu_grad_f32, float, float, b > 0.0f ? a : 0.0f)
DF_DEFINE_BINARY(relu_grad_f64, double, double, b > 0.0 ? a : 0.0)

/* dx = dy (Phi(x) + x phi(x)), or the slope of the approximation by tanh; |a| is dy, |b| is x. */
DF_ROWS(gelu_grad_f32) {
  if (df_attr_is(call, DF_GELU_APPROXIMATE, "tanh")) {
    DF_LOOP_2(float, float, a *df_gelu_tanh_slope(b))
  } else {
    DF_LOOP_2(float, float, a *df_gelu_slope(b))
  }
}
DF_ROWS_RUN(gelu_grad_f32, 2)

/* y = x where x >= 0, else slope x. */
DF_DEFINE_BINARY(prelu_f32, float, float, a < 0.0f ? a * b : a)

#define STEP(name, expression) {DF_STEP_##name, 1, name##_f32_rows},
/* clang-format off */
const df_step_rows DF_NAME(df_activation_steps)[] = {
    DF_ACTIVATION_F32(STEP) {DF_STEP_relu_grad, 2, relu_grad_f32_rows}, {0}};
/* clang-format on */

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD_F32(name, expression) DF_SAME_1(name, f32)
#define RECORD_F64(name, expression) DF_SAME_1(name, f64)
#define RECORD_F32_PARAMETER(name, declarations, expression) DF_SAME_1(name, f32)

/* clang-format off */
DF_KERNELS(activation) = {
    DF_ACTIVATION_F32(RECORD_F32) DF_ACTIVATION_F64(RECORD_F64)
    F32_PARAMETER_OPS(RECORD_F32_PARAMETER)
    DF_SAME_1(relu, i8) DF_SAME_1(relu, i16) DF_SAME_1(relu, i32) DF_SAME_1(relu, i64)
    DF_SAME_1(gelu, f32)
    DF_SAME_2(relu_grad, f32) DF_SAME_2(relu_grad, f64) DF_SAME_2(gelu_grad, f32) DF_SAME_2(prelu, f32)
    NULL};
