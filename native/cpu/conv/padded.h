/* conv/padded.h: convolution whose positions read a padded copy of a band of the source. */
#ifndef DF_CPU_CONV_PADDED_H
#define DF_CPU_CONV_PADDED_H

#include "conv/direct.h"

/* Whether it gains over gathering what each tap reads and over splitting the source by phases. */
int DF_NAME(df_padded_takes)(const df_conv *conv);

/* Whether it could, well or badly. */
int DF_NAME(df_padded_can)(const df_conv *conv);

/* Bytes of a run; the prepacked weights are those of conv/direct.h. */
int64_t DF_NAME(df_padded_workspace)(const df_conv *conv, int32_t threads);

void DF_NAME(df_padded_run)(const df_call *call, const df_direct *direct);

#endif
