/* conv/direct.h: convolution with prepacked weights. */
#ifndef DF_CPU_CONV_DIRECT_H
#define DF_CPU_CONV_DIRECT_H

#include "conv/direct_tile.h"
#include "conv/weight.h"

enum { DF_DIRECT_STEPS = 768 }; /* of a block of k: the lines of a tile are 48 KiB with 16 lanes */

typedef struct df_direct {
  df_conv conv;
  float *out;
  const float *source;
  const float *prepacked;
  const float *bias; /* per filter, null for none */
  const float *add;  /* as large as out, added before relu; null for none, may be out */
  float high;        /* see |vec_activate| */
} df_direct;

static inline int64_t df_direct_panels(const df_conv *conv) {
  return df_divide_up(conv->filters, DF_DIRECT_FILTERS);
}

/* Filters of a panel, padded to unpadded vectors. */
static inline int64_t df_direct_width(const df_conv *conv, int64_t panel) {
  return conv->filters - panel * DF_DIRECT_FILTERS > DF_LANES ? DF_DIRECT_FILTERS : DF_LANES;
}

/* Lanes of all panels: those of full width, a narrower one at the end. */
static inline int64_t df_direct_lanes(const df_conv *conv) {
  int64_t panels = df_direct_panels(conv);
  return (panels - 1) * DF_DIRECT_FILTERS + df_direct_width(conv, panels - 1);
}

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
