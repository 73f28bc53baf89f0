/* map/logic.c: comparisons, connectives, tests, bits and choices, any strides in, contiguous out;
 * with several operands NumPy's broadcasting. */
#include "kernels/binary.h"
#include "map/loops.h"

#include <math.h>

#define DEFINE_BOOL(name, expression) DF_DEFINE_BINARY(name##_bool, uint8_t, uint8_t, expression)
#define DEFINE_F32(name, expression) DF_DEFINE_BINARY(name##_f32, uint8_t, float, expression)
#define DEFINE_F64(name, expression) DF_DEFINE_BINARY(name##_f64, uint8_t, double, expression)
#define DEFINE_I32(name, expression) DF_DEFINE_BINARY(name##_i32, uint8_t, int32_t, expression)
#define DEFINE_I64(name, expression) DF_DEFINE_BINARY(name##_i64, uint8_t, int64_t, expression)
DF_LOGIC(DEFINE_BOOL)
DF_COMPARISONS(DEFINE_F32)
DF_COMPARISONS(DEFINE_F64)
DF_COMPARISONS(DEFINE_I32)
DF_COMPARISONS(DEFINE_I64)
DF_DEFINE_BINARY(equal_bool, uint8_t, uint8_t, (a != 0) == (b != 0))

/* ---- Tests and bits ------------------------------------------------------------------------- */

DF_DEFINE_UNARY(is_nan_f32, uint8_t, float, x != x)
DF_DEFINE_UNARY(is_nan_f64, uint8_t, double, x != x)

#define DEFINE_IS_INF(name, T)                                                                     \
  DF_ROWS(name) {                                                                                  \
    (void)step;                                                                                    \
    const int negative = df_attr_int(call, DF_IS_INF_DETECT_NEGATIVE) != 0,                        \
              positive = df_attr_int(call, DF_IS_INF_DETECT_POSITIVE) != 0;                        \
    DF_LOOP_1(uint8_t, T, (negative & (x == (T) - INFINITY)) | (positive & (x == (T)INFINITY)))    \
  }                                                                                                \
  DF_ROWS_RUN(name, 1)
DEFINE_IS_INF(is_inf_f32, float)
DEFINE_IS_INF(is_inf_f64, double)

DF_DEFINE_UNARY(logical_not_bool, uint8_t, uint8_t, x == 0)
DF_DEFINE_UNARY(bitwise_not_8, uint8_t, uint8_t, ~x)
DF_DEFINE_UNARY(bitwise_not_16, uint16_t, uint16_t, ~x)
DF_DEFINE_UNARY(bitwise_not_32, uint32_t, uint32_t, ~x)
DF_DEFINE_UNARY(bitwise_not_64, uint64_t, uint64_t, ~x)

/* ---- where(condition, x, y) ----------------------------------------------------------------- */

typedef struct pair {
  uint64_t first, second;
} pair;

#define DEFINE_WHERE(name, T)                                                                      \
  static void name(T *to, const uint8_t *c, const T *x, const T *y, const int64_t *step,           \
                   int64_t n) {                                                                    \
    if (step[0] && step[1] && step[2]) {                                                           \
      DF_EACH to[i] = c[i] ? x[i] : y[i];                                                          \
    } else if (step[0] && step[1]) {                                                               \
      const T b = *y;                                                                              \
      DF_EACH to[i] = c[i] ? x[i] : b;                                                             \
    } else if (step[0] && step[2]) {                                                               \
      const T a = *x;                                                                              \
      DF_EACH to[i] = c[i] ? a : y[i];                                                             \
    } else if (step[0]) {                                                                          \
      const T a = *x, b = *y;                                                                      \
      DF_EACH to[i] = c[i] ? a : b;                                                                \
    } else {                                                                                       \
      const T *chosen = *c ? x : y;                                                                \
      if (*c ? step[1] : step[2]) {                                                                \
        DF_EACH to[i] = chosen[i];                                                                 \
      } else {                                                                                     \
        const T a = *chosen;                                                                       \
        DF_EACH to[i] = a;                                                                         \
      }                                                                                            \
    }                                                                                              \
  }
DEFINE_WHERE(where_8, uint8_t)
DEFINE_WHERE(where_16, uint16_t)
DEFINE_WHERE(where_32, uint32_t)
DEFINE_WHERE(where_64, uint64_t)
DEFINE_WHERE(where_128, pair)

DF_ROWS(where) {
  switch (df_item_bytes(call->outputs[0]->dtype)) {
  case 1:
    where_8(out, in[0], in[1], in[2], step, n);
    break;
  case 2:
    where_16(out, in[0], in[1], in[2], step, n);
    break;
  case 4:
    where_32(out, in[0], in[1], in[2], step, n);
    break;
  case 8:
    where_64(out, in[0], in[1], in[2], step, n);
    break;
  default: /* DF_COMPLEX128 */
    where_128(out, in[0], in[1], in[2], step, n);
  }
}
DF_ROWS_RUN(where, 3)

/* ---- Records -------------------------------------------------------------------------------- */

#define LOGIC(name, expression) DF_SAME_2(name, bool)
#define COMPARE_F32(name, expression) DF_TEST_2(name, f32)
#define COMPARE_F64(name, expression) DF_TEST_2(name, f64)
#define COMPARE_I32(name, expression) DF_TEST_2(name, i32)
#define COMPARE_I64(name, expression) DF_TEST_2(name, i64)
#define BITWISE_NOT(type, bits)                                                                    \
  DF_KERNEL("bitwise_not", #type, "~" #type "->" #type, "0<0", bitwise_not_##bits##_run),

/* clang-format off */
DF_KERNELS(logic) = {
    DF_LOGIC(LOGIC)
    DF_COMPARISONS(COMPARE_F32) DF_COMPARISONS(COMPARE_F64)
    DF_COMPARISONS(COMPARE_I32) DF_COMPARISONS(COMPARE_I64)
    DF_TEST_2(equal, bool)
    DF_TEST_1(is_nan, f32) DF_TEST_1(is_nan, f64) DF_TEST_1(is_inf, f32) DF_TEST_1(is_inf, f64)
    DF_SAME_1(logical_not, bool)
    BITWISE_NOT(i8, 8) BITWISE_NOT(i16, 16) BITWISE_NOT(i32, 32) BITWISE_NOT(i64, 64)
    BITWISE_NOT(u8, 8) BITWISE_NOT(u16, 16) BITWISE_NOT(u32, 32) BITWISE_NOT(u64, 64)
    DF_KERNEL("where", "any", "~bool,~any,~any->any", "0<1,0<2", where_run),
    NULL};
