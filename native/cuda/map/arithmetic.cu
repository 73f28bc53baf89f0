/* map/arithmetic.cu: z = f(x, y) with NumPy broadcasting, any strides in, contiguous out; selection
 * and clipping. */
#include "kernels/binary.h"
#include "map/map.h"
#include "map/vmath.h"

#include "kernels/unary.h" /* by the functions of map/vmath.h */

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
DF_BINARY_FLOAT(DEFINE_F32)
DF_BINARY_FLOAT(DEFINE_F64)
#define DIVIDE df_divide_int
#define U uint32_t
DF_BINARY_INT(DEFINE_I32)
#undef U
#define U uint64_t
DF_BINARY_INT(DEFINE_I64)
#undef U
#undef DIVIDE
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

template <typename T> struct mod_fn {
  bool like_c;
  __device__ T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(df_mod_float(a, b, like_c));
    else
      return static_cast<T>(df_mod_int(a, b, like_c));
  }
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
DEFINE(gelu_grad_exact, float, float, a *df_gelu_slope(b))
DEFINE(gelu_grad_tanh, float, float, a *df_gelu_tanh_slope(b))
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
  switch (df_item_bytes(call->outputs[0]->dtype)) {
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
  const int64_t bytes = df_item_bytes(node->outputs[0]->dtype);
  return bytes > 8 ? "elements must have 1, 2, 4 or 8 bytes" : df_accepts_rank(node);
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
    DF_BINARY_FLOAT(SAME_F32) DF_BINARY_FLOAT(SAME_F64)
    DF_BINARY_INT(SAME_I32) DF_BINARY_INT(SAME_I64)
    DF_LOGIC(SAME_BOOL)
    DF_COMPARISONS(COMPARE_F32) DF_COMPARISONS(COMPARE_F64)
    DF_COMPARISONS(COMPARE_I32) DF_COMPARISONS(COMPARE_I64)
    COMPARE(equal, bool)
    MOD(f32, float) MOD(f64, double) MOD(i32, int32_t) MOD(i64, int64_t)
    SAME(pow, f32) SAME(pow, f64)
    SAME(relu_grad, f32) SAME(gelu_grad, f32) SAME(prelu, f32) SAME(add_relu, f32)
    CLIP(f32, float) CLIP(f64, double) CLIP(i32, int32_t) CLIP(i64, int64_t)
    DF_CUDA_KERNEL("where", "any", "~bool,~any,~any->any", "0<1,0<2", .accepts = where_accepts,
                   .run = where_run, .capturable = 1)};
/* clang-format on */
DF_CUDA_FAMILY(arithmetic, records);
