/* norm/loss.c: softmax cross entropy over class labels and its gradient, apart and as one.
 *
 * logits x: (outer, size, inner), the first C of |size| are classes; labels l, loss, m, s: (outer,
 * inner).
 *   m = max_c x_c, s = log sum_c e^(x_c - m)         their sum, rounded, would lose digits of s
 *   loss = m + s - (1 - a) x_l - (a / C) sum_c x_c   a = label_smoothing
 *   dx_c = dloss (e^(x_c - m - s) - (1 - a) [c = l] - a / C)
 * Where l is ignore_index, loss and dx are 0; dx is 0 behind the classes. With inner = 1 a unit of
 * work is a row, else up to COLUMNS columns.
 */
#include "norm/softmax.h"

enum { COLUMNS = 256 };

typedef struct loss_context {
  const float *x;
  const df_tensor *labels;
  int64_t outer, size, classes, inner;
  int64_t ignored;
  float smoothing;
  float *loss, *top, *log_sum;            /* forward; both may be null */
  const float *dloss;                     /* gradient */
  const float *given_top, *given_log_sum; /* null where the loss is found with it */
  float *dx;
} loss_context;

static inline int64_t label_at(const df_tensor *labels, int64_t i) {
  return labels->dtype == DF_INT32 ? ((const int32_t *)labels->data)[i]
                                   : ((const int64_t *)labels->data)[i];
}

static df_status check_labels(const df_call *call, const loss_context *loss) {
  const int64_t count = loss->outer * loss->inner;
  for (int64_t i = 0; i < count; i++) {
    const int64_t label = label_at(loss->labels, i);
    if (label != loss->ignored && (label < 0 || label >= loss->classes))
      return df_fail(call, DF_INVALID, "label %lld at index %lld is outside 0..%lld",
                     (long long)label, (long long)i, (long long)loss->classes - 1);
  }
  return DF_OK;
}

/* The label at |i|, which was checked; one that changed since, as where a plan is wrong, is
 * ignored: nothing is written elsewhere. */
static inline int64_t class_at(const loss_context *loss, int64_t i) {
  const int64_t label = label_at(loss->labels, i);
  return label >= 0 && label < loss->classes ? label : loss->ignored;
}

/* Sum over the classes of m - x: what smoothing distributes the loss over. */
static double sum_below(const float *x, float m, int64_t classes, int64_t apart) {
  double sum = 0.0;
  for (int64_t c = 0; c < classes; c++)
    sum += (double)m - (double)x[c * apart];
  return sum;
}

/* The loss at one position from the maximum and the sum of exponentials relative to it. */
static void store_loss(const loss_context *loss, int64_t i, const float *x, float m, double sum) {
  DF_ASSUME(loss->loss);
  const double log_sum = log(sum);
  const int64_t label = class_at(loss, i);
  if (loss->top)
    loss->top[i] = m;
  if (loss->log_sum)
    loss->log_sum[i] = (float)log_sum;
  if (label == loss->ignored) {
    loss->loss[i] = 0.0f;
    return;
  }
  const double a = (double)loss->smoothing;
  double value = log_sum + (1.0 - a) * ((double)m - (double)x[label * loss->inner]);
  if (a != 0.0)
    value += a / (double)loss->classes * sum_below(x, m, loss->classes, loss->inner);
  loss->loss[i] = (float)value;
}

/* Up to COLUMNS neighbours, the classes of which lie |inner| apart. */
typedef struct neighbours {
  int64_t at, n; /* of outer * inner */
  const float *x;
  float *dx;
} neighbours;

static neighbours neighbours_of(const loss_context *loss, int64_t unit) {
  const int64_t chunks = df_divide_up(loss->inner, COLUMNS);
  const int64_t outer = unit / chunks, first = unit % chunks * COLUMNS;
  const int64_t offset = outer * loss->size * loss->inner + first;
  return (neighbours){.at = outer * loss->inner + first,
                      .n = df_min(COLUMNS, loss->inner - first),
                      .x = loss->x + offset,
                      .dx = loss->dx ? loss->dx + offset : NULL};
}

static void find_loss(const loss_context *loss, neighbours to) {
  float m[COLUMNS];
  double sum[COLUMNS];
  if (loss->inner == 1) {
    m[0] = df_max_row(to.x, loss->classes);
    sum[0] = df_exp_sum_row(to.x, m[0], loss->classes);
  } else {
    df_max_columns(m, to.x, loss->classes, loss->inner, to.n);
    df_exp_sum_columns(sum, to.x, m, loss->classes, loss->inner, to.n);
  }
  for (int64_t j = 0; j < to.n; j++)
    store_loss(loss, to.at + j, to.x + j, m[j], sum[j]);
}

static float scale_of(const loss_context *loss, int64_t i) {
  return class_at(loss, i) == loss->ignored ? 0.0f : loss->dloss[i];
}

/* What dx has beside dloss (e^(x - m - s) - a / C): the label's own share, and zeros behind. */
static void complete_gradient(const loss_context *loss, neighbours to) {
  for (int64_t j = 0; j < to.n; j++) {
    const int64_t label = class_at(loss, to.at + j);
    if (label != loss->ignored)
      to.dx[label * loss->inner + j] -= (1.0f - loss->smoothing) * loss->dloss[to.at + j];
  }
  for (int64_t c = loss->classes; c < loss->size; c++)
    for (int64_t j = 0; j < to.n; j++)
      to.dx[c * loss->inner + j] = 0.0f;
}

static void find_gradient(const loss_context *loss, neighbours to, const float *top,
                          const float *log_sum) {
  const float smoothed = loss->smoothing / (float)loss->classes;
  float scale[COLUMNS];
  for (int64_t j = 0; j < to.n; j++)
    scale[j] = scale_of(loss, to.at + j);
  if (loss->inner == 1) {
    const float s = scale[0], m = top[0], l = log_sum[0];
    DF_IVDEP
    for (int64_t c = 0; c < loss->classes; c++)
      to.dx[c] = s == 0.0f ? 0.0f : s * (df_exp((to.x[c] - m) - l) - smoothed);
  } else {
    for (int64_t c = 0; c < loss->classes; c++) {
      const float *from = to.x + c * loss->inner;
      float *dx = to.dx + c * loss->inner;
      DF_IVDEP
      for (int64_t j = 0; j < to.n; j++)
        dx[j] = scale[j] == 0.0f ? 0.0f
                                 : scale[j] * (df_exp((from[j] - top[j]) - log_sum[j]) - smoothed);
    }
  }
  complete_gradient(loss, to);
}

/* Loss and gradient of a row whose exponentials are computed once. */
static void find_both_of_row(const loss_context *loss, neighbours to) {
  const float m = df_max_row(to.x, loss->classes), s = scale_of(loss, to.at);
  if (s == 0.0f) { /* dx may lie over x, which the loss reads */
    store_loss(loss, to.at, to.x, m, df_exp_sum_row(to.x, m, loss->classes));
    memset(to.dx, 0, (size_t)loss->classes * sizeof *to.dx);
    complete_gradient(loss, to);
    return;
  }
  const int64_t label = class_at(loss, to.at);
  const double own = (double)m - (double)to.x[label], a = (double)loss->smoothing;
  double value = (1.0 - a) * own;
  if (a != 0.0)
    value += a / (double)loss->classes * sum_below(to.x, m, loss->classes, 1);
  double sum = 0.0;
  for (int64_t begin = 0; begin < loss->classes; begin += DF_CHUNK) {
    const int64_t some = df_min(DF_CHUNK, loss->classes - begin);
    const float *from = to.x + begin;
    float *dx = to.dx + begin;
    DF_IVDEP
    for (int64_t c = 0; c < some; c++)
      dx[c] = df_exp_below_zero(from[c] - m);
    sum += (double)df_sum_block(dx, some);
  }
  loss->loss[to.at] = (float)(log(sum) + value);
  const float each = (float)((double)s / sum);
  const float smoothed = s * (loss->smoothing / (float)loss->classes);
  for (int64_t c = 0; c < loss->classes; c++)
    to.dx[c] = to.dx[c] * each - smoothed;
  complete_gradient(loss, to);
}

static void task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const loss_context *loss = context;
  int64_t unit, end;
  df_task_range(index, count, loss->outer * df_divide_up(loss->inner, COLUMNS), 1, &unit, &end);
  for (; unit < end; unit++) {
    const neighbours to = neighbours_of(loss, unit);
    if (!loss->dx) {
      find_loss(loss, to);
    } else if (loss->given_top) {
      find_gradient(loss, to, loss->given_top + to.at, loss->given_log_sum + to.at);
    } else if (loss->inner == 1) {
      find_both_of_row(loss, to);
    } else {
      float top[COLUMNS], log_sum[COLUMNS];
      loss_context own = *loss;
      own.top = top - to.at;
      own.log_sum = log_sum - to.at;
      find_loss(&own, to);
      find_gradient(loss, to, top, log_sum);
    }
  }
}

static loss_context describe(const df_call *call, const df_tensor *logits,
                             const df_tensor *labels) {
  const int64_t axis = df_axis(call, DF_SOFTMAX_CROSS_ENTROPY_AXIS, logits->rank);
  const int64_t classes = df_attr_int(call, DF_SOFTMAX_CROSS_ENTROPY_CLASSES);
  return (loss_context){.x = logits->data,
                        .labels = labels,
                        .outer = df_product(logits->shape, 0, axis),
                        .size = logits->shape[axis],
                        .classes = classes ? classes : logits->shape[axis],
                        .inner = df_product(logits->shape, axis + 1, logits->rank),
                        .ignored = df_attr_int(call, DF_SOFTMAX_CROSS_ENTROPY_IGNORE_INDEX),
                        .smoothing =
                            (float)df_attr_float(call, DF_SOFTMAX_CROSS_ENTROPY_LABEL_SMOOTHING)};
}

static df_status run(const df_call *call, loss_context *loss) {
  const df_status status = check_labels(call, loss);
  const int64_t units = loss->outer * df_divide_up(loss->inner, COLUMNS);
  if (status != DF_OK || units == 0)
    return status;
  const int64_t elements = loss->outer * loss->size * loss->inner;
  df_parallel(call, task, loss, df_min(units, df_task_count(call, elements, DF_GRAIN / 4)));
  return DF_OK;
}

/* softmax_cross_entropy(logits, labels; axis, ignore_index, label_smoothing) -> loss, top?,
 * log_sum? */
static df_status forward_run(const df_call *call) {
  loss_context loss = describe(call, call->inputs[0], call->inputs[1]);
  loss.loss = call->outputs[0]->data;
  loss.top = call->n_outputs > 1 ? call->outputs[1]->data : NULL;
  loss.log_sum = call->n_outputs > 2 ? call->outputs[2]->data : NULL;
  return run(call, &loss);
}

/* softmax_cross_entropy_grad(dloss, logits, labels, top, log_sum; ...) -> dlogits */
static df_status gradient_run(const df_call *call) {
  loss_context loss = describe(call, call->inputs[1], call->inputs[2]);
  loss.dloss = call->inputs[0]->data;
  loss.given_top = call->inputs[3]->data;
  loss.given_log_sum = call->inputs[4]->data;
  loss.dx = call->outputs[0]->data;
  return run(call, &loss);
}

/* softmax_cross_entropy_with_grad(dloss, logits, labels; ...) -> loss, dlogits */
static df_status both_run(const df_call *call) {
  loss_context loss = describe(call, call->inputs[1], call->inputs[2]);
  loss.dloss = call->inputs[0]->data;
  loss.loss = call->outputs[0]->data;
  loss.dx = call->outputs[1]->data;
  return run(call, &loss);
}

DF_KERNELS(loss) = {
    DF_KERNEL("softmax_cross_entropy", "f32", "f32,i32|i64->f32,f32?,f32?", NULL, forward_run),
    DF_KERNEL("softmax_cross_entropy_grad", "f32", "f32,f32,i32|i64,f32,f32->f32", "0<1",
              gradient_run),
    DF_KERNEL("softmax_cross_entropy_with_grad", "f32", "f32,f32,i32|i64->f32,f32", "1<1",
              both_run),
    NULL};
