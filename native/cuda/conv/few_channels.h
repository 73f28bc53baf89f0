/* conv/few_channels.h: images with one or few channels, which lie last, and small windows. */
#ifndef DF_CUDA_CONV_FEW_CHANNELS_H
#define DF_CUDA_CONV_FEW_CHANNELS_H
#include "conv/conv.h"

enum {
  THREADS = 256,
  MOST_TAPS = 25,
  MOST_CHANNELS = 8, /* a power of two */
  FEW = 8            /* filters of a block */
};

struct few_tap {
  int32_t offset, shift[DF_AXES]; /* from the first tap on */
};

/* Images whose channels lie last. */
struct few_images {
  const float *x;
  uint32_t positions; /* of all images */
  int32_t filters, taps, channels, out_size;
  int64_t in_size; /* elements of an image */
  df_divisor out[DF_AXES];
  int32_t stride[DF_AXES], pad[DF_AXES], size[DF_AXES], x_stride[DF_AXES];
  few_tap tap[MOST_TAPS];
};

/* What the window at a position reads of V channels from |channel| on; |image| is the one that it
 * lies in. */
template <int TAPS, int V>
static __device__ __forceinline__ void read_window(const few_images &p, uint32_t position,
                                                   int channel, df_vector<float, V> (&v)[TAPS],
                                                   int64_t &image) {
  int32_t at[DF_AXES];
  image = df_split(position, p.out, at);
  int64_t offset = image * p.in_size + channel;
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
    v[t] = {};
    if (inside)
      v[t] = *reinterpret_cast<const df_vector<float, V> *>(p.x + offset + p.tap[t].offset);
  }
}

static inline few_images images_of(const df_conv &conv, const float *x) {
  few_images p{};
  p.x = x;
  p.positions = static_cast<uint32_t>(conv.batch * conv.out_size);
  p.filters = static_cast<int32_t>(conv.filters);
  p.taps = static_cast<int32_t>(conv.taps);
  p.channels = static_cast<int32_t>(conv.channels);
  p.in_size = conv.in_size * conv.channels;
  p.out_size = static_cast<int32_t>(conv.out_size);
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    p.out[axis] = df_divisor_of(df_max(1, conv.out[axis]));
    p.stride[axis] = conv.stride[axis];
    p.pad[axis] = conv.pad[axis];
    p.size[axis] = conv.in[axis];
    p.x_stride[axis] = axis == 2 ? p.channels : p.x_stride[axis + 1] * conv.in[axis + 1];
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

#endif
