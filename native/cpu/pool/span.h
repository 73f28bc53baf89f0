/* pool/span.h: which elements of a plane a window reads, for kernels that go window by window. */
#ifndef DF_CPU_POOL_SPAN_H
#define DF_CPU_POOL_SPAN_H

#include "pool/rows.h"

enum { DF_NOWHERE = -1 }; /* index of the maximum of a window that lies in the padding whole */

static inline const char *df_pool_accepts_rank(const df_node *node) {
  const int32_t rank = node->inputs[0]->rank;
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  return df_accepts_elements(node);
}

/* Of the windows of y on x. Planes that it accepts are small enough for indices of 32 bits. */
static inline const char *df_pool_accepts(const df_node *node, int32_t first, const df_operand *x,
                                          const df_operand *y) {
  const char *reason = df_pool_accepts_rank(node);
  if (reason)
    return reason;
  df_window w =
      df_pool_window(node->attributes, node->n_attributes, first, x->shape, y->shape, x->rank);
  return df_window_accepts(&w);
}

/* The taps inside the input of one output position, per axis, and its first input position. */
typedef struct df_window_elements {
  int64_t begin[DF_AXES], end[DF_AXES], start[DF_AXES];
} df_window_elements;

static inline df_window_elements df_elements_at(const df_window *w, const int64_t o[DF_AXES]) {
  df_window_elements s;
  for (int axis = 0; axis < DF_AXES; axis++) {
    df_window_taps(w, axis, o[axis], &s.begin[axis], &s.end[axis]);
    s.start[axis] = o[axis] * w->stride[axis] - w->pad[axis];
  }
  return s;
}

/* Offset in the plane of the first element of row (a, b) of the window's taps, without the last
 * axis. */
static inline int64_t df_row_at(const df_window *w, const df_window_elements *s, int64_t a,
                                int64_t b) {
  int64_t slice = s->start[0] + a * w->dilation[0];
  return (slice * w->in[1] + s->start[1] + b * w->dilation[1]) * w->in[2] + s->start[2];
}

/* The factor of a divisor by an axis, in which the window at |o| has |inside| taps in the input. */
static inline int64_t df_divisor_along(const df_window *w, int axis, int64_t o, int64_t inside,
                                       int32_t pads_count) {
  if (!pads_count)
    return inside;
  /* Taps up to the end of the padding: the last window may reach beyond it when sizes were rounded
   * up. */
  const int64_t span = w->in[axis] + w->pad[axis] + w->pad_end[axis] - o * w->stride[axis];
  const int64_t step = w->dilation[axis];
  return df_max(0, df_min(w->kernel[axis], step == 1 ? span : df_divide_up(span, step)));
}

/* What a sum over the window at |o| is divided by. */
static inline int64_t df_divisor(const df_window *w, const df_window_elements *s,
                                 const int64_t o[DF_AXES], int32_t pads_count) {
  int64_t count = 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    count *= df_divisor_along(w, axis, o[axis], s->end[axis] - s->begin[axis], pads_count);
  return count;
}

/* Runs |body| for every output position of a plane; o: position, |out|: its number. */
#define DF_EACH_OUTPUT(w, body)                                                                    \
  do {                                                                                             \
    int64_t o[DF_AXES], out = 0;                                                                   \
    for (o[0] = 0; o[0] < (w)->out[0]; o[0]++)                                                     \
      for (o[1] = 0; o[1] < (w)->out[1]; o[1]++)                                                   \
        for (o[2] = 0; o[2] < (w)->out[2]; o[2]++, out++)                                          \
          body;                                                                                    \
  } while (0)

#endif
