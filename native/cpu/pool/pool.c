/* pool/pool.c: maxima and means over windows of (N, C, spatial...), and their gradients.
 *
 *   max_pool       y = largest of the window, the first of equals; NaN wins.
 *                  indices: where in the plane it lies
 *   max_pool_grad  dx = 0, then dx[indices] += dy in the order of y
 *   avg_pool       y = sum of the window / count; count is of the elements inside, or inside the
 *                  padding too
 *   avg_pool_grad  dx[elements of the window] += dy / count in the order of y
 *
 * Planes are independent, so a task is some planes. An output costs one read per tap. */
#include "pool/rows.h"
#include "pool/span.h"

#include <math.h>

enum { SHARES = 256 }; /* of windows of a row at a time */

typedef struct pooling {
  df_window w;
  float *y;
  int32_t *indices; /* may be null */
  float *dx;
  const float *x, *dy;
  const int32_t *old_indices;
  int64_t planes;
  int32_t pads_count; /* avg: padding counts */
  int32_t *bad;       /* per task: an index that is outside, see max_grad_plane */
} pooling;

/* ---- Geometry ------------------------------------------------------------------------------- */

static const char *accepts(const df_node *node) {
  return df_pool_accepts(node, DF_MAX_POOL_KERNEL, node->inputs[0], node->outputs[0]);
}

static const char *accepts_avg_grad(const df_node *node) {
  return df_pool_accepts(node, DF_AVG_POOL_GRAD_KERNEL, node->outputs[0], node->inputs[0]);
}

/* ---- Planes --------------------------------------------------------------------------------- */

static float max_at(const df_window *w, const float *x, const int64_t o[DF_AXES], int32_t *argmax) {
  df_window_elements s = df_elements_at(w, o);
  float best = -INFINITY;
  int64_t best_index = DF_NOWHERE;
  for (int64_t a = s.begin[0]; a < s.end[0]; a++)
    for (int64_t b = s.begin[1]; b < s.end[1]; b++) {
      int64_t row = df_row_at(w, &s, a, b);
      for (int64_t c = s.begin[2]; c < s.end[2]; c++) {
        int64_t at = row + c * w->dilation[2];
        /* !(x <= best) also holds for a NaN; a NaN found before stays. */
        if (best_index == DF_NOWHERE || (!(x[at] <= best) && best == best)) {
          best = x[at];
          best_index = at;
        }
      }
    }
  *argmax = (int32_t)best_index;
  return best;
}

static void max_planes(const pooling *j, int64_t plane, int64_t planes) {
  const float *x = j->x + plane * j->w.in_size;
  float *y = j->y + plane * j->w.out_size;
  int32_t *indices = j->indices ? j->indices + plane * j->w.out_size : NULL;
  int rows_fit = DF_NAME(df_pool_rows_fit)(&j->w);
  if (rows_fit && !indices) {
    DF_NAME(df_max_rows)(&j->w, planes, x, y);
    return;
  }
  for (; planes > 0; planes--, x += j->w.in_size, y += j->w.out_size) {
    int32_t argmax;
    if (rows_fit)
      DF_NAME(df_max_indices)(&j->w, x, y, indices);
    else
      DF_EACH_OUTPUT(&j->w, {
        y[out] = max_at(&j->w, x, o, &argmax);
        if (indices)
          indices[out] = argmax;
      });
    indices = indices ? indices + j->w.out_size : NULL;
  }
}

static void avg_planes(const pooling *j, int64_t plane, int64_t planes) {
  const df_window *w = &j->w;
  const float *x = j->x + plane * w->in_size;
  float *y = j->y + plane * w->out_size;
  if (DF_NAME(df_pool_rows_fit)(w)) {
    DF_NAME(df_avg_rows)(w, planes, x, y, j->pads_count);
    return;
  }
  for (; planes > 0; planes--, x += w->in_size, y += w->out_size)
    DF_EACH_OUTPUT(w, {
      df_window_elements s = df_elements_at(w, o);
      float sum = 0.0f;
      for (int64_t a = s.begin[0]; a < s.end[0]; a++)
        for (int64_t b = s.begin[1]; b < s.end[1]; b++) {
          int64_t row = df_row_at(w, &s, a, b);
          for (int64_t c = s.begin[2]; c < s.end[2]; c++)
            sum += x[row + c * w->dilation[2]];
        }
      int64_t count = df_divisor(w, &s, o, j->pads_count);
      y[out] = count ? sum / (float)count : 0.0f;
    });
}

/* shares[i] = what each element of window (o[0], o[1], o[2] + i) gets, whose other axes' divisor is
 * |outer|. */
static void share_out(const pooling *j, const int64_t o[DF_AXES], int64_t outer, const float *dy,
                      float *shares, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int64_t begin, end;
    df_window_taps(&j->w, 2, o[2] + i, &begin, &end);
    const int64_t count = outer * df_divisor_along(&j->w, 2, o[2] + i, end - begin, j->pads_count);
    shares[i] = count ? dy[i] / (float)count : 0.0f;
  }
}

/* Adds the shares of |n| windows from |first| on to a row of dx. The last tap comes first: an
 * element's windows then come in ascending order. */
static void add_shares(const df_window *w, float *dx, const float *shares, int64_t first,
                       int64_t n) {
  const int64_t stride = w->stride[2];
  for (int64_t tap = w->kernel[2] - 1; tap >= 0; tap--) {
    const int64_t at = tap * w->dilation[2] - w->pad[2]; /* of window 0 */
    const int64_t begin = at >= 0 ? 0 : df_divide_up(-at, stride);
    const int64_t end = at >= w->in[2] ? 0 : df_divide_up(w->in[2] - at, stride);
    const int64_t last = df_min(n, end - first);
    float *to = dx + at + first * stride;
    for (int64_t i = df_max(0, begin - first); i < last; i++)
      to[i * stride] += shares[i];
  }
}

static void avg_grad_plane(const pooling *j, int64_t plane) {
  const df_window *w = &j->w;
  const float *dy = j->dy + plane * w->out_size;
  float *dx = j->dx + plane * w->in_size, shares[SHARES];
  memset(dx, 0, (size_t)w->in_size * sizeof(float));
  int64_t o[DF_AXES], n;
  for (o[0] = 0; o[0] < w->out[0]; o[0]++)
    for (o[1] = 0; o[1] < w->out[1]; o[1]++)
      for (o[2] = 0; o[2] < w->out[2]; o[2] += n, dy += n) {
        n = df_min(SHARES, w->out[2] - o[2]);
        const df_window_elements s = df_elements_at(w, o);
        int64_t outer = 1;
        for (int axis = 0; axis < 2; axis++)
          outer *= df_divisor_along(w, axis, o[axis], s.end[axis] - s.begin[axis], j->pads_count);
        share_out(j, o, outer, dy, shares, n);
        for (int64_t a = s.begin[0]; a < s.end[0]; a++)
          for (int64_t b = s.begin[1]; b < s.end[1]; b++) {
            const int64_t slice = s.start[0] + a * w->dilation[0];
            const int64_t row = s.start[1] + b * w->dilation[1];
            add_shares(w, dx + (slice * w->in[1] + row) * w->in[2], shares, o[2], n);
          }
      }
}

/* Returns 0 when an index lies outside the plane; nothing is written there. */
static int max_grad_plane(const pooling *j, int64_t plane) {
  const float *dy = j->dy + plane * j->w.out_size;
  const int32_t *indices = j->old_indices + plane * j->w.out_size;
  float *dx = j->dx + plane * j->w.in_size;
  int64_t size = j->w.in_size;
  int good = 1;
  memset(dx, 0, (size_t)size * sizeof(float));
  for (int64_t out = 0; out < j->w.out_size; out++) {
    int64_t argmax = indices[out];
    if ((uint64_t)argmax < (uint64_t)size)
      dx[argmax] += dy[out];
    else if (argmax != DF_NOWHERE)
      good = 0;
  }
  return good;
}

/* ---- Runs ----------------------------------------------------------------------------------- */

#define PLANES(name, work)                                                                         \
  static void name(void *context, int64_t index, int64_t count, int32_t worker) {                  \
    (void)worker;                                                                                  \
    const pooling *j = context;                                                                    \
    int64_t begin, end;                                                                            \
    df_task_range(index, count, j->planes, 1, &begin, &end);                                       \
    work;                                                                                          \
  }
#define EACH_PLANE(work)                                                                           \
  for (int64_t plane = begin; plane < end; plane++)                                                \
  work
PLANES(max_task, max_planes(j, begin, end - begin))
PLANES(avg_task, avg_planes(j, begin, end - begin))
PLANES(avg_grad_task, EACH_PLANE(avg_grad_plane(j, plane)))
PLANES(max_grad_task, EACH_PLANE(if (!max_grad_plane(j, plane)) j->bad[index] = 1))

static void over_planes(const df_call *call, df_task task, pooling *j, int64_t taps) {
  int64_t work = df_times(j->planes, df_max(j->w.in_size, df_times(j->w.out_size, taps)));
  df_parallel(call, task, j, df_min(j->planes, df_task_count(call, work, DF_GRAIN)));
}

static df_status run_max(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  pooling j = {.w = df_pool_window(call->attributes, call->n_attributes, DF_MAX_POOL_KERNEL,
                                   x->shape, y->shape, x->rank),
               .x = x->data,
               .y = y->data,
               .indices = call->n_outputs > 1 ? call->outputs[1]->data : NULL,
               .planes = y->shape[0] * y->shape[1]};
  over_planes(call, max_task, &j, j.w.taps);
  return DF_OK;
}

static df_status run_avg(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  pooling j = {.w = df_pool_window(call->attributes, call->n_attributes, DF_MAX_POOL_KERNEL,
                                   x->shape, y->shape, x->rank),
               .x = x->data,
               .y = y->data,
               .pads_count = df_attr_int(call, DF_AVG_POOL_COUNT_INCLUDE_PAD) != 0,
               .planes = y->shape[0] * y->shape[1]};
  over_planes(call, avg_task, &j, j.w.taps);
  return DF_OK;
}

static df_status run_avg_grad(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  pooling j = {.w = df_pool_window(call->attributes, call->n_attributes, DF_AVG_POOL_GRAD_KERNEL,
                                   dx->shape, dy->shape, dx->rank),
               .dy = dy->data,
               .dx = dx->data,
               .pads_count = df_attr_int(call, DF_AVG_POOL_GRAD_COUNT_INCLUDE_PAD) != 0,
               .planes = dx->shape[0] * dx->shape[1]};
  over_planes(call, avg_grad_task, &j, j.w.taps);
  return DF_OK;
}

/* A word per task that says whether an index was bad. */
static df_status prepare_max_grad(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = (4 * (int64_t)node->threads + 1) * (int64_t)sizeof(int32_t);
  return DF_OK;
}

static df_status run_max_grad(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  pooling j = {.w = {.in_size = df_product(dx->shape, 2, dx->rank),
                     .out_size = df_product(dy->shape, 2, dy->rank)},
               .dy = dy->data,
               .dx = dx->data,
               .old_indices = call->inputs[1]->data,
               .planes = dx->shape[0] * dx->shape[1],
               .bad = call->workspace};
  int64_t words = 4 * (int64_t)call->threads + 1;
  memset(j.bad, 0, (size_t)words * sizeof(int32_t));
  over_planes(call, max_grad_task, &j, 1);
  for (int64_t i = 0; i < words; i++)
    if (j.bad[i])
      return df_fail(call, DF_INVALID,
                     "max_pool_grad: an index is outside the plane of %lld elements; the indices "
                     "must be those of max_pool on an input of this shape",
                     (long long)j.w.in_size);
  return DF_OK;
}

DF_KERNELS(pool) = {
    DF_KERNEL_IF("max_pool", "f32", "f32->f32,i32?", NULL, accepts, run_max),
    DF_KERNEL_IF("avg_pool", "f32", "f32->f32", NULL, accepts, run_avg),
    DF_KERNEL_IF("avg_pool_grad", "f32", "f32->f32", NULL, accepts_avg_grad, run_avg_grad),
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "max_pool_grad",
                       .name = "max_pool_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,i32->f32",
                       .accepts = df_pool_accepts_rank,
                       .prepare = prepare_max_grad,
                       .run = run_max_grad},
    NULL};
