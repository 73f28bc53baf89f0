/* conv/few_channels_grad.cu: the weight gradient of convolutions of images with one or few channels
 * and small windows. A thread has positions and one channel, and all taps of some filters in
 * registers; threads side by side have channels side by side. dw has few elements, each of them a
 * sum over all positions of all images: blocks leave partial sums, which a warp per element adds in
 * their order. */
#include "conv/few_channels.h"

enum { WARPS = int{THREADS} / int{DF_WARP}, FILL = 264 /* blocks */ };

struct few_gradient {
  few_images images;
  float *partials; /* a dw per split */
  const float *dy;
  int32_t filter_blocks, splits;
  bool fours; /* filters in fours, where they are last */
};

/* dy of a position for some filters. */
template <bool LAST, int FILTERS>
static __device__ __forceinline__ void read_filters(const few_gradient &p, uint32_t position,
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

/* How many of N sums a lane has behind |share_sums|. */
template <int N, int MASK, int ACROSS> struct shared_sums {
  static constexpr int COUNT = shared_sums<(N + 1) / 2, MASK / 2, ACROSS *(MASK > ACROSS)>::COUNT;
};
template <int N, int MASK> struct shared_sums<N, MASK, 0> {
  static constexpr int COUNT = N;
};

/* Sums over the lanes of a warp that differ in the bits from MASK down to ACROSS: each lane is left
 * with its share of them, |count| from |first| on, so that each step moves half of what is left. */
template <int MASK, int ACROSS, int N>
static __device__ __forceinline__ void share_sums(float (&v)[N], int lane, int &first, int &count) {
  if constexpr (MASK >= ACROSS) {
    constexpr int HALF = (N + 1) / 2;
    const bool upper = lane & MASK;
    float half[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      const float last = i + HALF < N ? v[i + HALF < N ? i + HALF : i] : 0.0f;
      half[i] = (upper ? last : v[i]) + __shfl_xor_sync(0xffffffffu, upper ? v[i] : last, MASK);
    }
    first += upper ? HALF : 0;
    count = upper ? count - HALF : count < HALF ? count : HALF;
    share_sums<MASK / 2, ACROSS>(half, lane, first, count);
#pragma unroll
    for (int i = 0; i < HALF; i++)
      v[i] = half[i];
  }
}

/* ACROSS threads have a position: its channels, made a power of two. */
template <bool LAST, int TAPS, int FILTERS, int ACROSS>
__global__ void __launch_bounds__(THREADS) sum_windows(const __grid_constant__ few_gradient p) {
  constexpr int SUMS = FILTERS * TAPS, DOWN = THREADS / ACROSS;
  DF_SHARED_ARRAY(float, scratch, [SUMS][WARPS][ACROSS]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % DF_WARP;
  const int channels = ACROSS == 1 ? 1 : p.images.channels, channel = thread % ACROSS;
  const uint32_t split = blockIdx.x / static_cast<uint32_t>(p.filter_blocks);
  const int block = static_cast<int>(blockIdx.x % static_cast<uint32_t>(p.filter_blocks));
  float sums[SUMS] = {};
  for (uint32_t k = split * DOWN + static_cast<uint32_t>(thread / ACROSS);
       k < p.images.positions && channel < channels; k += static_cast<uint32_t>(p.splits) * DOWN) {
    df_vector<float, 1> v[TAPS];
    int64_t image;
    read_window<TAPS, 1>(p.images, k, channel, v, image);
    float d[FILTERS];
    read_filters<LAST>(p, k, image, block * FILTERS, d);
#pragma unroll
    for (int f = 0; f < FILTERS; f++)
#pragma unroll
      for (int t = 0; t < TAPS; t++)
        sums[f * TAPS + t] = fmaf(d[f], v[t].v[0], sums[f * TAPS + t]);
  }
  int first = 0, count = SUMS;
  share_sums<DF_WARP / 2, ACROSS>(sums, lane, first, count);
#pragma unroll
  for (int i = 0; i < shared_sums<SUMS, DF_WARP / 2, ACROSS>::COUNT; i++)
    if (i < count)
      scratch[first + i][thread / DF_WARP][channel] = sums[i];
  __syncthreads();
  for (int i = thread; i < SUMS * ACROSS; i += THREADS) {
    const int c = i % ACROSS, f = block * FILTERS + i / ACROSS / TAPS, t = i / ACROSS % TAPS;
    if (c >= channels || f >= p.images.filters || t >= p.images.taps)
      continue;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
      sum += scratch[i / ACROSS][warp][c];
    const int64_t row = static_cast<int64_t>(split) * p.images.filters + f;
    p.partials[(row * p.images.taps + t) * channels + c] = sum;
  }
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

/* ---- Running -------------------------------------------------------------------------------- */

static int32_t across_of(const df_conv &conv) {
  int32_t across = 1;
  while (across < conv.channels)
    across *= 2;
  return across;
}

/* FEW filters a block: blocks for two on each multiprocessor of a large card. */
static int32_t splits_of(const df_conv &conv) {
  const int64_t threads = conv.batch * conv.out_size * across_of(conv);
  const int64_t most = df_max(1, FILL / df_max(1, df_divide_up(conv.filters, FEW)));
  return static_cast<int32_t>(df_min(most, df_max(1, df_divide_up(threads, THREADS))));
}

int64_t df_conv_few_workspace(const df_conv &conv) {
  return splits_of(conv) * conv.filters * conv.taps * conv.channels *
         static_cast<int64_t>(sizeof(float));
}

template <int TAPS, int FILTERS, int ACROSS>
static df_status launch(const df_call *call, few_gradient &p, bool last) {
  p.filter_blocks = static_cast<int32_t>(df_divide_up(p.images.filters, FILTERS));
  p.fours = p.images.filters % FILTERS == 0 && df_is_aligned<4>(p.dy);
  const unsigned blocks = df_blocks(int64_t{p.splits} * p.filter_blocks, 1);
  if constexpr (ACROSS == 1) {
    if (!last)
      return DF_LAUNCH(call, (sum_windows<false, TAPS, FILTERS, 1>), blocks, THREADS, 0, p);
  }
  return DF_LAUNCH(call, (sum_windows<true, TAPS, FILTERS, ACROSS>), blocks, THREADS, 0, p);
}

df_status df_conv_few_weight(const df_call *call, const df_conv &conv, float *dw, const float *x,
                             const float *dy, bool last) {
  const int64_t count = conv.filters * conv.taps * conv.channels;
  if (count == 0)
    return DF_OK;
  few_gradient p{};
  p.images = images_of(conv, x);
  p.partials = static_cast<float *>(call->workspace);
  p.dy = dy;
  p.splits = splits_of(conv);
  const int32_t across = across_of(conv);
  const df_status status = conv.taps > 9 ? launch<MOST_TAPS, 4, 1>(call, p, last)
                           : across == 1 ? launch<9, 8, 1>(call, p, last)
                           : across == 2 ? launch<9, 8, 2>(call, p, last)
                           : across == 4 ? launch<9, 8, 4>(call, p, last)
                                         : launch<9, 8, MOST_CHANNELS>(call, p, last);
  return status ? status
                : DF_LAUNCH(call, join_windows, df_blocks(count, WARPS), THREADS, 0, dw,
                            static_cast<const float *>(p.partials), count, p.splits);
}
