/* conv/shape.h: the sizes of a convolution, the same for the op and its two gradients.
 *
 * x: (batch, groups * channels, in...), weight: (groups * filters, channels, kernel...),
 * y: (batch, groups * filters, out...). */
#ifndef DF_CPU_CONV_SHAPE_H
#define DF_CPU_CONV_SHAPE_H

#include "pool/window.h"

enum { DF_MOST_TAPS = 1024 }; /* of kernels whose taps are listed on the stack */

typedef struct df_conv {
  df_window window;
  int64_t batch, groups, channels, filters;
  int64_t uses; /* images for which weights are packed: at every run, or 0 when they are constant */
  int32_t algorithm; /* as in df_node: the algorithm that is wanted, or 0 */
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
 * where rows are, with columns of one element: bands of rows can then split it. */
static inline df_conv df_conv_make(const int64_t *x, const int64_t *weight, const int64_t *y,
                                   int32_t rank, const df_attribute *const *attributes,
                                   int32_t count, int32_t first) {
  df_conv conv = {.batch = x[0],
                  .groups = df_attribute_int(attributes, count, first + DF_CONV_GROUPS),
                  .channels = weight[1]};
  DF_ASSUME(conv.groups > 0);
  conv.filters = weight[0] / conv.groups;
  conv.window =
      df_window_make(rank - 2, x + 2, y + 2, weight + 2,
                     df_attribute_ints(attributes, count, first + DF_CONV_STRIDES, NULL),
                     df_attribute_ints(attributes, count, first + DF_CONV_PADS, NULL),
                     df_attribute_ints(attributes, count, first + DF_CONV_DILATIONS, NULL));
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

/* A convolution as conv/algorithm.h takes it: as a row, and where its only window is all of the
 * source, a product, whose channels are those with their taps. */
static inline df_conv df_conv_simplified(df_conv conv) {
  conv = df_conv_as_row(conv);
  df_window *w = &conv.window;
  int complete = w->taps > 1 && w->out_size == 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    complete =
        complete && w->in[axis] == w->kernel[axis] && w->pad[axis] == 0 && w->dilation[axis] == 1;
  if (complete) {
    const int64_t one[2] = {1, 1};
    conv.channels = df_times(conv.channels, w->taps);
    *w = df_window_make(2, one, one, one, NULL, NULL, NULL);
  }
  return conv;
}

/* Whether position q reads element q of every channel, and nothing else. */
static inline int df_conv_is_plain(const df_window *w) {
  int plain = w->taps == 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    plain = plain && w->in[axis] == w->out[axis] && w->stride[axis] == 1 && w->pad[axis] == 0;
  return plain;
}

/* accepts: refuses images in which kernels can't compute with positions of 32 bits. */
static inline const char *df_conv_accepts(const df_conv *conv) {
  const df_window *w = &conv->window;
  const char *reason = df_window_accepts(w);
  if (reason)
    return reason;
  /* The slices that an output reads, each with a stride more than its span. */
  int64_t image = df_times(df_max(conv->channels, conv->filters), w->kernel[0]);
  for (int axis = 1; axis < DF_AXES; axis++)
    image = df_times(image, df_window_span(w, axis) + w->stride[axis]);
  return image > INT32_MAX ? "an image with its padding has too many elements" : NULL;
}

/* accepts, of x, the weight and y among the operands of |node|, whose attributes begin at |first|.
 */
static inline const char *df_conv_accepts_shape(const df_node *node, const df_operand *x,
                                                const df_operand *weight, const df_operand *y,
                                                int32_t first) {
  if (x->rank < 3 || x->rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const char *reason = df_accepts_elements(node);
  if (reason)
    return reason;
  df_conv conv = df_conv_make(x->shape, weight->shape, y->shape, x->rank, node->attributes,
                              node->n_attributes, first);
  return df_conv_accepts(&conv);
}

#endif
