/* norm/moments.h: mean and sum of squares of the elements that a thread holds, round after round.
 */
#ifndef DF_CUDA_NORM_MOMENTS_H
#define DF_CUDA_NORM_MOMENTS_H
#include "reduce/rows.h"

/* Mean and sum of squares about it of the elements seen so far; without centering the mean is 0. */
struct df_moments {
  float count, mean, squares;

  template <int HELD> __device__ void add(const float (&x)[HELD], int there, bool center) {
    float sum = 0.0f, own = 0.0f;
    if (there == 0)
      return;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      sum += x[k];
    const float few = static_cast<float>(there), middle = center ? sum / few : 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++) /* those that are not there come last in |x| */
      if (k < there)
        own = fmaf(x[k] - middle, x[k] - middle, own);
    join(few, middle, own);
  }

  /* Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm", 1979. */
  __device__ void join(float more, float other, float others) {
    const float all = count + more, apart = other - mean;
    squares += others + apart * apart * (count * more / all);
    mean += apart * (more / all);
    count = all;
  }
};

/* How many of a thread's elements of a round are there; they are the first ones. |left|: see
 * df_row_left. */
template <bool VECTOR = false, int HELD = DF_HELD>
static __device__ __forceinline__ int df_held_count(const df_rows &plan, int lane, int left) {
  const int unit = VECTOR || plan.vector ? 4 : 1, apart = plan.group * unit;
  const int ahead = left - lane * unit;
  return ahead <= 0 ? 0 : static_cast<int>(df_min(HELD, (ahead + apart - 1) / apart * unit));
}

#endif
