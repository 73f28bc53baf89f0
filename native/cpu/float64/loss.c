/* float64/loss.c: softmax cross entropy of float64 over class labels and its gradient, apart and as
 * one; see norm/loss.c for the formulas. A unit of work is one position, whose classes lie |inner|
 * apart: each is read twice for the loss and once for the gradient. */
#include "cpu.h"

#include <math.h>

typedef struct loss_context {
  const double *x;
  const df_tensor *labels;
  int64_t outer, size, classes, inner;
  int64_t ignored;
  double smoothing;
  double *loss, *top, *log_sum;            /* forward; both may be null */
  const double *dloss;                     /* gradient */
  const double *given_top, *given_log_sum; /* null where the loss is found with it */
  double *dx;
} loss_context;

static int64_t label_at(const df_tensor *labels, int64_t i) {
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

/* The label at |i|, which was checked; one that changed since is ignored. */
static int64_t class_at(const loss_context *loss, int64_t i) {
  const int64_t label = label_at(loss->labels, i);
  return label >= 0 && label < loss->classes ? label : loss->ignored;
}

/* The largest, or a NaN, and the logarithm of the sum of exponentials below it. */
static void find_sums(const loss_context *loss, const double *x, double *top, double *log_sum) {
  double m = -(double)INFINITY, sum = 0.0;
  for (int64_t c = 0; c < loss->classes; c++) {
    const double at = x[c * loss->inner];
    m = at > m || at != at ? at : m;
  }
  for (int64_t c = 0; c < loss->classes; c++)
    sum += exp(x[c * loss->inner] - m);
  *top = m;
  *log_sum = log(sum);
}

static double loss_of(const loss_context *loss, const double *x, int64_t label, double top,
                      double log_sum) {
  if (label == loss->ignored)
    return 0.0;
  double value = log_sum + (1.0 - loss->smoothing) * (top - x[label * loss->inner]);
  if (loss->smoothing != 0.0) {
    double below = 0.0;
    for (int64_t c = 0; c < loss->classes; c++)
      below += top - x[c * loss->inner];
    value += loss->smoothing / (double)loss->classes * below;
  }
  return value;
}

/* dx may lie over x. */
static void put_gradient(const loss_context *loss, const double *x, double *dx, int64_t label,
                         double dloss, double top, double log_sum) {
  const int none = label == loss->ignored || dloss == 0.0;
  const double smoothed = loss->smoothing / (double)loss->classes;
  for (int64_t c = 0; c < loss->size; c++)
    dx[c * loss->inner] = none || c >= loss->classes
                              ? 0.0
                              : dloss * (exp((x[c * loss->inner] - top) - log_sum) - smoothed);
  if (!none)
    dx[label * loss->inner] -= (1.0 - loss->smoothing) * dloss;
}

static void task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const loss_context *loss = context;
  int64_t i, end;
  df_task_range(index, count, loss->outer * loss->inner, 1, &i, &end);
  for (; i < end; i++) {
    const int64_t at = i / loss->inner * loss->size * loss->inner + i % loss->inner;
    const double *x = loss->x + at;
    const int64_t label = class_at(loss, i);
    double top, log_sum;
    if (loss->given_top) {
      top = loss->given_top[i];
      log_sum = loss->given_log_sum[i];
    } else {
      find_sums(loss, x, &top, &log_sum);
      loss->loss[i] = loss_of(loss, x, label, top, log_sum);
    }
    if (loss->top)
      loss->top[i] = top;
    if (loss->log_sum)
      loss->log_sum[i] = log_sum;
    if (loss->dx)
      put_gradient(loss, x, loss->dx + at, label, loss->dloss[i], top, log_sum);
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
                        .smoothing = df_attr_float(call, DF_SOFTMAX_CROSS_ENTROPY_LABEL_SMOOTHING)};
}

static df_status run(const df_call *call, loss_context *loss) {
  const df_status status = check_labels(call, loss);
  const int64_t positions = loss->outer * loss->inner;
  if (status != DF_OK || positions == 0)
    return status;
  df_parallel(call, task, loss,
              df_min(positions, df_task_count(call, positions * loss->size, DF_GRAIN / 8)));
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

DF_KERNELS(loss_float64) = {
    DF_KERNEL("softmax_cross_entropy", "f64", "f64,i32|i64->f64,f64?,f64?", NULL, forward_run),
    DF_KERNEL("softmax_cross_entropy_grad", "f64", "f64,f64,i32|i64,f64,f64->f64", "0<1",
              gradient_run),
    DF_KERNEL("softmax_cross_entropy_with_grad", "f64", "f64,f64,i32|i64->f64,f64", "1<1",
              both_run),
    NULL};
