/* kernels/scatter.h: which elements tensors of indices name, for gather_elements, scatter_elements,
 * gather_nd and scatter_nd.
 *
 * Indices are a list of entries. An entry has |n| indices and names a row of |row| neighbouring
 * elements of the data: a single one, or what is left behind the coordinates. */
#ifndef DF_KERNELS_SCATTER_H
#define DF_KERNELS_SCATTER_H
#include "dataflow_inline.h"
#include "kernels/attributes.h"
#include "kernels/extremum.h"
#include "kernels/function.h"

#include <assert.h>

enum { DF_ENTRY_AXES = 16 };

typedef struct df_entries {
  const void *indices;
  int64_t count;      /* of entries */
  int64_t row;        /* elements that an entry names */
  int32_t dtype;      /* of the indices */
  int32_t by_element; /* the index replaces one coordinate of the entry's own position */
  int32_t axes;       /* of an entry's position */
  int32_t first, n;   /* the axes of the data that an entry's indices are for: [first, first + n) */
  int64_t sizes[DF_ENTRY_AXES];   /* of positions */
  int64_t strides[DF_ENTRY_AXES]; /* of the data, in elements */
  int64_t limits[DF_ENTRY_AXES];  /* sizes of the data */
} df_entries;

static inline df_entries df_entries_of(const df_tensor *data, const df_tensor *indices) {
  df_entries e;
  memset(&e, 0, sizeof e);
  e.indices = indices->data;
  e.dtype = indices->dtype;
  int64_t stride = 1;
  for (int32_t i = data->rank - 1; i >= 0; i--) {
    e.strides[i] = stride;
    e.limits[i] = data->shape[i];
    stride *= data->shape[i];
  }
  for (int32_t i = 0; i < indices->rank; i++)
    e.sizes[i] = indices->shape[i];
  return e;
}

/* Of gather_elements and scatter_elements: data and indices are the inputs 0 and 1. */
static inline df_entries df_entries_by_element(const df_call *call) {
  const df_tensor *data = call->inputs[0], *indices = call->inputs[1];
  static_assert((int)DF_GATHER_ELEMENTS_AXIS == (int)DF_SCATTER_ELEMENTS_AXIS, "read as one");
  df_entries e = df_entries_of(data, indices);
  e.by_element = 1;
  e.count = df_elements(indices);
  e.row = 1;
  e.axes = data->rank;
  e.first = (int32_t)df_axis(call, DF_GATHER_ELEMENTS_AXIS, data->rank);
  e.n = 1;
  return e;
}

/* Of gather_nd and scatter_nd. */
static inline df_entries df_entries_by_coordinates(const df_call *call) {
  const df_tensor *data = call->inputs[0], *indices = call->inputs[1];
  static_assert((int)DF_GATHER_ND_BATCH_DIMS == (int)DF_SCATTER_ND_BATCH_DIMS, "read as one");
  df_entries e = df_entries_of(data, indices);
  e.axes = indices->rank - 1;
  e.first = (int32_t)df_attr_int(call, DF_GATHER_ND_BATCH_DIMS);
  e.n = (int32_t)indices->shape[e.axes];
  e.count = df_product(indices->shape, 0, e.axes);
  e.row = df_product(data->shape, e.first + e.n, data->rank);
  return e;
}

/* accepts: refuses more axes than df_entries has. */
static inline const char *df_entries_accepts(const df_node *node) {
  if (node->inputs[0]->rank > DF_ENTRY_AXES || node->inputs[1]->rank > DF_ENTRY_AXES)
    return "an operand has too many axes";
  return 0;
}

/* Index |i| of all, as it is given: from the front or the back, not checked. */
DF_FN int64_t df_entries_index(const df_entries *e, int64_t i) {
  return e->dtype == DF_INT32 ? ((const int32_t *)e->indices)[i] : ((const int64_t *)e->indices)[i];
}

/* The element of the data where entry |i| would begin if its indices were 0. */
DF_FN int64_t df_entries_offset(const df_entries *e, int64_t i) {
  int64_t offset = 0, rest = i;
  for (int32_t axis = e->axes - 1; axis >= 0; axis--) {
    const int64_t own = rest % e->sizes[axis];
    rest /= e->sizes[axis];
    if (e->by_element ? axis != e->first : axis < e->first)
      offset += own * e->strides[axis];
  }
  return offset;
}

/* ---- Reductions ----------------------------------------------------------------------------- */

/* What becomes of an element and an update of it. */
enum {
  DF_SCATTER_REPLACE = 0,
  DF_SCATTER_ADD = 1,
  DF_SCATTER_MUL = 2,
  DF_SCATTER_MAX = 3,
  DF_SCATTER_MIN = 4
};

/* The reduction that the attribute of scatter_elements or scatter_nd names. */
static inline int32_t df_scatter_reduction(const df_attribute *const *attributes, int32_t count) {
  static_assert((int)DF_SCATTER_ELEMENTS_REDUCTION == (int)DF_SCATTER_ND_REDUCTION, "read as one");
  static const char *const names[] = {"none", "add", "mul", "max", "min"};
  const char *text = df_attribute_text(attributes, count, DF_SCATTER_ND_REDUCTION);
  for (int32_t i = DF_SCATTER_ADD; i <= DF_SCATTER_MIN; i++)
    if (!strcmp(text, names[i]))
      return i;
  return DF_SCATTER_REPLACE;
}

DF_FN float df_scatter_join(float a, float b, int32_t reduction) {
  switch (reduction) {
  case DF_SCATTER_ADD:
    return a + b;
  case DF_SCATTER_MUL:
    return a * b;
  case DF_SCATTER_MAX:
    return DF_MAXIMUM(a, b);
  case DF_SCATTER_MIN:
    return DF_MINIMUM(a, b);
  default:
    return b;
  }
}

#endif
