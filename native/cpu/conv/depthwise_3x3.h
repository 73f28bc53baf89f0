/* conv/depthwise_3x3.h: a plane convolved with a 3x3 kernel. */
#ifndef DF_CPU_CONV_DEPTHWISE_3X3_H
#define DF_CPU_CONV_DEPTHWISE_3X3_H

#include "cpu.h"

/* out[r][c] = relu(bias + add[r][c] + sum of weight[a][b] * x[r * stride - pad + a][c * stride -
 * pad
 * + b]), with zeros around x. */
typedef struct df_depthwise_3x3 {
  const float *x;
  float *out;
  const float *add; /* null for none; may be out */
  const float *weight;
  float bias;
  float high;                 /* see |vec_activate| */
  int32_t reversed;           /* taps are read from the last to the first */
  int64_t in[2], out_size[2]; /* rows, columns */
  int64_t pad[2];
  int64_t stride[2]; /* 1 or 2 */
} df_depthwise_3x3;

void DF_NAME(df_depthwise_3x3_run)(const df_depthwise_3x3 *t);

#endif
