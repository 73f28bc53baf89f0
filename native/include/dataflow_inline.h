/* dataflow_inline.h: accessors and helpers for authors of kernels; C11 and C++. */
#ifndef DATAFLOW_INLINE_H
#define DATAFLOW_INLINE_H

#include "dataflow.h"

#include <stdarg.h>
#include <stdio.h>

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

/* Attribute |index| in the order of the op's declaration; |otherwise| when it is absent. */
static inline int64_t df_attr_int(const df_call *call, int32_t index, int64_t otherwise) {
  if (index >= call->n_attributes || call->attributes[index].kind != DF_ATTR_INT)
    return otherwise;
  return call->attributes[index].i;
}

static inline double df_attr_float(const df_call *call, int32_t index, double otherwise) {
  if (index >= call->n_attributes || call->attributes[index].kind != DF_ATTR_FLOAT)
    return otherwise;
  return call->attributes[index].f;
}

/* The list and, in |count|, its length; null and 0 when absent. */
static inline const int64_t *df_attr_ints(const df_call *call, int32_t index, int32_t *count) {
  if (index >= call->n_attributes || call->attributes[index].kind != DF_ATTR_INTS) {
    *count = 0;
    return 0;
  }
  *count = call->attributes[index].count;
  return call->attributes[index].ints;
}

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
    if (df_is_empty(&node->inputs[i]))
      return "an operand has no elements";
  for (int32_t i = 0; i < node->n_outputs; i++)
    if (df_is_empty(&node->outputs[i]))
      return "a result has no elements";
  return 0;
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
