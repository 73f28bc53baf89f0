/* conv/grad_weight.cu: dw[f, c, t...] = sum over n, o... of dy[n, f, o] * x[n, c, o * stride - pad
 * + t * dilation].
 *
 * A product dw = dy x' per group: rows filters, columns (channel, tap), k (image, o), whose right
 * factor is never written. Neighbouring threads read neighbouring positions; what belongs to a
 * column stays in shared memory. k is split, and the partial sums are added in their order. */
#include "conv/conv.h"
#include "gemm/tile.h"

/* A column: where its tap lies from a position on, and its offset in an image. */
struct alignas(16) tap_column {
  int32_t offset, shift[DF_AXES];
};

struct correlation {
  float *out; /* dw, or the splits' partial sums */
  const float *x, *dy;
  int64_t rows, columns, k, groups;
  df_divisor positions[DF_AXES], taps[DF_AXES];
  int32_t stride[DF_AXES], pad[DF_AXES], dilation[DF_AXES], size[DF_AXES], x_stride[DF_AXES];
  int32_t y_stride[DF_AXES];
  int32_t in_size, out_size;
  int64_t x_image, x_group, dy_image, dy_group;
  int32_t splits;
  int64_t split_k;
  uint32_t tiles_down, tiles_across;
};

/* The factors of one block. A thread loads one k, of several rows and columns. */
template <typename T> struct correlated {
  static constexpr int STEP = T::THREADS / DF_TILE_DEPTH;
  static constexpr int A_COUNT = df_share<T, T::ROWS>::SINGLES,
                       B_COUNT = df_share<T, T::COLUMNS>::SINGLES;
  const correlation *p;
  const float *x, *dy;       /* of the group; dy of this thread's first row */
  const tap_column *columns; /* in shared memory, from this thread's first one on */
  int rows, left;            /* rows and columns from this thread's first one on */
  int32_t end;
  int64_t x_offset; /* of the slice that is fetched */
  int coordinate[DF_AXES];
  bool there;

  __device__ __forceinline__ void fetch_a(float (&v)[df_share<T, T::ROWS>::CAPACITY], int32_t k) {
    k += static_cast<int>(threadIdx.x) % DF_TILE_DEPTH;
    there = k < end;
    int32_t digit[DF_AXES];
    const int64_t image = df_split(static_cast<uint32_t>(there ? k : 0), p->positions, digit);
    x_offset = image * p->x_image;
    int64_t y_offset = image * p->dy_image;
#pragma unroll
    for (int axis = 0; axis < DF_AXES; axis++) {
      coordinate[axis] = digit[axis] * p->stride[axis] - p->pad[axis];
      x_offset += coordinate[axis] * p->x_stride[axis];
      y_offset += digit[axis] * p->y_stride[axis];
    }
    const float *at = dy + y_offset;
    const int64_t step = static_cast<int64_t>(STEP) * p->out_size;
#pragma unroll
    for (int f = 0; f < A_COUNT; f++) {
      v[f] = there && f * STEP < rows ? __ldg(at) : 0.0f;
      at += step;
    }
  }

  __device__ __forceinline__ void fetch_b(float (&v)[df_share<T, T::COLUMNS>::CAPACITY], int32_t) {
    const float *at = x + x_offset;
#pragma unroll
    for (int f = 0; f < B_COUNT; f++) {
      const tap_column column = columns[f * STEP];
      bool on = there && f * STEP < left;
#pragma unroll
      for (int axis = 0; axis < DF_AXES; axis++)
        on = on && static_cast<unsigned>(coordinate[axis] + column.shift[axis]) <
                       static_cast<unsigned>(p->size[axis]);
      v[f] = on ? __ldg(at + column.offset) : 0.0f;
    }
  }

  __device__ __forceinline__ void store_a(float *to,
                                          const float (&v)[df_share<T, T::ROWS>::CAPACITY]) const {
    const int thread = static_cast<int>(threadIdx.x);
    to += thread % DF_TILE_DEPTH * (T::ROWS + DF_TILE_GAP) + thread / DF_TILE_DEPTH;
#pragma unroll
    for (int f = 0; f < A_COUNT; f++)
      to[f * STEP] = v[f];
  }
  __device__ __forceinline__ void
  store_b(float *to, const float (&v)[df_share<T, T::COLUMNS>::CAPACITY]) const {
    const int thread = static_cast<int>(threadIdx.x);
    to += thread % DF_TILE_DEPTH * (T::COLUMNS + DF_TILE_GAP) + thread / DF_TILE_DEPTH;
#pragma unroll
    for (int f = 0; f < B_COUNT; f++)
      to[f * STEP] = v[f];
  }
};

/* A block per tile, split of k and group; the sums of a split lie as dw does. */
template <typename T>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT)
    correlate(const __grid_constant__ correlation p) {
  DF_SHARED_ARRAY(tap_column, columns, [T::COLUMNS]);
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t tiles = p.tiles_down * p.tiles_across, tile = blockIdx.x % tiles;
  const uint32_t rest = blockIdx.x / tiles;
  const int64_t split = rest % static_cast<uint32_t>(p.splits),
                group = rest / static_cast<uint32_t>(p.splits);
  const int64_t row = static_cast<int64_t>(tile % p.tiles_down) * T::ROWS;
  const int64_t column = static_cast<int64_t>(tile / p.tiles_down) * T::COLUMNS;

  for (int j = thread; j < T::COLUMNS; j += T::THREADS) {
    int32_t digit[DF_AXES];
    tap_column &own = columns[j];
    own.offset = df_split(static_cast<uint32_t>(df_min(column + j, p.columns - 1)), p.taps, digit) *
                 p.in_size;
    for (int axis = 0; axis < DF_AXES; axis++) {
      own.shift[axis] = digit[axis] * p.dilation[axis];
      own.offset += own.shift[axis] * p.x_stride[axis];
    }
  }
  __syncthreads();

  const int32_t begin = static_cast<int32_t>(split * p.split_k);
  const int first = thread / DF_TILE_DEPTH;
  correlated<T> load;
  load.p = &p;
  load.x = p.x + group * p.x_group;
  load.dy = p.dy + group * p.dy_group + (row + first) * p.out_size;
  load.columns = columns + first;
  load.rows = static_cast<int>(p.rows - row - first);
  load.left = static_cast<int>(p.columns - column - first);
  load.end = static_cast<int32_t>(df_min(p.k, split * p.split_k + p.split_k));
  float sums[T::DOWN][T::ACROSS] = {};
  df_tile_sum<T>(sums, load, begin, load.end);

  float *out = p.out + (split * p.groups + group) * p.rows * p.columns;
  const int64_t first_row = row + df_tile_row<T>(), first_column = column + df_tile_column<T>();
#pragma unroll
  for (int i = 0; i < T::DOWN; i++)
#pragma unroll
    for (int j = 0; j < T::ACROSS; j++) {
      const int64_t at_row = first_row + df_tile_down(i), at = first_column + df_tile_across(j);
      if (at_row < p.rows && at < p.columns)
        out[at_row * p.columns + at] = sums[i][j];
    }
}

/* ---- Running -------------------------------------------------------------------------------- */

static df_gemm_tiling tiling_of(const df_conv &conv) {
  return df_gemm_tiling_of(conv.filters, conv.channels * conv.taps, conv.batch * conv.out_size,
                           conv.groups);
}

int64_t df_conv_weight_workspace(const df_conv &conv) {
  if (df_conv_has_single_channel(conv))
    return df_conv_few_workspace(conv);
  const df_gemm_tiling tiling = tiling_of(conv);
  const int64_t weights = conv.groups * conv.filters * conv.channels * conv.taps;
  return tiling.splits > 1 ? tiling.splits * weights * static_cast<int64_t>(sizeof(float)) : 0;
}

template <typename T> static df_status launch_tile(const df_call *call, correlation &p) {
  p.tiles_down = static_cast<uint32_t>(df_divide_up(p.rows, T::ROWS));
  p.tiles_across = static_cast<uint32_t>(df_divide_up(p.columns, T::COLUMNS));
  const int64_t blocks = static_cast<int64_t>(p.tiles_down) * p.tiles_across * p.splits * p.groups;
  return DF_LAUNCH(call, correlate<T>, df_blocks(blocks, 1), T::THREADS, 0, p);
}

df_status df_conv_weight(const df_call *call, const df_conv &conv, float *dw, const float *x,
                         const float *dy) {
  if (df_conv_has_single_channel(conv))
    return df_conv_few_weight(call, conv, dw, x, dy, false);
  const df_gemm_tiling tiling = tiling_of(conv);
  correlation p{};
  p.out = tiling.splits > 1 ? static_cast<float *>(call->workspace) : dw;
  p.x = x;
  p.dy = dy;
  p.rows = conv.filters;
  p.columns = conv.channels * conv.taps;
  p.k = conv.batch * conv.out_size;
  p.groups = conv.groups;
  p.splits = tiling.splits;
  p.split_k = tiling.split_k;
  if (p.rows * p.columns * p.groups == 0)
    return DF_OK;
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    p.positions[axis] = df_divisor_of(df_max(1, conv.out[axis]));
    p.taps[axis] = df_divisor_of(df_max(1, conv.kernel[axis]));
    p.stride[axis] = conv.stride[axis];
    p.pad[axis] = conv.pad[axis];
    p.dilation[axis] = conv.dilation[axis];
    p.size[axis] = conv.in[axis];
    p.x_stride[axis] = axis == 2 ? 1 : p.x_stride[axis + 1] * conv.in[axis + 1];
    p.y_stride[axis] = axis == 2 ? 1 : p.y_stride[axis + 1] * conv.out[axis + 1];
  }
  p.in_size = static_cast<int32_t>(conv.in_size);
  p.out_size = static_cast<int32_t>(conv.out_size);
  p.x_group = conv.channels * conv.in_size;
  p.x_image = conv.groups * p.x_group;
  p.dy_group = conv.filters * conv.out_size;
  p.dy_image = conv.groups * p.dy_group;
  df_status status = tiling.tile == DF_TILE_LARGE   ? launch_tile<df_tile_large>(call, p)
                     : tiling.tile == DF_TILE_SMALL ? launch_tile<df_tile_small>(call, p)
                                                    : launch_tile<df_tile_thin>(call, p);
  return status || tiling.splits == 1
             ? status
             : df_gemm_join(call, dw, p.out, tiling.splits, p.groups * p.rows * p.columns);
}
