/* conv/direct.h: convolution with prepacked weights. */
#ifndef DF_CPU_CONV_DIRECT_H
#define DF_CPU_CONV_DIRECT_H

#include "conv/weight.h"

typedef struct df_direct {
  df_conv conv;
  float *out;
  const float *source;
  const float *prepacked;
  const float *bias; /* per filter, null for none */
  const float *add;  /* as large as out, added before relu; null for none, may be out */
  float high;        /* see |vec_activate| */
} df_direct;

/* Whether the sizes are within its limits. */
int DF_NAME(df_direct_takes)(const df_conv *conv);

/* Whether it could, well or badly. */
int DF_NAME(df_direct_can)(const df_conv *conv);

/* Bytes of the prepacked weights. */
int64_t DF_NAME(df_direct_prepack_bytes)(const df_conv *conv);

/* Prepacks the weights in tasks that do not depend on each other. */
int64_t DF_NAME(df_direct_prepack_tasks)(const df_conv *conv);
void DF_NAME(df_direct_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                float *prepacked);

/* Bytes, for lines that are gathered. */
int64_t DF_NAME(df_direct_workspace)(const df_conv *conv, int32_t threads);

void DF_NAME(df_direct_run)(const df_call *call, const df_direct *direct);

#endif
