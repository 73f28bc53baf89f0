/* pool/bytes.c: maxima over windows of (N, C, spatial...) of bytes.
 *
 *   max_pool  y = largest of the window; the least byte where it lies in the padding whole
 *             indices: where in the plane the first of the largest lies, -1 where none is
 *
 * The rows of a window, as long as the last axis, are joined, then what each output reads of the
 * joined row. Where windows have one element along the last axis the first is all: images with
 * their channels last are pooled so, as planes whose last axis is the channels. */
#include "pool/rows.h"

typedef struct pooling {
  df_window w;
  const uint8_t *x;
  uint8_t *y, *lines;
  int32_t *indices;     /* may be null */
  int64_t planes, line; /* line: bytes of a joined row with its padding */
  int32_t is_signed;
} pooling;

/* to[i] = from[i * step] or the larger one of both; |step| is a constant at the commonest uses. */
#define DEFINE_MAXIMA(T)                                                                           \
  static inline __attribute__((always_inline)) void larger_##T(uint8_t *to, const uint8_t *from,   \
                                                               int64_t step, int64_t count) {      \
    DF_IVDEP                                                                                       \
    for (int64_t i = 0; i < count; i++) {                                                          \
      const T a = (T)to[i], b = (T)from[i * step];                                                 \
      to[i] = (uint8_t)(a > b ? a : b);                                                            \
    }                                                                                              \
  }

DEFINE_MAXIMA(int8_t)
DEFINE_MAXIMA(uint8_t)

static void join(int32_t is_signed, uint8_t *to, const uint8_t *from, int64_t step, int64_t count) {
  if (is_signed && step == 1)
    larger_int8_t(to, from, 1, count);
  else if (is_signed)
    larger_int8_t(to, from, step, count);
  else if (step == 1)
    larger_uint8_t(to, from, 1, count);
  else if (step == 2)
    larger_uint8_t(to, from, 2, count);
  else
    larger_uint8_t(to, from, step, count);
}

/* Bytes that windows reach along the last axis, at least a padded row. */
static int64_t line_bytes(const df_window *w) {
  const int64_t reach = (w->out[2] - 1) * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2] + 1;
  return df_round_up(df_max(reach, w->pad[2] + w->in[2]), 64);
}

static int is_plain(const df_window *w) {
  return w->kernel[2] == 1 && w->in[2] == w->out[2] && w->stride[2] == 1 && w->pad[2] == 0;
}

/* The rows of |x| of the windows at (o0, o1), joined. */
static void join_down(const pooling *j, const uint8_t *x, int64_t o0, int64_t o1, uint8_t *to) {
  const df_window *w = &j->w;
  const int64_t o[2] = {o0, o1}, width = w->in[2];
  int64_t begin[2], end[2], first[2];
  for (int axis = 0; axis < 2; axis++) {
    df_window_taps(w, axis, o[axis], &begin[axis], &end[axis]);
    first[axis] = o[axis] * w->stride[axis] - w->pad[axis];
  }
  int there = 0;
  for (int64_t a = begin[0]; a < end[0]; a++)
    for (int64_t b = begin[1]; b < end[1]; b++) {
      const int64_t slice = first[0] + a * w->dilation[0], row = first[1] + b * w->dilation[1];
      const uint8_t *from = x + (slice * w->in[1] + row) * width;
      if (there)
        join(j->is_signed, to, from, 1, width);
      else
        memcpy(to, from, (size_t)width);
      there = 1;
    }
  if (!there)
    memset(to, j->is_signed ? 0x80 : 0, (size_t)width);
}

/* Where in the plane |x| the first element that is |y| of the window at |o| lies. */
static int32_t find(const df_window *w, const uint8_t *x, const int64_t o[DF_AXES], uint8_t y) {
  int64_t begin[DF_AXES], end[DF_AXES];
  for (int axis = 0; axis < DF_AXES; axis++)
    df_window_taps(w, axis, o[axis], &begin[axis], &end[axis]);
  for (int64_t a = begin[0]; a < end[0]; a++)
    for (int64_t b = begin[1]; b < end[1]; b++)
      for (int64_t c = begin[2]; c < end[2]; c++) {
        const int64_t tap[DF_AXES] = {a, b, c};
        int64_t at = 0;
        for (int axis = 0; axis < DF_AXES; axis++)
          at = at * w->in[axis] + o[axis] * w->stride[axis] - w->pad[axis] +
               tap[axis] * w->dilation[axis];
        if (x[at] == y)
          return (int32_t)at;
      }
  return -1;
}

/* Rows of the outputs of all planes. */
static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const pooling *j = context;
  const df_window *w = &j->w;
  const int64_t rows = w->out[0] * w->out[1], width = w->out[2];
  uint8_t *line = j->lines + worker * j->line;
  int64_t begin, end;
  df_task_range(index, count, j->planes * rows, 1, &begin, &end);
  memset(line, j->is_signed ? 0x80 : 0, (size_t)j->line);
  for (int64_t i = begin; i < end; i++) {
    const int64_t o = i % rows;
    const uint8_t *x = j->x + i / rows * w->in_size;
    uint8_t *y = j->y + i * width;
    if (is_plain(w)) {
      join_down(j, x, o / w->out[1], o % w->out[1], y);
    } else {
      join_down(j, x, o / w->out[1], o % w->out[1], line + w->pad[2]);
      memset(y, j->is_signed ? 0x80 : 0, (size_t)width);
      for (int64_t c = 0; c < w->kernel[2]; c++)
        join(j->is_signed, y, line + c * w->dilation[2], w->stride[2], width);
    }
    for (int64_t c = 0; j->indices && c < width; c++) {
      const int64_t at[DF_AXES] = {o / w->out[1], o % w->out[1], c};
      j->indices[i * width + c] = find(w, x, at, y[c]);
    }
  }
}

static df_window window_of_node(const df_node *node) {
  const df_operand *x = node->inputs[0];
  return df_pool_window(node->attributes, node->n_attributes, DF_MAX_POOL_KERNEL, x->shape,
                        node->outputs[0]->shape, x->rank);
}

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  pooling j = {.w = df_pool_window(call->attributes, call->n_attributes, DF_MAX_POOL_KERNEL,
                                   x->shape, y->shape, x->rank),
               .x = x->data,
               .y = y->data,
               .lines = call->workspace,
               .indices = call->n_outputs > 1 ? call->outputs[1]->data : NULL,
               .planes = y->shape[0] * y->shape[1],
               .is_signed = x->dtype == DF_INT8};
  j.line = line_bytes(&j.w);
  const int64_t rows = j.planes * j.w.out[0] * j.w.out[1];
  const int64_t work = df_times(df_times(rows, j.w.in[2]), j.w.taps);
  df_parallel(call, run_task, &j, df_min(rows, df_task_count(call, work, 4 * DF_GRAIN)));
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_window w = window_of_node(node);
  out->workspace = node->threads * line_bytes(&w);
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  const int32_t rank = node->inputs[0]->rank;
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const char *reason = df_accepts_elements(node);
  if (reason)
    return reason;
  const df_window w = window_of_node(node);
  return df_window_accepts(&w);
}

DF_KERNELS(pool_bytes) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                             .op = "max_pool",
                                             .name = "max_pool bytes " DF_TEXT(DF_ISA),
                                             .operands = "u8|i8->u8|i8,i32?",
                                             .accepts = accepts,
                                             .prepare = prepare,
                                             .run = run},
                          NULL};
