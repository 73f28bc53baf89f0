/* dataflow_inline.h: accessors and helpers for authors of kernels; C11 and C++. */
#ifndef DATAFLOW_INLINE_H
#define DATAFLOW_INLINE_H

#include "dataflow.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The one symbol of a plugin library, visible however the library is compiled. */
#ifdef __cplusplus
extern "C"
#endif
    __attribute__((visibility("default"))) const df_plugin *df_plugin_entry(const df_host *host);

/* ---- Growth ---------------------------------------------------------------------------------- */

/* Whether |table|, a pointer to a struct of the other side, is so long that it has |member|; for
 * members that came after 2.0: DF_HAS(df_device, device, memory). */
#define DF_HAS(type, table, member)                                                                \
  ((table)->struct_size >= offsetof(type, member) + sizeof((table)->member))

/* Copies a struct of the other side into |own| of |size| bytes: what is longer is left out, what is
 * missing becomes 0, and struct_size is |size|: df_run own; df_take(&own, sizeof own, run); */
static inline void df_take(void *own, size_t size, const void *given) {
  uint32_t length;
  const uint32_t written = (uint32_t)size;
  memcpy(&length, given, sizeof length);
  memset(own, 0, size);
  memcpy(own, given, length < size ? length : size);
  memcpy(own, &written, sizeof written);
}

/* Puts a message into the call's error and returns |code|: return df_fail(call, DF_INVALID, "...").
 */
static inline df_status df_fail(const df_call *call, df_status code, const char *format, ...) {
  if (call->error) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->error->text, sizeof call->error->text, format, arguments);
    va_end(arguments);
    call->error->code = code;
  }
  return code;
}

/* ---- Attributes ------------------------------------------------------------------------------
 *
 * |of| points to a df_call or a df_node, |index| counts in the order of the op's declaration. All
 * that it declares are there: defaults are filled in before a kernel is asked. */

/* An attribute when it is of |kind|, else null. */
static inline const df_attribute *df_attribute_of(const df_attribute *const *attributes,
                                                  int32_t count, int32_t index, int32_t kind) {
  return index < count && attributes[index]->kind == kind ? attributes[index] : 0;
}

/* A whole number, a bool (0 or 1) or a dtype. */
static inline int64_t df_attribute_int(const df_attribute *const *attributes, int32_t count,
                                       int32_t index) {
  const df_attribute *found = df_attribute_of(attributes, count, index, DF_ATTR_INT);
  return found ? found->i : 0;
}
#define df_attr_int(of, index) df_attribute_int((of)->attributes, (of)->n_attributes, index)

static inline double df_attribute_float(const df_attribute *const *attributes, int32_t count,
                                        int32_t index) {
  const df_attribute *found = df_attribute_of(attributes, count, index, DF_ATTR_FLOAT);
  return found ? found->f : 0.0;
}
#define df_attr_float(of, index) df_attribute_float((of)->attributes, (of)->n_attributes, index)

/* A list of whole numbers; null when it is empty. Its length is put into |length|, if not null. */
static inline const int64_t *df_attribute_ints(const df_attribute *const *attributes, int32_t count,
                                               int32_t index, int32_t *length) {
  const df_attribute *found = df_attribute_of(attributes, count, index, DF_ATTR_INTS);
  if (length)
    *length = found ? found->count : 0;
  return found && found->count > 0 ? found->ints : 0;
}
#define df_attr_ints(of, index, length)                                                            \
  df_attribute_ints((of)->attributes, (of)->n_attributes, index, length)

static inline const char *df_attribute_text(const df_attribute *const *attributes, int32_t count,
                                            int32_t index) {
  const df_attribute *found = df_attribute_of(attributes, count, index, DF_ATTR_STRING);
  return found ? found->s : "";
}
#define df_attr_text(of, index) df_attribute_text((of)->attributes, (of)->n_attributes, index)

/* True when a text is |text|. */
#define df_attr_is(of, index, text) (!strcmp(df_attr_text(of, index), text))

/* |axis| counted from the front. */
static inline int64_t df_axis_of(int64_t axis, int32_t rank) {
  return axis < 0 ? axis + rank : axis;
}
/* The axis that an attribute names, counted from the front. */
#define df_axis(of, index, rank) df_axis_of(df_attr_int(of, index), rank)

/* ---- What a kernel asks for ------------------------------------------------------------------ */

/* Asks, in a kernel's prepare, for a prepacked copy of |input|: see df_prepack. At most
 * DF_MOST_PREPACKS of a kernel. */
static inline void df_ask_prepack(df_prepared *out, int32_t input, int32_t kind, int64_t bytes,
                                  void (*prepack)(const df_node *node, void *state,
                                                  const void *source, void *prepacked)) {
  df_prepack *next = out->prepacks[out->n_prepacks++];
  next->input = input;
  next->kind = kind;
  next->bytes = bytes;
  next->prepack = prepack;
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

/* a * b of sizes that are not negative; INT64_MAX where that does not fit. For what depends on
 * several operands: amounts of work and workspaces. (The sizes of one operand, none below 1, have a
 * product of 2^52 at most.) */
static inline int64_t df_times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* a + b, likewise. */
static inline int64_t df_plus(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* Number of elements. */
static inline int64_t df_elements(const df_tensor *tensor) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < tensor->rank; axis++)
    count *= tensor->shape[axis];
  return count;
}

/* Product of shape[begin..end). */
static inline int64_t df_product(const int64_t *shape, int64_t begin, int64_t end) {
  int64_t product = 1;
  for (int64_t axis = begin; axis < end; axis++)
    product *= shape[axis];
  return product;
}

static inline int64_t df_operand_elements(const df_operand *operand) {
  int64_t count = 1;
  for (int32_t axis = 0; axis < operand->rank; axis++)
    count *= operand->shape[axis];
  return count;
}

static inline int df_is_empty(const df_operand *operand) {
  return operand->dtype != DF_NONE && df_operand_elements(operand) == 0;
}

/* accepts: refuses operands without elements, so that sizes can be divided by. A node whose results
 * are all empty runs no kernel, so this leaves sums over nothing and the like to the reference. */
static inline const char *df_accepts_elements(const df_node *node) {
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (df_is_empty(node->inputs[i]))
      return "an operand has no elements";
  for (int32_t i = 0; i < node->n_outputs; i++)
    if (df_is_empty(node->outputs[i]))
      return "a result has no elements";
  return 0;
}

/* Bytes of one element: one where it has 4 or 2 bits; 0 for strings, which no kernel sees. */
static inline int64_t df_item_bytes(int32_t dtype) {
  switch (dtype) {
  case DF_INT8:
  case DF_UINT8:
  case DF_BOOL:
  case DF_FLOAT8E4M3FN:
  case DF_FLOAT8E4M3FNUZ:
  case DF_FLOAT8E5M2:
  case DF_FLOAT8E5M2FNUZ:
  case DF_FLOAT8E8M0:
  case DF_FLOAT4E2M1:
  case DF_INT4:
  case DF_UINT4:
  case DF_INT2:
  case DF_UINT2:
    return 1;
  case DF_FLOAT16:
  case DF_BFLOAT16:
  case DF_INT16:
  case DF_UINT16:
    return 2;
  case DF_FLOAT32:
  case DF_INT32:
  case DF_UINT32:
    return 4;
  case DF_FLOAT64:
  case DF_INT64:
  case DF_UINT64:
  case DF_COMPLEX64:
    return 8;
  case DF_COMPLEX128:
    return 16;
  default:
    return 0;
  }
}

/* Elements that an axis of |in| elements spans with its padding, and what |out| windows of |kernel|
 * taps reach; INT64_MAX where that does not fit. */
static inline int64_t df_span(int64_t in, int64_t pad, int64_t pad_end, int64_t out, int64_t stride,
                              int64_t kernel, int64_t dilation) {
  const int64_t padded = df_plus(df_plus(in, pad), pad_end);
  const int64_t reach =
      df_plus(df_plus(df_times(out - 1, stride), df_times(kernel - 1, dilation)), 1);
  return padded > reach ? padded : reach;
}

/* True when the elements lie in row-major order without gaps. */
static inline int df_contiguous(const df_tensor *tensor) {
  int64_t expected = 1;
  for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
    if (tensor->shape[axis] != 1 && tensor->strides[axis] != expected)
      return 0;
    expected *= tensor->shape[axis];
  }
  return 1;
}

#endif
