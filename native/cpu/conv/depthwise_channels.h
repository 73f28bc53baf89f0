/* conv/depthwise_channels.h: depthwise convolution by vectors of channels. */
#ifndef DF_CPU_CONV_DEPTHWISE_CHANNELS_H
#define DF_CPU_CONV_DEPTHWISE_CHANNELS_H

#include "cpu.h"

/* out[c][o] = relu(bias[c] + sum over t of weight[c][t] * x[c][o * stride - pad + t * dilation]),
 * with zeros around x; two axes, rows first. */
typedef struct df_depthwise_channels {
  const float *x;
  float *out;
  const float *weight;
  const float *bias; /* null for none */
  int64_t channels;  /* at most DF_LANES */
  float high;        /* see |vec_activate| */
  int32_t reversed;  /* taps are read from the last to the first */
  int32_t three;     /* the kernel of 3x3 taps along rows could do it */
  int64_t in[2], out_size[2], kernel[2], stride[2], pad[2], dilation[2];
} df_depthwise_channels;

/* Whether buffers hold the rows that a row of results reads, and vectors of channels need fewer
 * operations than those along rows. */
int DF_NAME(df_depthwise_channels_takes)(const df_depthwise_channels *t);

void DF_NAME(df_depthwise_channels_run)(const df_depthwise_channels *t);

#endif
