/* conv/amx/outer.h: the weight gradient of a convolution on AMX tiles (see gemm/amx/pack.h).
 */
#ifndef DF_CPU_CONV_AMX_OUTER_H
#define DF_CPU_CONV_AMX_OUTER_H

#include "conv/shape.h"

/* Whether df_conv.precision allows AMX tiles, and that is faster. */
int DF_NAME(df_amx_outer_takes)(const df_conv *conv);

/* Bytes of workspace for |threads|. */
int64_t DF_NAME(df_amx_outer_workspace)(const df_conv *conv, int32_t threads);

/* dw from x and dy; false, and nothing useful in dw, where an operand is not ordinary. */
int DF_NAME(df_amx_outer_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                              const float *dy);

#endif
