/* conv/pointwise.h: convolution as a product of matrices whose rows are planes of the output. */
#ifndef DF_CPU_CONV_POINTWISE_H
#define DF_CPU_CONV_POINTWISE_H

#include "conv/direct.h"

/* Whether a position reads what lies at its own offset (kernels of one element with stride 1), and
 * planes are so large that lanes over positions are full. */
int DF_NAME(df_pointwise_takes)(const df_conv *conv);

/* Whether it could, well or badly. */
int DF_NAME(df_pointwise_can)(const df_conv *conv);

int64_t DF_NAME(df_pointwise_prepack_bytes)(const df_conv *conv);
/* As for df_direct_prepack. */
int64_t DF_NAME(df_pointwise_prepack_tasks)(const df_conv *conv);
void DF_NAME(df_pointwise_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                   float *prepacked);
/* Bytes, for strips of positions. */
int64_t DF_NAME(df_pointwise_workspace)(const df_conv *conv, int32_t threads);

void DF_NAME(df_pointwise_run)(const df_call *call, const df_direct *direct);

#endif
