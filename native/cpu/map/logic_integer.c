/* map/logic_integer.c: bits of integers, and comparisons of the integer types that map/logic.c
 * leaves out; any strides in, contiguous out, NumPy's broadcasting. */
#include "kernels/binary.h"
#include "map/loops.h"

/* ---- Bits: the types without sign serve both, but for shifts to the right ------------------- */

#define DF_BITS(X)                                                                                 \
  X(bitwise_and, a &b)                                                                             \
  X(bitwise_or, a | b)                                                                             \
  X(bitwise_xor, a ^ b)
#define BITS_8(name, expression) DF_DEFINE_BINARY(name##_8, uint8_t, uint8_t, expression)
#define BITS_16(name, expression) DF_DEFINE_BINARY(name##_16, uint16_t, uint16_t, expression)
#define BITS_32(name, expression) DF_DEFINE_BINARY(name##_32, uint32_t, uint32_t, expression)
#define BITS_64(name, expression) DF_DEFINE_BINARY(name##_64, uint64_t, uint64_t, expression)
DF_BITS(BITS_8)
DF_BITS(BITS_16)
DF_BITS(BITS_32)
DF_BITS(BITS_64)

/* |b| as a number without sign is beyond the bits where it is negative, too. U holds T's bits, and
 * shifts of it are as wide as it is. */
#define DEFINE_SHIFT(type, T, U, sign)                                                             \
  DF_ROWS(bit_shift_##type) {                                                                      \
    enum { BITS = 8 * sizeof(T) };                                                                 \
    if (df_attr_int(call, DF_BIT_SHIFT_LEFT)) {                                                    \
      DF_LOOP_2(T, T, (U)b < BITS ? (U)a << ((U)b & (BITS - 1)) : 0)                               \
    } else {                                                                                       \
      DF_LOOP_2(T, T, (U)b < BITS ? a >> ((U)b & (BITS - 1)) : (sign))                             \
    }                                                                                              \
  }                                                                                                \
  DF_ROWS_RUN(bit_shift_##type, 2)
DEFINE_SHIFT(i8, int8_t, uint32_t, -(a < 0))
DEFINE_SHIFT(i16, int16_t, uint32_t, -(a < 0))
DEFINE_SHIFT(i32, int32_t, uint32_t, -(a < 0))
DEFINE_SHIFT(i64, int64_t, uint64_t, -(a < 0))
DEFINE_SHIFT(u8, uint8_t, uint32_t, 0)
DEFINE_SHIFT(u16, uint16_t, uint32_t, 0)
DEFINE_SHIFT(u32, uint32_t, uint32_t, 0)
DEFINE_SHIFT(u64, uint64_t, uint64_t, 0)

/* ---- Comparisons ---------------------------------------------------------------------------- */

#define COMPARE_I8(name, expression) DF_DEFINE_BINARY(name##_i8, uint8_t, int8_t, expression)
#define COMPARE_I16(name, expression) DF_DEFINE_BINARY(name##_i16, uint8_t, int16_t, expression)
#define COMPARE_U8(name, expression) DF_DEFINE_BINARY(name##_u8, uint8_t, uint8_t, expression)
#define COMPARE_U16(name, expression) DF_DEFINE_BINARY(name##_u16, uint8_t, uint16_t, expression)
#define COMPARE_U32(name, expression) DF_DEFINE_BINARY(name##_u32, uint8_t, uint32_t, expression)
#define COMPARE_U64(name, expression) DF_DEFINE_BINARY(name##_u64, uint8_t, uint64_t, expression)
DF_COMPARISONS(COMPARE_I8)
DF_COMPARISONS(COMPARE_I16)
DF_COMPARISONS(COMPARE_U8)
DF_COMPARISONS(COMPARE_U16)
DF_COMPARISONS(COMPARE_U32)
DF_COMPARISONS(COMPARE_U64)

/* ---- Records -------------------------------------------------------------------------------- */

#define BITS(name, type, bits)                                                                     \
  DF_KERNEL(#name, #type, "~" #type ",~" #type "->" #type, "0<0,0<1", name##_##bits##_run),
#define BITS_OF(type, bits)                                                                        \
  BITS(bitwise_and, type, bits) BITS(bitwise_or, type, bits) BITS(bitwise_xor, type, bits)
#define RECORD_I8(name, expression) DF_TEST_2(name, i8)
#define RECORD_I16(name, expression) DF_TEST_2(name, i16)
#define RECORD_U8(name, expression) DF_TEST_2(name, u8)
#define RECORD_U16(name, expression) DF_TEST_2(name, u16)
#define RECORD_U32(name, expression) DF_TEST_2(name, u32)
#define RECORD_U64(name, expression) DF_TEST_2(name, u64)

/* clang-format off */
DF_KERNELS(logic_integer) = {
    BITS_OF(i8, 8) BITS_OF(i16, 16) BITS_OF(i32, 32) BITS_OF(i64, 64)
    BITS_OF(u8, 8) BITS_OF(u16, 16) BITS_OF(u32, 32) BITS_OF(u64, 64)
    DF_SAME_2(bit_shift, i8) DF_SAME_2(bit_shift, i16) DF_SAME_2(bit_shift, i32) DF_SAME_2(bit_shift, i64)
    DF_SAME_2(bit_shift, u8) DF_SAME_2(bit_shift, u16) DF_SAME_2(bit_shift, u32) DF_SAME_2(bit_shift, u64)
    DF_COMPARISONS(RECORD_I8) DF_COMPARISONS(RECORD_I16)
    DF_COMPARISONS(RECORD_U8) DF_COMPARISONS(RECORD_U16) DF_COMPARISONS(RECORD_U32) DF_COMPARISONS(RECORD_U64)
    NULL};
