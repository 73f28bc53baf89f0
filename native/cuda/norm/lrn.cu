/* norm/lrn.cu: local response normalization over channels, (N, C, inner).
 *
 *   scale[c] = bias + alpha / size * sum of x[j]^2 for j in [c - (size - 1) / 2, c + size / 2]
 *   y = x scale^-beta
 *   dx[c] = dy[c] scale[c]^-beta - 2 alpha beta / size x[c] * sum of dy[j] y[j] / scale[j] over the
 *           j whose window has c, which are [c - size / 2, c + (size - 1) / 2]
 *
 * A thread computes one element; the windows of neighbouring channels overlap, so that most of what
 * it reads comes from the cache.
 */
#include "map/map.h"

struct job {
  float *y, *scale; /* forward; scale may be null */
  float *dx;        /* backward */
  const float *dy, *x, *old_y, *old_scale;
  int64_t channels, inner, size, count;
  df_divisor by_channels, by_inner;
  int32_t index64;
  float factor, beta, bias; /* factor: alpha / size */
};

/* scale^-beta: square roots for the beta that models have. */
static __device__ __forceinline__ float inverse_power(float scale, float beta) {
  if (beta == 0.75f) {
    const float sqrt_scale = sqrtf(scale);
    return 1.0f / (sqrt_scale * sqrtf(sqrt_scale));
  }
  if (beta == 0.5f)
    return 1.0f / sqrtf(scale);
  return beta == 1.0f ? 1.0f / scale : powf(scale, -beta);
}

/* Channel |c| of element |i|, and the element of channel |other| at its position. */
struct position {
  int64_t c, base, inner;
  __device__ position(const job &j, int64_t i) : inner(j.inner) {
    const int64_t plane = divide(j, i, j.inner, j.by_inner);
    c = plane - divide(j, plane, j.channels, j.by_channels) * j.channels;
    base = i - c * j.inner;
  }
  __device__ static int64_t divide(const job &j, int64_t n, int64_t by, df_divisor divisor) {
    return j.index64 ? n / by : static_cast<int64_t>(df_divide(static_cast<uint32_t>(n), divisor));
  }
  __device__ int64_t of(int64_t other) const { return base + other * inner; }
};

__global__ void __launch_bounds__(DF_BLOCK) lrn_forward(job j) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i >= j.count)
    return;
  const position at(j, i);
  const int64_t last = df_min(j.channels - 1, at.c + j.size / 2);
  float sum = 0.0f;
  for (int64_t c = df_max(0, at.c - (j.size - 1) / 2); c <= last; c++) {
    const float x = j.x[at.of(c)];
    sum = fmaf(x, x, sum);
  }
  sum = j.bias + j.factor * sum;
  if (j.scale)
    j.scale[i] = sum;
  j.y[i] = j.x[i] * inverse_power(sum, j.beta);
}

__global__ void __launch_bounds__(DF_BLOCK) lrn_backward(job j) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i >= j.count)
    return;
  const position at(j, i);
  const int64_t last = df_min(j.channels - 1, at.c + (j.size - 1) / 2);
  float sum = 0.0f;
  for (int64_t c = df_max(0, at.c - j.size / 2); c <= last; c++) {
    const int64_t other = at.of(c);
    sum += j.dy[other] * j.old_y[other] / j.old_scale[other];
  }
  const float cross_term = 2.0f * j.factor * j.beta * j.x[i] * sum;
  j.dx[i] = j.dy[i] * inverse_power(j.old_scale[i], j.beta) - cross_term;
}

static job job_of(const df_call *call, const df_tensor *x) {
  job j{};
  j.x = static_cast<const float *>(x->data);
  j.channels = x->shape[1];
  j.inner = df_product(x->shape, 2, x->rank);
  j.count = df_elements(x);
  j.index64 = j.count > INT32_MAX;
  if (!j.index64 && j.count > 0) {
    j.by_channels = df_divisor_of(j.channels);
    j.by_inner = df_divisor_of(j.inner);
  }
  j.size = df_attr_int(call, DF_LRN_SIZE);
  j.factor = static_cast<float>(df_attr_float(call, DF_LRN_ALPHA) / static_cast<double>(j.size));
  j.beta = static_cast<float>(df_attr_float(call, DF_LRN_BETA));
  j.bias = static_cast<float>(df_attr_float(call, DF_LRN_BIAS));
  return j;
}

static df_status forward_run(const df_call *call) {
  job j = job_of(call, call->inputs[0]);
  j.y = df_out<float>(call, 0);
  j.scale = df_out<float>(call, 1);
  if (j.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, lrn_forward, df_blocks(j.count, DF_BLOCK), DF_BLOCK, 0, j);
}

static df_status backward_run(const df_call *call) {
  job j = job_of(call, call->inputs[1]);
  j.dx = df_out<float>(call, 0);
  j.dy = df_in<const float>(call, 0);
  j.old_y = df_in<const float>(call, 2);
  j.old_scale = df_in<const float>(call, 3);
  if (j.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, lrn_backward, df_blocks(j.count, DF_BLOCK), DF_BLOCK, 0, j);
}

static const char *accepts(const df_node *node) {
  return node->inputs[0]->rank < 2 ? "x must have a batch and a channel axis" : nullptr;
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("lrn", "f32", "f32->f32,f32?", nullptr, .accepts = accepts, .run = forward_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("lrn_grad", "f32", "f32,f32,f32,f32->f32", nullptr, .accepts = accepts,
                   .run = backward_run, .capturable = 1)};
DF_CUDA_FAMILY(lrn, records);
