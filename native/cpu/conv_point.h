/* conv_point.h: convolution with kernels of one element and stride 1, a product of matrices. */
#ifndef DF_CPU_CONV_POINT_H
#define DF_CPU_CONV_POINT_H

#include "conv_direct.h"

/* Whether this is such a convolution, on planes so large that lanes over positions are full. */
int DF_NAME(df_point_takes)(const df_conv *conv);

int64_t DF_NAME(df_point_pack_bytes)(const df_conv *conv);
void DF_NAME(df_point_pack)(const df_conv *conv, const float *weight, float *packed);
void DF_NAME(df_point_run)(const df_call *call, const df_direct *direct);

#endif
