/* conv/winograd.h: 3x3 convolution with fewer multiplications. */
#ifndef DF_CPU_CONV_WINOGRAD_H
#define DF_CPU_CONV_WINOGRAD_H

#include "conv/direct.h"

/* Whether the window is 3x3 with stride 1 and the sizes are such that it gains. */
int DF_NAME(df_winograd_takes)(const df_conv *conv);

int64_t DF_NAME(df_winograd_prepack_bytes)(const df_conv *conv);
/* As for df_direct_prepack. */
int64_t DF_NAME(df_winograd_prepack_tasks)(const df_conv *conv);
void DF_NAME(df_winograd_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                  float *prepacked);

/* Bytes, for transformed inputs and sums. */
int64_t DF_NAME(df_winograd_workspace)(const df_conv *conv, int32_t threads);

void DF_NAME(df_winograd_run)(const df_call *call, const df_direct *direct);

#endif
