/* map/optimizer.c: one optimizer step over one parameter, in one pass, and the norm of gradients.
 * hyper holds what changes from step to step; |scale| multiplies the gradient. All tensors are
 * contiguous; outputs may overwrite their inputs. */
#include "kernels/optimizer.h"
#include "cpu.h"
#include "simd/block.h"

#include <string.h>

enum { MOST_PARTIALS = 64 /* partial sums of a tensor; their number depends on its size only */ };

typedef struct step_context {
  float *param, *first, *second; /* outputs: parameter; velocity, or moments m and v */
  const float *old_param, *grad, *old_first, *old_second;
  int64_t count;
  df_sgd sgd;
  df_adamw adamw;
  int nesterov;
} step_context;

static void sgd_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const step_context s = *(const step_context *)context;
  const df_sgd *rule = &s.sgd;
  int64_t begin, end;
  df_task_range(index, count, s.count, 64, &begin, &end);
  if (!s.first) {
    DF_IVDEP
    for (int64_t i = begin; i < end; i++) {
      const float p = s.old_param[i];
      s.param[i] = df_sgd_parameter(rule, p, df_sgd_gradient(rule, p, s.grad[i]));
    }
  } else if (!s.nesterov) {
    DF_IVDEP
    for (int64_t i = begin; i < end; i++) {
      const float p = s.old_param[i], g = df_sgd_gradient(rule, p, s.grad[i]);
      const float v = df_sgd_velocity(rule, s.old_first[i], g);
      s.first[i] = v;
      s.param[i] = df_sgd_parameter(rule, p, v);
    }
  } else {
    DF_IVDEP
    for (int64_t i = begin; i < end; i++) {
      const float p = s.old_param[i], g = df_sgd_gradient(rule, p, s.grad[i]);
      const float v = df_sgd_velocity(rule, s.old_first[i], g);
      s.first[i] = v;
      s.param[i] = df_sgd_parameter(rule, p, df_sgd_nesterov(rule, g, v));
    }
  }
}

static void adamw_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const step_context s = *(const step_context *)context;
  const df_adamw *rule = &s.adamw;
  int64_t begin, end;
  df_task_range(index, count, s.count, 64, &begin, &end);
  DF_IVDEP
  for (int64_t i = begin; i < end; i++) {
    const float g = rule->scale * s.grad[i];
    const float m = df_adamw_first(rule, s.old_first[i], g);
    const float v = df_adamw_second(rule, s.old_second[i], g);
    s.first[i] = m;
    s.second[i] = v;
    s.param[i] = df_adamw_parameter(rule, s.old_param[i], m, v);
  }
}

/* The results of a step that changes nothing. */
static df_status keep_all(const step_context *s) {
  const size_t bytes = (size_t)s->count * sizeof(float);
  if (bytes && s->param != s->old_param)
    memcpy(s->param, s->old_param, bytes);
  if (bytes && s->first && s->first != s->old_first)
    memcpy(s->first, s->old_first, bytes);
  if (bytes && s->second && s->second != s->old_second)
    memcpy(s->second, s->old_second, bytes);
  return DF_OK;
}

/* sgd_step(param, grad, velocity?, hyper, scale; momentum, nesterov) -> param', velocity'? */
static df_status sgd_run(const df_call *call) {
  const float *hyper = call->inputs[3]->data;
  step_context s = {.param = call->outputs[0]->data,
                    .first = call->n_outputs > 1 ? call->outputs[1]->data : NULL,
                    .old_param = call->inputs[0]->data,
                    .grad = call->inputs[1]->data,
                    .old_first = call->inputs[2]->data,
                    .count = df_elements(call->inputs[0]),
                    .sgd = {.scale = *(const float *)call->inputs[4]->data,
                            .rate = hyper[0],
                            .decay = hyper[1],
                            .momentum = (float)df_attr_float(call, DF_SGD_STEP_MOMENTUM)},
                    .nesterov = df_attr_int(call, DF_SGD_STEP_NESTEROV) != 0};
  if (s.count > 0 && (s.first != NULL) != (s.old_first != NULL))
    return df_fail(call, DF_INVALID,
                   "sgd_step: velocity must be both input and output, or neither");
  if (df_step_holds(s.sgd.scale))
    return keep_all(&s);
  df_parallel(call, sgd_task, &s, df_task_count(call, s.count, DF_GRAIN / 4));
  return DF_OK;
}

/* adamw_step(param, grad, m, v, hyper, scale; beta1, beta2, epsilon) -> param', m', v' */
static df_status adamw_run(const df_call *call) {
  step_context s = {.param = call->outputs[0]->data,
                    .first = call->outputs[1]->data,
                    .second = call->outputs[2]->data,
                    .old_param = call->inputs[0]->data,
                    .grad = call->inputs[1]->data,
                    .old_first = call->inputs[2]->data,
                    .old_second = call->inputs[3]->data,
                    .count = df_elements(call->inputs[0]),
                    .adamw = df_adamw_make(df_adamw_read(call), call->inputs[4]->data,
                                           *(const float *)call->inputs[5]->data)};
  if (df_step_holds(s.adamw.scale))
    return keep_all(&s);
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
  const float *before = call->inputs[1]->data;
  square_context s = {.x = call->inputs[0]->data, .count = df_elements(call->inputs[0])};
  const int64_t partials = df_max(1, df_min(MOST_PARTIALS, s.count / DF_GRAIN));
  df_parallel(call, square_task, &s, partials);
  double total = before ? (double)*before : 0.0;
  for (int64_t i = 0; i < partials; i++)
    total += s.partials[i];
  *(float *)call->outputs[0]->data = (float)total;
  return DF_OK;
}

DF_KERNELS(optimizer) = {
    DF_KERNEL("sgd_step", "f32", "f32,f32,f32?,f32,f32->f32,f32?", "0<0,1<2", sgd_run),
    DF_KERNEL("adamw_step", "f32", "f32,f32,f32,f32,f32,f32->f32,f32,f32", "0<0,1<2,2<3",
              adamw_run),
    DF_KERNEL("square_sum", "f32", "f32,f32?->f32", NULL, square_run), NULL};
