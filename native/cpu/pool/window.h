/* pool/window.h: where windows lie on an image, for convolution and pooling.
 *
 * One to three spatial axes, kept as three: missing leading ones have size 1. Output position o of
 * an axis reads input positions o * stride - pad + tap * dilation for the taps of the window; those
 * outside are padding. */
#ifndef DF_CPU_POOL_WINDOW_H
#define DF_CPU_POOL_WINDOW_H

#include "cpu.h"

enum { DF_AXES = 3 };

typedef struct df_window {
  int64_t in[DF_AXES];
  int64_t out[DF_AXES];
  int64_t kernel[DF_AXES];
  int64_t stride[DF_AXES];
  int64_t pad[DF_AXES];     /* before the first element */
  int64_t pad_end[DF_AXES]; /* after the last */
  int64_t dilation[DF_AXES];
  int64_t in_size, out_size, taps; /* products */
} df_window;

/* A window over the last |axes| axes; absent lists mean stride 1, no padding, dilation 1. The
 * stride of a single window and the dilation of a single tap, which move nothing, are 1. */
static inline df_window df_window_make(int32_t axes, const int64_t *in, const int64_t *out,
                                       const int64_t *kernel, const int64_t *strides,
                                       const int64_t *pads, const int64_t *dilations) {
  df_window w = {.in_size = 1, .out_size = 1, .taps = 1};
  for (int32_t i = 0; i < DF_AXES; i++) {
    int32_t from = i - (DF_AXES - axes);
    int real = from >= 0;
    w.in[i] = real ? in[from] : 1;
    w.out[i] = real ? out[from] : 1;
    w.kernel[i] = real ? kernel[from] : 1;
    w.stride[i] = real && strides && w.out[i] > 1 ? strides[from] : 1;
    w.pad[i] = real && pads ? pads[from] : 0;
    w.pad_end[i] = real && pads ? pads[axes + from] : 0;
    w.dilation[i] = real && dilations && w.kernel[i] > 1 ? dilations[from] : 1;
    w.in_size = df_times(w.in_size, w.in[i]);
    w.out_size = df_times(w.out_size, w.out[i]);
    w.taps = df_times(w.taps, w.kernel[i]);
  }
  return w;
}

static inline int64_t df_window_span(const df_window *w, int axis) {
  return df_span(w->in[axis], w->pad[axis], w->pad_end[axis], w->out[axis], w->stride[axis],
                 w->kernel[axis], w->dilation[axis]);
}

/* accepts: refuses padded planes in which kernels can't compute with positions of 32 bits. Where it
 * accepts, strides, dilations, taps and all distances in a plane fit in those. */
static inline const char *df_window_accepts(const df_window *w) {
  int64_t plane = 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    plane = df_times(plane, df_window_span(w, axis));
  return plane > INT32_MAX / 2 ? "a plane with its padding has too many elements" : NULL;
}

/* The taps [*begin, *end) of the window at output position |o| of |axis| that are inside the input.
 */
static inline void df_window_taps(const df_window *w, int axis, int64_t o, int64_t *begin,
                                  int64_t *end) {
  int64_t start = o * w->stride[axis] - w->pad[axis], span = w->in[axis] - start;
  int64_t step = w->dilation[axis];
  /* A division takes longer than a short row of windows. */
  *begin = start >= 0 ? 0 : step == 1 ? -start : df_divide_up(-start, step);
  *end = span <= 0 ? 0 : df_min(w->kernel[axis], step == 1 ? span : df_divide_up(span, step));
  *end = df_max(*begin, *end);
}

#endif
