/* shape/scatter.c: reading and writing by tensors of indices: gather_elements, scatter_elements,
 * gather_nd, scatter_nd.
 *
 * Each is a list of entries, and an entry names a row of |row| neighbouring elements of the data:
 * a single one, or what is left behind the coordinates. Every index is checked before anything is
 * written. Entries are written one after the other, so that equal indices give the same on any
 * number of threads; gathers are cut among threads. */
#include "cpu.h"

enum { MOST_AXES = 16 };

typedef struct entries {
  const df_tensor *indices;
  int64_t count;               /* of entries */
  int64_t row;                 /* elements that an entry names */
  int32_t axes;                /* of the counter */
  int32_t axis;                /* the one that is replaced; -1 for coordinates */
  int32_t shared, coordinates; /* of the data's axes */
  int64_t sizes[MOST_AXES];    /* of the counter */
  int64_t strides[MOST_AXES];  /* of the data, in elements */
  int64_t limits[MOST_AXES];   /* sizes of the data */
} entries;

static int64_t index_at(const df_tensor *indices, int64_t i) {
  return indices->dtype == DF_INT32 ? ((const int32_t *)indices->data)[i]
                                    : ((const int64_t *)indices->data)[i];
}

static int64_t placed(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

static void data_layout(entries *e, const df_tensor *data) {
  int64_t stride = 1;
  for (int32_t i = data->rank - 1; i >= 0; i--) {
    e->strides[i] = stride;
    e->limits[i] = data->shape[i];
    stride *= data->shape[i];
  }
}

static entries by_element(const df_call *call, const df_tensor *data, const df_tensor *indices) {
  entries e = {.indices = indices, .count = df_elements(indices), .row = 1, .axes = data->rank};
  e.axis = (int32_t)df_axis(call, 0, 0, data->rank);
  for (int32_t i = 0; i < e.axes; i++)
    e.sizes[i] = indices->shape[i];
  data_layout(&e, data);
  return e;
}

static entries by_coordinates(const df_call *call, const df_tensor *data,
                              const df_tensor *indices) {
  entries e = {.indices = indices, .axis = -1, .axes = indices->rank - 1};
  e.shared = (int32_t)df_attr_int(call, 0, 0);
  e.coordinates = (int32_t)indices->shape[e.axes];
  e.count = df_product(indices->shape, 0, e.axes);
  e.row = df_product(data->shape, e.shared + e.coordinates, data->rank);
  for (int32_t i = 0; i < e.axes; i++)
    e.sizes[i] = indices->shape[i];
  data_layout(&e, data);
  return e;
}

/* Refuses indices outside of the data. */
static df_status check(const df_call *call, const entries *e, const char *op) {
  const int64_t count = df_elements(e->indices);
  for (int64_t i = 0; i < count; i++) {
    const int64_t size =
        e->axis >= 0 ? e->limits[e->axis] : e->limits[e->shared + i % e->coordinates];
    const int64_t index = index_at(e->indices, i);
    if (index < -size || index >= size)
      return df_fail(call, DF_INVALID, "%s: index %lld at position %lld is outside %lld..%lld", op,
                     (long long)index, (long long)i, (long long)-size, (long long)size - 1);
  }
  return DF_OK;
}

/* The element of the data where entry |i| begins. */
static int64_t offset_of(const entries *e, int64_t i) {
  int64_t offset = 0, rest = i;
  DF_ASSUME(e->axes >= 0 && e->axes <= MOST_AXES);
  if (e->axis >= 0) {
    for (int32_t axis = e->axes - 1; axis >= 0; axis--) {
      int64_t at = rest % e->sizes[axis];
      rest /= e->sizes[axis];
      if (axis == e->axis)
        at = placed(index_at(e->indices, i), e->limits[axis]);
      offset += at * e->strides[axis];
    }
    return offset;
  }
  for (int32_t axis = e->axes - 1; axis >= 0; axis--) {
    if (axis < e->shared)
      offset += rest % e->sizes[axis] * e->strides[axis];
    rest /= e->sizes[axis];
  }
  for (int32_t k = 0; k < e->coordinates; k++) {
    const int32_t axis = e->shared + k;
    offset +=
        placed(index_at(e->indices, i * e->coordinates + k), e->limits[axis]) * e->strides[axis];
  }
  return offset;
}

/* ---- Gathers -------------------------------------------------------------------------------- */

typedef struct gathering {
  const entries *e;
  char *to;
  const char *from;
  int64_t item;
} gathering;

static void gather_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const gathering *g = context;
  const int64_t bytes = g->e->row * g->item;
  int64_t i, end;
  df_task_range(index, count, g->e->count, 1, &i, &end);
  for (; i < end; i++)
    memcpy(g->to + i * bytes, g->from + offset_of(g->e, i) * g->item, (size_t)bytes);
}

static df_status gather(const df_call *call, const entries *e, const char *op) {
  const df_tensor *y = &call->outputs[0];
  const df_status status = check(call, e, op);
  if (status != DF_OK || df_elements(y) == 0)
    return status;
  gathering g = {e, y->data, call->inputs[0].data, df_item_bytes(y->dtype)};
  df_parallel(call, gather_task, &g,
              df_min(e->count, df_task_count(call, df_elements(y), DF_GRAIN / 4)));
  return DF_OK;
}

static df_status gather_elements_run(const df_call *call) {
  const entries e = by_element(call, &call->inputs[0], &call->inputs[1]);
  return gather(call, &e, "gather_elements");
}

static df_status gather_nd_run(const df_call *call) {
  const entries e = by_coordinates(call, &call->inputs[0], &call->inputs[1]);
  return gather(call, &e, "gather_nd");
}

/* ---- Scatters ------------------------------------------------------------------------------- */

#define NUMBER_ROW(combine)                                                                        \
  for (int64_t j = 0; j < n; j++) {                                                                \
    const float a = to[j], b = from[j];                                                            \
    to[j] = combine;                                                                               \
  }

/* NaN wins, as in the reference. */
static void combine_row(float *to, const float *from, int64_t n, char how) {
  switch (how) {
  case 'd': /* add */
    NUMBER_ROW(a + b) break;
  case 'u': /* mul */
    NUMBER_ROW(a * b) break;
  case 'a': /* max */
    NUMBER_ROW(a > b || a != a ? a : b) break;
  default: /* min */
    NUMBER_ROW(a < b || a != a ? a : b)
  }
}

/* The reduction's second letter tells them apart: none, add, mul, max, min. */
static char reduction(const df_attribute *attributes, int32_t count) {
  return count > 1 && attributes[1].kind == DF_ATTR_STRING ? attributes[1].s[1] : 'o';
}

static df_status scatter(const df_call *call, const entries *e, const char *op) {
  const df_tensor *data = &call->inputs[0], *updates = &call->inputs[2], *y = &call->outputs[0];
  const df_status status = check(call, e, op);
  const int64_t elements = df_elements(y), item = df_item_bytes(y->dtype);
  if (status != DF_OK || elements == 0)
    return status;
  if (y->data != data->data)
    memcpy(y->data, data->data, (size_t)(elements * item));
  const char how = reduction(call->attributes, call->n_attributes);
  for (int64_t i = 0; i < e->count && e->row > 0; i++) {
    const int64_t at = offset_of(e, i);
    const char *from = (const char *)updates->data + i * e->row * item;
    if (how == 'o')
      memcpy((char *)y->data + at * item, from, (size_t)(e->row * item));
    else
      combine_row((float *)y->data + at, (const float *)(const void *)from, e->row, how);
  }
  return DF_OK;
}

static df_status scatter_elements_run(const df_call *call) {
  const entries e = by_element(call, &call->inputs[0], &call->inputs[1]);
  return scatter(call, &e, "scatter_elements");
}

static df_status scatter_nd_run(const df_call *call) {
  const entries e = by_coordinates(call, &call->inputs[0], &call->inputs[1]);
  return scatter(call, &e, "scatter_nd");
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts(const df_node *node) {
  if (node->inputs[0].rank > MOST_AXES || node->inputs[1].rank > MOST_AXES)
    return "an operand has too many axes";
  return df_accepts_whole_bytes(node);
}

static const char *accepts_scatter(const df_node *node) {
  if (node->inputs[0].dtype != DF_FLOAT32 && reduction(node->attributes, node->n_attributes) != 'o')
    return "only float32 elements are reduced";
  return accepts(node);
}

DF_KERNELS(scatter) = {
    DF_KERNEL_IF("gather_elements", "any", "any,i32|i64->any", NULL, accepts, gather_elements_run),
    DF_KERNEL_IF("gather_nd", "any", "any,i32|i64->any", NULL, accepts, gather_nd_run),
    DF_KERNEL_IF("scatter_elements", "any", "any,i32|i64,any->any", "0<0", accepts_scatter,
                 scatter_elements_run),
    DF_KERNEL_IF("scatter_nd", "any", "any,i32|i64,any->any", "0<0", accepts_scatter,
                 scatter_nd_run),
    NULL};
