/* quantized/depthwise.h: convolutions of bytes in which a filter reads one channel of its own. */
#ifndef DF_CPU_QUANTIZED_DEPTHWISE_H
#define DF_CPU_QUANTIZED_DEPTHWISE_H

#include "conv/shape.h"
#include "quantized/operands.h"

static inline int df_byte_depthwise_takes(const df_conv *conv) {
  return conv->channels == 1 && conv->filters == 1 && conv->groups > 1;
}

/* A plane with its padding, as 16 bits. */
typedef struct df_byte_depthwise_layout {
  int32_t short_rows; /* a vector holds the outputs of a row */
  int64_t phase;      /* elements of a row that have one remainder by the stride of columns */
  int64_t bytes;      /* of all; the workspace of each thread */
} df_byte_depthwise_layout;

df_byte_depthwise_layout DF_NAME(df_byte_depthwise_layout_of)(const df_conv *conv);

/* |epilogue| has form, limits and result. */
void DF_NAME(df_byte_depthwise_run)(const df_call *call, const df_conv *conv,
                                    const df_byte_operands *operands,
                                    const df_byte_epilogue *epilogue);

#endif
