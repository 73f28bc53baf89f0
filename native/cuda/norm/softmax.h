/* norm/softmax.h: maxima and sums of exponentials, found in one pass, for norm/softmax.cu and
 * norm/loss.cu. */
#ifndef DF_CUDA_NORM_SOFTMAX_H
#define DF_CUDA_NORM_SOFTMAX_H
#include "reduce/columns.h"

/* m = max x, s = sum e^(x - m) of the elements seen so far; before the first one m is -infinity.
 * While m is -infinity s is 0: a row of nothing else then gives NaN, as e^(x - m) does. A NaN stays
 * in m. */
struct df_exp_sum {
  float m, s;

  __device__ void clear() {
    m = -INFINITY;
    s = 0.0f;
  }

  /* Elements that are not there are -infinity. */
  template <int HELD> __device__ void add(const float (&x)[HELD]) {
    float most = m, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      most = df_larger{}(x[k], most);
    if (most == -INFINITY)
      return;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      sum += expf(x[k] - most);
    s = s * expf(m - most) + sum;
    m = most;
  }

  /* The first elements; leaves e^(x - m) of them in |x|. */
  template <int HELD> __device__ void hold(float (&x)[HELD]) {
    m = -INFINITY;
    s = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      m = df_larger{}(x[k], m);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      x[k] = m == -INFINITY ? 0.0f : expf(x[k] - m);
      s += x[k];
    }
  }

  /* |join|(value, nothing, f) joins a value of all threads. */
  template <typename J> __device__ void join(J join) {
    const float most = join(m, -INFINITY, df_larger{});
    s = join(most == -INFINITY ? 0.0f : s * expf(m - most), 0.0f, df_add{});
    m = most;
  }
};

#endif
