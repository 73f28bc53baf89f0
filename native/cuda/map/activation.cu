/* map/activation.cu: y[i] = f(x[i]), shapes equal, any strides in, contiguous out. */
#include "map/map.h"

/* ---- Functions without parameters: name, expression in x ------------------------------------ */

#define F32_OPS(X)                                                                                 \
  X(abs, fabsf(x))                                                                                 \
  X(neg, -x)                                                                                       \
  X(exp, expf(x))                                                                                  \
  X(log, logf(x))                                                                                  \
  X(sqrt, sqrtf(x))                                                                                \
  X(reciprocal, 1.0f / x)                                                                          \
  X(sin, sinf(x))                                                                                  \
  X(cos, cosf(x))                                                                                  \
  X(tan, tanf(x))                                                                                  \
  X(asin, asinf(x))                                                                                \
  X(acos, acosf(x))                                                                                \
  X(atan, atanf(x))                                                                                \
  X(sinh, sinhf(x))                                                                                \
  X(cosh, coshf(x))                                                                                \
  X(tanh, tanhf(x))                                                                                \
  X(asinh, asinhf(x))                                                                              \
  X(acosh, acoshf(x))                                                                              \
  X(atanh, atanhf(x))                                                                              \
  X(sigmoid, sigmoid(x))                                                                           \
  X(relu, x < 0.0f ? 0.0f : x)                                                                     \
  X(erf, erff(x))                                                                                  \
  X(floor, floorf(x))                                                                              \
  X(ceil, ceilf(x))                                                                                \
  X(round, rintf(x))                                                                               \
  X(sign, x != x ? x : static_cast<float>((x > 0.0f) - (x < 0.0f)))                                \
  X(softplus, softplus(x))                                                                         \
  X(softsign, x / (1.0f + fabsf(x)))                                                               \
  X(hard_swish, x *clamp_01(x * (1.0f / 6.0f) + 0.5f))                                             \
  X(mish, x *tanhf(softplus(x)))

#define F64_OPS(X)                                                                                 \
  X(abs, fabs(x))                                                                                  \
  X(neg, -x)                                                                                       \
  X(exp, exp(x))                                                                                   \
  X(log, log(x))                                                                                   \
  X(sqrt, sqrt(x))                                                                                 \
  X(reciprocal, 1.0 / x)                                                                           \
  X(sin, sin(x))                                                                                   \
  X(cos, cos(x))                                                                                   \
  X(tanh, tanh(x))                                                                                 \
  X(sigmoid, 1.0 / (1.0 + exp(-x)))                                                                \
  X(relu, x < 0.0 ? 0.0 : x)                                                                       \
  X(erf, erf(x))                                                                                   \
  X(floor, floor(x))                                                                               \
  X(ceil, ceil(x))                                                                                 \
  X(round, rint(x))                                                                                \
  X(sign, x != x ? x : static_cast<double>((x > 0.0) - (x < 0.0)))

/* Negation goes through unsigned numbers: the least integer stays what it is, as in NumPy. */
#define INT_OPS(X)                                                                                 \
  X(abs, x < 0 ? U(0) - U(x) : U(x))                                                               \
  X(neg, U(0) - U(x))                                                                              \
  X(sign, (x > 0) - (x < 0))

enum { NONE = INT32_MAX }; /* no attribute: reads as zero */

/* Functions with parameters: name, attributes that are alpha and beta, expression. */
#define F32_PARAMETER_OPS(X)                                                                       \
  X(leaky_relu, DF_LEAKY_RELU_ALPHA, NONE, x < 0.0f ? alpha * x : x)                               \
  X(elu, DF_ELU_ALPHA, NONE, x < 0.0f ? alpha * expm1f(x) : x)                                     \
  X(selu, DF_SELU_ALPHA, DF_SELU_GAMMA, beta *(x < 0.0f ? alpha * expm1f(x) : x))                  \
  X(celu, DF_CELU_ALPHA, NONE, x < 0.0f ? alpha * expm1f(x / alpha) : x)                           \
  X(thresholded_relu, DF_THRESHOLDED_RELU_ALPHA, NONE, x > alpha ? x : 0.0f)                       \
  X(hard_sigmoid, DF_HARD_SIGMOID_ALPHA, DF_HARD_SIGMOID_BETA, clamp_01(x *alpha + beta))

static __device__ __forceinline__ float clamp_01(float x) {
  x = x < 0.0f ? 0.0f : x;
  return x > 1.0f ? 1.0f : x;
}
/* 1 / (1 + e^-x), with an exponential that never overflows. */
static __device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
/* log(1 + e^x). */
static __device__ __forceinline__ float softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

#define DEFINE(name, TO, TI, expression)                                                           \
  struct name##_fn {                                                                               \
    __device__ TO operator()(TI x) const { return static_cast<TO>(expression); }                   \
  };                                                                                               \
  static df_status name##_run(const df_call *call) { return df_map<TO, TI>(call, name##_fn{}); }

#define DEFINE_F32(name, expression) DEFINE(name##_f32, float, float, expression)
#define DEFINE_F64(name, expression) DEFINE(name##_f64, double, double, expression)
F32_OPS(DEFINE_F32)
F64_OPS(DEFINE_F64)
#define DEFINE_I32(name, expression) DEFINE(name##_i32, int32_t, int32_t, expression)
#define DEFINE_I64(name, expression) DEFINE(name##_i64, int64_t, int64_t, expression)
#define U uint32_t
INT_OPS(DEFINE_I32)
#undef U
#define U uint64_t
INT_OPS(DEFINE_I64)
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
  __device__ float operator()(float x) const { return 0.5f * x * (1.0f + erff(x * 0.7071067812f)); }
};
struct gelu_tanh_fn {
  __device__ float operator()(float x) const {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * (x * x * x))));
  }
};
static df_status gelu_f32_run(const df_call *call) {
  if (df_attr_is(call, DF_GELU_APPROXIMATE, "tanh"))
    return df_map<float, float>(call, gelu_tanh_fn{});
  return df_map<float, float>(call, gelu_fn{});
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
    F32_OPS(RECORD_F32)
    F32_PARAMETER_OPS(RECORD_PARAMETER)
    SAME(gelu, f32)
    F64_OPS(RECORD_F64)
    INT_OPS(RECORD_I32)
    INT_OPS(RECORD_I64)
    RECORD(is_nan, f32, "bool", nullptr, is_nan_f32_run)
    RECORD(is_nan, f64, "bool", nullptr, is_nan_f64_run)
    RECORD(is_inf, f32, "bool", nullptr, is_inf_run<float>)
    RECORD(is_inf, f64, "bool", nullptr, is_inf_run<double>)
    SAME(logical_not, bool)
    BITWISE_NOT(i8, 8) BITWISE_NOT(i16, 16) BITWISE_NOT(i32, 32) BITWISE_NOT(i64, 64)
    BITWISE_NOT(u8, 8) BITWISE_NOT(u16, 16) BITWISE_NOT(u32, 32) BITWISE_NOT(u64, 64)};
/* clang-format on */
DF_CUDA_FAMILY(activation, records);
