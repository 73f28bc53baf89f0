/* map/cast.c: cast: y[i] = (type) x[i] between every type but the complex ones; and bitcast.
 *
 * Integers wrap, floats round to nearest and are rounded towards zero to integers; a float
 * outside of an integer's range gives the nearest end of the range (NaN the lower). Floats of 16
 * bits and fewer go through float, integers of 4 and 2 bits, which have a byte each, through those
 * of 8, or of 32 where they come from floats: they keep the low bits.
 */
#include "kernels/half.h"
#include "kernels/small_float.h"
#include "map/convert.h"
#include "map/run.h"
#include "simd/half_store.h"

#include <math.h>

/* Loops from one type to each: |S| float or integer. */
#define EACH(T, expression)                                                                        \
  {                                                                                                \
    T *to = out;                                                                                   \
    for (int64_t i = 0; i < n; i++) {                                                              \
      const S x = from[i];                                                                         \
      to[i] = (T)(expression);                                                                     \
    }                                                                                              \
    return;                                                                                        \
  }
#define COMMON_CASES                                                                               \
  case DF_FLOAT32:                                                                                 \
    EACH(float, x)                                                                                 \
  case DF_FLOAT64:                                                                                 \
    EACH(double, x)                                                                                \
  case DF_BOOL:                                                                                    \
    EACH(uint8_t, x != 0)

#define DEFINE_FROM_INT(name)                                                                      \
  static void from_##name(void *out, int32_t dtype, const S *from, int64_t n) {                    \
    switch (dtype) {                                                                               \
      COMMON_CASES                                                                                 \
    case DF_INT8:                                                                                  \
    case DF_UINT8:                                                                                 \
      EACH(uint8_t, x)                                                                             \
    case DF_INT16:                                                                                 \
    case DF_UINT16:                                                                                \
      EACH(uint16_t, x)                                                                            \
    case DF_INT32:                                                                                 \
    case DF_UINT32:                                                                                \
      EACH(uint32_t, x)                                                                            \
    default:                                                                                       \
      EACH(uint64_t, x)                                                                            \
    }                                                                                              \
  }

/* x held to [low, high], both exact in S: the conversion is then defined. */
#define HELD(low, high)                                                                            \
  ((x >= (S)(low) ? x : (S)(low)) <= (S)(high) ? (x >= (S)(low) ? x : (S)(low)) : (S)(high))

#define DEFINE_FROM_FLOAT(name, high_i32, high_u32, high_i64, high_u64)                            \
  static void from_##name(void *out, int32_t dtype, const S *from, int64_t n) {                    \
    switch (dtype) {                                                                               \
      COMMON_CASES                                                                                 \
    case DF_INT8:                                                                                  \
      EACH(int8_t, HELD(INT8_MIN, INT8_MAX))                                                       \
    case DF_UINT8:                                                                                 \
      EACH(uint8_t, HELD(0, UINT8_MAX))                                                            \
    case DF_INT16:                                                                                 \
      EACH(int16_t, HELD(INT16_MIN, INT16_MAX))                                                    \
    case DF_UINT16:                                                                                \
      EACH(uint16_t, HELD(0, UINT16_MAX))                                                          \
    case DF_INT32:                                                                                 \
      EACH(int32_t, HELD(INT32_MIN, high_i32))                                                     \
    case DF_UINT32:                                                                                \
      EACH(uint32_t, HELD(0, high_u32))                                                            \
    case DF_INT64:                                                                                 \
      EACH(int64_t, HELD(INT64_MIN, high_i64))                                                     \
    default:                                                                                       \
      EACH(uint64_t, HELD(0, high_u64))                                                            \
    }                                                                                              \
  }

#define S float
DEFINE_FROM_FLOAT(f32, 0x1.fffffep30f, 0x1.fffffep31f, 0x1.fffffep62f, 0x1.fffffep63f)
#undef S
#define S double
DEFINE_FROM_FLOAT(f64, INT32_MAX, UINT32_MAX, 0x1.fffffffffffffp62, 0x1.fffffffffffffp63)
#undef S
#define S int8_t
DEFINE_FROM_INT(i8)
#undef S
#define S int16_t
DEFINE_FROM_INT(i16)
#undef S
#define S int32_t
DEFINE_FROM_INT(i32)
#undef S
#define S int64_t
DEFINE_FROM_INT(i64)
#undef S
#define S uint8_t
DEFINE_FROM_INT(u8)
#undef S
#define S uint16_t
DEFINE_FROM_INT(u16)
#undef S
#define S uint32_t
DEFINE_FROM_INT(u32)
#undef S
#define S uint64_t
DEFINE_FROM_INT(u64)
#undef S

/* From |source| to |target|, both of which have loops above. */
static void convert(void *out, int32_t target, const void *in, int32_t source, int64_t n) {
  switch (source) {
  case DF_FLOAT32:
    from_f32(out, target, in, n);
    break;
  case DF_FLOAT64:
    from_f64(out, target, in, n);
    break;
  case DF_INT8:
    from_i8(out, target, in, n);
    break;
  case DF_INT16:
    from_i16(out, target, in, n);
    break;
  case DF_INT32:
    from_i32(out, target, in, n);
    break;
  case DF_INT64:
    from_i64(out, target, in, n);
    break;
  case DF_UINT16:
    from_u16(out, target, in, n);
    break;
  case DF_UINT32:
    from_u32(out, target, in, n);
    break;
  case DF_UINT64:
    from_u64(out, target, in, n);
    break;
  default: /* DF_UINT8, DF_BOOL */
    from_u8(out, target, in, n);
  }
}

/* Double to float so that rounding once more, to a shorter type, is right: what is lost to
 * truncation makes the last bit odd. From 2^128 on it is infinity. */
static void narrow_to_odd(float *out, const double *in, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float nearest = (float)in[i];
    int32_t bits = df_bits(nearest);
    int beyond = fabs((double)nearest) > fabs(in[i]);
    int inexact = (double)nearest != in[i] && fabs(in[i]) < 0x1p128;
    out[i] = df_float(inexact ? (bits - beyond) | 1 : bits);
  }
}

/* ---- Types without loops of their own ------------------------------------------------------- */

/* The type with loops that holds all numbers of |dtype|; itself where it has loops. */
static int32_t carrier_of(int32_t dtype) {
  switch (dtype) {
  case DF_FLOAT16:
  case DF_BFLOAT16:
  case DF_FLOAT8E4M3FN:
  case DF_FLOAT8E4M3FNUZ:
  case DF_FLOAT8E5M2:
  case DF_FLOAT8E5M2FNUZ:
  case DF_FLOAT8E8M0:
  case DF_FLOAT4E2M1:
    return DF_FLOAT32;
  case DF_INT4:
  case DF_INT2:
    return DF_INT8;
  case DF_UINT4:
  case DF_UINT2:
    return DF_UINT8;
  default:
    return dtype;
  }
}

/* Elements of a type without loops to its carrier. */
static void load(void *out, const void *in, int32_t dtype, int64_t n) {
  float *floats = out;
  const uint16_t *halves = in;
  const uint8_t *bytes = in;
  uint8_t *integers = out;
#define LOAD(to, expression)                                                                       \
  for (int64_t i = 0; i < n; i++)                                                                  \
    to[i] = expression;                                                                            \
  break;
#define LOAD_SMALL(dtype, name, ...)                                                               \
  case dtype:                                                                                      \
    LOAD(floats, df_from_small(bytes[i], __VA_ARGS__))
  switch (dtype) {
    DF_SMALL_FLOATS(LOAD_SMALL)
  case DF_FLOAT16:
    df_row_from_half(floats, halves, n);
    break;
  case DF_BFLOAT16:
    LOAD(floats, df_from_bfloat(halves[i]))
  case DF_FLOAT8E8M0:
    LOAD(floats, df_from_e8m0(bytes[i]))
  case DF_INT4:
    LOAD(integers, (uint8_t)(((bytes[i] & 15) ^ 8) - 8))
  case DF_INT2:
    LOAD(integers, (uint8_t)(((bytes[i] & 3) ^ 2) - 2))
  case DF_UINT4:
    LOAD(integers, bytes[i] & 15)
  default: /* DF_UINT2 */
    LOAD(integers, bytes[i] & 3)
  }
}

/* Elements of a carrier, of integers in 32 bits, to a type without loops. */
static void store(void *out, int32_t dtype, const void *in, int64_t n, df_fit fit) {
  const float *floats = in;
  const int32_t *integers = in;
  uint16_t *halves = out;
  uint8_t *bytes = out;
#define STORE_SMALL(dtype, name, ...)                                                              \
  case dtype:                                                                                      \
    LOAD(bytes, df_to_small(floats[i], fit.saturate, __VA_ARGS__))
  switch (dtype) {
    DF_SMALL_FLOATS(STORE_SMALL)
  case DF_FLOAT16:
    df_row_to_half(halves, floats, n);
    break;
  case DF_BFLOAT16:
    LOAD(halves, df_to_bfloat(floats[i]))
  case DF_FLOAT8E8M0:
    LOAD(bytes, df_to_e8m0(floats[i], fit.saturate, fit.rounding))
  case DF_INT4:
  case DF_UINT4:
    LOAD(bytes, (uint8_t)(integers[i] & 15))
  default: /* DF_INT2, DF_UINT2 */
    LOAD(bytes, (uint8_t)(integers[i] & 3))
  }
}

void DF_NAME(df_convert)(void *out, int32_t target, const void *in, int32_t source, int64_t n,
                         df_fit fit) {
  const int32_t from = carrier_of(source);
  const int32_t to = carrier_of(target) == DF_FLOAT32 ? DF_FLOAT32
                     : carrier_of(target) == target   ? target
                                                      : DF_INT32;
  if (from == source && to == target) {
    convert(out, target, in, source, n);
    return;
  }
  const int64_t source_item = df_item_bytes(source), target_item = df_item_bytes(target);
  float loaded[DF_CHUNK], converted[DF_CHUNK]; /* 32 bits: of integers too */
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, n - begin);
    const void *x = (const char *)in + begin * source_item;
    void *y = (char *)out + begin * target_item;
    if (from != source) {
      void *own = to == target && from == to ? y : loaded;
      load(own, x, source, some);
      x = own;
    }
    if (from != to) {
      void *own = to == target ? y : converted;
      if (from == DF_FLOAT64 && to == DF_FLOAT32)
        narrow_to_odd(own, x, some);
      else
        convert(own, to, x, from, some);
      x = own;
    }
    if (to != target)
      store(y, target, x, some, fit);
  }
}

static int32_t rounding_of(const df_call *call) {
  return df_attr_is(call, DF_CAST_ROUND_MODE, "up")     ? DF_ROUND_UP
         : df_attr_is(call, DF_CAST_ROUND_MODE, "down") ? DF_ROUND_DOWN
                                                        : DF_ROUND_NEAREST;
}

static void cast_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                      const df_call *call) {
  (void)step;
  const df_fit fit = {.saturate = df_attr_int(call, DF_CAST_SATURATE) != 0,
                      .rounding = rounding_of(call)};
  DF_NAME(df_convert)(out, call->outputs[0]->dtype, in[0], call->inputs[0]->dtype, n, fit);
}

static df_status cast_run(const df_call *call) { return df_map_run(call, 1, cast_rows); }

/* y[i] has the bits of x[i]. */
static void bitcast_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                         const df_call *call) {
  (void)step;
  if (out != in[0])
    memcpy(out, in[0], (size_t)(n * df_item_bytes(call->outputs[0]->dtype)));
}

static df_status bitcast_run(const df_call *call) { return df_map_run(call, 1, bitcast_rows); }

#define TYPES                                                                                      \
  "f32|f64|f16|bf16|i8|i16|i32|i64|u8|u16|u32|u64|bool|f8e4m3fn|f8e4m3fnuz|f8e5m2|f8e5m2fnuz|"     \
  "f8e8m0|f4e2m1|i4|u4|i2|u2"
DF_KERNELS(cast) = {DF_KERNEL("cast", "any", "~" TYPES "->" TYPES, NULL, cast_run),
                    DF_KERNEL("bitcast", "any", "~any->any", "0<0", bitcast_run), NULL};
