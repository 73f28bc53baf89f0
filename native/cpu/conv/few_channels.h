/* conv/few_channels.h: convolution of a few channels, row by row of the output. */
#ifndef DF_CPU_CONV_FEW_CHANNELS_H
#define DF_CPU_CONV_FEW_CHANNELS_H

#include "conv/direct.h"

/* Whether a position reads so little that gathering it costs less than its products, and there are
 * filters and positions enough to fill the tiles. */
int DF_NAME(df_few_channels_fills)(const df_conv *conv);

/* Whether it gains: positions that lie apart need not be split by phases elsewhere. */
int DF_NAME(df_few_channels_takes)(const df_conv *conv);

/* Whether it could, well or badly. */
int DF_NAME(df_few_channels_can)(const df_conv *conv);

/* Bytes of a run; the prepacked weights are those of conv/pointwise.h. */
int64_t DF_NAME(df_few_channels_workspace)(const df_conv *conv, int32_t threads);

void DF_NAME(df_few_channels_run)(const df_call *call, const df_direct *direct);

/* Floats that df_few_channels_band needs. */
int64_t DF_NAME(df_few_channels_floats)(const df_conv *conv);

/* Where some rows of filters go. */
typedef struct df_planes {
  float *out;
  const float *add;   /* like out, added before relu; null for none */
  int64_t plane, row; /* from a filter, from a row to the next */
} df_planes;

/* Rows [begin, end) of unit = image * groups + group, on the calling thread. */
void DF_NAME(df_few_channels_band)(const df_direct *direct, int64_t unit, int64_t begin,
                                   int64_t end, const df_planes *to, float *scratch);

#endif
