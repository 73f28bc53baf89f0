/* conv/shifted.h: sums of shifted planes with weights; a convolution and its input gradient are
 * both that. */
#ifndef DF_CPU_CONV_SHIFTED_H
#define DF_CPU_CONV_SHIFTED_H

#include "pool/window.h"

/* Forward: out is y and source x; backward: out is dx and source dy. Per group
 *   out[row] = relu(bias[row] + sum over channels and taps of weight[row, channel, tap] *
 * source[channel] shifted) */
typedef struct df_shifted {
  float *out;
  const float *source;
  const float *weight;
  const float *bias; /* per row, null for none */
  const float *add;  /* as large as out, added before relu; null for none, may be out */
  df_window window;
  int64_t batch, groups;
  int64_t rows;                                     /* channels of out in a group */
  int64_t channels;                                 /* channels of source in a group */
  int64_t weight_row, weight_channel, weight_group; /* distances; the taps lie together */
  float high;                                       /* see |vec_activate| */
  int32_t backward;
} df_shifted;

/* Bytes; depends on sizes and the number of threads only. */
int64_t DF_NAME(df_shifted_workspace)(const df_shifted *shifted, int32_t threads);

void DF_NAME(df_shifted_run)(const df_call *call, const df_shifted *shifted);

#endif
