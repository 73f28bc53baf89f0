/* map/arithmetic.cu: z = f(x, y) with NumPy broadcasting, any strides in, contiguous out; selection
 * and clipping. */
#include "kernels/extremum.h"
#include "map/map.h"

/* ---- Arithmetic: name, expression in a and b ------------------------------------------------ */

#define FLOAT_OPS(X)                                                                               \
  X(add, a + b)                                                                                    \
  X(sub, a - b)                                                                                    \
  X(mul, a *b)                                                                                     \
  X(div, a / b)                                                                                    \
  X(maximum, DF_MAXIMUM(a, b))                                                                     \
  X(minimum, DF_MINIMUM(a, b))

/* Wraps around through unsigned numbers. */
#define INT_OPS(X)                                                                                 \
  X(add, U(a) + U(b))                                                                              \
  X(sub, U(a) - U(b))                                                                              \
  X(mul, U(a) * U(b))                                                                              \
  X(div, int_divide(a, b))                                                                         \
  X(maximum, a > b ? a : b)                                                                        \
  X(minimum, a < b ? a : b)

#define COMPARISONS(X)                                                                             \
  X(equal, a == b)                                                                                 \
  X(less, a < b)                                                                                   \
  X(less_equal, a <= b)                                                                            \
  X(greater, a > b)                                                                                \
  X(greater_equal, a >= b)

#define LOGIC_OPS(X)                                                                               \
  X(logical_and, (a != 0) & (b != 0))                                                              \
  X(logical_or, (a != 0) | (b != 0))                                                               \
  X(logical_xor, (a != 0) ^ (b != 0))

/* Integer quotients: towards zero; by zero gives 0, as NumPy does. -1 has a case of its own since
 * the least integer divided by it does not fit. */
static __device__ __forceinline__ int64_t int_divide(int64_t a, int64_t b) {
  if (b == 0)
    return 0;
  return b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
}

/* The remainder with the sign of the divisor (Python) or of the dividend (C). */
static __device__ __forceinline__ int64_t remainder_of(int64_t a, int64_t b, bool like_c) {
  if (b == 0 || b == -1)
    return 0;
  const int64_t rest = a % b;
  return !like_c && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
static __device__ __forceinline__ double remainder_of(double a, double b, bool like_c) {
  const double rest = fmod(a, b);
  if (like_c || b == 0.0)
    return rest;
  if (rest == 0.0)
    return copysign(0.0, b);
  return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
static __device__ __forceinline__ float remainder_of(float a, float b, bool like_c) {
  return static_cast<float>(remainder_of(static_cast<double>(a), static_cast<double>(b), like_c));
}
static __device__ __forceinline__ int32_t remainder_of(int32_t a, int32_t b, bool like_c) {
  return static_cast<int32_t>(
      remainder_of(static_cast<int64_t>(a), static_cast<int64_t>(b), like_c));
}

#define DEFINE(name, TO, TI, expression)                                                           \
  struct name##_fn {                                                                               \
    __device__ TO operator()(TI a, TI b) const { return static_cast<TO>(expression); }             \
  };                                                                                               \
  static df_status name##_run(const df_call *call) { return df_map<TO, TI, TI>(call, name##_fn{}); }

#define DEFINE_F32(name, expression) DEFINE(name##_f32, float, float, expression)
#define DEFINE_F64(name, expression) DEFINE(name##_f64, double, double, expression)
#define DEFINE_I32(name, expression) DEFINE(name##_i32, int32_t, int32_t, expression)
#define DEFINE_I64(name, expression) DEFINE(name##_i64, int64_t, int64_t, expression)
#define DEFINE_BOOL(name, expression) DEFINE(name##_bool, uint8_t, uint8_t, expression)
FLOAT_OPS(DEFINE_F32)
FLOAT_OPS(DEFINE_F64)
#define U uint32_t
INT_OPS(DEFINE_I32)
#undef U
#define U uint64_t
INT_OPS(DEFINE_I64)
#undef U
LOGIC_OPS(DEFINE_BOOL)

#define DEFINE_COMPARE_F32(name, expression) DEFINE(name##_f32, uint8_t, float, expression)
#define DEFINE_COMPARE_F64(name, expression) DEFINE(name##_f64, uint8_t, double, expression)
#define DEFINE_COMPARE_I32(name, expression) DEFINE(name##_i32, uint8_t, int32_t, expression)
#define DEFINE_COMPARE_I64(name, expression) DEFINE(name##_i64, uint8_t, int64_t, expression)
COMPARISONS(DEFINE_COMPARE_F32)
COMPARISONS(DEFINE_COMPARE_F64)
COMPARISONS(DEFINE_COMPARE_I32)
COMPARISONS(DEFINE_COMPARE_I64)
DEFINE(equal_bool, uint8_t, uint8_t, (a != 0) == (b != 0))

template <typename T> struct mod_fn {
  bool like_c;
  __device__ T operator()(T a, T b) const { return remainder_of(a, b, like_c); }
};
template <typename T> static df_status mod_run(const df_call *call) {
  return df_map<T, T, T>(call, mod_fn<T>{df_attr_int(call, DF_MOD_FMOD) != 0});
}

/* dx = dy where y > 0, else 0. */
DEFINE(relu_grad_f32, float, float, b > 0.0f ? a : 0.0f)
/* max(x + y, 0); a NaN stays. */
DEFINE(add_relu_f32, float, float, a + b < 0.0f ? 0.0f : a + b)
/* y = x where x >= 0, else slope x. */
DEFINE(prelu_f32, float, float, a < 0.0f ? a * b : a)

/* dx = dy (Phi(x) + x phi(x)), or the slope of the approximation by tanh; |a| is dy, |b| is x. */
static __device__ __forceinline__ float gelu_slope(float x) {
  const float density = 0.3989422804f * expf(-0.5f * x * x);
  return 0.5f * (1.0f + erff(x * 0.7071067812f)) + x * density;
}
static __device__ __forceinline__ float gelu_tanh_slope(float x) {
  const float gate = tanhf(0.7978845608f * (x + 0.044715f * (x * x * x)));
  const float inner = 0.7978845608f * (1.0f + 0.134145f * (x * x));
  return 0.5f * (1.0f + gate) + 0.5f * x * (1.0f - gate * gate) * inner;
}
DEFINE(gelu_grad_exact, float, float, a *gelu_slope(b))
DEFINE(gelu_grad_tanh, float, float, a *gelu_tanh_slope(b))
static df_status gelu_grad_f32_run(const df_call *call) {
  return df_attr_is(call, DF_GELU_APPROXIMATE, "tanh") ? gelu_grad_tanh_run(call)
                                                       : gelu_grad_exact_run(call);
}

/* The exponents that models use most have exact short forms; a warp has one of them mostly. */
DEFINE(pow_f32, float, float,
       b == 2.0f   ? a * a
       : b == 1.0f ? a
       : b == 3.0f ? a * a * a
                   : powf(a, b))
DEFINE(pow_f64, double, double, pow(a, b))

/* ---- where(condition, x, y) ----------------------------------------------------------------- */

template <typename T> struct where_fn {
  __device__ T operator()(uint8_t c, T x, T y) const { return c ? x : y; }
};
static df_status where_run(const df_call *call) {
  switch (df_item_bytes(call->outputs[0].dtype)) {
  case 1:
    return df_map<uint8_t, uint8_t, uint8_t, uint8_t>(call, where_fn<uint8_t>{});
  case 2:
    return df_map<uint16_t, uint8_t, uint16_t, uint16_t>(call, where_fn<uint16_t>{});
  case 4:
    return df_map<uint32_t, uint8_t, uint32_t, uint32_t>(call, where_fn<uint32_t>{});
  default:
    return df_map<uint64_t, uint8_t, uint64_t, uint64_t>(call, where_fn<uint64_t>{});
  }
}

static const char *where_accepts(const df_node *node) {
  const int64_t bytes = df_item_bytes(node->outputs[0].dtype);
  return bytes == 0 || bytes > 8 ? "elements must have 1, 2, 4 or 8 bytes" : df_accepts_rank(node);
}

/* ---- clip(x, low?, high?) = min(max(x, low), high); a NaN wins, in x or a bound ------------- */

template <typename T> struct clip_fn {
  const T *low, *high; /* on the card; null: no bound */
  __device__ T operator()(T x) const {
    if (low && (x < *low || *low != *low))
      x = *low;
    return high && (x > *high || *high != *high) ? *high : x;
  }
};
template <typename T> static df_status clip_run(const df_call *call) {
  return df_map<T, T>(call, clip_fn<T>{df_in<const T>(call, 1), df_in<const T>(call, 2)});
}

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(name, type, to, inplace, function)                                                  \
  DF_CUDA_KERNEL(#name, #type, "~" #type ",~" #type "->" to, inplace, .accepts = df_accepts_rank,  \
                 .run = function, .capturable = 1),
#define SAME(name, type) RECORD(name, type, #type, "0<0,0<1", name##_##type##_run)
#define COMPARE(name, type) RECORD(name, type, "bool", nullptr, name##_##type##_run)
#define MOD(type, T) RECORD(mod, type, #type, "0<0,0<1", mod_run<T>)
#define CLIP(type, T)                                                                              \
  DF_CUDA_KERNEL("clip", #type, "~" #type "," #type "?," #type "?->" #type, "0<0",                 \
                 .accepts = df_accepts_rank, .run = clip_run<T>, .capturable = 1),
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
static const df_kernel records[] = {
    FLOAT_OPS(SAME_F32) FLOAT_OPS(SAME_F64)
    INT_OPS(SAME_I32) INT_OPS(SAME_I64)
    LOGIC_OPS(SAME_BOOL)
    COMPARISONS(COMPARE_F32) COMPARISONS(COMPARE_F64)
    COMPARISONS(COMPARE_I32) COMPARISONS(COMPARE_I64)
    COMPARE(equal, bool)
    MOD(f32, float) MOD(f64, double) MOD(i32, int32_t) MOD(i64, int64_t)
    SAME(pow, f32) SAME(pow, f64)
    SAME(relu_grad, f32) SAME(gelu_grad, f32) SAME(prelu, f32) SAME(add_relu, f32)
    CLIP(f32, float) CLIP(f64, double) CLIP(i32, int32_t) CLIP(i64, int64_t)
    DF_CUDA_KERNEL("where", "any", "~bool,~any,~any->any", "0<1,0<2", .accepts = where_accepts,
                   .run = where_run, .capturable = 1)};
/* clang-format on */
DF_CUDA_FAMILY(arithmetic, records);
