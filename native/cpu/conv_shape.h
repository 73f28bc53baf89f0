/* conv_shape.h: the sizes of a convolution, the same for the op and its two gradients.
 *
 * x: (batch, groups * channels, in...), weight: (groups * filters, channels, kernel...),
 * y: (batch, groups * filters, out...). */
#ifndef DF_CPU_CONV_SHAPE_H
#define DF_CPU_CONV_SHAPE_H

#include "window.h"

enum { DF_MOST_TAPS = 1024 }; /* of kernels whose taps are listed on the stack */

typedef struct df_conv {
  df_window window;
  int64_t batch, groups, channels, filters;
  int64_t uses; /* images for which weights are packed: at every run, or 0 when they are constant */
  int32_t algorithm; /* as in df_node: the way that is wanted, or 0 */
  int32_t precision; /* as in df_node */
} df_conv;

/* Exchanges rows and columns. */
static inline void df_swap_planar(df_window *w) {
  int64_t *sizes[] = {w->in, w->out, w->kernel, w->stride, w->pad, w->pad_end, w->dilation};
  for (int i = 0; i < 7; i++) {
    int64_t swapped = sizes[i][1];
    sizes[i][1] = sizes[i][2];
    sizes[i][2] = swapped;
  }
}

/* What a run must know of the node, as the state that prepare leaves. */
static inline void *df_conv_state(const df_conv *conv) {
  return (void *)(intptr_t)(conv->algorithm | conv->precision << 16);
}

static inline void df_conv_from_state(df_conv *conv, const void *state) {
  conv->algorithm = (int32_t)((intptr_t)state & 0xffff);
  conv->precision = (int32_t)((intptr_t)state >> 16);
}

/* The attributes strides, pads, dilations and groups begin at |first|. A single long axis is put
 * where rows are, with columns of one element: bands of rows can then cut it. */
static inline df_conv df_conv_make(const int64_t *x, const int64_t *weight, const int64_t *y,
                                   int32_t rank, const df_attribute *attributes, int32_t count,
                                   int32_t first) {
  df_conv conv = {.batch = x[0], .groups = 1, .channels = weight[1]};
  if (first + 3 < count && attributes[first + 3].kind == DF_ATTR_INT)
    conv.groups = attributes[first + 3].i;
  conv.filters = weight[0] / conv.groups;
  conv.window =
      df_window_make(rank - 2, x + 2, y + 2, weight + 2, df_list(attributes, count, first),
                     df_list(attributes, count, first + 1), df_list(attributes, count, first + 2));
  df_window *w = &conv.window;
  if (w->in[1] == 1 && w->out[1] == 1 && w->kernel[1] == 1 && w->pad[1] == 0)
    df_swap_planar(w);
  return conv;
}

/* A convolution whose single long axis is where columns are: its positions are one row. */
static inline df_conv df_conv_as_row(df_conv conv) {
  df_window *w = &conv.window;
  if (w->in[2] == 1 && w->out[2] == 1 && w->kernel[2] == 1 && w->pad[2] == 0)
    df_swap_planar(w);
  return conv;
}

/* Whether position q reads element q of every channel, and nothing else. */
static inline int df_conv_is_plain(const df_window *w) {
  int plain = w->taps == 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    plain = plain && w->in[axis] == w->out[axis] && w->stride[axis] == 1 && w->pad[axis] == 0;
  return plain;
}

static inline const char *df_conv_accepts_rank(int32_t rank) {
  return rank < 3 || rank > 2 + DF_AXES ? "only one to three spatial axes are supported" : NULL;
}

#endif
