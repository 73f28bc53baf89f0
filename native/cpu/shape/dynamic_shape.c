/* shape/dynamic_shape.c: nonzero(x; count) -> y (rank, count): the positions of the elements that
 * are not zero, in row-major order. |count| is an attribute, and another number is an error. */
#include "cpu.h"

enum { MOST_AXES = 16 };

/* Whether element |i| is not zero; -0.0 is zero. */
static int is_nonzero(const df_tensor *x, int64_t i) {
  switch (x->dtype) {
  case DF_FLOAT32:
    return ((const float *)x->data)[i] != 0.0f;
  case DF_FLOAT64:
    return ((const double *)x->data)[i] != 0.0;
  case DF_INT32:
    return ((const int32_t *)x->data)[i] != 0;
  case DF_INT64:
    return ((const int64_t *)x->data)[i] != 0;
  default:
    return ((const uint8_t *)x->data)[i] != 0;
  }
}

static df_status nonzero_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const int64_t count = y->shape[1], total = df_elements(x);
  int64_t position[MOST_AXES] = {0};
  int64_t *out = y->data, found = 0;
  const int32_t rank = x->rank;
  DF_ASSUME(rank >= 0 && rank <= MOST_AXES);
  for (int64_t i = 0; i < total; i++) {
    if (is_nonzero(x, i)) {
      for (int32_t axis = 0; axis < rank && found < count; axis++)
        out[axis * count + found] = position[axis];
      found++;
    }
    for (int32_t axis = rank - 1; axis >= 0 && ++position[axis] == x->shape[axis]; axis--)
      position[axis] = 0;
  }
  if (found != count)
    return df_fail(call, DF_INVALID, "nonzero: %lld elements are not zero; count is %lld",
                   (long long)found, (long long)count);
  return DF_OK;
}

static const char *nonzero_accepts(const df_node *node) {
  return node->inputs[0]->rank > MOST_AXES ? "the operand has too many axes" : NULL;
}

DF_KERNELS(dynamic_shape) = {DF_KERNEL_IF("nonzero", "any", "f32|f64|i32|i64|bool|u8->i64", NULL,
                                          nonzero_accepts, nonzero_run),
                             NULL};
