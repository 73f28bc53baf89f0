/* map/number.h: one element of any plain type as a number, and back: for kernels whose types are
 * chosen when they run. */
#ifndef DF_CUDA_MAP_NUMBER_H
#define DF_CUDA_MAP_NUMBER_H
#include "kernels.h"
#include "kernels/half.h"

#include <float.h>

/* A float is |d|, an integer |i|, which holds the bits of one of 64 bits without sign. */
struct df_number {
  double d;
  int64_t i;
  bool integer, no_sign, single; /* single: d came from a type no longer than float32 */
};

static __device__ __forceinline__ df_number df_read_number(const void *from, int64_t at,
                                                           int32_t dtype) {
  df_number x{0.0, 0, true, false, true};
  switch (dtype) {
  case DF_FLOAT32:
    x.d = static_cast<const float *>(from)[at];
    x.integer = false;
    break;
  case DF_FLOAT64:
    x.d = static_cast<const double *>(from)[at];
    x.integer = x.single = false;
    break;
  case DF_FLOAT16:
    x.d = df_from_half(static_cast<const uint16_t *>(from)[at]);
    x.integer = false;
    break;
  case DF_BFLOAT16:
    x.d = df_from_bfloat(static_cast<const uint16_t *>(from)[at]);
    x.integer = false;
    break;
  case DF_INT8:
    x.i = static_cast<const int8_t *>(from)[at];
    break;
  case DF_INT16:
    x.i = static_cast<const int16_t *>(from)[at];
    break;
  case DF_INT32:
    x.i = static_cast<const int32_t *>(from)[at];
    break;
  case DF_UINT16:
    x.i = static_cast<const uint16_t *>(from)[at];
    break;
  case DF_UINT32:
    x.i = static_cast<const uint32_t *>(from)[at];
    break;
  case DF_INT64:
    x.i = static_cast<const int64_t *>(from)[at];
    break;
  case DF_UINT64:
    x.i = static_cast<const int64_t *>(from)[at];
    x.no_sign = true;
    break;
  default: /* DF_UINT8, DF_BOOL */
    x.i = static_cast<const uint8_t *>(from)[at];
  }
  return x;
}

/* |d| held to [low, high], NaN to low; for 64 bits the end is the last number before it that the
 * source has. */
static __device__ __forceinline__ double df_held(double d, double low, double high) {
  d = d >= low ? d : low;
  return d <= high ? d : high;
}

/* Double to float so that rounding once more, to a shorter type, is right: what is lost to
 * truncation makes the last bit odd. */
static __device__ __forceinline__ float df_narrow_to_odd(double d) {
  const float nearest = static_cast<float>(d);
  const int32_t bits = __float_as_int(nearest);
  const int32_t beyond = fabs(static_cast<double>(nearest)) > fabs(d);
  const bool inexact = static_cast<double>(nearest) != d && d == d;
  return inexact ? __int_as_float((bits - beyond) | 1) : nearest;
}

static __device__ __forceinline__ float df_as_float(const df_number &x) {
  if (!x.integer)
    return static_cast<float>(x.d);
  return x.no_sign ? static_cast<float>(static_cast<uint64_t>(x.i)) : static_cast<float>(x.i);
}

/* Integers wrap; a float outside of an integer's range gives the nearest end of the range. */
static __device__ __forceinline__ void df_write_number(void *to, int64_t at, int32_t dtype,
                                                       const df_number &x) {
  const float shorter = x.integer || x.single ? df_as_float(x) : df_narrow_to_odd(x.d);
  switch (dtype) {
  case DF_FLOAT32:
    static_cast<float *>(to)[at] = df_as_float(x);
    break;
  case DF_FLOAT64:
    static_cast<double *>(to)[at] = !x.integer  ? x.d
                                    : x.no_sign ? static_cast<double>(static_cast<uint64_t>(x.i))
                                                : static_cast<double>(x.i);
    break;
  case DF_FLOAT16:
    static_cast<uint16_t *>(to)[at] = df_to_half(shorter);
    break;
  case DF_BFLOAT16:
    static_cast<uint16_t *>(to)[at] = df_to_bfloat(shorter);
    break;
  case DF_BOOL:
    static_cast<uint8_t *>(to)[at] = x.integer ? x.i != 0 : x.d != 0.0;
    break;
  case DF_INT8:
    static_cast<int8_t *>(to)[at] =
        static_cast<int8_t>(x.integer ? x.i : static_cast<int64_t>(df_held(x.d, -128.0, 127.0)));
    break;
  case DF_UINT8:
    static_cast<uint8_t *>(to)[at] =
        static_cast<uint8_t>(x.integer ? x.i : static_cast<int64_t>(df_held(x.d, 0.0, 255.0)));
    break;
  case DF_INT16:
    static_cast<int16_t *>(to)[at] = static_cast<int16_t>(
        x.integer ? x.i : static_cast<int64_t>(df_held(x.d, -32768.0, 32767.0)));
    break;
  case DF_UINT16:
    static_cast<uint16_t *>(to)[at] =
        static_cast<uint16_t>(x.integer ? x.i : static_cast<int64_t>(df_held(x.d, 0.0, 65535.0)));
    break;
  case DF_INT32:
    static_cast<int32_t *>(to)[at] = static_cast<int32_t>(
        x.integer ? x.i
                  : static_cast<int64_t>(
                        df_held(x.d, -2147483648.0, x.single ? 0x1.fffffep30 : 2147483647.0)));
    break;
  case DF_UINT32:
    static_cast<uint32_t *>(to)[at] = static_cast<uint32_t>(
        x.integer
            ? x.i
            : static_cast<int64_t>(df_held(x.d, 0.0, x.single ? 0x1.fffffep31 : 4294967295.0)));
    break;
  case DF_INT64:
    static_cast<int64_t *>(to)[at] =
        x.integer ? x.i
                  : static_cast<int64_t>(
                        df_held(x.d, -0x1p63, x.single ? 0x1.fffffep62 : 0x1.fffffffffffffp62));
    break;
  default: /* DF_UINT64 */
    static_cast<uint64_t *>(to)[at] =
        x.integer ? static_cast<uint64_t>(x.i)
                  : static_cast<uint64_t>(
                        df_held(x.d, 0.0, x.single ? 0x1.fffffep63 : 0x1.fffffffffffffp63));
  }
}

#define DF_NUMBERS "f32|f64|f16|bf16|i8|i16|i32|i64|u8|u16|u32|u64|bool"

#endif
