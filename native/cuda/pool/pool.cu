/* pool/pool.cu: maxima and means over windows of (N, C, spatial...), and the gradient of the means.
 *
 *   max_pool       y = largest of the window, the first of equals; NaN wins. indices: where it is
 * in the plane, -1 where the window lies entirely in the padding avg_pool       y = sum of the
 * window / count; count is of the elements inside, or inside the padding too avg_pool_grad  dx =
 * sum of dy / count over the windows that an element lies in, in the order of
 * y
 *
 * A thread computes one element; what neighbours read in common comes from the cache.
 */
#include "map/map.h"

enum { AXES = 3 };

/* Windows on a plane; one or two axes have leading ones of size 1. Output o of an axis reads inputs
 * o * stride - pad + tap * dilation; those outside are padding. */
struct window {
  int32_t in[AXES], out[AXES], kernel[AXES], stride[AXES], pad[AXES], pad_end[AXES], dilation[AXES];
  int64_t in_size, out_size; /* products */
  int64_t padded;            /* of the spans of the axes, see df_span */
};

struct job {
  window w;
  float *to;
  int32_t *indices; /* max_pool; may be null */
  const float *from;
  int64_t count;             /* of elements of |to| */
  df_divisor divisors[AXES]; /* of the sizes of |to|: plane, slice, row */
  int32_t index64;
  int32_t pads_count; /* avg: padding counts */
};

/* ---- Geometry ------------------------------------------------------------------------------- */

/* Of kernel, strides, pads and dilations from attribute |first| on. */
template <typename N>
static window window_of(const N *call, int32_t first, const int64_t *in, const int64_t *out,
                        int32_t rank) {
  const int64_t *kernel = df_attr_ints(call, first + DF_MAX_POOL_KERNEL, nullptr);
  const int64_t *strides = df_attr_ints(call, first + DF_MAX_POOL_STRIDES, nullptr);
  const int64_t *pads = df_attr_ints(call, first + DF_MAX_POOL_PADS, nullptr);
  const int64_t *dilations = df_attr_ints(call, first + DF_MAX_POOL_DILATIONS, nullptr);
  const int32_t axes = rank - 2;
  window w{};
  w.in_size = w.out_size = w.padded = 1;
  for (int32_t i = 0; i < AXES; i++) {
    const int32_t from = i - (AXES - axes);
    const bool real = from >= 0;
    w.in[i] = static_cast<int32_t>(real ? in[2 + from] : 1);
    w.out[i] = static_cast<int32_t>(real ? out[2 + from] : 1);
    w.kernel[i] = static_cast<int32_t>(real ? kernel[from] : 1);
    /* A single output or tap has no next. */
    const bool moves = real && out[2 + from] > 1, dilates = real && kernel[from] > 1;
    const int64_t stride = moves && strides ? strides[from] : 1;
    const int64_t dilation = dilates && dilations ? dilations[from] : 1;
    if (real)
      w.padded = df_times(w.padded,
                          df_span(in[2 + from], pads ? pads[from] : 0, pads ? pads[axes + from] : 0,
                                  out[2 + from], stride, kernel[from], dilation));
    w.stride[i] = static_cast<int32_t>(stride);
    w.pad[i] = static_cast<int32_t>(real && pads ? pads[from] : 0);
    w.pad_end[i] = static_cast<int32_t>(real && pads ? pads[axes + from] : 0);
    w.dilation[i] = static_cast<int32_t>(dilation);
    w.in_size *= w.in[i];
    w.out_size *= w.out[i];
  }
  return w;
}

static __device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ int divide_up(int a, int b) { return (a + b - 1) / b; }

/* Taps [*begin, *end) of output |o| of an axis that are inside; returns where tap 0 lies. */
static __device__ __forceinline__ int taps(const window &w, int axis, int o, int *begin, int *end) {
  const int start = o * w.stride[axis] - w.pad[axis], step = w.dilation[axis];
  *begin = start >= 0 ? 0 : divide_up(-start, step);
  *end = start >= w.in[axis] ? 0 : smaller(w.kernel[axis], divide_up(w.in[axis] - start, step));
  if (*end < *begin)
    *end = *begin;
  return start;
}

/* What a sum over the windows at |o| of an axis is divided by. With |pads_count| taps count up to
 * the end of the padding: the last window may reach beyond it when sizes were rounded up. */
static __device__ __forceinline__ int counted(const window &w, int axis, int o, int pads_count) {
  int begin, end;
  if (pads_count) {
    const int extent = w.in[axis] + w.pad[axis] + w.pad_end[axis] - o * w.stride[axis];
    return extent <= 0 ? 0 : smaller(w.kernel[axis], divide_up(extent, w.dilation[axis]));
  }
  taps(w, axis, o, &begin, &end);
  return end - begin;
}

/* Plane and position in it of element |i|. */
static __device__ __forceinline__ int64_t position(const job &j, const int32_t (&size)[AXES],
                                                   int64_t i, int (&at)[AXES]) {
  for (int axis = AXES - 1; axis >= 0; axis--) {
    const int64_t rest =
        j.index64 ? i / size[axis]
                  : static_cast<int64_t>(df_divide(static_cast<uint32_t>(i), j.divisors[axis]));
    at[axis] = static_cast<int>(i - rest * size[axis]);
    i = rest;
  }
  return i;
}

/* ---- Kernels -------------------------------------------------------------------------------- */

template <bool maximum> __global__ void __launch_bounds__(DF_BLOCK) pool(job j) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i >= j.count)
    return;
  const window &w = j.w;
  int o[AXES], begin[AXES], end[AXES], start[AXES], count = 1;
  const float *x = j.from + position(j, w.out, i, o) * w.in_size;
#pragma unroll
  for (int axis = 0; axis < AXES; axis++) {
    start[axis] = taps(w, axis, o[axis], &begin[axis], &end[axis]);
    if (!maximum)
      count *= counted(w, axis, o[axis], j.pads_count);
  }
  float best = maximum ? -INFINITY : 0.0f;
  int index = -1;
  for (int a = begin[0]; a < end[0]; a++)
    for (int b = begin[1]; b < end[1]; b++) {
      const int row =
          ((start[0] + a * w.dilation[0]) * w.in[1] + start[1] + b * w.dilation[1]) * w.in[2] +
          start[2];
      for (int c = begin[2]; c < end[2]; c++) {
        const int at = row + c * w.dilation[2];
        const float value = x[at];
        if (!maximum) {
          best += value;
        } else if (index < 0 || (!(value <= best) && best == best)) {
          best = value; /* !(value <= best) also holds for a NaN; a NaN found before stays */
          index = at;
        }
      }
    }
  if (!maximum)
    best = count ? best / static_cast<float>(count) : 0.0f;
  j.to[i] = best;
  if (maximum && j.indices)
    j.indices[i] = index;
}

/* Outputs [*begin, *end) of an axis whose windows may have input |at|. */
static __device__ __forceinline__ void windows_over(const window &w, int axis, int at, int *begin,
                                                    int *end) {
  const int first = at + w.pad[axis] - (w.kernel[axis] - 1) * w.dilation[axis];
  *begin = first <= 0 ? 0 : divide_up(first, w.stride[axis]);
  *end = smaller(w.out[axis], (at + w.pad[axis]) / w.stride[axis] + 1);
}

/* Whether the window at |o| has input |at|, between whose taps others lie. */
static __device__ __forceinline__ bool has(const window &w, int axis, int o, int at) {
  return w.dilation[axis] == 1 || (at + w.pad[axis] - o * w.stride[axis]) % w.dilation[axis] == 0;
}

__global__ void __launch_bounds__(DF_BLOCK) avg_gradient(job j) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i >= j.count)
    return;
  const window &w = j.w;
  int at[AXES], begin[AXES], end[AXES];
  const float *dy = j.from + position(j, w.in, i, at) * w.out_size;
#pragma unroll
  for (int axis = 0; axis < AXES; axis++)
    windows_over(w, axis, at[axis], &begin[axis], &end[axis]);
  float sum = 0.0f;
  for (int a = begin[0]; a < end[0]; a++) {
    const int slices = has(w, 0, a, at[0]) ? counted(w, 0, a, j.pads_count) : 0;
    for (int b = begin[1]; b < end[1] && slices; b++) {
      const int rows = has(w, 1, b, at[1]) ? slices * counted(w, 1, b, j.pads_count) : 0;
      for (int c = begin[2]; c < end[2] && rows; c++) {
        const int count = has(w, 2, c, at[2]) ? rows * counted(w, 2, c, j.pads_count) : 0;
        if (count)
          sum += dy[(a * w.out[1] + b) * w.out[2] + c] / static_cast<float>(count);
      }
    }
  }
  j.to[i] = sum;
}

/* ---- Running -------------------------------------------------------------------------------- */

static job job_of(const df_call *call, const window &w, const int32_t (&size)[AXES]) {
  job j{};
  j.w = w;
  j.to = df_out<float>(call, 0);
  j.from = df_in<const float>(call, 0);
  j.count = df_elements(call->outputs[0]);
  j.index64 = j.count > INT32_MAX;
  for (int axis = 0; axis < AXES && j.count > 0; axis++)
    j.divisors[axis] = df_divisor_of(size[axis]);
  return j;
}

static df_status max_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const window w = window_of(call, DF_MAX_POOL_KERNEL, x->shape, y->shape, x->rank);
  job j = job_of(call, w, w.out);
  j.indices = df_out<int32_t>(call, 1);
  if (j.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, (pool<true>), df_blocks(j.count, DF_BLOCK), DF_BLOCK, 0, j);
}

static df_status avg_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const window w = window_of(call, DF_MAX_POOL_KERNEL, x->shape, y->shape, x->rank);
  job j = job_of(call, w, w.out);
  j.pads_count = df_attr_int(call, DF_AVG_POOL_COUNT_INCLUDE_PAD) != 0;
  if (j.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, (pool<false>), df_blocks(j.count, DF_BLOCK), DF_BLOCK, 0, j);
}

static df_status avg_grad_run(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  const window w = window_of(call, DF_AVG_POOL_GRAD_KERNEL, dx->shape, dy->shape, dx->rank);
  job j = job_of(call, w, w.in);
  j.pads_count = df_attr_int(call, DF_AVG_POOL_GRAD_COUNT_INCLUDE_PAD) != 0;
  if (j.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, avg_gradient, df_blocks(j.count, DF_BLOCK), DF_BLOCK, 0, j);
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts_planes(const df_node *node, int32_t first, const df_operand *x,
                                  const df_operand *y) {
  if (x->rank < 3 || x->rank > 2 + AXES)
    return "only one to three spatial axes are supported";
  const char *reason = df_accepts_elements(node);
  if (reason)
    return reason;
  const window w = window_of(node, first, x->shape, y->shape, x->rank);
  return w.padded > INT32_MAX / 2 ? "a plane with its padding has too many elements" : nullptr;
}
static const char *accepts(const df_node *node) {
  return accepts_planes(node, DF_MAX_POOL_KERNEL, node->inputs[0], node->outputs[0]);
}
static const char *accepts_grad(const df_node *node) {
  return accepts_planes(node, DF_AVG_POOL_GRAD_KERNEL, node->outputs[0], node->inputs[0]);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("max_pool", "f32", "f32->f32,i32?", nullptr, .accepts = accepts, .run = max_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("avg_pool", "f32", "f32->f32", nullptr, .accepts = accepts, .run = avg_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("avg_pool_grad", "f32", "f32->f32", nullptr, .accepts = accepts_grad,
                   .run = avg_grad_run, .capturable = 1)};
DF_CUDA_FAMILY(pool, records);
