/* pool/resize.cu: weighted sums of a few elements along an axis; x is seen as (outer, size, inner).
 *
 *   resample       y[u, o, j] = sum over t of weight[o, t] x[u, index[o, t], j]
 *   resample_grad  dx[u, index[o, t], j] += weight[o, t] dy[u, o, j], from zero
 *
 * A thread computes one element. For the gradient a first launch strings the entries of the table
 * that name one element together, in the order of o and t, so that dx is gathered in that order. An
 * index outside the axis is a fault and then taken for 0, or left out of the gradient.
 */
#include "map/map.h"

struct sampling {
  float *out;
  const float *in;
  const int64_t *index;
  const float *weight;
  int32_t *first, *next; /* gradient: entries in the order of the table, -1: no more */
  int64_t results, taps; /* of the table */
  int64_t size;          /* of the axis that the index points into */
  int64_t inner, along;  /* along: size of the axis of |out| */
  int64_t count;         /* elements of |out| */
  df_divisor by_inner, by_along;
  int32_t index64;
  int32_t step;
  df_fault *fault;
};

/* Element (u, at, j) of |out|. */
struct position {
  int64_t u, at, j;
};

static __device__ __forceinline__ int64_t divide(const sampling &s, int64_t i, int64_t by,
                                                 df_divisor divisor) {
  return s.index64 ? i / by : static_cast<int64_t>(df_divide(static_cast<uint32_t>(i), divisor));
}

static __device__ __forceinline__ position position_of(const sampling &s, int64_t i) {
  const int64_t line = divide(s, i, s.inner, s.by_inner);
  const int64_t u = divide(s, line, s.along, s.by_along);
  return {u, line - u * s.along, i - line * s.inner};
}

__global__ void __launch_bounds__(DF_BLOCK) resample(sampling s) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i >= s.count)
    return;
  const position p = position_of(s, i);
  const float *x = s.in + p.u * s.size * s.inner + p.j;
  float sum = 0.0f;
  for (int64_t e = p.at * s.taps; e < (p.at + 1) * s.taps; e++) {
    int64_t from = s.index[e];
    if (from < 0 || from >= s.size) {
      df_fault_note(s.fault, s.step, from, s.size);
      from = 0;
    }
    sum = fmaf(s.weight[e], x[from * s.inner], sum);
  }
  s.out[i] = sum;
}

/* first[i], next[e]: a thread per element of the axis goes through the complete table, which its
 * block has in shared memory tile by tile. */
__global__ void __launch_bounds__(DF_BLOCK) string_together(sampling s) {
  DF_SHARED_ARRAY(int64_t, tile, [DF_BLOCK]);
  const int64_t own = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  const int64_t entries = s.results * s.taps;
  int64_t last = -1;
  for (int64_t base = 0; base < entries; base += DF_BLOCK) {
    if (base + threadIdx.x < entries) {
      const int64_t at = s.index[base + threadIdx.x];
      tile[threadIdx.x] = at;
      if (blockIdx.x == 0 && (at < 0 || at >= s.size))
        df_fault_note(s.fault, s.step, at, s.size);
    }
    __syncthreads();
    const int some = static_cast<int>(df_min(DF_BLOCK, entries - base));
    for (int k = 0; k < some && own < s.size; k++) { /* an index may be that of a thread behind */
      if (tile[k] != own)
        continue;
      *(last < 0 ? &s.first[own] : &s.next[last]) = static_cast<int32_t>(base + k);
      last = base + k;
    }
    __syncthreads();
  }
  if (own < s.size)
    *(last < 0 ? &s.first[own] : &s.next[last]) = -1;
}

__global__ void __launch_bounds__(DF_BLOCK) resample_gradient(sampling s) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i >= s.count)
    return;
  const position p = position_of(s, i);
  const float *dy = s.in + p.u * s.results * s.inner + p.j;
  float sum = 0.0f;
  for (int64_t e = s.first[p.at]; e >= 0; e = s.next[e])
    sum = fmaf(s.weight[e], dy[e / s.taps * s.inner], sum);
  s.out[i] = sum;
}

static sampling sampling_of(const df_call *call) {
  const df_tensor *index = call->inputs[1], *out = call->outputs[0];
  const int64_t axis = df_axis(call, DF_RESAMPLE_AXIS, out->rank);
  sampling s{};
  s.out = df_out<float>(call, 0);
  s.in = df_in<const float>(call, 0);
  s.index = df_in<const int64_t>(call, 1);
  s.weight = df_in<const float>(call, 2);
  s.results = index->shape[0];
  s.taps = index->shape[1];
  s.size = call->inputs[0]->shape[axis];
  s.inner = df_product(out->shape, axis + 1, out->rank);
  s.along = out->shape[axis];
  s.count = df_elements(out);
  s.index64 = s.count > INT32_MAX;
  if (!s.index64 && s.count > 0) {
    s.by_inner = df_divisor_of(s.inner);
    s.by_along = df_divisor_of(s.along);
  }
  s.fault = call->fault;
  s.step = call->step;
  return s;
}

static df_status resample_run(const df_call *call) {
  const sampling s = sampling_of(call);
  if (s.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, resample, df_blocks(s.count, DF_BLOCK), DF_BLOCK, 0, s);
}

static df_status grad_run(const df_call *call) {
  sampling s = sampling_of(call);
  if (s.count == 0)
    return DF_OK;
  s.size = s.along;
  s.first = static_cast<int32_t *>(call->workspace);
  s.next = s.first + s.size;
  const df_status status =
      DF_LAUNCH(call, string_together, df_blocks(s.size, DF_BLOCK), DF_BLOCK, 0, s);
  if (status)
    return status;
  return DF_LAUNCH(call, resample_gradient, df_blocks(s.count, DF_BLOCK), DF_BLOCK, 0, s);
}

/* Workspace for first and next. */
static df_status grad_prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *dx = node->outputs[0];
  const int64_t size = dx->shape[df_axis(node, DF_RESAMPLE_GRAD_AXIS, dx->rank)];
  out->workspace =
      (size + df_operand_elements(node->inputs[1])) * static_cast<int64_t>(sizeof(int32_t));
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  if (df_operand_elements(node->inputs[1]) > INT32_MAX)
    return "the table has more entries than an int32 can count";
  return node->inputs[1]->shape[1] < 1 ? "the table has no taps" : nullptr;
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("resample", "f32", "f32,i64,f32->f32", nullptr, .accepts = accepts,
                   .run = resample_run, .capturable = 1),
    DF_CUDA_KERNEL("resample_grad", "f32", "f32,i64,f32->f32", nullptr, .accepts = accepts,
                   .prepare = grad_prepare, .run = grad_run, .capturable = 1)};
DF_CUDA_FAMILY(resize, records);
