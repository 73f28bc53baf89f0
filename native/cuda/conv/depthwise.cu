/* conv/depthwise.cu: convolution of each channel by itself, and its gradients: filters per group F,
 * one channel. Sums are short, so that reading and writing the images is what takes time;
 * neighbouring threads have neighbouring columns. */
#include "conv/conv.h"

enum {
  DOWN = 4,           /* rows of y that a thread makes: they share the weights that it reads */
  TAPS = 9,           /* sums of dw that a thread keeps */
  LEAST_SHARE = 4096, /* positions worth a block */
  BUSY = 1056         /* blocks that keep a large card busy */
};

struct depthwise {
  float *out;
  const float *source, *weight; /* weight: dy, for the gradient by the weight */
  df_gemm_end end;
  int64_t count;                      /* threads' worth of work */
  df_divisor outer[DF_AXES], filters; /* of what is made; filters: per group */
  df_divisor strides[DF_AXES];
  int32_t channels; /* groups * filters */
  int32_t groups, taps, source_size, out_size;
  int32_t kernel[DF_AXES], stride[DF_AXES], pad[DF_AXES], dilation[DF_AXES];
  int32_t in[DF_AXES], made[DF_AXES]; /* sizes of planes of source and of out */
  int32_t splits;
  int64_t batch, split_images; /* images of a split */
};

/* y[n, f, o] for DOWN rows of one column of one plane. */
__global__ void __launch_bounds__(DF_BLOCK)
    convolve_depthwise(const __grid_constant__ depthwise p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.count)
    return;
  int32_t at[DF_AXES];
  const uint32_t plane = static_cast<uint32_t>(df_split(static_cast<uint32_t>(index), p.outer, at));
  const uint32_t image = plane / static_cast<uint32_t>(p.channels);
  const uint32_t filter = plane - image * static_cast<uint32_t>(p.channels);
  const uint32_t group = df_divide(filter, p.filters);
  const float *x = p.source + (static_cast<int64_t>(image) * p.groups + group) * p.source_size;
  const float *w = p.weight + static_cast<int64_t>(filter) * p.taps;
  const int row = at[1] * DOWN;
  float sums[DOWN] = {};
  for (int a = 0; a < p.kernel[0]; a++) {
    const int z = at[0] * p.stride[0] - p.pad[0] + a * p.dilation[0];
    if (static_cast<unsigned>(z) >= static_cast<unsigned>(p.in[0]))
      continue;
    for (int b = 0; b < p.kernel[1]; b++) {
      const int y = row * p.stride[1] - p.pad[1] + b * p.dilation[1];
      const float *line = x + (z * p.in[1] + y) * p.in[2];
      bool there[DOWN];
#pragma unroll
      for (int r = 0; r < DOWN; r++)
        there[r] = static_cast<unsigned>(y + r * p.stride[1]) < static_cast<unsigned>(p.in[1]);
      for (int c = 0; c < p.kernel[2]; c++) {
        const int column = at[2] * p.stride[2] - p.pad[2] + c * p.dilation[2];
        const bool inside = static_cast<unsigned>(column) < static_cast<unsigned>(p.in[2]);
        const float factor = __ldg(w + (a * p.kernel[1] + b) * p.kernel[2] + c);
#pragma unroll
        for (int r = 0; r < DOWN; r++)
          if (inside && there[r])
            sums[r] = fmaf(__ldg(line + r * p.stride[1] * p.in[2] + column), factor, sums[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < DOWN; r++)
    if (row + r < p.made[1]) {
      const int64_t offset = static_cast<int64_t>(plane) * p.out_size +
                             (static_cast<int64_t>(at[0]) * p.made[1] + row + r) * p.made[2] +
                             at[2];
      p.out[offset] = p.end(sums[r], filter, 0, offset);
    }
}

/* The position of dy along an axis whose tap meets |coordinate|, or -1. */
static __device__ __forceinline__ int meeting(int coordinate, df_divisor stride, int size) {
  if (coordinate < 0)
    return -1;
  const int position = static_cast<int>(df_divide(static_cast<uint32_t>(coordinate), stride));
  return position < size && position * static_cast<int>(stride.d) == coordinate ? position : -1;
}

/* dx[n, g, i]: sums over the filters of the group and the taps that meet a position of dy. */
__global__ void __launch_bounds__(DF_BLOCK)
    convolve_depthwise_input(const __grid_constant__ depthwise p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.count)
    return;
  int32_t at[DF_AXES];
  const int64_t plane = df_split(static_cast<uint32_t>(index), p.outer, at);
  const int filters = static_cast<int>(p.filters.d);
  const float *dy = p.source + plane * filters * p.source_size;
  const float *w = p.weight + plane % p.groups * filters * p.taps;
  float sum = 0.0f;
  for (int a = 0; a < p.kernel[0]; a++) {
    const int z = meeting(at[0] + p.pad[0] - a * p.dilation[0], p.strides[0], p.in[0]);
    for (int b = 0; z >= 0 && b < p.kernel[1]; b++) {
      const int y = meeting(at[1] + p.pad[1] - b * p.dilation[1], p.strides[1], p.in[1]);
      for (int c = 0; y >= 0 && c < p.kernel[2]; c++) {
        const int column = meeting(at[2] + p.pad[2] - c * p.dilation[2], p.strides[2], p.in[2]);
        const int offset = (z * p.in[1] + y) * p.in[2] + column;
        const int tap = (a * p.kernel[1] + b) * p.kernel[2] + c;
        for (int f = 0; column >= 0 && f < filters; f++)
          sum = fmaf(__ldg(dy + static_cast<int64_t>(f) * p.source_size + offset),
                     __ldg(w + f * p.taps + tap), sum);
      }
    }
  }
  p.out[index] = sum;
}

/* dw[f, t] for TAPS taps of one filter, over the images of one split: a block each. */
__global__ void __launch_bounds__(DF_BLOCK)
    convolve_depthwise_weight(const __grid_constant__ depthwise p) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const uint32_t chunks = static_cast<uint32_t>((p.taps + TAPS - 1) / TAPS);
  const uint32_t filter = blockIdx.x / chunks % static_cast<uint32_t>(p.channels);
  const int64_t split = blockIdx.x / chunks / static_cast<uint32_t>(p.channels);
  const int first = static_cast<int>(blockIdx.x % chunks) * TAPS;
  const uint32_t group = df_divide(filter, p.filters);
  int32_t shift[TAPS][DF_AXES];
#pragma unroll
  for (int t = 0; t < TAPS; t++) {
    const int tap = first + t;
    shift[t][2] = tap % p.kernel[2] * p.dilation[2] - p.pad[2];
    shift[t][1] = tap / p.kernel[2] % p.kernel[1] * p.dilation[1] - p.pad[1];
    shift[t][0] = tap / p.kernel[2] / p.kernel[1] * p.dilation[0] - p.pad[0];
  }
  float sums[TAPS] = {};
  const int64_t last = df_min(p.batch, (split + 1) * p.split_images);
  for (int64_t image = split * p.split_images; image < last; image++) {
    const float *x = p.source + (image * p.groups + group) * p.source_size;
    const float *dy = p.weight + (image * p.channels + filter) * p.out_size;
    for (int o = static_cast<int>(threadIdx.x); o < p.out_size; o += DF_BLOCK) {
      int32_t at[DF_AXES];
      df_split(static_cast<uint32_t>(o), p.outer, at);
      const float d = __ldg(dy + o);
#pragma unroll
      for (int t = 0; t < TAPS; t++) {
        const int z = at[0] * p.stride[0] + shift[t][0], y = at[1] * p.stride[1] + shift[t][1],
                  c = at[2] * p.stride[2] + shift[t][2];
        if (first + t < p.taps && static_cast<unsigned>(z) < static_cast<unsigned>(p.in[0]) &&
            static_cast<unsigned>(y) < static_cast<unsigned>(p.in[1]) &&
            static_cast<unsigned>(c) < static_cast<unsigned>(p.in[2]))
          sums[t] =
              fmaf(__ldg(x + (static_cast<int64_t>(z) * p.in[1] + y) * p.in[2] + c), d, sums[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TAPS; t++) {
    const float sum = df_block_join(sums[t], 0.0f, scratch, df_add{});
    if (threadIdx.x == 0 && first + t < p.taps)
      p.out[(split * p.channels + filter) * p.taps + first + t] = sum;
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

/* |in|, |made|: sizes of the planes that are read and made. */
static depthwise depth_of(const df_conv &conv, const int32_t (&in)[DF_AXES],
                          const int32_t (&made)[DF_AXES]) {
  depthwise p{};
  for (int axis = 0; axis < DF_AXES; axis++) {
    p.in[axis] = in[axis];
    p.made[axis] = made[axis];
    p.kernel[axis] = conv.kernel[axis];
    p.stride[axis] = conv.stride[axis];
    p.strides[axis] = df_divisor_of(conv.stride[axis]);
    p.pad[axis] = conv.pad[axis];
    p.dilation[axis] = conv.dilation[axis];
    p.outer[axis] = df_divisor_of(df_max(1, made[axis]));
  }
  p.source_size = in[0] * in[1] * in[2];
  p.out_size = made[0] * made[1] * made[2];
  p.filters = df_divisor_of(df_max(1, conv.filters));
  p.channels = static_cast<int32_t>(conv.groups * conv.filters);
  p.groups = static_cast<int32_t>(conv.groups);
  p.taps = static_cast<int32_t>(conv.taps);
  p.batch = conv.batch;
  return p;
}

static df_status launch_lines(const df_call *call, depthwise &p) {
  const int64_t lines = df_divide_up(p.made[1], DOWN);
  p.outer[1] = df_divisor_of(df_max(1, lines));
  p.count = p.batch * p.channels * p.made[0] * lines * p.made[2];
  if (p.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, convolve_depthwise, df_blocks(p.count, DF_BLOCK), DF_BLOCK, 0, p);
}

df_status df_conv_depthwise(const df_call *call, const df_conv &conv, float *y, const float *x,
                            const float *weight, const df_gemm_end &end) {
  depthwise p = depth_of(conv, conv.in, conv.out);
  p.out = y;
  p.source = x;
  p.weight = weight;
  p.end = end;
  return launch_lines(call, p);
}

/* With one filter a channel and strides of 1 it is a convolution whose taps go backwards. */
df_status df_conv_depthwise_input(const df_call *call, const df_conv &conv, float *dx,
                                  const float *dy, const float *weight) {
  depthwise p = depth_of(conv, conv.out, conv.in);
  p.out = dx;
  p.source = dy;
  p.weight = weight;
  bool plain = conv.filters == 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    plain = plain && conv.stride[axis] == 1;
  if (plain) {
    for (int axis = 0; axis < DF_AXES; axis++) {
      p.pad[axis] = -conv.pad[axis];
      p.dilation[axis] = -conv.dilation[axis];
    }
    return launch_lines(call, p);
  }
  p.count = conv.batch * conv.groups * conv.in_size;
  if (p.count == 0)
    return DF_OK;
  return DF_LAUNCH(call, convolve_depthwise_input, df_blocks(p.count, DF_BLOCK), DF_BLOCK, 0, p);
}

/* Images are split where there are few filters. */
static int64_t split_images_of(const df_conv &conv, int64_t *splits) {
  const int64_t blocks =
      df_max(1, conv.groups * conv.filters * df_divide_up(conv.taps, int64_t(TAPS)));
  const int64_t least = df_divide_up(LEAST_SHARE, df_max(1, conv.out_size));
  const int64_t images = df_max(df_divide_up(conv.batch * blocks, int64_t(BUSY)), least);
  *splits = df_max(1, df_divide_up(conv.batch, images));
  return images;
}

int64_t df_conv_depthwise_weight_workspace(const df_conv &conv) {
  int64_t splits;
  split_images_of(conv, &splits);
  return splits > 1
             ? splits * conv.groups * conv.filters * conv.taps * static_cast<int64_t>(sizeof(float))
             : 0;
}

df_status df_conv_depthwise_weight(const df_call *call, const df_conv &conv, float *dw,
                                   const float *x, const float *dy) {
  int64_t splits;
  depthwise p = depth_of(conv, conv.in, conv.out);
  p.split_images = split_images_of(conv, &splits);
  p.splits = static_cast<int32_t>(splits);
  p.out = splits > 1 ? static_cast<float *>(call->workspace) : dw;
  p.source = x;
  p.weight = dy;
  const int64_t weights = conv.groups * conv.filters * conv.taps;
  if (weights == 0)
    return DF_OK;
  const int64_t blocks =
      conv.groups * conv.filters * df_divide_up(conv.taps, int64_t(TAPS)) * splits;
  df_status status =
      DF_LAUNCH(call, convolve_depthwise_weight, df_blocks(blocks, 1), DF_BLOCK, 0, p);
  return status || splits == 1 ? status : df_gemm_join(call, dw, p.out, p.splits, weights);
}
