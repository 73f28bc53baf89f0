/* reduce/sort.c: running sums, recurrences and the largest elements along an axis; x is seen as
 * (outer, size, inner). */
#include "cpu.h"

typedef struct along {
  void *out;
  int64_t *indices; /* topk */
  const void *in;
  int64_t outer, size, inner;
  int64_t k;
  int exclusive, reverse, largest;
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

/* ---- topk(x; k, axis, largest, sorted) -> values, indices ----------------------------------- */

/* A heap of the k best with the worst on top; emptied from the end, so in order. |indices| holds
 * indices, their values are read from x. NaN counts as the largest, and equal elements keep their
 * order. */
#define AT(i) indices[(i) * s->inner]
#define DEFINE_TOPK(type, T)                                                                       \
  static int first_##type(const along *s, T x, int64_t a, T y, int64_t b) {                        \
    const int nx = x != x, ny = y != y;                                                            \
    if (nx != ny)                                                                                  \
      return s->largest ? nx : ny;                                                                 \
    if (!nx && x != y)                                                                             \
      return s->largest ? x > y : x < y;                                                           \
    return a < b;                                                                                  \
  }                                                                                                \
  static int worse_##type(const along *s, const T *x, int64_t i, int64_t j) {                      \
    return first_##type(s, x[j * s->inner], j, x[i * s->inner], i);                                \
  }                                                                                                \
  static void sift_##type(const along *s, const T *x, int64_t *indices, int64_t n,                 \
                          int64_t parent) {                                                        \
    for (;;) {                                                                                     \
      int64_t child = 2 * parent + 1;                                                              \
      if (child >= n)                                                                              \
        return;                                                                                    \
      if (child + 1 < n && worse_##type(s, x, AT(child + 1), AT(child)))                           \
        child++;                                                                                   \
      if (!worse_##type(s, x, AT(child), AT(parent)))                                              \
        return;                                                                                    \
      const int64_t swapped = AT(parent);                                                          \
      AT(parent) = AT(child);                                                                      \
      AT(child) = swapped;                                                                         \
      parent = child;                                                                              \
    }                                                                                              \
  }                                                                                                \
  static void topk_##type##_task(void *context, int64_t index, int64_t count, int32_t worker) {    \
    (void)worker;                                                                                  \
    const along *s = context;                                                                      \
    const int64_t k = s->k;                                                                        \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, s->outer * s->inner, 1, &unit, &end);                              \
    for (; unit < end; unit++) {                                                                   \
      const T *x = (const T *)s->in + unit / s->inner * s->size * s->inner + unit % s->inner;      \
      const int64_t out = unit / s->inner * k * s->inner + unit % s->inner;                        \
      int64_t *indices = s->indices + out;                                                         \
      for (int64_t i = 0; i < k; i++)                                                              \
        AT(i) = i;                                                                                 \
      for (int64_t i = k / 2 - 1; i >= 0; i--)                                                     \
        sift_##type(s, x, indices, k, i);                                                          \
      for (int64_t i = k; i < s->size; i++)                                                        \
        if (first_##type(s, x[i * s->inner], i, x[AT(0) * s->inner], AT(0))) {                     \
          AT(0) = i;                                                                               \
          sift_##type(s, x, indices, k, 0);                                                        \
        }                                                                                          \
      for (int64_t n = k - 1; n > 0; n--) {                                                        \
        const int64_t worst = AT(0);                                                               \
        AT(0) = AT(n);                                                                             \
        AT(n) = worst;                                                                             \
        sift_##type(s, x, indices, n, 0);                                                          \
      }                                                                                            \
      for (int64_t i = 0; i < k; i++)                                                              \
        ((T *)s->out)[out + i * s->inner] = x[AT(i) * s->inner];                                   \
    }                                                                                              \
  }                                                                                                \
  static df_status topk_##type##_run(const df_call *call) { return topk(call, topk_##type##_task); }

static df_status topk(const df_call *call, df_task task) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (df_elements(y) == 0)
    return DF_OK;
  const int64_t axis = df_axis(call, DF_TOPK_AXIS, x->rank);
  along s = along_of(call, x, axis);
  s.indices = call->outputs[1]->data;
  s.k = y->shape[axis];
  s.largest = df_attr_int(call, DF_TOPK_LARGEST) != 0;
  df_parallel(call, task, &s,
              df_min(s.outer * s.inner, df_task_count(call, df_elements(x), DF_GRAIN / 4)));
  return DF_OK;
}

DEFINE_TOPK(f32, float)
DEFINE_TOPK(f64, double)
DEFINE_TOPK(i8, int8_t)
DEFINE_TOPK(i16, int16_t)
DEFINE_TOPK(i32, int32_t)
DEFINE_TOPK(i64, int64_t)
DEFINE_TOPK(u8, uint8_t)

#define RECURRENCE(type)                                                                           \
  DF_KERNEL("linear_recurrence", #type, #type "," #type "->" #type, "0<0,0<1",                     \
            linear_recurrence_##type##_run)
#define CUMULATE(type) DF_KERNEL("cumsum", #type, #type "->" #type, "0<0", cumsum_##type##_run)
#define TOPK(type) DF_KERNEL("topk", #type, #type "->" #type ",i64", NULL, topk_##type##_run)
/* clang-format off */
DF_KERNELS(sort) = {
    RECURRENCE(f32), RECURRENCE(f64), RECURRENCE(i32), RECURRENCE(i64),
    CUMULATE(f32), CUMULATE(f64), CUMULATE(i32), CUMULATE(i64),
    TOPK(f32), TOPK(f64), TOPK(i8), TOPK(i16), TOPK(i32), TOPK(i64), TOPK(u8),
    NULL};
