/* conv/phase.h: the input gradient of a convolution as convolutions of dy with stride 1.
 *
 * Along an axis dx[i] is the sum of dy[o] * w[t] over the taps t with o * stride = i + pad - t *
 * dilation. Let i + pad = a * stride + r: the inputs of phase r get the taps with t * dilation = r
 * modulo stride, and those read dy[a - (t * dilation - r) / stride]. That is a convolution whose
 * taps are some of w from the last to the first, with filters and channels exchanged. */
#ifndef DF_CPU_CONV_PHASE_H
#define DF_CPU_CONV_PHASE_H

#include "conv/weight.h"

enum { DF_MOST_PHASES = 9 }; /* strides of two or three in a plane */

typedef struct df_phase {
  df_conv conv;           /* of dy; without taps the inputs of the phase are zeros */
  df_weight weight;       /* what it reads */
  int64_t first[DF_AXES]; /* of its positions in dx, which lie a stride apart */
  const float *sums;      /* (batch, groups * filters, positions), null where there are no taps */
} df_phase;

/* As many as the strides have combinations: one, all of dx, without strides. */
int64_t DF_NAME(df_phase_count)(const df_conv *conv);

/* Phase |index| of the gradient of |conv| by its input, with the contiguous weights |weight|. A pad
 * may come out negative. */
df_phase DF_NAME(df_phase_make)(const df_conv *conv, const float *weight, int64_t index);

/* dx of |conv| (its batch only) from the sums of all phases. */
void DF_NAME(df_phase_join)(const df_call *call, const df_conv *conv, const df_phase *phases,
                            float *dx);

#endif
