/* conv/shifted.cu: sums of shifted planes with weights; a convolution and its gradient by the input
 * are both that. Each is a product out = weight * planes, whose right factor is never written: a
 * block finds where its elements lie while it loads a slice.
 *
 *   forward     rows filters, columns (image, o), k (channel, tap); reads x at
 *               o stride - pad + t dilation
 *   transposed  rows channels, columns (image, i), k (filter, tap); reads dy at
 *               (i + pad - t dilation) / stride. Positions i that agree modulo the stride are one
 *               product, with those taps that make the quotient an integer: nothing is multiplied
 *               that isn't there.
 */
#include "conv/planes.h"

enum {
  FEW_CHANNELS = 48,  /* up to here, and where 16 doesn't divide them, blocks would waste much */
  LEAST_COLUMNS = 32, /* of an image, worth a product of its own */
};

/* ---- What the products are ------------------------------------------------------------------ */

static int32_t common_divisor(int32_t a, int32_t b) { return b ? common_divisor(b, a % b) : a; }

/* Distances of the axes of an image or a window. */
static void strides_of(const int32_t (&sizes)[DF_AXES], int32_t (&strides)[DF_AXES]) {
  strides[2] = 1;
  strides[1] = sizes[2];
  strides[0] = sizes[1] * sizes[2];
}

/* What of a product along one axis is the same in all phases: how many taps, positions. */
struct phase {
  int32_t first_tap, tap_step, taps; /* of the window */
  int32_t first, positions;          /* of dx */
  int32_t begin;                     /* in dy, of the first position and tap */
};

/* Positions i with (i + pad) % stride == |residue|, and the taps that meet dy there. */
static phase phase_of(const df_conv &conv, int axis, int32_t residue) {
  const int32_t stride = conv.stride[axis], dilation = conv.dilation[axis], pad = conv.pad[axis];
  phase out{};
  out.first = ((residue - pad) % stride + stride) % stride;
  out.positions = out.first < conv.in[axis] ? (conv.in[axis] - out.first + stride - 1) / stride : 0;
  out.tap_step = stride / common_divisor(stride, dilation);
  while (out.first_tap < out.tap_step &&
         static_cast<int64_t>(out.first_tap) * dilation % stride != residue)
    out.first_tap++;
  if (out.first_tap < out.tap_step && out.first_tap < conv.kernel[axis])
    out.taps = (conv.kernel[axis] - out.first_tap + out.tap_step - 1) / out.tap_step;
  out.begin = (out.first + pad - (out.taps ? out.first_tap : 0) * dilation);
  out.begin = out.taps ? out.begin / stride : 0; /* an integer */
  return out;
}

static bool is_blocked(int64_t channels) {
  return channels % DF_TILE_DEPTH == 0 || channels > FEW_CHANNELS;
}

/* k rounded up to blocks of channels. */
static int64_t depth_of(int64_t channels, int64_t taps) {
  return is_blocked(channels) ? df_divide_up(channels, DF_TILE_DEPTH) * DF_TILE_DEPTH * taps
                              : channels * taps;
}

static df_planes forward_planes(const df_conv &conv) {
  df_planes p{};
  p.rows = conv.filters;
  p.channels = conv.channels;
  p.columns = conv.batch * conv.out_size;
  p.k = depth_of(conv.channels, conv.taps);
  int32_t out_strides[DF_AXES];
  strides_of(conv.in, p.from_stride);
  strides_of(conv.out, out_strides);
  strides_of(conv.kernel, p.weight_tap);
  for (int axis = 0; axis < DF_AXES; axis++) {
    p.taps[axis] = df_divisor_of(conv.kernel[axis]);
    p.positions[axis] = df_divisor_of(conv.out[axis]);
    p.tap_step[axis] = conv.dilation[axis];
    p.position_step[axis] = conv.stride[axis];
    p.position_begin[axis] = -conv.pad[axis];
    p.size[axis] = conv.in[axis];
    p.out_position[axis] = out_strides[axis];
  }
  p.from_channel = static_cast<int32_t>(conv.in_size);
  p.from_group = conv.channels * conv.in_size;
  p.from_image = conv.groups * p.from_group;
  p.weight_row = static_cast<int32_t>(conv.channels * conv.taps);
  p.weight_channel = static_cast<int32_t>(conv.taps);
  p.weight_group = conv.filters * p.weight_row;
  p.out_row = static_cast<int32_t>(conv.out_size);
  p.out_group = conv.filters * conv.out_size;
  p.out_image = conv.groups * p.out_group;
  return p;
}

static df_planes transposed_planes(const df_conv &conv, const phase (&phases)[DF_AXES]) {
  df_planes p{};
  p.rows = conv.channels;
  p.channels = conv.filters;
  p.columns = conv.batch;
  int64_t taps = 1;
  int32_t in_strides[DF_AXES], tap_strides[DF_AXES];
  strides_of(conv.out, p.from_stride);
  strides_of(conv.in, in_strides);
  strides_of(conv.kernel, tap_strides);
  for (int axis = 0; axis < DF_AXES; axis++) {
    const phase &own = phases[axis];
    p.columns *= own.positions;
    taps *= own.taps;
    p.taps[axis] = df_divisor_of(df_max(1, own.taps));
    p.positions[axis] = df_divisor_of(df_max(1, own.positions));
    p.tap_step[axis] = -own.tap_step * conv.dilation[axis] / conv.stride[axis];
    p.position_step[axis] = 1;
    p.position_begin[axis] = own.begin;
    p.size[axis] = conv.out[axis];
    p.weight_tap[axis] = own.tap_step * tap_strides[axis];
    p.weight_begin += own.first_tap * tap_strides[axis];
    p.out_begin += static_cast<int64_t>(own.first) * in_strides[axis];
    p.out_position[axis] = conv.stride[axis] * in_strides[axis];
  }
  p.k = depth_of(conv.filters, taps);
  p.from_channel = static_cast<int32_t>(conv.out_size);
  p.from_group = conv.filters * conv.out_size;
  p.from_image = conv.groups * p.from_group;
  p.weight_row = static_cast<int32_t>(conv.taps);
  p.weight_channel = static_cast<int32_t>(conv.channels * conv.taps);
  p.weight_group = conv.filters * p.weight_channel;
  p.out_row = static_cast<int32_t>(conv.in_size);
  p.out_group = conv.channels * conv.in_size;
  p.out_image = conv.groups * p.out_group;
  return p;
}

/* ---- Running -------------------------------------------------------------------------------- */

/* Windows of one element: a product per image, when images are large. */
static bool is_pointwise(const df_conv &conv) {
  bool plain = conv.groups == 1 && conv.taps == 1 && conv.out_size >= LEAST_COLUMNS;
  for (int axis = 0; axis < DF_AXES; axis++)
    plain = plain && conv.stride[axis] == 1 && conv.pad[axis] == 0 && conv.pad_end[axis] == 0;
  return plain;
}

static df_gemm pointwise(const df_conv &conv, bool transposed, float *out, const float *from,
                         const float *weight, const df_gemm_end &end) {
  const int64_t rows = transposed ? conv.channels : conv.filters;
  const int64_t depth = transposed ? conv.filters : conv.channels;
  df_gemm g = df_gemm_of(out, weight, from, rows, conv.out_size, depth);
  if (transposed) {
    g.a_row = 1;
    g.a_col = conv.channels;
  }
  g.end = end;
  g.products = conv.batch;
  if (conv.batch > 1) {
    g.batch.rank = 1;
    g.batch.shape[0] = conv.batch;
    g.batch.divisor[0] = df_divisor_of(conv.batch);
    g.batch.strides[1][0] = depth * conv.in_size;
  }
  df_gemm_plan(&g);
  return g;
}

static int64_t floats_of(const df_conv &conv, bool transposed) {
  return conv.batch * conv.groups *
         (transposed ? conv.channels * conv.in_size : conv.filters * conv.out_size);
}

/* How a product is split and tiled; all phases alike. */
static df_gemm_tiling tiling_of(const df_conv &conv, bool transposed) {
  if (!transposed)
    return df_gemm_tiling_of(conv.filters, conv.batch * conv.out_size,
                             depth_of(conv.channels, conv.taps), conv.groups);
  int64_t columns = conv.batch, taps = 1, phases = 1;
  for (int axis = 0; axis < DF_AXES; axis++) {
    columns *= df_divide_up(conv.in[axis], conv.stride[axis]);
    taps *=
        df_divide_up(conv.kernel[axis],
                     conv.stride[axis] / common_divisor(conv.stride[axis], conv.dilation[axis]));
    phases *= conv.stride[axis];
  }
  return df_gemm_tiling_of(conv.channels, columns, depth_of(conv.filters, taps),
                           conv.groups * phases);
}

int64_t df_conv_shifted_workspace(const df_conv &conv, bool transposed) {
  if (is_pointwise(conv)) {
    const df_gemm g = pointwise(conv, transposed, nullptr, nullptr, nullptr, df_gemm_end{});
    return df_gemm_workspace(&g);
  }
  const df_gemm_tiling tiling = tiling_of(conv, transposed);
  return tiling.splits > 1
             ? tiling.splits * floats_of(conv, transposed) * static_cast<int64_t>(sizeof(float))
             : 0;
}

template <typename T> static df_status launch_tile(const df_call *call, df_planes &p) {
  const int64_t down = df_divide_up(p.rows, T::ROWS), across = df_divide_up(p.columns, T::COLUMNS);
  const int64_t blocks = down * across * p.splits * p.groups;
  if (blocks == 0)
    return DF_OK;
  if (blocks > INT32_MAX)
    return df_fail(call, DF_UNSUPPORTED, "a convolution of %lld tiles is too large",
                   static_cast<long long>(blocks));
  p.tile_rows = df_divisor_of(down);
  const unsigned grid = static_cast<unsigned>(blocks);
  if (is_blocked(p.channels))
    return DF_LAUNCH(call, (convolve<T, true>), grid, T::THREADS, 0, p);
  return DF_LAUNCH(call, (convolve<T, false>), grid, T::THREADS, 0, p);
}

/* One product, put where |own| says. */
static df_status launch(const df_call *call, df_planes &p, const df_planes &own, int32_t tile) {
  p.out = own.out;
  p.from = own.from;
  p.weight = own.weight;
  p.end = own.end;
  p.groups = own.groups;
  p.splits = own.splits;
  p.total = own.total;
  p.fours = own.fours;
  p.split_k = df_divide_up(df_divide_up(p.k, p.splits), DF_TILE_DEPTH) * DF_TILE_DEPTH;
  switch (tile) {
  case DF_TILE_LARGE:
    return launch_tile<df_tile_large>(call, p);
  case DF_TILE_SMALL:
    return launch_tile<df_tile_small>(call, p);
  default:
    return launch_tile<df_tile_thin>(call, p);
  }
}

static df_status launch_phases(const df_call *call, const df_conv &conv, const df_planes &own,
                               int32_t tile) {
  phase phases[DF_AXES];
  df_status status = DF_OK;
  for (int32_t z = 0; z < conv.stride[0]; z++)
    for (int32_t y = 0; y < conv.stride[1]; y++)
      for (int32_t x = 0; x < conv.stride[2] && !status; x++) {
        phases[0] = phase_of(conv, 0, z);
        phases[1] = phase_of(conv, 1, y);
        phases[2] = phase_of(conv, 2, x);
        df_planes p = transposed_planes(conv, phases);
        status = launch(call, p, own, tile);
      }
  return status;
}

df_status df_conv_shifted(const df_call *call, const df_conv &conv, bool transposed, float *out,
                          const float *from, const float *weight, const df_gemm_end &end) {
  const int64_t total = floats_of(conv, transposed);
  if (total == 0)
    return DF_OK;
  if (is_pointwise(conv)) {
    const df_gemm g = pointwise(conv, transposed, out, from, weight, end);
    return df_gemm_run(call, &g, call->workspace);
  }
  const df_gemm_tiling tiling = tiling_of(conv, transposed);
  const int64_t plane = transposed ? conv.in_size : conv.out_size;
  df_planes own{};
  own.out = tiling.splits > 1 ? static_cast<float *>(call->workspace) : out;
  own.from = from;
  own.weight = weight;
  own.end = end;
  own.groups = conv.groups;
  own.splits = tiling.splits;
  own.total = total;
  own.fours = plane % 4 == 0 && df_is_aligned<4>(own.out);
  for (int axis = 0; axis < DF_AXES; axis++)
    own.fours = own.fours && (!transposed || conv.stride[axis] == 1);
  df_status status;
  if (transposed) {
    status = launch_phases(call, conv, own, tiling.tile);
  } else {
    df_planes p = forward_planes(conv);
    status = launch(call, p, own, tiling.tile);
  }
  if (status || tiling.splits == 1)
    return status;
  const int64_t channels = conv.groups * (transposed ? conv.channels : conv.filters);
  return df_conv_finish(call, out, own.out, tiling.splits, total, plane, channels, end);
}
