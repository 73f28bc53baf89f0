/* conv/phase_layout.h: one spatial axis of a convolution, forward or backward, as shifted reads of
 * a phase-split source.
 *
 * Forward, output o reads x[o * stride - pad + tap * dilation]. Let the source be split by
 * residue: phase r holds x[u * stride + r - pad] at u. Tap t then reads phase (t * dilation) %
 * stride at o + (t * dilation) / stride: a plain shift, the same for all o.
 *
 * Backward, input i gets dy[o] from the taps with o * stride = i + pad - t * dilation. Let i + pad
 * = a * stride + r: for the inputs of class r only the taps with (t * dilation) % stride == r
 * count, and they read dy[a - (t * dilation - r) / stride]: again shifts, of a source that is not
 * split. */
#ifndef DF_CPU_CONV_PHASE_LAYOUT_H
#define DF_CPU_CONV_PHASE_LAYOUT_H

#include "pool/window.h"

typedef struct df_phase_layout {
  int64_t grid;    /* positions computed, the same for every class */
  int64_t classes; /* outputs are interleaved from this many */
  int64_t reach;   /* the largest shift: the source spans grid + reach */
  int64_t phases;
  int64_t source; /* size of the source's axis */
  int64_t step;   /* source element of position u in phase r: u * step + start + r */
  int64_t start;
  int64_t target;      /* size of the output's axis */
  int64_t target_step; /* output of position g in class r: g * target_step + target_start + r */
  int64_t target_start;
  int64_t stride, dilation;
  int32_t backward;
} df_phase_layout;

static inline int64_t df_divide_down(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -df_divide_up(-a, b);
}

static inline df_phase_layout df_phase_layout_make(const df_window *w, int axis, int32_t backward) {
  int64_t stride = w->stride[axis], dilation = w->dilation[axis], pad = w->pad[axis];
  int64_t kernel = w->kernel[axis];
  df_phase_layout l = {.reach = (kernel - 1) * dilation / stride,
                       .stride = stride,
                       .dilation = dilation,
                       .backward = backward};
  if (backward) {
    int64_t first = df_divide_down(pad, stride);
    l.grid = df_divide_down(w->in[axis] - 1 + pad, stride) - first + 1;
    l.classes = stride;
    l.phases = 1;
    l.source = w->out[axis];
    l.step = 1;
    l.start = first - l.reach;
    l.target = w->in[axis];
    l.target_step = stride;
    l.target_start = first * stride - pad;
  } else {
    l.grid = w->out[axis];
    l.classes = 1;
    l.phases = kernel == 1 || dilation == 1 ? df_min(kernel, stride) : stride;
    l.source = w->in[axis];
    l.step = stride;
    l.start = -pad;
    l.target = w->out[axis];
    l.target_step = 1;
  }
  return l;
}

/* Whether |tap| counts for |class|, and what it reads. */
static inline int df_phase_layout_tap(const df_phase_layout *l, int64_t class, int64_t tap,
                                      int64_t *phase, int64_t *shift) {
  int64_t at = tap * l->dilation;
  *phase = l->backward ? 0 : at % l->stride;
  *shift = l->backward ? l->reach - at / l->stride : at / l->stride;
  return !l->backward || at % l->stride == class;
}

/* The positions [*begin, *end) within [0, grid) whose outputs of |class| exist. */
static inline void df_phase_layout_targets(const df_phase_layout *l, int64_t class, int64_t *begin,
                                           int64_t *end) {
  int64_t start = l->target_start + class;
  *begin = start >= 0 ? 0 : df_divide_up(-start, l->target_step);
  *end = df_min(l->grid, df_divide_up(l->target - start, l->target_step));
}

/* Depth: the source slice that |tap| reads for output slice |z|, or -1 when it is padding. */
static inline int64_t df_slice(const df_window *w, int32_t backward, int64_t z, int64_t tap) {
  int64_t at = tap * w->dilation[0];
  if (!backward) {
    int64_t slice = z * w->stride[0] - w->pad[0] + at;
    return slice >= 0 && slice < w->in[0] ? slice : -1;
  }
  int64_t above = z + w->pad[0] - at;
  return above >= 0 && above % w->stride[0] == 0 && above / w->stride[0] < w->out[0]
             ? above / w->stride[0]
             : -1;
}

/* The phase-split copy of a band of one source plane: rows.phases * columns.phases planes of |rows|
 * x |columns.span|. Everything is written; what lies outside of the source is zero. */
void DF_NAME(df_phase_copy)(float *out, const float *plane, const df_phase_layout *down,
                            const df_phase_layout *across, int64_t band, int64_t rows);

#endif
