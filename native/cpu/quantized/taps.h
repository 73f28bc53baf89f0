/* quantized/taps.h: sums over the taps of windows on one channel each.
 *
 * A step of a line is a column of the image: sixteen channels, of each four rows together,
 * unsigned. Weights are signed and lie likewise, a step per column of the window. */
#ifndef DF_CPU_QUANTIZED_TAPS_H
#define DF_CPU_QUANTIZED_TAPS_H

#include "quantized/tile.h"

enum { DF_TAP_CHANNELS = 16, DF_TAP_BYTES = DF_TAP_CHANNELS * DF_BYTE_STEP };

/* Distances are bytes: from one group of four rows to the next, from one output to the next, and
 * from one column of the window to the next. sums[i * DF_TAP_CHANNELS + c] is overwritten. */
typedef struct df_byte_taps {
  const uint8_t *lines, *weights;
  int64_t line, step, tap;
  int64_t groups, taps; /* of four rows; columns of the window */
  int64_t count;        /* of outputs */
  int32_t narrow;       /* weights are; see df_byte_are_narrow */
  int32_t *sums;
} df_byte_taps;

void DF_NAME(df_byte_taps_base)(const df_byte_taps *taps);
#if DF_LANES >= 8
void DF_NAME(df_byte_taps_narrow)(const df_byte_taps *taps);
#endif
#ifdef DF_VNNI
void DF_NAME(df_byte_taps_vnni)(const df_byte_taps *taps);
#endif

static inline void df_byte_sum_taps(const df_byte_taps *taps) {
#ifdef DF_VNNI
  if (df_vnni_granted()) {
    DF_NAME(df_byte_taps_vnni)(taps);
    return;
  }
#endif
#if DF_LANES >= 8
  if (taps->narrow) {
    DF_NAME(df_byte_taps_narrow)(taps);
    return;
  }
#endif
  DF_NAME(df_byte_taps_base)(taps);
}

#endif
