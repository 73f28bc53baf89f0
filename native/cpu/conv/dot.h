/* conv/dot.h: the weight gradient of a convolution with few filters, as dot products. */
#ifndef DF_CPU_CONV_DOT_H
#define DF_CPU_CONV_DOT_H

#include "conv/shape.h"

/* Floats of workspace for |threads|. */
int64_t DF_NAME(df_dot_floats)(const df_conv *conv, int32_t threads);

/* dw from x and dy. */
void DF_NAME(df_dot_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                         const float *dy);

#endif
