/* conv/algorithm.h: how a convolution with packed weights is done, as its sizes say. */
#ifndef DF_CPU_CONV_ALGORITHM_H
#define DF_CPU_CONV_ALGORITHM_H

#include "conv/direct.h"

/* The ways, the one that gains most first; the last needs no packed weights and always can
 * (conv/shifted.h). */
enum {
  DF_WAY_WINOGRAD,
  DF_WAY_POINT,
  DF_WAY_ROWS,
  DF_WAY_DIRECT,
  DF_WAY_UNIT,
  DF_SPREAD,
  DF_CONV_WAYS = DF_SPREAD
};

/* The way that is wanted, or where it can't the first behind it that can; the one that gains most
 * where none is wanted. Follows from sizes. The number of bytes tells apart the packs that a way
 * makes for one array. */
int32_t DF_NAME(df_way_of)(const df_conv *conv);

/* Tells that |conv| goes by |way|, and by which ways it could; null for what can only be spread. */
void DF_NAME(df_way_tell)(const df_conv *conv, int32_t way, df_prepared *out);

int64_t DF_NAME(df_way_pack_bytes)(const df_conv *conv);

/* On the calling thread. */
void DF_NAME(df_way_pack)(const df_conv *conv, const df_weight *weight, float *packed);

/* On the threads of the call. */
void DF_NAME(df_way_pack_now)(const df_call *call, const df_conv *conv, const df_weight *weight,
                              float *packed);

/* Bytes of a run beside the packed weights; it works in |workspace|, not in that of the call. */
int64_t DF_NAME(df_way_workspace)(const df_conv *conv, int32_t threads);
void DF_NAME(df_way_run)(const df_call *call, const df_direct *direct, void *workspace);

#endif
