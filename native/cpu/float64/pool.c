/* float64/pool.c: pooling of float64 and its gradients, window by window; see pool/pool.c. */
#include "pool/span.h"

#include <math.h>

typedef struct pooling {
  df_window w;
  const double *from;
  double *to;
  int32_t *indices; /* may be null */
  const int32_t *old_indices;
  int64_t planes;
  int32_t pads_count; /* means: padding counts */
  int32_t *bad;       /* per task: an index is outside of its plane */
} pooling;

#define EACH_ELEMENT(w, s, body)                                                                   \
  for (int64_t a = (s).begin[0]; a < (s).end[0]; a++)                                              \
    for (int64_t b = (s).begin[1]; b < (s).end[1]; b++) {                                          \
      const int64_t row = df_row_at(w, &(s), a, b);                                                \
      for (int64_t c = (s).begin[2]; c < (s).end[2]; c++) {                                        \
        const int64_t at = row + c * (w)->dilation[2];                                             \
        body                                                                                       \
      }                                                                                            \
    }

static void max_plane(const pooling *p, int64_t plane) {
  const double *x = p->from + plane * p->w.in_size;
  double *y = p->to + plane * p->w.out_size;
  int32_t *indices = p->indices ? p->indices + plane * p->w.out_size : NULL;
  DF_EACH_OUTPUT(&p->w, {
    const df_window_elements s = df_elements_at(&p->w, o);
    double best = -(double)INFINITY;
    int64_t best_at = DF_NOWHERE;
    /* !(x <= best) also holds for a NaN; a NaN found before stays. */
    EACH_ELEMENT(
        &p->w, s, if (best_at == DF_NOWHERE || (!(x[at] <= best) && best == best)) {
          best = x[at];
          best_at = at;
        })
    y[out] = best;
    if (indices)
      indices[out] = (int32_t)best_at;
  });
}

static void avg_plane(const pooling *p, int64_t plane) {
  const double *x = p->from + plane * p->w.in_size;
  double *y = p->to + plane * p->w.out_size;
  DF_EACH_OUTPUT(&p->w, {
    const df_window_elements s = df_elements_at(&p->w, o);
    double sum = 0.0;
    EACH_ELEMENT(&p->w, s, sum += x[at];)
    const int64_t count = df_divisor(&p->w, &s, o, p->pads_count);
    y[out] = count ? sum / (double)count : 0.0;
  });
}

static void avg_grad_plane(const pooling *p, int64_t plane) {
  const double *dy = p->from + plane * p->w.out_size;
  double *dx = p->to + plane * p->w.in_size;
  memset(dx, 0, (size_t)p->w.in_size * sizeof *dx);
  DF_EACH_OUTPUT(&p->w, {
    const df_window_elements s = df_elements_at(&p->w, o);
    const int64_t count = df_divisor(&p->w, &s, o, p->pads_count);
    const double share = count ? dy[out] / (double)count : 0.0;
    EACH_ELEMENT(&p->w, s, dx[at] += share;)
  });
}

/* Returns 0 when an index lies outside the plane; nothing is written there. */
static int max_grad_plane(const pooling *p, int64_t plane) {
  const double *dy = p->from + plane * p->w.out_size;
  const int32_t *indices = p->old_indices + plane * p->w.out_size;
  double *dx = p->to + plane * p->w.in_size;
  int good = 1;
  memset(dx, 0, (size_t)p->w.in_size * sizeof *dx);
  for (int64_t out = 0; out < p->w.out_size; out++) {
    const int64_t at = indices[out];
    if ((uint64_t)at < (uint64_t)p->w.in_size)
      dx[at] += dy[out];
    else if (at != DF_NOWHERE)
      good = 0;
  }
  return good;
}

#define PLANES(name, work)                                                                         \
  static void name(void *context, int64_t index, int64_t count, int32_t worker) {                  \
    (void)worker;                                                                                  \
    const pooling *p = context;                                                                    \
    int64_t plane, end;                                                                            \
    df_task_range(index, count, p->planes, 1, &plane, &end);                                       \
    for (; plane < end; plane++)                                                                   \
      work;                                                                                        \
  }
PLANES(max_task, max_plane(p, plane))
PLANES(avg_task, avg_plane(p, plane))
PLANES(avg_grad_task, avg_grad_plane(p, plane))
PLANES(max_grad_task, if (!max_grad_plane(p, plane)) p->bad[index] = 1)

static void over_planes(const df_call *call, df_task task, pooling *p, int64_t taps) {
  const int64_t work = df_times(p->planes, df_max(p->w.in_size, df_times(p->w.out_size, taps)));
  df_parallel(call, task, p, df_min(p->planes, df_task_count(call, work, DF_GRAIN)));
}

/* |first|: where the attributes of the window begin. */
static pooling pooling_of(const df_call *call, const df_tensor *x, const df_tensor *y,
                          int32_t first) {
  return (pooling){
      .w = df_pool_window(call->attributes, call->n_attributes, first, x->shape, y->shape, x->rank),
      .from = call->inputs[0]->data,
      .to = call->outputs[0]->data,
      .planes = x->shape[0] * x->shape[1]};
}

static df_status run_max(const df_call *call) {
  pooling p = pooling_of(call, call->inputs[0], call->outputs[0], DF_MAX_POOL_KERNEL);
  p.indices = call->n_outputs > 1 ? call->outputs[1]->data : NULL;
  over_planes(call, max_task, &p, p.w.taps);
  return DF_OK;
}

static df_status run_avg(const df_call *call) {
  pooling p = pooling_of(call, call->inputs[0], call->outputs[0], DF_MAX_POOL_KERNEL);
  p.pads_count = df_attr_int(call, DF_AVG_POOL_COUNT_INCLUDE_PAD) != 0;
  over_planes(call, avg_task, &p, p.w.taps);
  return DF_OK;
}

static df_status run_avg_grad(const df_call *call) {
  pooling p = pooling_of(call, call->outputs[0], call->inputs[0], DF_AVG_POOL_GRAD_KERNEL);
  p.pads_count = df_attr_int(call, DF_AVG_POOL_GRAD_COUNT_INCLUDE_PAD) != 0;
  over_planes(call, avg_grad_task, &p, p.w.taps);
  return DF_OK;
}

/* A word per task that says whether an index was bad. */
static int64_t words_of(int32_t threads) { return 4 * (int64_t)threads + 1; }

static df_status prepare_max_grad(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = words_of(node->threads) * (int64_t)sizeof(int32_t);
  return DF_OK;
}

static df_status run_max_grad(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  pooling p = {.w = {.in_size = df_product(dx->shape, 2, dx->rank),
                     .out_size = df_product(dy->shape, 2, dy->rank)},
               .from = dy->data,
               .to = dx->data,
               .old_indices = call->inputs[1]->data,
               .planes = dx->shape[0] * dx->shape[1],
               .bad = call->workspace};
  const int64_t words = words_of(call->threads);
  memset(p.bad, 0, (size_t)words * sizeof *p.bad);
  over_planes(call, max_grad_task, &p, 1);
  for (int64_t i = 0; i < words; i++)
    if (p.bad[i])
      return df_fail(call, DF_INVALID,
                     "max_pool_grad: an index is outside the plane of %lld elements; the indices "
                     "must be those of max_pool on an input of this shape",
                     (long long)p.w.in_size);
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  return df_pool_accepts(node, DF_MAX_POOL_KERNEL, node->inputs[0], node->outputs[0]);
}

static const char *accepts_avg_grad(const df_node *node) {
  return df_pool_accepts(node, DF_AVG_POOL_GRAD_KERNEL, node->outputs[0], node->inputs[0]);
}

DF_KERNELS(pool_float64) = {
    DF_KERNEL_IF("max_pool", "f64", "f64->f64,i32?", NULL, accepts, run_max),
    DF_KERNEL_IF("avg_pool", "f64", "f64->f64", NULL, accepts, run_avg),
    DF_KERNEL_IF("avg_pool_grad", "f64", "f64->f64", NULL, accepts_avg_grad, run_avg_grad),
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "max_pool_grad",
                       .name = "max_pool_grad f64 " DF_TEXT(DF_ISA),
                       .operands = "f64,i32->f64",
                       .accepts = df_pool_accepts_rank,
                       .prepare = prepare_max_grad,
                       .run = run_max_grad},
    NULL};
