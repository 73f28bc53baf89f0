/* map/optimizer.c: one optimizer step over one parameter, in one pass, and the norm of gradients.
 * hyper holds what changes from step to step; |scale| multiplies the gradient. All tensors are
 * contiguous; outputs may overwrite their inputs. */
#include "cpu.h"
#include "simd/block.h"

#include <math.h>

enum { MOST_PARTIALS = 64 /* partial sums of a tensor; their number depends on its size only */ };

typedef struct step_context {
  float *param, *first, *second; /* outputs: parameter; velocity, or moments m and v */
  const float *old_param, *grad, *old_first, *old_second;
  int64_t count;
  float scale, rate, decay;
  float beta1, beta2, epsilon; /* sgd: beta1 is the momentum */
  float new1, new2;            /* adamw: 1 - beta, rounded once */
  float rate1, root2;          /* adamw: lr / (1 - beta1^t), sqrt(1 - beta2^t) */
  int nesterov;
} step_context;

/* g = scale grad + decay p; v' = momentum v + g; p' = p - lr v' (nesterov: g + momentum v'). */
static void sgd_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const step_context s = *(const step_context *)context;
  int64_t begin, end;
  df_task_range(index, count, s.count, 64, &begin, &end);
  if (!s.first) {
    DF_IVDEP
    for (int64_t i = begin; i < end; i++)
      s.param[i] = s.old_param[i] - s.rate * (s.scale * s.grad[i] + s.decay * s.old_param[i]);
  } else if (!s.nesterov) {
    DF_IVDEP
    for (int64_t i = begin; i < end; i++) {
      const float p = s.old_param[i];
      const float v = s.beta1 * s.old_first[i] + (s.scale * s.grad[i] + s.decay * p);
      s.first[i] = v;
      s.param[i] = p - s.rate * v;
    }
  } else {
    DF_IVDEP
    for (int64_t i = begin; i < end; i++) {
      const float p = s.old_param[i], g = s.scale * s.grad[i] + s.decay * p;
      const float v = s.beta1 * s.old_first[i] + g;
      s.first[i] = v;
      s.param[i] = p - s.rate * (g + s.beta1 * v);
    }
  }
}

/* g = scale grad; p1 = p (1 - lr decay); m' = beta1 m + (1 - beta1) g; v' = beta2 v + (1 - beta2)
 * g^2; p' = p1 - lr / (1 - beta1^t) m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon). */
static void adamw_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const step_context s = *(const step_context *)context;
  const float keep = 1.0f - s.rate * s.decay;
  const float new1 = s.new1, new2 = s.new2;
  int64_t begin, end;
  df_task_range(index, count, s.count, 64, &begin, &end);
  DF_IVDEP
  for (int64_t i = begin; i < end; i++) {
    const float g = s.scale * s.grad[i];
    const float m = s.beta1 * s.old_first[i] + new1 * g;
    const float v = s.beta2 * s.old_second[i] + new2 * (g * g);
    s.first[i] = m;
    s.second[i] = v;
    s.param[i] = s.old_param[i] * keep - s.rate1 * m / (sqrtf(v) / s.root2 + s.epsilon);
  }
}

/* sgd_step(param, grad, velocity?, hyper, scale; momentum, nesterov) -> param', velocity'?
 * hyper: [lr, weight decay (coupled)]. A velocity of zeros starts as PyTorch's does. */
static df_status sgd_run(const df_call *call) {
  const float *hyper = call->inputs[3].data;
  step_context s = {.param = call->outputs[0].data,
                    .first = call->n_outputs > 1 ? call->outputs[1].data : NULL,
                    .old_param = call->inputs[0].data,
                    .grad = call->inputs[1].data,
                    .old_first = call->inputs[2].data,
                    .count = df_elements(&call->inputs[0]),
                    .scale = *(const float *)call->inputs[4].data,
                    .rate = hyper[0],
                    .decay = hyper[1],
                    .beta1 = (float)df_attr_float(call, DF_SGD_STEP_MOMENTUM),
                    .nesterov = df_attr_int(call, DF_SGD_STEP_NESTEROV) != 0};
  if (s.count > 0 && (s.first != NULL) != (s.old_first != NULL))
    return df_fail(call, DF_INVALID,
                   "sgd_step: velocity must be both input and output, or neither");
  df_parallel(call, sgd_task, &s, df_task_count(call, s.count, DF_GRAIN / 4));
  return DF_OK;
}

/* adamw_step(param, grad, m, v, hyper, scale; beta1, beta2, epsilon) -> param', m', v'
 * hyper: [lr, weight decay (decoupled), 1 - beta1^t, 1 - beta2^t]. The order is that of
 * torch.optim.AdamW. */
static df_status adamw_run(const df_call *call) {
  const float *hyper = call->inputs[4].data;
  step_context s = {.param = call->outputs[0].data,
                    .first = call->outputs[1].data,
                    .second = call->outputs[2].data,
                    .old_param = call->inputs[0].data,
                    .grad = call->inputs[1].data,
                    .old_first = call->inputs[2].data,
                    .old_second = call->inputs[3].data,
                    .count = df_elements(&call->inputs[0]),
                    .scale = *(const float *)call->inputs[5].data,
                    .rate = hyper[0],
                    .decay = hyper[1],
                    .beta1 = (float)df_attr_float(call, DF_ADAMW_STEP_BETA1),
                    .beta2 = (float)df_attr_float(call, DF_ADAMW_STEP_BETA2),
                    .new1 = (float)(1.0 - df_attr_float(call, DF_ADAMW_STEP_BETA1)),
                    .new2 = (float)(1.0 - df_attr_float(call, DF_ADAMW_STEP_BETA2)),
                    .epsilon = (float)df_attr_float(call, DF_ADAMW_STEP_EPSILON),
                    .rate1 = hyper[0] / hyper[2],
                    .root2 = sqrtf(hyper[3])};
  df_parallel(call, adamw_task, &s, df_task_count(call, s.count, DF_GRAIN / 4));
  return DF_OK;
}

typedef struct square_context {
  const float *x;
  int64_t count;
  double partials[MOST_PARTIALS];
} square_context;

static void square_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  square_context *s = context;
  int64_t begin, end;
  df_task_range(index, count, s->count, DF_CHUNK, &begin, &end);
  double total = 0.0;
  for (int64_t i = begin; i < end; i += DF_CHUNK)
    total += (double)df_dot_block(s->x + i, s->x + i, df_min(DF_CHUNK, end - i));
  s->partials[index] = total;
}

/* square_sum(x, before?) -> before + the sum of x^2 */
static df_status square_run(const df_call *call) {
  const float *before = call->inputs[1].data;
  square_context s = {.x = call->inputs[0].data, .count = df_elements(&call->inputs[0])};
  const int64_t partials = df_max(1, df_min(MOST_PARTIALS, s.count / DF_GRAIN));
  df_parallel(call, square_task, &s, partials);
  double total = before ? (double)*before : 0.0;
  for (int64_t i = 0; i < partials; i++)
    total += s.partials[i];
  *(float *)call->outputs[0].data = (float)total;
  return DF_OK;
}

DF_KERNELS(optimizer) = {
    DF_KERNEL("sgd_step", "f32", "f32,f32,f32?,f32,f32->f32,f32?", "0<0,1<2", sgd_run),
    DF_KERNEL("adamw_step", "f32", "f32,f32,f32,f32,f32,f32->f32,f32,f32", "0<0,1<2,2<3",
              adamw_run),
    DF_KERNEL("square_sum", "f32", "f32,f32?->f32", NULL, square_run), NULL};
