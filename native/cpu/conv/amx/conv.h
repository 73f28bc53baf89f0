/* conv/amx/conv.h: convolution on AMX tiles, from operands in bfloat16 terms (see
 * gemm/amx/pack.h).
 *
 * Functions as in conv/direct.h. Takes convolutions in a plane, without groups, where df_conv asks
 * for less than float32. */
#ifndef DF_CPU_CONV_AMX_CONV_H
#define DF_CPU_CONV_AMX_CONV_H

#include "conv/direct.h"

int DF_NAME(df_amx_conv_takes)(const df_conv *conv);
int DF_NAME(df_amx_conv_can)(const df_conv *conv);
int64_t DF_NAME(df_amx_conv_prepack_bytes)(const df_conv *conv);
int64_t DF_NAME(df_amx_conv_prepack_tasks)(const df_conv *conv);
void DF_NAME(df_amx_conv_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                  float *prepacked);
int64_t DF_NAME(df_amx_conv_workspace)(const df_conv *conv, int32_t threads);
void DF_NAME(df_amx_conv_run)(const df_call *call, const df_direct *direct);

#endif
