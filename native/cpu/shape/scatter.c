/* shape/scatter.c: reading and writing by tensors of indices: gather_elements, scatter_elements,
 * gather_nd, scatter_nd.
 *
 * Every index is checked before anything is written. Entries that may have equal indices are
 * written one after the other, so that they give the same on any number of threads:
 * scatter_elements is split along the other axes. Gathers are split among threads. */
#include "kernels/scatter.h"
#include "cpu.h"
#include "shape/scatter_join.h"

/* Whether one of |count| indices is outside of an axis. */
static int any_outside(const df_entries *e, int64_t count, int64_t size) {
  int found = 0;
  if (e->dtype == DF_INT32)
    for (int64_t i = 0; i < count; i++)
      found |=
          (((const int32_t *)e->indices)[i] < -size) | (((const int32_t *)e->indices)[i] >= size);
  else
    for (int64_t i = 0; i < count; i++)
      found |=
          (((const int64_t *)e->indices)[i] < -size) | (((const int64_t *)e->indices)[i] >= size);
  return found;
}

/* Refuses indices outside of the data. */
static df_status check(const df_call *call, const df_entries *e, const char *op) {
  const int64_t count = df_elements(call->inputs[1]);
  if (e->n == 1 && !any_outside(e, count, e->limits[e->first]))
    return DF_OK;
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

/* An entry; single elements are a load and a store. */
static inline void copy_entry(char *to, const char *from, int64_t bytes) {
  switch (bytes) {
  case 1:
    *to = *from;
    break;
  case 2:
    memcpy(to, from, 2);
    break;
  case 4:
    memcpy(to, from, 4);
    break;
  case 8:
    memcpy(to, from, 8);
    break;
  default:
    memcpy(to, from, (size_t)bytes);
  }
}

static void gather_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const gathering *g = context;
  const int64_t bytes = g->e->row * g->item;
  int64_t i, end;
  df_task_range(index, count, g->e->count, 1, &i, &end);
  for (; i < end; i++)
    copy_entry(g->to + i * bytes, g->from + offset_of(g->e, i) * g->item, bytes);
}

/* Elements of neighbouring entries: each at its index times |step|, |own| further than the one
 * before. Called with a constant |item|, so that an element is a load and a store. */
static inline __attribute__((always_inline)) void gather_neighbours(const gathering *g, int64_t i,
                                                                    int64_t n, const char *from,
                                                                    int64_t own, int64_t item) {
  const int64_t size = g->e->limits[g->e->first], step = g->e->strides[g->e->first];
  char *to = g->to + i * item;
  for (int64_t j = 0; j < n; j++) {
    const int64_t index = df_entries_index(g->e, i + j);
    const int64_t at = (index < 0 ? index + size : index) * step + j * own;
    memcpy(to + j * item, from + at * item, (size_t)item);
  }
}

static void gather_elements_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const gathering *g = context;
  const df_entries *e = g->e;
  const int64_t length = e->sizes[e->axes - 1], own = e->first == e->axes - 1 ? 0 : 1;
  int64_t i, end, n;
  df_task_range(index, count, e->count, 1, &i, &end);
  for (; i < end; i += n) {
    n = df_min(length - i % length, end - i);
    const char *from = g->from + df_entries_offset(e, i) * g->item;
    switch (g->item) {
    case 1:
      gather_neighbours(g, i, n, from, own, 1);
      break;
    case 2:
      gather_neighbours(g, i, n, from, own, 2);
      break;
    case 4:
      gather_neighbours(g, i, n, from, own, 4);
      break;
    case 8:
      gather_neighbours(g, i, n, from, own, 8);
      break;
    default:
      gather_neighbours(g, i, n, from, own, g->item);
    }
  }
}

static df_status gather(const df_call *call, const df_entries *e, df_task task, const char *op) {
  const df_tensor *y = call->outputs[0];
  const df_status status = check(call, e, op);
  if (status != DF_OK || df_elements(y) == 0)
    return status;
  gathering g = {e, y->data, call->inputs[0]->data, df_item_bytes(y->dtype)};
  df_parallel(call, task, &g, df_min(e->count, df_task_count(call, df_elements(y), DF_GRAIN / 4)));
  return DF_OK;
}

static df_status gather_elements_run(const df_call *call) {
  const df_entries e = df_entries_by_element(call);
  return gather(call, &e, gather_elements_task, "gather_elements");
}

static df_status gather_nd_run(const df_call *call) {
  const df_entries e = df_entries_by_coordinates(call);
  return gather(call, &e, gather_task, "gather_nd");
}

/* ---- Scatters ------------------------------------------------------------------------------- */

static df_status scatter(const df_call *call, const df_entries *e, const char *op) {
  const df_tensor *data = call->inputs[0], *updates = call->inputs[2], *y = call->outputs[0];
  const df_status status = check(call, e, op);
  const int64_t elements = df_elements(y), item = df_item_bytes(y->dtype);
  if (status != DF_OK || elements == 0)
    return status;
  if (y->data != data->data)
    memcpy(y->data, data->data, (size_t)(elements * item));
  const int32_t reduction = df_scatter_reduction(call->attributes, call->n_attributes);
  const joins *join = join_of(y->dtype);
  DF_ASSUME(join || reduction == DF_SCATTER_REPLACE); /* as accepts_scatter has it */
  for (int64_t i = 0; i < e->count && e->row > 0; i++) {
    const int64_t at = offset_of(e, i);
    const char *from = (const char *)updates->data + i * e->row * item;
    if (reduction == DF_SCATTER_REPLACE)
      copy_entry((char *)y->data + at * item, from, e->row * item);
    else
      join->rows((char *)y->data + at * item, from, e->row, reduction);
  }
  return DF_OK;
}

/* Entries that differ from the data in the size of one axis alone: (outer, count, inner), where
 * entry (o, k, j) is for element (o, its index, j) of (outer, size, inner). */
typedef struct lanes {
  const df_entries *e;
  char *y;
  const char *updates;
  int64_t outer, count, inner, size, item;
  int64_t splits; /* of inner, for threads */
  int32_t reduction;
  const joins *join;
} lanes;

/* Writes |n| neighbouring entries from |entry| on, the first of which is for column |to|. Called
 * with a constant |item|, so that an element is a load and a store. */
static inline __attribute__((always_inline)) void replace_lanes(const lanes *l, int64_t entry,
                                                                int64_t n, char *to, int64_t item) {
  const char *from = l->updates + entry * item;
  for (int64_t j = 0; j < n; j++) {
    const int64_t index = df_entries_index(l->e, entry + j);
    const int64_t at = (index < 0 ? index + l->size : index) * l->inner + j;
    memcpy(to + at * item, from + j * item, (size_t)item);
  }
}

/* The same, joined: neighbours of equal index at once. */
static void join_lanes(const lanes *l, int64_t entry, int64_t n, char *to) {
  for (int64_t j = 0, end; j < n; j = end) {
    const int64_t index = df_entries_index(l->e, entry + j);
    for (end = j + 1; end < n && df_entries_index(l->e, entry + end) == index; end++)
      ;
    const int64_t at = (index < 0 ? index + l->size : index) * l->inner + j;
    l->join->rows(to + at * l->item, l->updates + (entry + j) * l->item, end - j, l->reduction);
  }
}

static void lanes_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const lanes *l = context;
  int64_t i, end, begin, last;
  df_task_range(index, count, l->outer * l->splits, 1, &i, &end);
  for (; i < end; i++) {
    const int64_t o = i / l->splits;
    df_task_range(i % l->splits, l->splits, l->inner, 1, &begin, &last);
    char *to = l->y + (o * l->size * l->inner + begin) * l->item;
    if (l->inner == 1 && l->reduction != DF_SCATTER_REPLACE) {
      const int64_t entry = o * l->count;
      l->join->lane(to, l->updates + entry * l->item, l->e, entry, l->count, l->reduction);
      continue;
    }
    for (int64_t k = 0; k < l->count; k++) {
      const int64_t entry = (o * l->count + k) * l->inner + begin;
      if (l->reduction != DF_SCATTER_REPLACE)
        join_lanes(l, entry, last - begin, to);
      else if (l->item == 1)
        replace_lanes(l, entry, last - begin, to, 1);
      else if (l->item == 2)
        replace_lanes(l, entry, last - begin, to, 2);
      else if (l->item == 4)
        replace_lanes(l, entry, last - begin, to, 4);
      else if (l->item == 8)
        replace_lanes(l, entry, last - begin, to, 8);
      else
        replace_lanes(l, entry, last - begin, to, l->item);
    }
  }
}

/* Whether the indices of scatter_elements have the data's sizes but for their own axis. */
static int in_lanes(const df_entries *e) {
  for (int32_t i = 0; i < e->axes; i++)
    if (i != e->first && e->sizes[i] != e->limits[i])
      return 0;
  return e->axes > 0;
}

static df_status scatter_elements_run(const df_call *call) {
  const df_tensor *data = call->inputs[0], *y = call->outputs[0];
  const df_entries e = df_entries_by_element(call);
  const int64_t elements = df_elements(y), item = df_item_bytes(y->dtype);
  if (elements == 0 || !in_lanes(&e))
    return scatter(call, &e, "scatter_elements");
  DF_ASSUME(e.first >= 0 && e.first < e.axes);
  const df_status status = check(call, &e, "scatter_elements");
  if (status != DF_OK)
    return status;
  if (y->data != data->data)
    memcpy(y->data, data->data, (size_t)(elements * item));
  lanes l = {.e = &e,
             .y = y->data,
             .updates = call->inputs[2]->data,
             .outer = df_product(data->shape, 0, e.first),
             .count = e.sizes[e.first],
             .inner = df_product(data->shape, e.first + 1, data->rank),
             .size = e.limits[e.first],
             .item = item,
             .reduction = df_scatter_reduction(call->attributes, call->n_attributes),
             .join = join_of(y->dtype)};
  const int64_t tasks = df_task_count(call, e.count, DF_GRAIN / 4);
  l.splits = df_min(l.inner, df_max(1, tasks / l.outer));
  df_parallel(call, lanes_task, &l, df_min(l.outer * l.splits, tasks));
  return DF_OK;
}

static df_status scatter_nd_run(const df_call *call) {
  const df_entries e = df_entries_by_coordinates(call);
  return scatter(call, &e, "scatter_nd");
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts_scatter(const df_node *node) {
  if (!join_of(node->inputs[0]->dtype) &&
      df_scatter_reduction(node->attributes, node->n_attributes) != DF_SCATTER_REPLACE)
    return "only float32, float64 and integers are reduced";
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
