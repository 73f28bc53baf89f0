/* conv_way.h: how a convolution with packed weights is done, as its sizes say. */
#ifndef DF_CPU_CONV_WAY_H
#define DF_CPU_CONV_WAY_H

#include "conv_direct.h"

/* The number of the first way that takes a convolution, or -1: a matter of sizes alone. It is below
 * DF_CONV_WAYS, and the number of bytes tells apart the packs that a way makes for one array. */
enum { DF_CONV_WAYS = 3 };
int32_t DF_NAME(df_way_of)(const df_conv *conv);

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
