/* map/activation.cu: y[i] = f(x[i]), shapes equal, any strides in, contiguous out. */
#include "map/map.h"
#include "map/stored.h"
#include "map/vmath.h"

#include "kernels/half.h"
#include "kernels/unary.h" /* by the functions of map/vmath.h */

enum { NONE = INT32_MAX }; /* no attribute: reads as zero */

/* Functions with parameters: name, attributes that are alpha and beta, expression. */
#define F32_PARAMETER_OPS(X)                                                                       \
  X(leaky_relu, DF_LEAKY_RELU_ALPHA, NONE, x < 0.0f ? alpha * x : x)                               \
  X(elu, DF_ELU_ALPHA, NONE, x < 0.0f ? alpha * expm1f(x) : x)                                     \
  X(selu, DF_SELU_ALPHA, DF_SELU_GAMMA, beta *(x < 0.0f ? alpha * expm1f(x) : x))                  \
  X(celu, DF_CELU_ALPHA, NONE, x < 0.0f ? alpha * expm1f(x / alpha) : x)                           \
  X(thresholded_relu, DF_THRESHOLDED_RELU_ALPHA, NONE, x > alpha ? x : 0.0f)                       \
  X(hard_sigmoid, DF_HARD_SIGMOID_ALPHA, DF_HARD_SIGMOID_BETA, df_clamp_01(x *alpha + beta))

#define DEFINE(name, TO, TI, expression)                                                           \
  struct name##_fn {                                                                               \
    __device__ TO operator()(TI x) const { return static_cast<TO>(expression); }                   \
  };                                                                                               \
  static df_status name##_run(const df_call *call) { return df_map<TO, TI>(call, name##_fn{}); }

#define DEFINE_F32(name, expression) DEFINE(name##_f32, float, float, expression)
#define DEFINE_F64(name, expression) DEFINE(name##_f64, double, double, expression)
DF_UNARY_F32(DEFINE_F32)
DEFINE_F32(sin, sinf(x))
DEFINE_F32(cos, cosf(x))
DF_UNARY_F64(DEFINE_F64)
#define DEFINE_I32(name, expression) DEFINE(name##_i32, int32_t, int32_t, expression)
#define DEFINE_I64(name, expression) DEFINE(name##_i64, int64_t, int64_t, expression)
#define U uint32_t
DF_UNARY_INT(DEFINE_I32)
#undef U
#define U uint64_t
DF_UNARY_INT(DEFINE_I64)
#undef U

#define DEFINE_PARAMETER(name, first, second, expression)                                          \
  struct name##_fn {                                                                               \
    float alpha, beta;                                                                             \
    __device__ float operator()(float x) const { return expression; }                              \
  };                                                                                               \
  static df_status name##_f32_run(const df_call *call) {                                           \
    return df_map<float, float>(call, name##_fn{static_cast<float>(df_attr_float(call, first)),    \
                                                static_cast<float>(df_attr_float(call, second))}); \
  }
F32_PARAMETER_OPS(DEFINE_PARAMETER)

/* ---- GELU ----------------------------------------------------------------------------------- */

/* x Phi(x): approximate="none" by the error function, "tanh" by the usual formula. */
struct gelu_fn {
  __device__ float operator()(float x) const { return df_gelu(x); }
};
struct gelu_tanh_fn {
  __device__ float operator()(float x) const { return df_gelu_tanh(x); }
};
/* The same of what waits for backward in bfloat16, and rounded for products that read that. */
template <typename F, typename TO, typename TI> struct stored_fn {
  F f;
  __device__ TO operator()(TI x) const {
    TO y;
    df_store(&y, f(df_fetch(&x)));
    return y;
  }
};
template <typename TO, typename TI, typename F> static df_status gelu_as(const df_call *call, F f) {
  return df_map<TO, TI>(call, stored_fn<F, TO, TI>{f});
}
template <typename F> static df_status gelu_by(const df_call *call, F f) {
  const bool from = call->inputs[0]->dtype == DF_BFLOAT16;
  if (call->outputs[0]->dtype == DF_BFLOAT16)
    return from ? gelu_as<uint16_t, uint16_t>(call, f) : gelu_as<uint16_t, float>(call, f);
  return from ? gelu_as<float, uint16_t>(call, f) : df_map<float, float>(call, f);
}
static df_status gelu_f32_run(const df_call *call) {
  return df_attr_is(call, DF_GELU_APPROXIMATE, "tanh") ? gelu_by(call, gelu_tanh_fn{})
                                                       : gelu_by(call, gelu_fn{});
}

/* ---- Tests and bits ------------------------------------------------------------------------- */

DEFINE(is_nan_f32, uint8_t, float, x != x)
DEFINE(is_nan_f64, uint8_t, double, x != x)

template <typename T> struct is_inf_fn {
  bool negative, positive;
  __device__ uint8_t operator()(T x) const {
    return (negative && x == static_cast<T>(-INFINITY)) ||
           (positive && x == static_cast<T>(INFINITY));
  }
};
template <typename T> static df_status is_inf_run(const df_call *call) {
  return df_map<uint8_t, T>(call, is_inf_fn<T>{df_attr_int(call, DF_IS_INF_DETECT_NEGATIVE) != 0,
                                               df_attr_int(call, DF_IS_INF_DETECT_POSITIVE) != 0});
}

DEFINE(logical_not_bool, uint8_t, uint8_t, x == 0)
DEFINE(bitwise_not_8, uint8_t, uint8_t, ~x)
DEFINE(bitwise_not_16, uint16_t, uint16_t, ~x)
DEFINE(bitwise_not_32, uint32_t, uint32_t, ~x)
DEFINE(bitwise_not_64, uint64_t, uint64_t, ~x)

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(name, type, to, inplace, function)                                                  \
  DF_CUDA_KERNEL(#name, #type, "~" #type "->" to, inplace, .accepts = df_accepts_rank,             \
                 .run = function, .capturable = 1),
#define SAME(name, type) RECORD(name, type, #type, "0<0", name##_##type##_run)
#define RECORD_F32(name, expression) SAME(name, f32)
#define RECORD_F64(name, expression) SAME(name, f64)
#define RECORD_I32(name, expression) SAME(name, i32)
#define RECORD_I64(name, expression) SAME(name, i64)
#define RECORD_PARAMETER(name, first, second, expression) SAME(name, f32)
#define BITWISE_NOT(type, bits) RECORD(bitwise_not, type, #type, "0<0", bitwise_not_##bits##_run)

/* clang-format off */
static const df_kernel records[] = {
    DF_UNARY_F32(RECORD_F32)
    SAME(sin, f32) SAME(cos, f32)
    F32_PARAMETER_OPS(RECORD_PARAMETER)
    DF_CUDA_KERNEL("gelu", "f32", "~f32|bf16->f32|bf16", "0<0", .accepts = df_accepts_rank,
                   .run = gelu_f32_run, .capturable = 1),
    DF_UNARY_F64(RECORD_F64)
    DF_UNARY_INT(RECORD_I32)
    DF_UNARY_INT(RECORD_I64)
    RECORD(is_nan, f32, "bool", nullptr, is_nan_f32_run)
    RECORD(is_nan, f64, "bool", nullptr, is_nan_f64_run)
    RECORD(is_inf, f32, "bool", nullptr, is_inf_run<float>)
    RECORD(is_inf, f64, "bool", nullptr, is_inf_run<double>)
    SAME(logical_not, bool)
    BITWISE_NOT(i8, 8) BITWISE_NOT(i16, 16) BITWISE_NOT(i32, 32) BITWISE_NOT(i64, 64)
    BITWISE_NOT(u8, 8) BITWISE_NOT(u16, 16) BITWISE_NOT(u32, 32) BITWISE_NOT(u64, 64)};
/* clang-format on */
DF_CUDA_FAMILY(activation, records);
