/* map/arithmetic_integer.c: arithmetic of the integer types that map/arithmetic.c leaves out, and
 * powers of all that models use; any strides in, contiguous out, NumPy's broadcasting. */
#include "kernels/binary.h"
#include "map/loops.h"
#include "simd/vmath.h"

#include "kernels/unary.h" /* by the functions of simd/vmath.h */

#define UNARY_I8(name, expression) DF_DEFINE_UNARY(name##_i8, int8_t, int8_t, expression)
#define UNARY_I16(name, expression) DF_DEFINE_UNARY(name##_i16, int16_t, int16_t, expression)
#define BINARY_I8(name, expression) DF_DEFINE_BINARY(name##_i8, int8_t, int8_t, expression)
#define BINARY_I16(name, expression) DF_DEFINE_BINARY(name##_i16, int16_t, int16_t, expression)
#define BINARY_U8(name, expression) DF_DEFINE_BINARY(name##_u8, uint8_t, uint8_t, expression)
#define BINARY_U16(name, expression) DF_DEFINE_BINARY(name##_u16, uint16_t, uint16_t, expression)
#define BINARY_U32(name, expression) DF_DEFINE_BINARY(name##_u32, uint32_t, uint32_t, expression)
#define U uint32_t
#define DIVIDE df_divide_16
DF_UNARY_INT(UNARY_I8)
DF_UNARY_INT(UNARY_I16)
DF_BINARY_INT(BINARY_I8)
DF_BINARY_INT(BINARY_I16)
DF_BINARY_INT(BINARY_U8)
DF_BINARY_INT(BINARY_U16)
#undef DIVIDE
#define DIVIDE df_divide_u32
DF_BINARY_INT(BINARY_U32)
#undef DIVIDE
#undef U

/* Of numbers without sign. */
#define UNSIGNED(type, T)                                                                          \
  DF_DEFINE_UNARY(abs_##type, T, T, x)                                                             \
  DF_DEFINE_UNARY(sign_##type, T, T, x != 0)
UNSIGNED(u8, uint8_t)
UNSIGNED(u16, uint16_t)
UNSIGNED(u32, uint32_t)
UNSIGNED(u64, uint64_t)

/* int64 doesn't hold quotients and rests of uint64. */
#define DF_BINARY_U64(X)                                                                           \
  X(add, a + b)                                                                                    \
  X(sub, a - b)                                                                                    \
  X(mul, a *b)                                                                                     \
  X(div, b ? a / b : 0)                                                                            \
  X(mod, b ? a % b : 0)                                                                            \
  X(maximum, a > b ? a : b)                                                                        \
  X(minimum, a < b ? a : b)
#define BINARY_U64(name, expression) DF_DEFINE_BINARY(name##_u64, uint64_t, uint64_t, expression)
DF_BINARY_U64(BINARY_U64)

#define DEFINE_MOD(type, T)                                                                        \
  DF_ROWS(mod_##type) {                                                                            \
    const int like_c = df_attr_int(call, DF_MOD_FMOD) != 0;                                        \
    DF_LOOP_2(T, T, df_mod_int(a, b, like_c))                                                      \
  }                                                                                                \
  DF_ROWS_RUN(mod_##type, 2)
DEFINE_MOD(i8, int8_t)
DEFINE_MOD(i16, int16_t)
DEFINE_MOD(u8, uint8_t)
DEFINE_MOD(u16, uint16_t)
DEFINE_MOD(u32, uint32_t)

/* ---- Powers --------------------------------------------------------------------------------- */

/* a^b by squaring, wrapped around. */
static uint64_t power(uint64_t a, uint64_t b) {
  uint64_t y = 1;
  for (; b; b >>= 1, a *= a)
    if (b & 1)
      y *= a;
  return y;
}

/* Of a negative exponent the quotient towards zero, 0 for a division by zero. */
static int64_t signed_power(int64_t a, int64_t b) {
  if (b >= 0)
    return (int64_t)power((uint64_t)a, (uint64_t)b);
  return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
}

DF_DEFINE_BINARY(pow_i8, int8_t, int8_t, signed_power(a, b))
DF_DEFINE_BINARY(pow_i16, int16_t, int16_t, signed_power(a, b))
DF_DEFINE_BINARY(pow_i32, int32_t, int32_t, signed_power(a, b))
DF_DEFINE_BINARY(pow_i64, int64_t, int64_t, signed_power(a, b))
DF_DEFINE_BINARY(pow_u8, uint8_t, uint8_t, power(a, b))
DF_DEFINE_BINARY(pow_u16, uint16_t, uint16_t, power(a, b))
DF_DEFINE_BINARY(pow_u32, uint32_t, uint32_t, power(a, b))
DF_DEFINE_BINARY(pow_u64, uint64_t, uint64_t, power(a, b))

/* ---- clip(x, low?, high?) = min(max(x, low), high) ------------------------------------------ */

#define DEFINE_CLIP(type, T, least, most)                                                          \
  DF_ROWS(clip_##type) {                                                                           \
    (void)step;                                                                                    \
    const int has_low = call->n_inputs > 1 && call->inputs[1]->data,                               \
              has_high = call->n_inputs > 2 && call->inputs[2]->data;                              \
    const T low = has_low ? *(const T *)call->inputs[1]->data : (least);                           \
    const T high = has_high ? *(const T *)call->inputs[2]->data : (most);                          \
    DF_LOOP_1(T, T, (x < low ? low : x) > high ? high : (x < low ? low : x))                       \
  }                                                                                                \
  DF_ROWS_RUN(clip_##type, 1)
DEFINE_CLIP(i8, int8_t, INT8_MIN, INT8_MAX)
DEFINE_CLIP(i16, int16_t, INT16_MIN, INT16_MAX)
DEFINE_CLIP(u8, uint8_t, 0, UINT8_MAX)
DEFINE_CLIP(u16, uint16_t, 0, UINT16_MAX)
DEFINE_CLIP(u32, uint32_t, 0, UINT32_MAX)
DEFINE_CLIP(u64, uint64_t, 0, UINT64_MAX)

/* ---- Records -------------------------------------------------------------------------------- */

#define CLIP(type)                                                                                 \
  DF_KERNEL("clip", #type, "~" #type "," #type "?," #type "?->" #type, "0<0", clip_##type##_run),
#define RECORD_1_I8(name, expression) DF_SAME_1(name, i8)
#define RECORD_1_I16(name, expression) DF_SAME_1(name, i16)
#define RECORD_2_I8(name, expression) DF_SAME_2(name, i8)
#define RECORD_2_I16(name, expression) DF_SAME_2(name, i16)
#define RECORD_2_U8(name, expression) DF_SAME_2(name, u8)
#define RECORD_2_U16(name, expression) DF_SAME_2(name, u16)
#define RECORD_2_U32(name, expression) DF_SAME_2(name, u32)
#define RECORD_2_U64(name, expression) DF_SAME_2(name, u64)

/* clang-format off */
DF_KERNELS(arithmetic_integer) = {
    DF_UNARY_INT(RECORD_1_I8) DF_UNARY_INT(RECORD_1_I16)
    DF_SAME_1(abs, u8) DF_SAME_1(abs, u16) DF_SAME_1(abs, u32) DF_SAME_1(abs, u64)
    DF_SAME_1(sign, u8) DF_SAME_1(sign, u16) DF_SAME_1(sign, u32) DF_SAME_1(sign, u64)
    DF_BINARY_INT(RECORD_2_I8) DF_BINARY_INT(RECORD_2_I16)
    DF_BINARY_INT(RECORD_2_U8) DF_BINARY_INT(RECORD_2_U16) DF_BINARY_INT(RECORD_2_U32)
    DF_BINARY_U64(RECORD_2_U64)
    DF_SAME_2(mod, i8) DF_SAME_2(mod, i16) DF_SAME_2(mod, u8) DF_SAME_2(mod, u16) DF_SAME_2(mod, u32)
    DF_SAME_2(pow, i8) DF_SAME_2(pow, i16) DF_SAME_2(pow, i32) DF_SAME_2(pow, i64)
    DF_SAME_2(pow, u8) DF_SAME_2(pow, u16) DF_SAME_2(pow, u32) DF_SAME_2(pow, u64)
    CLIP(i8) CLIP(i16) CLIP(u8) CLIP(u16) CLIP(u32) CLIP(u64)
    NULL};
