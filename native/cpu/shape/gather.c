/* shape/gather.c: elements read and summed by index: gather, index_add, one_hot; and tensors made
 * from numbers alone: full, range. */
#include "map/convert.h"
#include "map/run.h"

/* ---- Index tensors -------------------------------------------------------------------------- */

static inline int64_t index_at(const df_tensor *indices, int64_t i) {
  return indices->dtype == DF_INT32 ? ((const int32_t *)indices->data)[i]
                                    : ((const int64_t *)indices->data)[i];
}

/* An index that may count from the end, counted from the front. */
static inline int64_t from_front(int64_t index, int64_t size) {
  return index < 0 ? index + size : index;
}

/* Every index must lie in -size..size-1. */
static df_status check_indices(const df_call *call, const char *op, const df_tensor *indices,
                               int64_t size) {
  const int64_t count = df_elements(indices);
  for (int64_t i = 0; i < count; i++) {
    const int64_t index = index_at(indices, i);
    if (index < -size || index >= size)
      return df_fail(call, DF_INVALID, "%s: index %lld at position %lld is outside %lld..%lld", op,
                     (long long)index, (long long)i, (long long)-size, (long long)size - 1);
  }
  return DF_OK;
}

/* What an op along one axis works on; every tensor is (outer, its own size, inner). */
typedef struct indexing {
  const df_tensor *indices;
  const char *from;
  char *to;
  int64_t count; /* of indices */
  int64_t outer;
  int64_t size; /* of the axis that is indexed */
  int64_t inner;
  int64_t item;
} indexing;

/* ---- gather(x, indices; axis) -> y: y[o, i, :] = x[o, indices[i], :]
 * ----------------------------- */

#define GATHER_SINGLES(T)                                                                          \
  {                                                                                                \
    T *to = (T *)(void *)(g->to + row * g->item);                                                  \
    const T *from = (const T *)(const void *)g->from + row / g->count * g->size;                   \
    const int64_t first = row % g->count, n = df_min(end - row, g->count - first);                 \
    for (int64_t i = 0; i < n; i++)                                                                \
      to[i] = from[from_front(index_at(g->indices, first + i), g->size)];                          \
    row += n;                                                                                      \
    continue;                                                                                      \
  }

static void gather_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const indexing *g = context;
  const int64_t bytes = g->inner * g->item;
  int64_t row, end;
  df_task_range(index, count, g->outer * g->count, 1, &row, &end);
  while (row < end) {
    if (g->inner == 1 && g->item == 4)
      GATHER_SINGLES(uint32_t)
    if (g->inner == 1 && g->item == 8)
      GATHER_SINGLES(uint64_t)
    const int64_t at = from_front(index_at(g->indices, row % g->count), g->size);
    memcpy(g->to + row * bytes, g->from + (row / g->count * g->size + at) * bytes, (size_t)bytes);
    row++;
  }
}

static df_status gather_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *indices = call->inputs[1], *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_GATHER_AXIS, x->rank);
  const df_status status = check_indices(call, "gather", indices, x->shape[axis]);
  const int64_t elements = df_elements(y);
  if (status != DF_OK || elements == 0)
    return status;
  indexing g = {.indices = indices,
                .from = x->data,
                .to = y->data,
                .count = df_elements(indices),
                .outer = df_product(x->shape, 0, axis),
                .size = x->shape[axis],
                .inner = df_product(x->shape, axis + 1, x->rank),
                .item = df_item_bytes(x->dtype)};
  const int64_t tasks = df_task_count(call, elements, DF_GRAIN / 2);
  df_parallel(call, gather_task, &g, df_min(tasks, g.outer * g.count));
  return DF_OK;
}

/* ---- index_add(indices, updates; size, axis) -> y ----------------------------------------------
 * y[o, k, :] = sum of updates[o, i, :] over all i with indices[i] = k, in the order of i: work is
 * split over o and over blocks of the inner axis, never over i. */

enum { INNER_BLOCK = 64 };

/* Where single elements are added: each beside the next. */
#define ADD_SINGLES(T, I)                                                                          \
  for (int64_t i = 0; i < g->count; i++)                                                           \
  to[from_front(((const I *)g->indices->data)[i], g->size)] += from[i]

#define DEFINE_INDEX_ADD(type, T)                                                                  \
  static void add_singles_##type(const indexing *g, T *restrict to, const T *restrict from) {      \
    memset(to, 0, (size_t)g->size * sizeof *to);                                                   \
    if (g->indices->dtype == DF_INT32)                                                             \
      ADD_SINGLES(T, int32_t);                                                                     \
    else                                                                                           \
      ADD_SINGLES(T, int64_t);                                                                     \
  }                                                                                                \
  static void index_add_##type##_task(void *context, int64_t index, int64_t count,                 \
                                      int32_t worker) {                                            \
    (void)worker;                                                                                  \
    const indexing *g = context;                                                                   \
    const int64_t blocks = df_divide_up(g->inner, INNER_BLOCK);                                    \
    int64_t begin, end;                                                                            \
    df_task_range(index, count, g->outer * blocks, 1, &begin, &end);                               \
    while (begin < end) {                                                                          \
      /* All blocks of one offset in |outer| that are ours go together: longer rows. */            \
      const int64_t outer = begin / blocks, block = begin % blocks;                                \
      const int64_t some = df_min(end - begin, blocks - block);                                    \
      const int64_t first = block * INNER_BLOCK;                                                   \
      const int64_t n = df_min(some * INNER_BLOCK, g->inner - first);                              \
      T *to = (T *)(void *)g->to + outer * g->size * g->inner + first;                             \
      const T *from = (const T *)(const void *)g->from + outer * g->count * g->inner + first;      \
      begin += some;                                                                               \
      if (g->inner == 1) {                                                                         \
        add_singles_##type(g, to, from);                                                           \
        continue;                                                                                  \
      }                                                                                            \
      for (int64_t k = 0; k < g->size; k++)                                                        \
        memset(to + k * g->inner, 0, (size_t)n * sizeof *to);                                      \
      for (int64_t i = 0; i < g->count; i++) {                                                     \
        T *restrict sum = to + from_front(index_at(g->indices, i), g->size) * g->inner;            \
        const T *restrict update = from + i * g->inner;                                            \
        for (int64_t j = 0; j < n; j++)                                                            \
          sum[j] += update[j];                                                                     \
      }                                                                                            \
    }                                                                                              \
  }
DEFINE_INDEX_ADD(f32, float)
DEFINE_INDEX_ADD(f64, double)

static df_status index_add_run(const df_call *call) {
  const df_tensor *indices = call->inputs[0], *updates = call->inputs[1], *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_INDEX_ADD_AXIS, y->rank);
  const df_status status = check_indices(call, "index_add", indices, y->shape[axis]);
  if (status != DF_OK || df_elements(y) == 0)
    return status;
  indexing g = {.indices = indices,
                .from = updates->data,
                .to = y->data,
                .count = df_elements(indices),
                .outer = df_product(y->shape, 0, axis),
                .size = y->shape[axis],
                .inner = df_product(y->shape, axis + 1, y->rank)};
  const int64_t blocks = g.outer * df_divide_up(g.inner, INNER_BLOCK);
  const int64_t work = df_elements(updates) + df_elements(y);
  df_parallel(call, y->dtype == DF_FLOAT64 ? index_add_f64_task : index_add_f32_task, &g,
              df_min(blocks, df_task_count(call, work, DF_GRAIN)));
  return DF_OK;
}

/* ---- Numbers as elements -------------------------------------------------------------------- */

/* The bytes of one element that holds a number: |d|, or |i| exactly when |integral|. */
static void element_of(void *to, int32_t dtype, int integral, int64_t i, double d) {
  const df_fit fit = {.saturate = 1};
  DF_NAME(df_convert)(to, dtype, integral ? (const void *)&i : &d, integral ? DF_INT64 : DF_FLOAT64,
                      1, fit);
}

/* Without f8e8m0, whose elements are powers of two: the reference says what others become. */
#define NUMBERS                                                                                    \
  "f32|f64|f16|bf16|i8|i16|i32|i64|u8|u16|u32|u64|bool|f8e4m3fn|f8e4m3fnuz|f8e5m2|f8e5m2fnuz|"     \
  "f4e2m1|i4|u4|i2|u2"

/* ---- one_hot(indices; depth, axis, dtype) -> y: 1 where the index along |axis| is |indices| - */

static df_status one_hot_run(const df_call *call) {
  const df_tensor *indices = call->inputs[0], *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_ONE_HOT_AXIS, y->rank), depth = y->shape[axis];
  const int64_t item = df_item_bytes(y->dtype), count = df_elements(indices);
  const int64_t inner = df_product(y->shape, axis + 1, y->rank);
  uint64_t one;
  element_of(&one, y->dtype, 1, 1, 1.0);
  if (count > 0 && depth > 0)
    memset(y->data, 0, (size_t)(count * depth * item));
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = from_front(index_at(indices, i), depth);
    if (at < 0 || at >= depth)
      continue; /* no such class: all zeros */
    const int64_t offset = (i / inner * depth + at) * inner + i % inner;
    memcpy((char *)y->data + offset * item, &one, (size_t)item);
  }
  return DF_OK;
}

/* ---- full(; shape, value, dtype) and range(; start, limit, delta, dtype) -------------------- */

typedef struct number {
  int integral;
  int64_t i;
  double d;
} number;

/* Attribute |index| as a number, an integer or not. */
static number number_of(const df_call *call, int32_t index) {
  const df_attribute *a = call->attributes[index];
  return a->kind == DF_ATTR_INT ? (number){1, a->i, (double)a->i} : (number){0, 0, a->f};
}

static void full_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                      const df_call *call) {
  (void)in;
  (void)step;
  const int64_t item = df_item_bytes(call->outputs[0]->dtype);
  const number value = number_of(call, DF_FULL_VALUE);
  uint64_t element;
  DF_ASSUME(item <= (int64_t)sizeof element);
  element_of(&element, call->outputs[0]->dtype, value.integral, value.i, value.d);
  df_gather_row(out, (const char *)&element, 0, n, item);
}

static df_status full_run(const df_call *call) { return df_map_run(call, 0, full_rows); }

/* y[i] = start + i delta; integers stay exact. */
static df_status range_run(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  const number start = number_of(call, DF_RANGE_START), delta = number_of(call, DF_RANGE_DELTA);
  const int integral = start.integral && delta.integral;
  const int64_t item = df_item_bytes(y->dtype), n = df_elements(y);
  const df_fit fit = {.saturate = 1};
  int64_t integers[DF_CHUNK];
  double floats[DF_CHUNK];
  for (int64_t begin = 0; begin < n; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, n - begin);
    for (int64_t i = 0; i < some; i++)
      if (integral)
        integers[i] = (int64_t)((uint64_t)start.i + (uint64_t)(begin + i) * (uint64_t)delta.i);
      else
        floats[i] = start.d + (double)(begin + i) * delta.d;
    DF_NAME(df_convert)((char *)y->data + begin * item, y->dtype,
                        integral ? (const void *)integers : floats,
                        integral ? DF_INT64 : DF_FLOAT64, some, fit);
  }
  return DF_OK;
}

/* ---- Records -------------------------------------------------------------------------------- */

DF_KERNELS(gather) = {DF_KERNEL("gather", "any", "any,i32|i64->any", NULL, gather_run),
                      DF_KERNEL("index_add", "f32", "i32|i64,f32->f32", NULL, index_add_run),
                      DF_KERNEL("index_add", "f64", "i32|i64,f64->f64", NULL, index_add_run),
                      DF_KERNEL("one_hot", "any", "i32|i64->" NUMBERS, NULL, one_hot_run),
                      DF_KERNEL("full", "any", "->" NUMBERS, NULL, full_run),
                      DF_KERNEL("range_", "any", "->" NUMBERS, NULL, range_run),
                      NULL};
