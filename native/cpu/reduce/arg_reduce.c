/* reduce/arg_reduce.c: argmax and argmin along one axis; x is seen as (outer, size, inner).
 *
 * The first of equal elements wins, with select_last_index the last; a NaN wins over every number.
 */
#include "cpu.h"
#include "kernels/extremum.h"

#include <math.h>

enum { COLUMNS = 256 };

typedef struct arg_context {
  const void *x;
  int64_t *y;
  int64_t outer, size, inner;
  int last; /* select_last_index */
} arg_context;

/* The first position, or the last, in x[begin..end) of |best|, which may be NaN; -1 if there is
 * none.
 */
#define DEFINE_FIND(name, T)                                                                       \
  static inline int64_t name##_find(const T *x, int64_t begin, int64_t end, T best, int last) {    \
    const int64_t step = last ? -1 : 1;                                                            \
    int64_t position = last ? end - 1 : begin;                                                     \
    for (int64_t left = end - begin; left > 0; left--, position += step)                           \
      if ((x[position] == best) | ((x[position] != x[position]) & (best != best)))                 \
        return position;                                                                           \
    return -1;                                                                                     \
  }

/* One row: the extreme first, in lanes, then the block of lanes where it stands, then its position.
 * The block at the end of the row overlaps the one before it. */
#define DEFINE_ROW(name, T, EXTREMUM)                                                              \
  DEFINE_FIND(name, T)                                                                             \
  static int64_t name##_row(const T *x, int64_t n, int last) {                                     \
    enum { LANES = 32 };                                                                           \
    T best = x[0];                                                                                 \
    if (n < LANES) {                                                                               \
      for (int64_t i = 1; i < n; i++)                                                              \
        best = EXTREMUM(x[i], best);                                                               \
      return name##_find(x, 0, n, best, last);                                                     \
    }                                                                                              \
    T lanes[LANES];                                                                                \
    for (int j = 0; j < LANES; j++)                                                                \
      lanes[j] = x[j];                                                                             \
    for (int64_t i = df_min(LANES, n - LANES);; i = df_min(i + LANES, n - LANES)) {                \
      for (int j = 0; j < LANES; j++)                                                              \
        lanes[j] = EXTREMUM(x[i + j], lanes[j]);                                                   \
      if (i == n - LANES)                                                                          \
        break;                                                                                     \
    }                                                                                              \
    for (int width = LANES / 2; width > 0; width /= 2)                                             \
      for (int j = 0; j < width; j++) {                                                            \
        const T other = lanes[j + width];                                                          \
        lanes[j] = EXTREMUM(other, lanes[j]);                                                      \
      }                                                                                            \
    best = lanes[0];                                                                               \
    const int64_t blocks = df_divide_up(n, LANES);                                                 \
    for (int64_t k = 0; k < blocks; k++) {                                                         \
      const int64_t begin = df_min((last ? blocks - 1 - k : k) * LANES, n - LANES);                \
      int found = 0;                                                                               \
      for (int j = 0; j < LANES; j++)                                                              \
        found |= (x[begin + j] == best) | ((x[begin + j] != x[begin + j]) & (best != best));       \
      if (found)                                                                                   \
        return name##_find(x, begin, begin + LANES, best, last);                                   \
    }                                                                                              \
    return 0; /* not reached: the row has its extreme */                                           \
  }

/* Up to COLUMNS columns of rows |inner| apart. */
#define DEFINE_COLUMNS(name, T, BETTER, BETTER_OR_EQUAL)                                           \
  static void name##_columns(int64_t *y, const T *x, int64_t size, int64_t inner, int64_t n,       \
                             int last) {                                                           \
    DF_ASSUME(n > 0);                                                                              \
    T best[COLUMNS];                                                                               \
    int64_t position[COLUMNS];                                                                     \
    for (int64_t j = 0; j < n; j++) {                                                              \
      best[j] = x[j];                                                                              \
      position[j] = 0;                                                                             \
    }                                                                                              \
    for (int64_t k = 1; k < size; k++) {                                                           \
      const T *row = x + k * inner;                                                                \
      if (last)                                                                                    \
        for (int64_t j = 0; j < n; j++) {                                                          \
          const int take = (row[j] BETTER_OR_EQUAL best[j]) | (row[j] != row[j]);                  \
          best[j] = take ? row[j] : best[j];                                                       \
          position[j] = take ? k : position[j];                                                    \
        }                                                                                          \
      else                                                                                         \
        for (int64_t j = 0; j < n; j++) {                                                          \
          const int take = (row[j] BETTER best[j]) | ((row[j] != row[j]) & (best[j] == best[j]));  \
          best[j] = take ? row[j] : best[j];                                                       \
          position[j] = take ? k : position[j];                                                    \
        }                                                                                          \
    }                                                                                              \
    memcpy(y, position, (size_t)n * sizeof *y);                                                    \
  }

#define DEFINE(name, T, EXTREMUM, BETTER, BETTER_OR_EQUAL)                                         \
  DEFINE_ROW(name, T, EXTREMUM)                                                                    \
  DEFINE_COLUMNS(name, T, BETTER, BETTER_OR_EQUAL)                                                 \
  static void name##_task(void *context, int64_t index, int64_t count, int32_t worker) {           \
    (void)worker;                                                                                  \
    const arg_context *arg = context;                                                              \
    const int64_t chunks = df_divide_up(arg->inner, COLUMNS);                                      \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, arg->outer * chunks, 1, &unit, &end);                              \
    for (; unit < end; unit++) {                                                                   \
      const int64_t outer = unit / chunks, first = unit % chunks * COLUMNS;                        \
      const T *x = (const T *)arg->x + outer * arg->size * arg->inner + first;                     \
      int64_t *y = arg->y + outer * arg->inner + first;                                            \
      if (arg->inner == 1)                                                                         \
        *y = name##_row(x, arg->size, arg->last);                                                  \
      else                                                                                         \
        name##_columns(y, x, arg->size, arg->inner, df_min(COLUMNS, arg->inner - first),           \
                       arg->last);                                                                 \
    }                                                                                              \
  }                                                                                                \
  static df_status name##_run(const df_call *call) { return run(call, name##_task); }

static df_status run(const df_call *call, df_task task) {
  const df_tensor *x = call->inputs[0];
  const int64_t axis = df_axis(call, DF_ARGMAX_AXIS, x->rank);
  const int64_t size = x->rank ? x->shape[axis] : 1;
  arg_context arg = {.x = x->data,
                     .y = call->outputs[0]->data,
                     .outer = df_product(x->shape, 0, axis),
                     .size = size,
                     .inner = df_product(x->shape, axis + 1, x->rank),
                     .last = df_attr_int(call, DF_ARGMAX_SELECT_LAST_INDEX) != 0};
  if (arg.outer * arg.inner == 0)
    return DF_OK;
  if (size == 0)
    return df_fail(call, DF_INVALID, "argmax, argmin: axis %lld has no elements", (long long)axis);
  const int64_t units = arg.outer * df_divide_up(arg.inner, COLUMNS);
  df_parallel(call, task, &arg, df_min(units, df_task_count(call, df_elements(x), DF_GRAIN)));
  return DF_OK;
}

DEFINE(argmax_f32, float, DF_MAXIMUM, >, >=)
DEFINE(argmin_f32, float, DF_MINIMUM, <, <=)
DEFINE(argmax_f64, double, DF_MAXIMUM, >, >=)
DEFINE(argmin_f64, double, DF_MINIMUM, <, <=)
DEFINE(argmax_i32, int32_t, DF_MAXIMUM, >, >=)
DEFINE(argmin_i32, int32_t, DF_MINIMUM, <, <=)
DEFINE(argmax_i64, int64_t, DF_MAXIMUM, >, >=)
DEFINE(argmin_i64, int64_t, DF_MINIMUM, <, <=)
DEFINE(argmax_i8, int8_t, DF_MAXIMUM, >, >=)
DEFINE(argmin_i8, int8_t, DF_MINIMUM, <, <=)
DEFINE(argmax_u8, uint8_t, DF_MAXIMUM, >, >=)
DEFINE(argmin_u8, uint8_t, DF_MINIMUM, <, <=)

DF_KERNELS(arg_reduce) = {DF_KERNEL("argmax", "f32", "f32->i64", NULL, argmax_f32_run),
                          DF_KERNEL("argmin", "f32", "f32->i64", NULL, argmin_f32_run),
                          DF_KERNEL("argmax", "f64", "f64->i64", NULL, argmax_f64_run),
                          DF_KERNEL("argmin", "f64", "f64->i64", NULL, argmin_f64_run),
                          DF_KERNEL("argmax", "i32", "i32->i64", NULL, argmax_i32_run),
                          DF_KERNEL("argmin", "i32", "i32->i64", NULL, argmin_i32_run),
                          DF_KERNEL("argmax", "i64", "i64->i64", NULL, argmax_i64_run),
                          DF_KERNEL("argmin", "i64", "i64->i64", NULL, argmin_i64_run),
                          DF_KERNEL("argmax", "i8", "i8->i64", NULL, argmax_i8_run),
                          DF_KERNEL("argmin", "i8", "i8->i64", NULL, argmin_i8_run),
                          DF_KERNEL("argmax", "u8", "u8->i64", NULL, argmax_u8_run),
                          DF_KERNEL("argmin", "u8", "u8->i64", NULL, argmin_u8_run),
                          NULL};
