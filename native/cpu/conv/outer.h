/* conv/outer.h: the weight gradient of a convolution as sums of outer products. */
#ifndef DF_CPU_CONV_OUTER_H
#define DF_CPU_CONV_OUTER_H

#include "conv/shape.h"

/* Floats of workspace for |threads|. */
int64_t DF_NAME(df_outer_floats)(const df_conv *conv, int32_t threads);

/* dw from x and dy. */
void DF_NAME(df_outer_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                           const float *dy);

#endif
