/* shape/shape.c: ops that only move elements: copy, concat, pad, slice_grad. */
#include "shape/copy.h"

/* Strides of a contiguous tensor. */
static void contiguous_strides(int64_t *strides, const int64_t *shape, int32_t rank) {
  int64_t stride = 1;
  for (int32_t axis = rank - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
}

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

/* ---- Filling -------------------------------------------------------------------------------- */

/* n elements of |item| bytes, all |value| (null: zero bytes). */
static void fill(char *to, const void *value, int64_t n, int64_t item) {
  if (n <= 0)
    return;
  if (!value)
    memset(to, 0, (size_t)(n * item));
  else
    df_copy_row(to, 1, value, 0, n, item);
}

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

/* ---- slice_grad(dy; shape, starts, stops, steps) -> dx ----------------------------------------
 * Zeros of |shape| with dy placed where the slice read. */

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

/* ---- pad(x, value?; pads, mode) -> y -----------------------------------------------------------
 * pads: what is added before each axis, then after each; negative crops x first. Along an axis of n
 * elements, index i outside 0..n-1 is filled with |value| ("constant"), the nearest end ("edge"),
 * the mirror image about the ends ("reflect") or the axis again ("wrap"). Done row by row of the
 * last axis. */

typedef enum pad_mode { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_WRAP } pad_mode;

typedef struct pad_context {
  const df_tensor *y;
  const char *from; /* the first element that is kept */
  const void *value;
  int64_t sizes[DF_WALK_RANK]; /* of what is kept of x */
  int64_t strides[DF_WALK_RANK], before[DF_WALK_RANK];
  int64_t item;
  int64_t rows;
  pad_mode mode;
} pad_context;

/* The source of index i, -1 when it is filled. */
static int64_t pad_source(int64_t i, int64_t n, pad_mode mode) {
  if (i >= 0 && i < n)
    return i;
  if (mode == PAD_CONSTANT)
    return -1;
  if (mode == PAD_EDGE)
    return i < 0 ? 0 : n - 1;
  if (mode == PAD_WRAP)
    return (i % n + n) % n;
  const int64_t period = 2 * (n - 1);
  if (period == 0)
    return 0;
  i = (i % period + period) % period;
  return i < n ? i : period - i;
}

static void pad_range(const pad_context *pad, char *to, const char *from, int64_t begin,
                      int64_t end, int64_t n) {
  if (pad->mode == PAD_CONSTANT)
    fill(to, pad->value, end - begin, pad->item);
  else
    for (int64_t i = begin; i < end; i++)
      memcpy(to + (i - begin) * pad->item, from + pad_source(i, n, pad->mode) * pad->item,
             (size_t)pad->item);
}

static void pad_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const pad_context *pad = context;
  const df_tensor *y = pad->y;
  const int32_t last = y->rank - 1;
  DF_ASSUME(last >= 0 && last < DF_WALK_RANK);
  const int64_t item = pad->item, width = y->shape[last], n = pad->sizes[last];
  /* In coordinates of x, the row of y runs from |left| to |right|; [low, high) lies in x. */
  const int64_t left = -pad->before[last], right = left + width;
  const int64_t low = df_min(df_max(left, 0), right), high = df_max(low, df_min(right, n));
  int64_t row, end;
  df_task_range(index, count, pad->rows, 1, &row, &end);
  for (; row < end; row++) {
    char *to = (char *)y->data + row * width * item;
    int64_t offset = 0;
    int outside = 0;
    for (int64_t axis = last - 1, rest = row; axis >= 0; axis--) {
      const int64_t at = rest % y->shape[axis] - pad->before[axis];
      rest /= y->shape[axis];
      const int64_t source = pad_source(at, pad->sizes[axis], pad->mode);
      outside |= source < 0;
      offset += source * pad->strides[axis];
    }
    if (outside) {
      fill(to, pad->value, width, item);
      continue;
    }
    const char *from = pad->from + offset * item;
    pad_range(pad, to, from, left, low, n);
    if (high > low)
      df_copy_row(to + (low - left) * item, 1, from + low * item, 1, high - low, item);
    pad_range(pad, to + (high - left) * item, from, high, right, n);
  }
}

static df_status pad_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  int32_t n_pads;
  const int64_t *pads = df_attr_ints(call, DF_PAD_PADS, &n_pads);
  const char *mode = df_attr_text(call, DF_PAD_MODE);
  pad_context pad = {.y = y, .from = x->data, .item = df_item_bytes(y->dtype)};
  if (n_pads != 2 * x->rank || x->rank > DF_WALK_RANK)
    return df_fail(call, DF_INVALID, "pad: %d pads for %d axes", n_pads, x->rank);
  if (!strcmp(mode, "constant"))
    pad.mode = PAD_CONSTANT;
  else if (!strcmp(mode, "edge"))
    pad.mode = PAD_EDGE;
  else if (!strcmp(mode, "reflect"))
    pad.mode = PAD_REFLECT;
  else if (!strcmp(mode, "wrap"))
    pad.mode = PAD_WRAP;
  else
    return df_fail(call, DF_UNSUPPORTED, "pad: mode \"%s\" is not known", mode);
  const int64_t elements = df_elements(y);
  if (elements == 0)
    return DF_OK;
  if (df_elements(x) == 0 && pad.mode != PAD_CONSTANT)
    return df_fail(call, DF_INVALID, "pad: mode \"%s\" needs elements to repeat, x has none", mode);
  if (call->n_inputs > 1)
    pad.value = call->inputs[1]->data;
  if (y->rank == 0) {
    memcpy(y->data, x->data, (size_t)pad.item);
    return DF_OK;
  }
  DF_ASSUME(x->rank == y->rank && x->rank > 0 && x->rank <= DF_WALK_RANK);
  contiguous_strides(pad.strides, x->shape, x->rank);
  for (int32_t axis = 0; axis < x->rank; axis++) {
    const int64_t first = df_max(-pads[axis], 0);
    pad.before[axis] = df_max(pads[axis], 0);
    pad.sizes[axis] = x->shape[axis] - first - df_max(-pads[axis + x->rank], 0);
    pad.from += first * pad.strides[axis] * pad.item;
  }
  pad.rows = elements / y->shape[y->rank - 1];
  df_parallel(call, pad_task, &pad,
              df_min(pad.rows, df_task_count(call, elements * pad.item, 4 * DF_GRAIN)));
  return DF_OK;
}

DF_KERNELS(shape) = {DF_KERNEL("copy", "any", "~any->~any", NULL, copy_run),
                     DF_KERNEL("concat", "any", "~any*->~any", NULL, concat_run),
                     DF_KERNEL("slice_grad", "any", "~any->any", NULL, slice_grad_run),
                     DF_KERNEL("pad", "any", "any,any?->any", NULL, pad_run), NULL};
