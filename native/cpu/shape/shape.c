/* shape/shape.c: ops that only move elements: copy, concat, slice_grad. */
#include "shape/copy.h"

/* ---- copy: y = x, both with any strides ----------------------------------------------------- */

static df_status copy_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const int64_t item = df_item_bytes(y->dtype), bytes = df_elements(y) * item;
  if (bytes < DF_GRAIN && df_contiguous(x) && df_contiguous(y)) {
    if (bytes && y->data != x->data)
      memcpy(y->data, x->data, (size_t)bytes);
    return DF_OK;
  }
  df_copy_box(call, y->data, y->strides, x->data, x->strides, y->shape, y->rank, item);
  return DF_OK;
}

/* ---- concat(xs...; axis): the inputs one behind another along |axis| ------------------------ */

static df_status concat_run(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_CONCAT_AXIS, y->rank), item = df_item_bytes(y->dtype);
  char *to = y->data;
  for (int32_t i = 0; i < call->n_inputs; i++) {
    const df_tensor *x = call->inputs[i];
    df_copy_box(call, to, y->strides, x->data, x->strides, x->shape, x->rank, item);
    to += x->shape[axis] * y->strides[axis] * item;
  }
  return DF_OK;
}

/* ---- slice_grad(dy; shape, starts, stops, steps) -> dx ----------------------------------------
 * Zeros of |shape| with dy placed where the slice read. */

typedef struct zero_context {
  char *to;
  int64_t bytes;
} zero_context;

static void zero_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const zero_context *zero = context;
  int64_t begin, end;
  df_task_range(index, count, zero->bytes, 4096, &begin, &end);
  if (begin < end)
    memset(zero->to + begin, 0, (size_t)(end - begin));
}

static df_status slice_grad_run(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  const int64_t item = df_item_bytes(dx->dtype);
  int32_t n_starts, n_steps;
  const int64_t *starts = df_attr_ints(call, DF_SLICE_GRAD_STARTS, &n_starts),
                *steps = df_attr_ints(call, DF_SLICE_GRAD_STEPS, &n_steps);
  if (n_starts != dx->rank || n_steps != dx->rank || dx->rank > DF_WALK_RANK)
    return df_fail(call, DF_INVALID, "slice_grad: %d starts and %d steps for %d axes", n_starts,
                   n_steps, dx->rank);
  zero_context zero = {dx->data, df_elements(dx) * item};
  df_parallel(call, zero_task, &zero, df_task_count(call, zero.bytes, 4 * DF_GRAIN));
  DF_ASSUME(dx->rank == dy->rank);
  int64_t strides[DF_WALK_RANK], first = 0;
  for (int32_t axis = 0; axis < dx->rank; axis++) {
    first += starts[axis] * dx->strides[axis];
    /* One element has no next: its step may be one that no distance holds. */
    strides[axis] = dy->shape[axis] > 1 ? steps[axis] * dx->strides[axis] : 0;
  }
  if (df_elements(dy) > 0)
    df_copy_box(call, (char *)dx->data + first * item, strides, dy->data, dy->strides, dy->shape,
                dy->rank, item);
  return DF_OK;
}

DF_KERNELS(shape) = {DF_KERNEL("copy", "any", "~any->~any", NULL, copy_run),
                     DF_KERNEL("concat", "any", "~any*->~any", NULL, concat_run),
                     DF_KERNEL("slice_grad", "any", "~any->any", NULL, slice_grad_run), NULL};
