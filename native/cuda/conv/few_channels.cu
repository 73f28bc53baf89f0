/* conv/few_channels.cu: convolutions of images with one or few channels and small windows, y of
 * channels last. A thread has a position, for which it reads x from the cache once per tap and
 * channel. */
#include "conv/few_channels.h"

struct few_forward {
  few_images images;
  float *y;
  const float *weight;
  df_gemm_end end;
  uint32_t filter_blocks;
  bool fours;
};

/* A position per thread, FEW filters per block; V channels are read together. */
template <int TAPS, int V>
__global__ void __launch_bounds__(THREADS) convolve_windows(const __grid_constant__ few_forward p) {
  typedef df_vector<float, 4> four;
  DF_SHARED_ARRAY(four, weight, [MOST_CHANNELS][TAPS][FEW / 4]);
  const int thread = static_cast<int>(threadIdx.x), filters = p.images.filters;
  const int channels = p.images.channels;
  const int first = static_cast<int>(blockIdx.x % p.filter_blocks) * FEW;
  for (int i = thread; i < channels * TAPS * FEW; i += THREADS) {
    const int e = i % FEW, f = first + e, t = i / FEW % TAPS, c = i / (FEW * TAPS);
    weight[c][t][e / 4].v[e % 4] = f < filters && t < p.images.taps
                                       ? __ldg(p.weight + (f * p.images.taps + t) * channels + c)
                                       : 0.0f;
  }
  __syncthreads();
  const uint32_t k = blockIdx.x / p.filter_blocks * THREADS + static_cast<uint32_t>(thread);
  if (k >= p.images.positions)
    return;
  four sums[FEW / 4] = {};
#pragma unroll 1
  for (int c = 0; c < channels; c += V) {
    df_vector<float, V> v[TAPS];
    int64_t image;
    read_window<TAPS, V>(p.images, k, c, v, image);
#pragma unroll
    for (int e = 0; e < V; e++)
#pragma unroll
      for (int t = 0; t < TAPS; t++)
#pragma unroll
        for (int j = 0; j < FEW / 4; j++) {
          const four w = weight[c + e][t][j];
#pragma unroll
          for (int f = 0; f < 4; f++)
            sums[j].v[f] = fmaf(v[t].v[e], w.v[f], sums[j].v[f]);
        }
  }
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
      *reinterpret_cast<four *>(p.y + at + f) = sums[f / 4];
}

/* ---- Running -------------------------------------------------------------------------------- */

bool df_conv_has_single_channel(const df_conv &conv) {
  return conv.groups == 1 && conv.channels == 1 && conv.taps <= MOST_TAPS;
}
/* More channels where the products are so few that float32 arithmetic has them in less time than
 * the vendor's kernels of tensor cores take at least: on an H100 57 us for a weight gradient of 70
 * million, with the copies around it. */
bool df_conv_has_few_channels(const df_conv &conv) {
  enum { TAPS = 9, FILTERS = 32 };
  constexpr double MOST_PRODUCTS = 1 << 28;
  const double products = static_cast<double>(conv.batch * conv.out_size) *
                          static_cast<double>(conv.channels * conv.filters * conv.taps);
  return df_conv_has_single_channel(conv) ||
         (conv.groups == 1 && conv.channels <= MOST_CHANNELS && conv.taps <= TAPS &&
          conv.filters <= FILTERS && products <= MOST_PRODUCTS);
}

df_status df_conv_few(const df_call *call, const df_conv &conv, float *y, const float *x,
                      const float *weight, const df_gemm_end &end) {
  few_forward p{};
  p.images = images_of(conv, x);
  if (p.images.positions == 0 || p.images.filters == 0)
    return DF_OK;
  p.y = y;
  p.weight = weight;
  p.end = end;
  p.filter_blocks = static_cast<uint32_t>(df_divide_up(conv.filters, FEW));
  p.fours = conv.filters % 4 == 0 && df_is_aligned<4>(y);
  const unsigned blocks = df_blocks(df_divide_up(p.images.positions, THREADS) * p.filter_blocks, 1);
  if (conv.taps > 9)
    return DF_LAUNCH(call, (convolve_windows<MOST_TAPS, 1>), blocks, THREADS, 0, p);
  return conv.channels % 4 == 0 && df_is_aligned<4>(x)
             ? DF_LAUNCH(call, (convolve_windows<9, 4>), blocks, THREADS, 0, p)
             : DF_LAUNCH(call, (convolve_windows<9, 1>), blocks, THREADS, 0, p);
}
