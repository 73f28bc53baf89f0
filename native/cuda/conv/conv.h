/* conv/conv.h: the sizes of a convolution, the same for the op and its two gradients, and the
 * algorithms for it.
 *
 * x: (batch, groups * channels, in...), weight: (groups * filters, channels, kernel...),
 * y: (batch, groups * filters, out...). One to three spatial axes, kept as three: missing leading
 * ones have size 1. Output position o of an axis reads input positions o * stride - pad + tap *
 * dilation for the taps of the window; those outside are zeros. */
#ifndef DF_CUDA_CONV_CONV_H
#define DF_CUDA_CONV_CONV_H
#include "gemm/gemm.h"

enum { DF_AXES = 3 };

struct df_conv {
  int32_t in[DF_AXES], out[DF_AXES], kernel[DF_AXES];
  int32_t stride[DF_AXES], pad[DF_AXES], pad_end[DF_AXES], dilation[DF_AXES];
  int64_t in_size, out_size, taps; /* products */
  int64_t padded;                  /* of the spans of the axes, see df_span */
  int64_t batch, groups, channels, filters;
  int32_t rank; /* of the images, without batch and channels */
};

/* The convolution of these shapes; the attributes strides, pads, dilations and groups begin at
 * |first|. */
df_conv df_conv_of(const int64_t *x, const int64_t *weight, const int64_t *y, int32_t rank,
                   const df_attribute *const *attributes, int32_t count, int32_t first);

/* A shape with channels last as one with channels behind the first axis. */
struct df_planar {
  int64_t sizes[2 + DF_AXES];

  df_planar(const int64_t *shape, int32_t rank) : sizes{shape[0], shape[rank - 1]} {
    for (int32_t axis = 1; axis < rank - 1; axis++)
      sizes[axis + 1] = shape[axis];
  }
};

/* The convolution of the op conv and its patterns, of conv_grad_input, of conv_grad_weight. */
df_conv df_conv_forward(const df_node *node);
df_conv df_conv_forward(const df_call *call);
df_conv df_conv_grad_input(const df_node *node);
df_conv df_conv_grad_input(const df_call *call);
df_conv df_conv_grad_weight(const df_node *node);
df_conv df_conv_grad_weight(const df_call *call);

/* Null when the sizes are such as the kernels take, else why not. */
const char *df_conv_accepts(const df_conv &conv, int32_t rank);

/* The digits of |index| < 2^31 for three sizes, and what is left. */
static __device__ __forceinline__ int32_t df_split(uint32_t index, const df_divisor (&by)[DF_AXES],
                                                   int32_t (&digit)[DF_AXES]) {
#pragma unroll
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    const uint32_t rest = df_divide(index, by[axis]);
    digit[axis] = static_cast<int32_t>(index - rest * by[axis].d);
    index = rest;
  }
  return static_cast<int32_t>(index);
}

/* Groups of one channel. */
static inline bool df_conv_is_depthwise(const df_conv &conv) {
  return conv.channels == 1 && conv.groups > 1;
}

/* ---- Sums of shifted planes with weights: conv/shifted.cu ----------------------------------- */

/* y = relu(x * weight + bias + add), or dx from dy when |transposed|: there is no end then. */
int64_t df_conv_shifted_workspace(const df_conv &conv, bool transposed);
df_status df_conv_shifted(const df_call *call, const df_conv &conv, bool transposed, float *out,
                          const float *from, const float *weight, const df_gemm_end &end);

/* out = relu(sum of |splits| partial sums, |total| floats each, + bias + add): in their order, a
 * bias per plane. |out| may be |partials| when there is one. */
df_status df_conv_finish(const df_call *call, float *out, const float *partials, int32_t splits,
                         int64_t total, int64_t plane, int64_t channels, const df_gemm_end &end);

/* ---- dw from x and dy: conv/grad_weight.cu -------------------------------------------------- */

int64_t df_conv_weight_workspace(const df_conv &conv);
df_status df_conv_weight(const df_call *call, const df_conv &conv, float *dw, const float *x,
                         const float *dy);

/* ---- Images with one or few channels: conv/few_channels.cu, conv/few_channels_grad.cu ---------
 */

bool df_conv_has_single_channel(const df_conv &conv);
bool df_conv_has_few_channels(const df_conv &conv); /* where they lie last */
/* y with channels last = relu(x * weight + bias + add). */
df_status df_conv_few(const df_call *call, const df_conv &conv, float *y, const float *x,
                      const float *weight, const df_gemm_end &end);
int64_t df_conv_few_workspace(const df_conv &conv);
/* |last|: the channels of dy are. */
df_status df_conv_few_weight(const df_call *call, const df_conv &conv, float *dw, const float *x,
                             const float *dy, bool last);

/* ---- Depthwise: conv/depthwise.cu ----------------------------------------------------------- */

df_status df_conv_depthwise(const df_call *call, const df_conv &conv, float *y, const float *x,
                            const float *weight, const df_gemm_end &end);
df_status df_conv_depthwise_input(const df_call *call, const df_conv &conv, float *dx,
                                  const float *dy, const float *weight);
int64_t df_conv_depthwise_weight_workspace(const df_conv &conv);
df_status df_conv_depthwise_weight(const df_call *call, const df_conv &conv, float *dw,
                                   const float *x, const float *dy);

#endif
