/* conv/algorithm.h: which algorithm computes a convolution, by its sizes. */
#ifndef DF_CPU_CONV_ALGORITHM_H
#define DF_CPU_CONV_ALGORITHM_H

#include "conv/direct.h"

/* The algorithms, the one that gains most first; the last takes every convolution and reads the
 * weights as they lie (conv/shifted.h), the others have them prepacked. */
enum {
  DF_CONV_WINOGRAD,
  DF_CONV_POINTWISE,
  DF_CONV_FEW_CHANNELS,
  DF_CONV_PADDED,
  DF_CONV_DIRECT,
  DF_CONV_AMX,
  DF_CONV_SHIFTED,
  DF_CONV_PREPACKED = DF_CONV_SHIFTED /* how many have prepacked weights */
};

/* The algorithm that the node asks for, or where it can't, the first behind it that can; the one
 * that gains most where none is asked for. Follows from sizes. The number of bytes tells apart the
 * prepacked copies that the algorithms make of one array. */
int32_t DF_NAME(df_conv_choose)(const df_conv *conv);

/* Reports the selected algorithm and all supported ones; null for what only shifted planes can. */
void DF_NAME(df_conv_report)(const df_conv *conv, int32_t algorithm, df_prepared *out);

int64_t DF_NAME(df_conv_prepack_bytes)(const df_conv *conv);

/* On the calling thread. */
void DF_NAME(df_conv_prepack)(const df_conv *conv, const df_weight *weight, float *prepacked);

/* On the threads of the call. */
void DF_NAME(df_conv_prepack_now)(const df_call *call, const df_conv *conv, const df_weight *weight,
                                  float *prepacked);

/* Bytes of a run beside the prepacked weights; it works in |workspace|, not in that of the call. */
int64_t DF_NAME(df_conv_algorithm_workspace)(const df_conv *conv, int32_t threads);
void DF_NAME(df_conv_algorithm_run)(const df_call *call, const df_direct *direct, void *workspace);

#endif
