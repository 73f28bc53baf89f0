/* kernels/optimizer.h: the rules of optimizer steps, for one element. */
#ifndef DF_KERNELS_OPTIMIZER_H
#define DF_KERNELS_OPTIMIZER_H
#include "dataflow_inline.h"
#include "kernels/attributes.h"
#include "kernels/function.h"

#include <math.h>

/* A step whose scale isn't finite changes nothing: gradients overflowed, or no sample counted. */
DF_FN int df_step_holds(float scale) { return !isfinite(scale); }

/* g = scale grad + decay p; v' = momentum v + g; p' = p - lr v' (nesterov: g + momentum v').
 * hyper: [lr, weight decay (coupled)]. A velocity of zeros starts as PyTorch's does. */
typedef struct df_sgd {
  float scale, rate, decay, momentum;
} df_sgd;

DF_FN float df_sgd_gradient(const df_sgd *s, float p, float grad) {
  return s->scale * grad + s->decay * p;
}
DF_FN float df_sgd_velocity(const df_sgd *s, float v, float g) { return s->momentum * v + g; }
DF_FN float df_sgd_nesterov(const df_sgd *s, float g, float v) { return g + s->momentum * v; }
DF_FN float df_sgd_parameter(const df_sgd *s, float p, float direction) {
  return p - s->rate * direction;
}

/* g = scale grad; p1 = p (1 - lr decay); m' = beta1 m + (1 - beta1) g; v' = beta2 v + (1 - beta2)
 * g^2; p' = p1 - lr / (1 - beta1^t) m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon).
 * hyper: [lr, weight decay (decoupled), 1 - beta1^t, 1 - beta2^t]. The order is that of
 * torch.optim.AdamW. */
typedef struct df_adamw_betas {
  float beta1, beta2, epsilon;
  float new1, new2; /* 1 - beta, rounded once */
} df_adamw_betas;

typedef struct df_adamw {
  df_adamw_betas of;
  float scale;
  float keep;               /* 1 - lr decay */
  float rate1, correction2; /* lr / (1 - beta1^t), sqrt(1 - beta2^t) */
} df_adamw;

/* The attributes of a call. */
static inline df_adamw_betas df_adamw_read(const df_call *call) {
  const double beta1 = df_attr_float(call, DF_ADAMW_STEP_BETA1);
  const double beta2 = df_attr_float(call, DF_ADAMW_STEP_BETA2);
  const float epsilon = (float)df_attr_float(call, DF_ADAMW_STEP_EPSILON);
  const df_adamw_betas of = {(float)beta1, (float)beta2, epsilon, (float)(1.0 - beta1),
                             (float)(1.0 - beta2)};
  return of;
}

/* With what tensors say. */
DF_FN df_adamw df_adamw_make(df_adamw_betas of, const float *hyper, float scale) {
  const df_adamw s = {of, scale, 1.0f - hyper[0] * hyper[1], hyper[0] / hyper[2], sqrtf(hyper[3])};
  return s;
}

DF_FN float df_adamw_first(const df_adamw *s, float m, float g) {
  return s->of.beta1 * m + s->of.new1 * g;
}
DF_FN float df_adamw_second(const df_adamw *s, float v, float g) {
  return s->of.beta2 * v + s->of.new2 * (g * g);
}
DF_FN float df_adamw_parameter(const df_adamw *s, float p, float m, float v) {
  return p * s->keep - s->rate1 * m / (sqrtf(v) / s->correction2 + s->of.epsilon);
}

#endif
