/* map/vmath.h: the functions that kernels/unary.h is written in, by CUDA's library. */
#ifndef DF_CUDA_MAP_VMATH_H
#define DF_CUDA_MAP_VMATH_H
#include "kernels/function.h"

#include <math.h>

DF_FN float df_exp(float x) { return expf(x); }
DF_FN float df_log(float x) { return logf(x); }
DF_FN float df_log1p(float x) { return log1pf(x); }
DF_FN float df_tanh(float x) { return tanhf(x); }
DF_FN float df_erf(float x) { return erff(x); }

/* 1 / (1 + e^-x), with an exponential that never overflows. */
DF_FN float df_sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

#endif
