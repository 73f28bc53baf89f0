/* simd/block.h: sums and extremes of up to DF_CHUNK contiguous floats.
 *
 * Without -ffast-math the compiler may not reorder a sum, so these name the lanes themselves. The
 * number of lanes does not depend on the instruction set, nor does the order in which they are
 * joined.
 */
#ifndef DF_CPU_SIMD_BLOCK_H
#define DF_CPU_SIMD_BLOCK_H
#include "cpu.h"
#include "kernels/extremum.h"

#include <math.h>

enum { DF_BLOCK_LANES = 64 };

/* Each lane adds at most DF_CHUNK / DF_BLOCK_LANES numbers, so the sum of a block errs by a few
 * units. */
static inline float df_sum_block(const float *x, int64_t n) {
  float total = 0.0f;
  int64_t i = 0;
  if (n >= DF_BLOCK_LANES) {
    float lanes[DF_BLOCK_LANES] = {0};
    for (; i + DF_BLOCK_LANES <= n; i += DF_BLOCK_LANES)
      for (int j = 0; j < DF_BLOCK_LANES; j++)
        lanes[j] += x[i + j];
    for (int width = DF_BLOCK_LANES / 2; width > 0; width /= 2)
      for (int j = 0; j < width; j++)
        lanes[j] += lanes[j + width];
    total = lanes[0];
  }
  for (; i < n; i++)
    total += x[i];
  return total;
}

/* Sum of x[i] y[i]. */
static inline float df_dot_block(const float *x, const float *y, int64_t n) {
  float total = 0.0f;
  int64_t i = 0;
  if (n >= DF_BLOCK_LANES) {
    float lanes[DF_BLOCK_LANES] = {0};
    for (; i + DF_BLOCK_LANES <= n; i += DF_BLOCK_LANES)
      for (int j = 0; j < DF_BLOCK_LANES; j++)
        lanes[j] += x[i + j] * y[i + j];
    for (int width = DF_BLOCK_LANES / 2; width > 0; width /= 2)
      for (int j = 0; j < width; j++)
        lanes[j] += lanes[j + width];
    total = lanes[0];
  }
  for (; i < n; i++)
    total += x[i] * y[i];
  return total;
}

/* Any length, NaN if there is one; -inf when empty. */
static inline float df_max_row(const float *x, int64_t n) {
  float most = -INFINITY;
  if (n < DF_BLOCK_LANES / 2) {
    for (int64_t i = 0; i < n; i++)
      most = DF_MAXIMUM(x[i], most);
    return most;
  }
  float lanes[DF_BLOCK_LANES];
  int64_t i = 0;
  for (int j = 0; j < DF_BLOCK_LANES; j++)
    lanes[j] = most;
  for (; i + DF_BLOCK_LANES <= n; i += DF_BLOCK_LANES)
    for (int j = 0; j < DF_BLOCK_LANES; j++)
      lanes[j] = DF_MAXIMUM(x[i + j], lanes[j]);
  for (int64_t j = 0; j < n - i; j++)
    lanes[j] = DF_MAXIMUM(x[i + j], lanes[j]);
  for (int width = DF_BLOCK_LANES / 2; width > 0; width /= 2)
    for (int j = 0; j < width; j++) {
      const float other = lanes[j + width];
      lanes[j] = DF_MAXIMUM(other, lanes[j]);
    }
  return lanes[0];
}

#endif
