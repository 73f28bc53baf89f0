/* quantized/depthwise.h: convolutions of bytes in which a filter reads one channel of its own. */
#ifndef DF_CPU_QUANTIZED_DEPTHWISE_H
#define DF_CPU_QUANTIZED_DEPTHWISE_H

#include "conv/shape.h"
#include "quantized/operands.h"

static inline int df_byte_depthwise_takes(const df_conv *conv) {
  return conv->channels == 1 && conv->filters == 1 && conv->groups > 1;
}

/* Bytes of a thread's workspace. */
int64_t DF_NAME(df_byte_depthwise_workspace)(const df_conv *conv);

/* |epilogue| has form, limits and result. */
void DF_NAME(df_byte_depthwise_run)(const df_call *call, const df_conv *conv,
                                    const df_byte_operands *operands,
                                    const df_byte_epilogue *epilogue);

#endif
