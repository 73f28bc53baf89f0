/* map/cast.c: y[i] = (type) x[i] between every float type of 16 bits and more, integers and bool.
 *
 * Integers wrap, floats round to nearest and are rounded towards zero to integers; a float
 * outside of an integer's range gives the nearest end of the range (NaN the lower). The 16-bit
 * floats go through float.
 */
#include "kernels/half.h"
#include "map/walk.h"

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

/* From |source| to |target|; neither is a 16-bit float. */
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

static inline int is_half(int32_t dtype) { return dtype == DF_FLOAT16 || dtype == DF_BFLOAT16; }

/* Double to float so that rounding once more, to a shorter type, is right: what is lost to
 * truncation makes the last bit odd. */
static void narrow_to_odd(float *out, const double *in, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float nearest = (float)in[i];
    int32_t bits = df_bits(nearest);
    int beyond = fabs((double)nearest) > fabs(in[i]);
    int inexact = (double)nearest != in[i] && in[i] == in[i];
    out[i] = df_float(inexact ? (bits - beyond) | 1 : bits);
  }
}

static void cast_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                      const df_call *call) {
  (void)step;
  const int32_t source = call->inputs[0].dtype, target = call->outputs[0].dtype;
  if (!is_half(source) && !is_half(target)) {
    convert(out, target, in[0], source, n);
    return;
  }
  const int64_t source_item = df_item_bytes(source), target_item = df_item_bytes(target);
  float buffer[DF_CHUNK];
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, n - begin);
    const void *from = (const char *)in[0] + begin * source_item;
    void *to = (char *)out + begin * target_item;
    const uint16_t *from_bits = from;
    uint16_t *to_bits = to;
    if (source == DF_FLOAT16)
      for (int64_t i = 0; i < some; i++)
        buffer[i] = df_from_half(from_bits[i]);
    else if (source == DF_BFLOAT16)
      for (int64_t i = 0; i < some; i++)
        buffer[i] = df_from_bfloat(from_bits[i]);
    else if (source == DF_FLOAT64)
      narrow_to_odd(buffer, from, some);
    else
      convert(buffer, DF_FLOAT32, from, source, some);
    if (target == DF_FLOAT16)
      for (int64_t i = 0; i < some; i++)
        to_bits[i] = df_to_half(buffer[i]);
    else if (target == DF_BFLOAT16)
      for (int64_t i = 0; i < some; i++)
        to_bits[i] = df_to_bfloat(buffer[i]);
    else
      convert(to, target, buffer, DF_FLOAT32, some);
  }
}

static df_status cast_run(const df_call *call) { return df_map_run(call, 1, cast_rows); }

#define TYPES "f32|f64|f16|bf16|i8|i16|i32|i64|u8|u16|u32|u64|bool"
DF_KERNELS(cast) = {DF_KERNEL("cast", "any", "~" TYPES "->" TYPES, NULL, cast_run), NULL};
