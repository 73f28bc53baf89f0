/* conv/weight.h: the weights of a convolution as they are read while they are packed.
 *
 * A convolution reads them as they lie; its input gradient reads the same array with filters and
 * channels exchanged and the taps from the last to the first, some of them where it has strides. */
#ifndef DF_CPU_CONV_WEIGHT_H
#define DF_CPU_CONV_WEIGHT_H

#include "conv/shape.h"
#include "simd/vector.h"

/* Element (group, filter, channel, tap) lies at data[start + group * group + filter * filter +
 * channel * channel + the sum over the axes of tap * tap]. Distances of taps may be negative. */
typedef struct df_weight {
  const float *data;
  int64_t start;
  int64_t group, filter, channel;
  int64_t tap[DF_AXES];
} df_weight;

/* The (groups * filters, channels, taps) contiguous weights of |conv|. */
static inline df_weight df_weight_make(const df_conv *conv, const float *data) {
  const df_window *w = &conv->window;
  return (df_weight){.data = data,
                     .group = conv->filters * conv->channels * w->taps,
                     .filter = conv->channels * w->taps,
                     .channel = w->taps,
                     .tap = {w->kernel[1] * w->kernel[2], w->kernel[2], 1}};
}

/* Some filters of a group, as lanes; |count| of them exist, the others are zeros. */
typedef struct df_filters {
  int64_t group, first, count;
  int64_t lanes;
} df_filters;

/* out[(k - begin) * pitch + lane] for the steps k = (channel, tap) from |begin| to |end|. */
void DF_NAME(df_weight_lines)(float *out, int64_t pitch, const df_conv *conv,
                              const df_weight *weight, const df_filters *filters, int64_t begin,
                              int64_t end);

#endif
