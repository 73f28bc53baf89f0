/* conv/single_channel.cu: convolutions of images with one channel and small windows, y of channels
 * last, and dw.
 *
 * A thread has positions: it reads x from the cache once per tap, and has all taps of some filters
 * in registers. dw has few elements, each of them a sum over all positions of all images: blocks
 * leave partial sums, which a warp per element adds in their order. */
#include "conv/conv.h"

enum { THREADS = 256, WARPS = THREADS / DF_WARP, MOST_BLOCKS = 256, MOST_TAPS = 25, FEW = 8 };

struct single_tap {
  int32_t offset, shift[DF_AXES]; /* from the first tap on */
};

struct single_images {
  const float *x;
  uint32_t positions; /* of all images */
  int32_t filters, taps, in_size, out_size;
  df_divisor out[DF_AXES];
  int32_t stride[DF_AXES], pad[DF_AXES], size[DF_AXES], x_stride[DF_AXES];
  single_tap tap[MOST_TAPS];
};

struct single_gradient {
  single_images images;
  float *partials; /* a dw per split */
  const float *dy;
  int32_t filter_blocks, splits;
  bool fours; /* filters in fours, where they are last */
};

struct single_forward {
  single_images images;
  float *y;
  const float *weight;
  df_gemm_end end;
  uint32_t filter_blocks;
  bool fours;
};

/* What the window at a position reads; |image| is the one that it lies in. */
template <int TAPS>
static __device__ __forceinline__ void read_window(const single_images &p, uint32_t position,
                                                   float (&v)[TAPS], int64_t &image) {
  int32_t at[DF_AXES];
  image = df_split(position, p.out, at);
  int64_t offset = image * p.in_size;
#pragma unroll
  for (int axis = 0; axis < DF_AXES; axis++) {
    at[axis] = at[axis] * p.stride[axis] - p.pad[axis];
    offset += at[axis] * p.x_stride[axis];
  }
#pragma unroll
  for (int t = 0; t < TAPS; t++) {
    bool inside = t < p.taps;
#pragma unroll
    for (int axis = 0; axis < DF_AXES; axis++)
      inside = inside && static_cast<unsigned>(at[axis] + p.tap[t].shift[axis]) <
                             static_cast<unsigned>(p.size[axis]);
    v[t] = inside ? __ldg(p.x + offset + p.tap[t].offset) : 0.0f;
  }
}

/* dy of a position for some filters. */
template <bool LAST, int FILTERS>
static __device__ __forceinline__ void read_filters(const single_gradient &p, uint32_t position,
                                                    int64_t image, int first, float (&d)[FILTERS]) {
  const int64_t filters = p.images.filters, plane = p.images.out_size, step = LAST ? 1 : plane;
  const float *dy = LAST ? p.dy + static_cast<int64_t>(position) * filters + first
                         : p.dy + (image * (filters - 1) + first) * plane + position;
  if (LAST && p.fours) {
#pragma unroll
    for (int f = 0; f < FILTERS; f += 4) {
      const auto four = *reinterpret_cast<const df_vector<float, 4> *>(dy + f);
#pragma unroll
      for (int e = 0; e < 4; e++)
        d[f + e] = four.v[e];
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < FILTERS; f++)
    d[f] = first + f < filters ? __ldg(dy + f * step) : 0.0f;
}

template <bool LAST, int TAPS, int FILTERS>
__global__ void __launch_bounds__(THREADS) sum_windows(const __grid_constant__ single_gradient p) {
  DF_SHARED_ARRAY(float, scratch, [FILTERS * TAPS][WARPS]);
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t split = blockIdx.x / static_cast<uint32_t>(p.filter_blocks);
  const int first = static_cast<int>(blockIdx.x % static_cast<uint32_t>(p.filter_blocks)) * FILTERS;
  const uint32_t step = static_cast<uint32_t>(p.splits) * THREADS;
  float sums[FILTERS][TAPS] = {};
  for (uint32_t k = split * THREADS + static_cast<uint32_t>(thread); k < p.images.positions;
       k += step) {
    float v[TAPS];
    int64_t image;
    read_window(p.images, k, v, image);
    float d[FILTERS];
    read_filters<LAST>(p, k, image, first, d);
#pragma unroll
    for (int f = 0; f < FILTERS; f++)
#pragma unroll
      for (int t = 0; t < TAPS; t++)
        sums[f][t] = fmaf(d[f], v[t], sums[f][t]);
  }
#pragma unroll
  for (int i = 0; i < FILTERS * TAPS; i++) {
    const float joined = df_warp_join(sums[i / TAPS][i % TAPS], df_add{});
    if (thread % DF_WARP == 0)
      scratch[i][thread / DF_WARP] = joined;
  }
  __syncthreads();
  const int f = first + thread / TAPS, t = thread % TAPS;
  if (thread >= FILTERS * TAPS || f >= p.images.filters || t >= p.images.taps)
    return;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++)
    sum += scratch[thread][warp];
  p.partials[(static_cast<int64_t>(split) * p.images.filters + f) * p.images.taps + t] = sum;
}

/* dw = the sum of |splits| partial sums of |count| elements. */
__global__ void __launch_bounds__(THREADS)
    join_windows(float *dw, const float *partials, int64_t count, int32_t splits) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / DF_WARP;
  if (i >= count)
    return;
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  double sum = 0.0;
  for (int32_t split = lane; split < splits; split += DF_WARP)
    sum += static_cast<double>(partials[split * count + i]);
  sum = df_warp_join(sum, df_add{});
  if (lane == 0)
    dw[i] = static_cast<float>(sum);
}

/* A position per thread, FEW filters per block. */
template <int TAPS>
__global__ void __launch_bounds__(THREADS)
    convolve_windows(const __grid_constant__ single_forward p) {
  DF_SHARED_ARRAY(float, weight, [FEW][TAPS]);
  const int thread = static_cast<int>(threadIdx.x), filters = p.images.filters;
  const int first = static_cast<int>(blockIdx.x % p.filter_blocks) * FEW;
  for (int i = thread; i < FEW * TAPS; i += THREADS) {
    const int f = first + i / TAPS, t = i % TAPS;
    weight[i / TAPS][t] =
        f < filters && t < p.images.taps ? __ldg(p.weight + f * p.images.taps + t) : 0.0f;
  }
  __syncthreads();
  const uint32_t k = blockIdx.x / p.filter_blocks * THREADS + static_cast<uint32_t>(thread);
  if (k >= p.images.positions)
    return;
  float v[TAPS];
  int64_t image;
  read_window(p.images, k, v, image);
  df_vector<float, 4> sums[FEW / 4] = {};
#pragma unroll
  for (int f = 0; f < FEW; f++)
#pragma unroll
    for (int t = 0; t < TAPS; t++)
      sums[f / 4].v[f % 4] = fmaf(v[t], weight[f][t], sums[f / 4].v[f % 4]);
  const int64_t at = static_cast<int64_t>(k) * filters + first;
#pragma unroll
  for (int f = 0; f < FEW; f++)
    if (first + f < filters)
      sums[f / 4].v[f % 4] = p.end(sums[f / 4].v[f % 4], first + f, 0, at + f);
#pragma unroll
  for (int f = 0; f < FEW; f++)
    if (!p.fours && first + f < filters)
      p.y[at + f] = sums[f / 4].v[f % 4];
#pragma unroll
  for (int f = 0; f < FEW; f += 4)
    if (p.fours && first + f < filters)
      *reinterpret_cast<df_vector<float, 4> *>(p.y + at + f) = sums[f / 4];
}

/* ---- Running -------------------------------------------------------------------------------- */

bool df_conv_has_single_channel(const df_conv &conv) {
  return conv.groups == 1 && conv.channels == 1 && conv.taps <= MOST_TAPS;
}

static int32_t splits_of(const df_conv &conv) {
  return static_cast<int32_t>(
      df_min(MOST_BLOCKS, df_max(1, df_divide_up(conv.batch * conv.out_size, THREADS))));
}

int64_t df_conv_single_workspace(const df_conv &conv) {
  return splits_of(conv) * conv.filters * conv.taps * static_cast<int64_t>(sizeof(float));
}

static single_images images_of(const df_conv &conv, const float *x) {
  single_images p{};
  p.x = x;
  p.positions = static_cast<uint32_t>(conv.batch * conv.out_size);
  p.filters = static_cast<int32_t>(conv.filters);
  p.taps = static_cast<int32_t>(conv.taps);
  p.in_size = static_cast<int32_t>(conv.in_size);
  p.out_size = static_cast<int32_t>(conv.out_size);
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    p.out[axis] = df_divisor_of(df_max(1, conv.out[axis]));
    p.stride[axis] = conv.stride[axis];
    p.pad[axis] = conv.pad[axis];
    p.size[axis] = conv.in[axis];
    p.x_stride[axis] = axis == 2 ? 1 : p.x_stride[axis + 1] * conv.in[axis + 1];
  }
  for (int32_t t = 0; t < p.taps; t++) {
    int32_t rest = t;
    for (int axis = DF_AXES - 1; axis >= 0; axis--) {
      p.tap[t].shift[axis] = rest % conv.kernel[axis] * conv.dilation[axis];
      p.tap[t].offset += p.tap[t].shift[axis] * p.x_stride[axis];
      rest /= conv.kernel[axis];
    }
  }
  return p;
}

template <int TAPS, int FILTERS>
static df_status launch(const df_call *call, single_gradient &p, bool last) {
  p.filter_blocks = static_cast<int32_t>(df_divide_up(p.images.filters, FILTERS));
  p.fours = p.images.filters % FILTERS == 0 && df_is_aligned<4>(p.dy);
  const unsigned blocks = df_blocks(int64_t{p.splits} * p.filter_blocks, 1);
  return last ? DF_LAUNCH(call, (sum_windows<true, TAPS, FILTERS>), blocks, THREADS, 0, p)
              : DF_LAUNCH(call, (sum_windows<false, TAPS, FILTERS>), blocks, THREADS, 0, p);
}

df_status df_conv_single_weight(const df_call *call, const df_conv &conv, float *dw, const float *x,
                                const float *dy, bool last) {
  const int64_t count = conv.filters * conv.taps;
  if (count == 0)
    return DF_OK;
  single_gradient p{};
  p.images = images_of(conv, x);
  p.partials = static_cast<float *>(call->workspace);
  p.dy = dy;
  p.splits = splits_of(conv);
  const df_status status =
      conv.taps <= 9 ? launch<9, 8>(call, p, last) : launch<MOST_TAPS, 4>(call, p, last);
  return status ? status
                : DF_LAUNCH(call, join_windows, df_blocks(count, WARPS), THREADS, 0, dw,
                            static_cast<const float *>(p.partials), count, p.splits);
}

df_status df_conv_single(const df_call *call, const df_conv &conv, float *y, const float *x,
                         const float *weight, const df_gemm_end &end) {
  single_forward p{};
  p.images = images_of(conv, x);
  if (p.images.positions == 0 || p.images.filters == 0)
    return DF_OK;
  p.y = y;
  p.weight = weight;
  p.end = end;
  p.filter_blocks = static_cast<uint32_t>(df_divide_up(conv.filters, FEW));
  p.fours = conv.filters % 4 == 0 && df_is_aligned<4>(y);
  const unsigned blocks = df_blocks(df_divide_up(p.images.positions, THREADS) * p.filter_blocks, 1);
  return conv.taps <= 9 ? DF_LAUNCH(call, convolve_windows<9>, blocks, THREADS, 0, p)
                        : DF_LAUNCH(call, convolve_windows<MOST_TAPS>, blocks, THREADS, 0, p);
}
