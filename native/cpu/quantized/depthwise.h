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

/* The same of images with their channels last, whose results are steps. Weights are packed
 * beforehand where they are constant; otherwise |prepacked| is null. */
int64_t DF_NAME(df_byte_depthwise_last_workspace)(const df_conv *conv, int32_t threads);
int64_t DF_NAME(df_byte_depthwise_last_prepack_bytes)(const df_conv *conv);
void DF_NAME(df_byte_depthwise_last_prepack)(const df_conv *conv, const uint8_t *weight,
                                             uint8_t sign, uint8_t *prepacked);
void DF_NAME(df_byte_depthwise_last_run)(const df_call *call, const df_conv *conv,
                                         const uint8_t *prepacked, const df_byte_operands *operands,
                                         const df_byte_epilogue *epilogue);

#endif
