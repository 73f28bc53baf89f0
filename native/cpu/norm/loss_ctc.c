/* norm/loss_ctc.c: connectionist temporal classification (Graves et al. 2006), its gradient, and
 * the product of its second derivatives with a vector.
 *
 * log_probs p: (B, T, C); labels: (B, L); lengths, label_lengths, loss: (B,). The states of a
 * sample are its labels with a blank around each, S = 2 L + 1. In logarithms and in doubles, since
 * paths of thousands of steps add up; lse is log sum exp:
 *   alpha_t(s) = p_t(s) + lse(alpha_t-1(s), alpha_t-1(s - 1), alpha_t-1(s - 2) if s may skip)
 *   loss = -lse(alpha_T-1(S - 1), alpha_T-1(S - 2))
 *   beta_t(s) = lse(beta_t+1 + p_t+1 of the states that may follow s), 0 at the ends
 *   dp_t(c) = -dloss sum e^(alpha_t + beta_t + loss) over the states of class c
 *
 * A state may skip the blank before it where the label before that is another one. The gradient
 * computes alpha again rather than keeping it: it would be as large as the activations.
 *
 * The product with u is the derivative of the gradient along u (Pearlmutter 1994): beside alpha and
 * beta are theirs, a sum of exponentials having the mean of its terms' weighed by these.
 */
#include <math.h>

#include "cpu.h"
#include "dataflow_inline.h"
#include "kernels/attributes.h"

typedef struct ctc {
  const float *p;
  const df_tensor *labels, *lengths, *counts;
  int64_t batch, time, classes, most, blank;
  float *loss;        /* forward */
  const float *dloss; /* gradient */
  const float *u;     /* product */
  float *dp;          /* or the product */
  char *workspace;
  int64_t bytes; /* of it per worker */
} ctc;

/* A sample: its states' classes, and which may skip. */
typedef struct path {
  const float *p;
  int64_t time, states;
  int64_t *state;
  char *skips;
} path;

static inline int64_t integer_at(const df_tensor *t, int64_t i) {
  return t->dtype == DF_INT32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i];
}

static inline double log_sum(double a, double b, double c) {
  double m = a > b ? a : b;
  m = m > c ? m : c;
  if (a == -INFINITY && b == -INFINITY && c == -INFINITY)
    return -INFINITY;
  return m + log(exp(a - m) + exp(b - m) + exp(c - m));
}

/* A number and its derivative along u. */
typedef struct dual {
  double value, slope;
} dual;

static const dual NONE = {-INFINITY, 0.0};

static inline dual log_sum_dual(dual a, dual b, dual c) {
  const double sum = log_sum(a.value, b.value, c.value);
  if (sum == -INFINITY)
    return NONE;
  return (dual){sum, exp(a.value - sum) * a.slope + exp(b.value - sum) * b.slope +
                         exp(c.value - sum) * c.slope};
}

static df_status check(const df_call *call, const ctc *c) {
  for (int64_t b = 0; b < c->batch; b++) {
    const int64_t length = integer_at(c->lengths, b), count = integer_at(c->counts, b);
    if (length < 0 || length > c->time)
      return df_fail(call, DF_INVALID, "length %lld at [%lld] is outside [0, %lld]",
                     (long long)length, (long long)b, (long long)c->time);
    if (count < 0 || count > c->most)
      return df_fail(call, DF_INVALID, "label length %lld at [%lld] is outside [0, %lld]",
                     (long long)count, (long long)b, (long long)c->most);
    for (int64_t i = 0; i < count; i++) {
      const int64_t label = integer_at(c->labels, b * c->most + i);
      if (label < 0 || label >= c->classes || label == c->blank)
        return df_fail(call, DF_INVALID,
                       "label %lld at [%lld, %lld] is outside [0, %lld), or the blank",
                       (long long)label, (long long)b, (long long)i, (long long)c->classes);
    }
  }
  return DF_OK;
}

static path path_of(const ctc *c, int64_t b, char *workspace) {
  const int64_t most = 2 * c->most + 1, count = integer_at(c->counts, b);
  path x = {.p = c->p + b * c->time * c->classes,
            .time = integer_at(c->lengths, b),
            .states = 2 * count + 1,
            .state = (int64_t *)workspace,
            .skips = workspace + most * (int64_t)sizeof(int64_t)};
  for (int64_t s = 0; s < x.states; s++) {
    x.state[s] = s % 2 ? integer_at(c->labels, b * c->most + s / 2) : c->blank;
    x.skips[s] = s % 2 && s > 1 && x.state[s] != x.state[s - 2];
  }
  return x;
}

/* alpha of time |t| from that before; |now| may not be |before|. */
static void forward_step(const path *x, const double *before, double *now, int64_t t,
                         int64_t classes) {
  const float *p = x->p + t * classes;
  for (int64_t s = 0; s < x->states; s++) {
    double came = s < 2 ? 0.0 : -INFINITY;
    if (t)
      came = log_sum(before[s], s ? before[s - 1] : -INFINITY,
                     x->skips[s] ? before[s - 2] : -INFINITY);
    now[s] = came + (double)p[x->state[s]];
  }
}

/* -loss, from alpha at the last time. */
static double total_of(const path *x, const double *last) {
  if (!x->time)
    return x->states == 1 ? 0.0 : -INFINITY;
  return log_sum(last[x->states - 1], x->states > 1 ? last[x->states - 2] : -INFINITY, -INFINITY);
}

static inline double *numbers_of(const ctc *c, char *workspace) {
  const int64_t most = 2 * c->most + 1;
  return (double *)(workspace + df_round_up(most * (int64_t)(sizeof(int64_t) + 1), 8));
}

static void forward_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const ctc *c = context;
  const int64_t most = 2 * c->most + 1;
  char *workspace = c->workspace + worker * c->bytes;
  double *rows = numbers_of(c, workspace);
  int64_t b, end;
  df_task_range(index, count, c->batch, 1, &b, &end);
  for (; b < end; b++) {
    const path x = path_of(c, b, workspace);
    for (int64_t t = 0; t < x.time; t++)
      forward_step(&x, rows + (t + 1) % 2 * most, rows + t % 2 * most, t, c->classes);
    c->loss[b] = (float)-total_of(&x, rows + (x.time + 1) % 2 * most);
  }
}

static void gradient_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const ctc *c = context;
  const int64_t most = 2 * c->most + 1;
  char *workspace = c->workspace + worker * c->bytes;
  double *alpha = numbers_of(c, workspace), *beta = alpha + c->time * most;
  int64_t b, end;
  df_task_range(index, count, c->batch, 1, &b, &end);
  for (; b < end; b++) {
    const path x = path_of(c, b, workspace);
    float *dp = c->dp + b * c->time * c->classes;
    for (int64_t i = 0; i < c->time * c->classes; i++)
      dp[i] = 0.0f;
    for (int64_t t = 0; t < x.time; t++)
      forward_step(&x, alpha + (t - (t > 0)) * most, alpha + t * most, t, c->classes);
    const double total = total_of(&x, alpha + (x.time - (x.time > 0)) * most);
    if (total == -INFINITY)
      continue;
    for (int64_t s = 0; s < x.states; s++)
      beta[s] = s >= x.states - 2 ? 0.0 : -INFINITY;
    for (int64_t t = x.time - 1; t >= 0; t--) {
      const float *after = x.p + (t + 1) * c->classes;
      for (int64_t s = 0; t < x.time - 1 && s < x.states; s++)
        beta[s] += (double)after[x.state[s]];
      for (int64_t s = 0; s < x.states; s++) { /* upwards: what is read is not yet written */
        if (t < x.time - 1)
          beta[s] = log_sum(beta[s], s + 1 < x.states ? beta[s + 1] : -INFINITY,
                            s + 2 < x.states && x.skips[s + 2] ? beta[s + 2] : -INFINITY);
        const double share = exp(alpha[t * most + s] + beta[s] - total);
        dp[t * c->classes + x.state[s]] -= (float)(share * (double)c->dloss[b]);
      }
    }
  }
}

static void product_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const ctc *c = context;
  const int64_t most = 2 * c->most + 1;
  char *workspace = c->workspace + worker * c->bytes;
  dual *alpha = (dual *)numbers_of(c, workspace), *beta = alpha + c->time * most;
  int64_t b, end;
  df_task_range(index, count, c->batch, 1, &b, &end);
  for (; b < end; b++) {
    const path x = path_of(c, b, workspace);
    const float *u = c->u + b * c->time * c->classes;
    float *product = c->dp + b * c->time * c->classes;
    c->loss[b] = 0.0f;
    for (int64_t i = 0; i < c->time * c->classes; i++)
      product[i] = 0.0f;
    for (int64_t t = 0; t < x.time; t++)
      for (int64_t s = 0; s < x.states; s++) {
        const dual *before = alpha + (t - (t > 0)) * most;
        const int64_t at = t * c->classes + x.state[s];
        dual came = s < 2 ? (dual){0.0, 0.0} : NONE;
        if (t)
          came =
              log_sum_dual(before[s], s ? before[s - 1] : NONE, x.skips[s] ? before[s - 2] : NONE);
        alpha[t * most + s] = (dual){came.value + (double)x.p[at], came.slope + (double)u[at]};
      }
    const dual *last = alpha + (x.time - (x.time > 0)) * most;
    const dual total =
        x.time ? log_sum_dual(last[x.states - 1], x.states > 1 ? last[x.states - 2] : NONE, NONE)
               : NONE;
    if (total.value == -INFINITY)
      continue;
    c->loss[b] = (float)-total.slope;
    for (int64_t s = 0; s < x.states; s++)
      beta[s] = s >= x.states - 2 ? (dual){0.0, 0.0} : NONE;
    for (int64_t t = x.time - 1; t >= 0; t--) {
      for (int64_t s = 0; t < x.time - 1 && s < x.states; s++) {
        const int64_t at = (t + 1) * c->classes + x.state[s];
        beta[s].value += (double)x.p[at];
        beta[s].slope += (double)u[at];
      }
      for (int64_t s = 0; s < x.states; s++) { /* upwards: what is read is not yet written */
        if (t < x.time - 1)
          beta[s] = log_sum_dual(beta[s], s + 1 < x.states ? beta[s + 1] : NONE,
                                 s + 2 < x.states && x.skips[s + 2] ? beta[s + 2] : NONE);
        const dual a = alpha[t * most + s];
        const double share = exp(a.value + beta[s].value - total.value);
        product[t * c->classes + x.state[s]] -=
            (float)(share * (a.slope + beta[s].slope - total.slope));
      }
    }
  }
}

/* Numbers of a worker: the states, and |rows| of doubles. */
static int64_t bytes_of(int64_t most, int64_t rows) {
  const int64_t states = df_plus(df_times(most, 2), 1);
  return df_plus(df_plus(df_times(states, sizeof(int64_t) + 1), 64),
                 df_times(df_times(states, rows), sizeof(double)));
}

static ctc describe(const df_call *call, int64_t first, int64_t rows) {
  const df_tensor *p = call->inputs[first], *labels = call->inputs[first + 1];
  return (ctc){.p = p->data,
               .labels = labels,
               .lengths = call->inputs[first + 2],
               .counts = call->inputs[first + 3],
               .batch = p->shape[0],
               .time = p->shape[1],
               .classes = p->shape[2],
               .most = labels->shape[1],
               .blank = df_attr_int(call, DF_CTC_LOSS_BLANK),
               .workspace = call->workspace,
               .bytes = df_round_up(bytes_of(labels->shape[1], rows), 64)};
}

static df_status run(const df_call *call, ctc *c, df_task task) {
  const df_status status = check(call, c);
  if (status == DF_OK)
    df_parallel(call, task, c, df_min(c->batch, 4 * (int64_t)call->threads));
  return status;
}

/* ctc_loss(log_probs, labels, lengths, label_lengths; blank) -> loss */
static df_status forward_run(const df_call *call) {
  ctc c = describe(call, 0, 2);
  c.loss = call->outputs[0]->data;
  return run(call, &c, forward_task);
}

/* ctc_loss_grad(dloss, log_probs, labels, lengths, label_lengths; blank) -> dlog_probs */
static df_status gradient_run(const df_call *call) {
  ctc c = describe(call, 1, call->inputs[1]->shape[1] + 1);
  c.dloss = call->inputs[0]->data;
  c.dp = call->outputs[0]->data;
  return run(call, &c, gradient_task);
}

/* ctc_loss_product(u, log_probs, labels, lengths, label_lengths; blank) -> slope, product */
static df_status product_run(const df_call *call) {
  ctc c = describe(call, 1, 2 * (call->inputs[1]->shape[1] + 1));
  c.u = call->inputs[0]->data;
  c.loss = call->outputs[0]->data;
  c.dp = call->outputs[1]->data;
  return run(call, &c, product_task);
}

static df_status prepare(const df_node *node, df_prepared *out, int64_t first, int64_t rows) {
  const int64_t each = df_round_up(bytes_of(node->inputs[first + 1]->shape[1], rows), 64);
  out->workspace = df_times(each, node->threads);
  return DF_OK;
}

static df_status forward_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  return prepare(node, out, 0, 2);
}

static df_status gradient_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  return prepare(node, out, 1, df_plus(node->inputs[1]->shape[1], 1));
}

static df_status product_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  return prepare(node, out, 1, df_times(df_plus(node->inputs[1]->shape[1], 1), 2));
}

#define KERNEL(op_, operands_, prepare_, run_)                                                     \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = op_,                                                                    \
                     .name = op_ " f32 " DF_TEXT(DF_ISA),                                          \
                     .operands = operands_,                                                        \
                     .prepare = prepare_,                                                          \
                     .run = run_}

DF_KERNELS(loss_ctc) = {
    KERNEL("ctc_loss", "f32,i32|i64,i32|i64,i32|i64->f32", forward_prepare, forward_run),
    KERNEL("ctc_loss_grad", "f32,f32,i32|i64,i32|i64,i32|i64->f32", gradient_prepare, gradient_run),
    KERNEL("ctc_loss_product", "f32,f32,i32|i64,i32|i64,i32|i64->f32,f32", product_prepare,
           product_run),
    NULL};
