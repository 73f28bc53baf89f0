/* conv/depthwise.h: convolution of each channel by itself, and its gradients. */
#ifndef DF_CPU_CONV_DEPTHWISE_H
#define DF_CPU_CONV_DEPTHWISE_H

#include "conv/shape.h"

typedef struct df_depthwise {
  df_conv conv;
  float *out;
  const float *source; /* x; dy for the gradient by x; x for the one by the weight */
  const float *weight; /* dy for the gradient by the weight */
  const float *bias;   /* per filter, null for none */
  const float *add;    /* as large as out, added before relu; null for none, may be out */
  float high;          /* see |vec_activate| */
} df_depthwise;

/* Whether groups have one channel each, and rows are short enough for the stack. */
int DF_NAME(df_depthwise_takes)(const df_conv *conv);

/* out = y, dx or dw. */
void DF_NAME(df_depthwise_run)(const df_call *call, const df_depthwise *depthwise);
void DF_NAME(df_depthwise_run_dx)(const df_call *call, const df_depthwise *depthwise);
void DF_NAME(df_depthwise_run_dw)(const df_call *call, const df_depthwise *depthwise);

#endif
