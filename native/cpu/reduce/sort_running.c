/* reduce/sort_running.c: running sums and recurrences along an axis; x is seen as (outer, size,
 * inner).
 */
#include "cpu.h"

typedef struct along {
  void *out;
  const void *in;
  int64_t outer, size, inner;
  int exclusive, reverse;
} along;

static along along_of(const df_call *call, const df_tensor *x, int64_t axis) {
  return (along){.out = call->outputs[0]->data,
                 .in = x->data,
                 .outer = df_product(x->shape, 0, axis),
                 .size = x->shape[axis],
                 .inner = df_product(x->shape, axis + 1, x->rank)};
}

/* ---- cumsum(x; axis, exclusive, reverse) ---------------------------------------------------- */

enum { CUMSUM_COLUMNS = 256 }; /* their sums are 2 KiB */

/* |total| is the type of the sum; x is read before |out|, which may be |in|, is written. Columns
 * that lie beside each other are summed row by row. */
#define CUMSUM(name, type, total)                                                                  \
  static void name##_task(void *context, int64_t index, int64_t count, int32_t worker) {           \
    (void)worker;                                                                                  \
    const along *s = context;                                                                      \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, s->outer * s->inner, 1, &unit, &end);                              \
    while (unit < end) {                                                                           \
      const int64_t column = unit % s->inner;                                                      \
      const int64_t base = unit / s->inner * s->size * s->inner + column;                          \
      const int64_t n = df_min(df_min(end - unit, s->inner - column), CUMSUM_COLUMNS);             \
      total sums[CUMSUM_COLUMNS];                                                                  \
      for (int64_t c = 0; c < n; c++)                                                              \
        sums[c] = 0;                                                                               \
      for (int64_t i = 0; i < s->size; i++) {                                                      \
        const int64_t at = base + (s->reverse ? s->size - 1 - i : i) * s->inner;                   \
        const type *in = (const type *)s->in + at;                                                 \
        type *out = (type *)s->out + at;                                                           \
        if (s->exclusive) {                                                                        \
          DF_IVDEP for (int64_t c = 0; c < n; c++) {                                               \
            const total x = (total)in[c];                                                          \
            out[c] = (type)sums[c];                                                                \
            sums[c] += x;                                                                          \
          }                                                                                        \
        } else {                                                                                   \
          DF_IVDEP for (int64_t c = 0; c < n; c++) {                                               \
            sums[c] += (total)in[c];                                                               \
            out[c] = (type)sums[c];                                                                \
          }                                                                                        \
        }                                                                                          \
      }                                                                                            \
      unit += n;                                                                                   \
    }                                                                                              \
  }                                                                                                \
  static void name##_row_task(void *context, int64_t index, int64_t count, int32_t worker) {       \
    (void)worker;                                                                                  \
    const along *s = context;                                                                      \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, s->outer, 1, &unit, &end);                                         \
    for (; unit < end; unit++) {                                                                   \
      total sum = 0;                                                                               \
      for (int64_t i = 0; i < s->size; i++) {                                                      \
        const int64_t at = unit * s->size + (s->reverse ? s->size - 1 - i : i);                    \
        const total before = sum;                                                                  \
        sum += (total)((const type *)s->in)[at];                                                   \
        ((type *)s->out)[at] = (type)(s->exclusive ? before : sum);                                \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  static df_status name##_run(const df_call *call) {                                               \
    return cumsum_run(call, name##_task, name##_row_task);                                         \
  }

static df_status cumsum_run(const df_call *call, df_task columns, df_task rows) {
  const df_tensor *x = call->inputs[0];
  const int64_t elements = df_elements(x);
  if (elements == 0)
    return DF_OK;
  along s = along_of(call, x, df_axis(call, DF_CUMSUM_AXIS, x->rank));
  s.exclusive = df_attr_int(call, DF_CUMSUM_EXCLUSIVE) != 0;
  s.reverse = df_attr_int(call, DF_CUMSUM_REVERSE) != 0;
  df_parallel(call, s.inner == 1 ? rows : columns, &s,
              df_min(s.outer * s.inner, df_task_count(call, elements, DF_GRAIN)));
  return DF_OK;
}

CUMSUM(cumsum_f32, float, double)
CUMSUM(cumsum_f64, double, double)
CUMSUM(cumsum_i32, int32_t, uint64_t)
CUMSUM(cumsum_i64, int64_t, uint64_t)

/* ---- linear_recurrence(a, b; axis, reverse): y_i = a_i y_(i-1) + b_i, from b_0 -------------- */

typedef struct recurrence {
  const void *a, *b;
  void *y;
  int64_t outer, size, inner;
  int reverse;
} recurrence;

#define DEFINE_RECURRENCE(type, T, W)                                                              \
  static void recurrence_##type##_task(void *context, int64_t index, int64_t count,                \
                                       int32_t worker) {                                           \
    (void)worker;                                                                                  \
    const recurrence *r = context;                                                                 \
    const T *a = r->a, *b = r->b;                                                                  \
    T *y = r->y; /* may be a or b: an element is read before it is written */                      \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, r->outer * r->inner, 1, &unit, &end);                              \
    for (; unit < end; unit++) {                                                                   \
      const int64_t base = unit / r->inner * r->size * r->inner + unit % r->inner;                 \
      W before = 0;                                                                                \
      for (int64_t i = 0; i < r->size; i++) {                                                      \
        const int64_t at = base + (r->reverse ? r->size - 1 - i : i) * r->inner;                   \
        before = i ? (W)a[at] * before + (W)b[at] : (W)b[at];                                      \
        y[at] = (T)before;                                                                         \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  static df_status linear_recurrence_##type##_run(const df_call *call) {                           \
    return recur(call, recurrence_##type##_task);                                                  \
  }

static df_status recur(const df_call *call, df_task task) {
  const df_tensor *a = call->inputs[0];
  const int64_t elements = df_elements(a);
  if (elements == 0)
    return DF_OK;
  const int64_t axis = df_axis(call, DF_LINEAR_RECURRENCE_AXIS, a->rank);
  recurrence r = {.a = a->data,
                  .b = call->inputs[1]->data,
                  .y = call->outputs[0]->data,
                  .outer = df_product(a->shape, 0, axis),
                  .size = a->shape[axis],
                  .inner = df_product(a->shape, axis + 1, a->rank),
                  .reverse = df_attr_int(call, DF_LINEAR_RECURRENCE_REVERSE) != 0};
  df_parallel(call, task, &r, df_min(r.outer * r.inner, df_task_count(call, elements, DF_GRAIN)));
  return DF_OK;
}

DEFINE_RECURRENCE(f32, float, double)
DEFINE_RECURRENCE(f64, double, double)
DEFINE_RECURRENCE(i32, int32_t, uint32_t)
DEFINE_RECURRENCE(i64, int64_t, uint64_t)

#define RECURRENCE(type)                                                                           \
  DF_KERNEL("linear_recurrence", #type, #type "," #type "->" #type, "0<0,0<1",                     \
            linear_recurrence_##type##_run)
#define CUMULATE(type) DF_KERNEL("cumsum", #type, #type "->" #type, "0<0", cumsum_##type##_run)
/* clang-format off */
DF_KERNELS(sort_running) = {
    RECURRENCE(f32), RECURRENCE(f64), RECURRENCE(i32), RECURRENCE(i64),
    CUMULATE(f32), CUMULATE(f64), CUMULATE(i32), CUMULATE(i64),
    NULL};
