/* conv/conv.h: the convolution of a node, for the plain op and the patterns around it. */
#ifndef DF_CPU_CONV_CONV_H
#define DF_CPU_CONV_CONV_H

#include "cpu.h"

const char *DF_NAME(df_conv_accepts)(const df_node *node);
df_status DF_NAME(df_conv_prepare)(const df_node *node, df_prepared *out, df_error *error);

/* Output 0 = input 0 convolved with input 1, plus input 2 when it is there, plus |add| (null for
 * none; may be the output), and |vec_activate|. */
df_status DF_NAME(df_conv_run)(const df_call *call, const float *add, float high);

#endif
