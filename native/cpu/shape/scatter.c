/* shape/scatter.c: reading and writing by tensors of indices: gather_elements, scatter_elements,
 * gather_nd, scatter_nd.
 *
 * Every index is checked before anything is written. Entries are written one after the other, so
 * that equal indices give the same on any number of threads; gathers are split among threads. */
#include "kernels/scatter.h"
#include "cpu.h"

/* Refuses indices outside of the data. */
static df_status check(const df_call *call, const df_entries *e, const char *op) {
  const int64_t count = df_elements(&call->inputs[1]);
  for (int64_t i = 0; i < count; i++) {
    const int64_t size = e->limits[e->first + i % e->n];
    const int64_t index = df_entries_index(e, i);
    if (index < -size || index >= size)
      return df_fail(call, DF_INVALID, "%s: index %lld at position %lld is outside %lld..%lld", op,
                     (long long)index, (long long)i, (long long)-size, (long long)size - 1);
  }
  return DF_OK;
}

/* The element of the data where entry |i| begins. */
static int64_t offset_of(const df_entries *e, int64_t i) {
  DF_ASSUME(e->axes >= 0 && e->axes <= DF_ENTRY_AXES);
  int64_t offset = df_entries_offset(e, i);
  for (int32_t k = 0; k < e->n; k++) {
    const int32_t axis = e->first + k;
    const int64_t index = df_entries_index(e, i * e->n + k);
    offset += (index < 0 ? index + e->limits[axis] : index) * e->strides[axis];
  }
  return offset;
}

/* ---- Gathers -------------------------------------------------------------------------------- */

typedef struct gathering {
  const df_entries *e;
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

static df_status gather(const df_call *call, const df_entries *e, const char *op) {
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
  const df_entries e = df_entries_by_element(call);
  return gather(call, &e, "gather_elements");
}

static df_status gather_nd_run(const df_call *call) {
  const df_entries e = df_entries_by_coordinates(call);
  return gather(call, &e, "gather_nd");
}

/* ---- Scatters ------------------------------------------------------------------------------- */

/* y[j] = the update joined to it; each case a loop of its own, so that it becomes vector code. */
#define JOIN_ROW(label, reduction)                                                                 \
  label:                                                                                           \
  for (int64_t j = 0; j < n; j++)                                                                  \
    to[j] = df_scatter_join(to[j], from[j], reduction);                                            \
  break;

static void join_row(float *to, const float *from, int64_t n, int32_t reduction) {
  switch (reduction) {
    JOIN_ROW(case DF_SCATTER_ADD, DF_SCATTER_ADD)
    JOIN_ROW(case DF_SCATTER_MUL, DF_SCATTER_MUL)
    JOIN_ROW(case DF_SCATTER_MAX, DF_SCATTER_MAX)
    JOIN_ROW(default, DF_SCATTER_MIN)
  }
}

static df_status scatter(const df_call *call, const df_entries *e, const char *op) {
  const df_tensor *data = &call->inputs[0], *updates = &call->inputs[2], *y = &call->outputs[0];
  const df_status status = check(call, e, op);
  const int64_t elements = df_elements(y), item = df_item_bytes(y->dtype);
  if (status != DF_OK || elements == 0)
    return status;
  if (y->data != data->data)
    memcpy(y->data, data->data, (size_t)(elements * item));
  const int32_t reduction = df_scatter_reduction(call->attributes, call->n_attributes);
  for (int64_t i = 0; i < e->count && e->row > 0; i++) {
    const int64_t at = offset_of(e, i);
    const char *from = (const char *)updates->data + i * e->row * item;
    if (reduction == DF_SCATTER_REPLACE)
      memcpy((char *)y->data + at * item, from, (size_t)(e->row * item));
    else
      join_row((float *)y->data + at, (const float *)(const void *)from, e->row, reduction);
  }
  return DF_OK;
}

static df_status scatter_elements_run(const df_call *call) {
  const df_entries e = df_entries_by_element(call);
  return scatter(call, &e, "scatter_elements");
}

static df_status scatter_nd_run(const df_call *call) {
  const df_entries e = df_entries_by_coordinates(call);
  return scatter(call, &e, "scatter_nd");
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts_scatter(const df_node *node) {
  if (node->inputs[0].dtype != DF_FLOAT32 &&
      df_scatter_reduction(node->attributes, node->n_attributes) != DF_SCATTER_REPLACE)
    return "only float32 elements are reduced";
  return df_entries_accepts(node);
}

DF_KERNELS(scatter) = {
    DF_KERNEL_IF("gather_elements", "any", "any,i32|i64->any", NULL, df_entries_accepts,
                 gather_elements_run),
    DF_KERNEL_IF("gather_nd", "any", "any,i32|i64->any", NULL, df_entries_accepts, gather_nd_run),
    DF_KERNEL_IF("scatter_elements", "any", "any,i32|i64,any->any", "0<0", accepts_scatter,
                 scatter_elements_run),
    DF_KERNEL_IF("scatter_nd", "any", "any,i32|i64,any->any", "0<0", accepts_scatter,
                 scatter_nd_run),
    NULL};
