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
