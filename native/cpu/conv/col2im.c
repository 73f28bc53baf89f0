/* conv/col2im.c: col2im(x; image, kernel, strides, pads, dilations) -> y.
 *
 * x: (N, C taps, windows), y: (N, C, image...). Each tap of a channel is a plane with an element
 * for each window, whose rows are added to rows of the image: an element is read once, and a plane
 * of y stays in the cache meanwhile. */
#include "pool/window.h"

enum { GRAIN = 16 * 1024 }; /* elements of x of the smallest task worth a thread's while */

static df_window window_of(const df_attribute *const *attributes, int32_t count,
                           const int64_t *image, int32_t axes) {
  const int64_t *kernel = df_attribute_ints(attributes, count, DF_COL2IM_KERNEL, NULL);
  const int64_t *strides = df_attribute_ints(attributes, count, DF_COL2IM_STRIDES, NULL);
  const int64_t *pads = df_attribute_ints(attributes, count, DF_COL2IM_PADS, NULL);
  const int64_t *dilations = df_attribute_ints(attributes, count, DF_COL2IM_DILATIONS, NULL);
  int64_t windows[DF_AXES];
  DF_ASSUME(kernel && strides && pads && dilations && axes <= DF_AXES);
  for (int32_t i = 0; i < axes; i++) {
    const int64_t steps = image[i] + pads[i] + pads[axes + i] - dilations[i] * (kernel[i] - 1);
    DF_ASSUME(strides[i] > 0);
    windows[i] = steps < 1 ? 0 : (steps - 1) / strides[i] + 1;
  }
  return df_window_make(axes, image, windows, kernel, strides, pads, dilations);
}

/* The windows [*begin, *end) of |axis| whose tap |at| lies in the image, and the place of window 0.
 */
static int64_t windows_inside(const df_window *w, int axis, int64_t at, int64_t *begin,
                              int64_t *end) {
  const int64_t first = at * w->dilation[axis] - w->pad[axis], step = w->stride[axis];
  *begin = first >= 0 ? 0 : df_divide_up(-first, step);
  *end = df_min(w->out[axis], first >= w->in[axis] ? 0 : df_divide_up(w->in[axis] - first, step));
  return first;
}

typedef struct col2im {
  df_window window;
  const void *x;
  void *y;
  int64_t planes;
} col2im;

#define DEFINE_COL2IM(type, real)                                                                  \
  static void type##_add_tap(const df_window *w, int64_t tap, const real *x, real *y) {            \
    int64_t begin[DF_AXES], end[DF_AXES], first[DF_AXES];                                          \
    for (int axis = DF_AXES - 1; axis >= 0; tap /= w->kernel[axis--])                              \
      first[axis] = windows_inside(w, axis, tap % w->kernel[axis], &begin[axis], &end[axis]);      \
    const int64_t step = w->stride[2], count = end[2] - begin[2];                                  \
    for (int64_t a = begin[0]; a < end[0]; a++)                                                    \
      for (int64_t b = begin[1]; b < end[1]; b++) {                                                \
        const int64_t slice = first[0] + a * w->stride[0], row = first[1] + b * w->stride[1];      \
        const real *restrict from = x + (a * w->out[1] + b) * w->out[2] + begin[2];                \
        real *restrict to = y + (slice * w->in[1] + row) * w->in[2] + first[2] + begin[2] * step;  \
        if (step == 1)                                                                             \
          for (int64_t i = 0; i < count; i++)                                                      \
            to[i] = (real)(to[i] + from[i]);                                                       \
        else                                                                                       \
          for (int64_t i = 0; i < count; i++)                                                      \
            to[i * step] = (real)(to[i * step] + from[i]);                                         \
      }                                                                                            \
  }                                                                                                \
  static void type##_task(void *context, int64_t index, int64_t count, int32_t worker) {           \
    (void)worker;                                                                                  \
    const col2im *c = context;                                                                     \
    const df_window *w = &c->window;                                                               \
    int64_t begin, end;                                                                            \
    df_task_range(index, count, c->planes, 1, &begin, &end);                                       \
    for (int64_t plane = begin; plane < end; plane++) {                                            \
      real *y = (real *)c->y + plane * w->in_size;                                                 \
      const real *x = (const real *)c->x + plane * w->taps * w->out_size;                          \
      memset(y, 0, (size_t)w->in_size * sizeof(real));                                             \
      for (int64_t tap = 0; tap < w->taps; tap++)                                                  \
        type##_add_tap(w, tap, x + tap * w->out_size, y);                                          \
    }                                                                                              \
  }                                                                                                \
  static df_status type##_run(const df_call *call) { return run(call, type##_task); }

static df_status run(const df_call *call, df_task task) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (df_elements(y) == 0)
    return DF_OK;
  col2im c = {.window = window_of(call->attributes, call->n_attributes, y->shape + 2, y->rank - 2),
              .x = x->data,
              .y = y->data,
              .planes = y->shape[0] * y->shape[1]};
  const int64_t elements = df_max(df_elements(x), df_elements(y));
  df_parallel(call, task, &c, df_min(c.planes, df_task_count(call, elements, GRAIN)));
  return DF_OK;
}

DEFINE_COL2IM(f32, float)
DEFINE_COL2IM(f64, double)
/* Of integers with a sign, too: their sums wrap around. */
DEFINE_COL2IM(u8, uint8_t)
DEFINE_COL2IM(u16, uint16_t)
DEFINE_COL2IM(u32, uint32_t)
DEFINE_COL2IM(u64, uint64_t)

static const char *accepts(const df_node *node) {
  const df_operand *y = node->outputs[0];
  if (y->rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const df_window w = window_of(node->attributes, node->n_attributes, y->shape + 2, y->rank - 2);
  return df_window_accepts(&w);
}

#define RECORD(type, loops)                                                                        \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = "col2im",                                                               \
                     .name = "col2im " #type " " DF_TEXT(DF_ISA),                                  \
                     .operands = #type "->" #type,                                                 \
                     .accepts = accepts,                                                           \
                     .run = loops##_run}
DF_KERNELS(col2im) = {RECORD(f32, f32),
                      RECORD(f64, f64),
                      RECORD(i8, u8),
                      RECORD(u8, u8),
                      RECORD(i16, u16),
                      RECORD(u16, u16),
                      RECORD(i32, u32),
                      RECORD(u32, u32),
                      RECORD(i64, u64),
                      RECORD(u64, u64),
                      NULL};
