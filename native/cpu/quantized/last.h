/* quantized/last.h: convolutions of images whose channels lie together, position by position.
 *
 *   x: (N, in..., C), w: (F, C, kernel...), y: (N, out..., F), requantized
 *
 * Positions are rows, unsigned; filters are columns, signed and packed beforehand where they are
 * constant. A window of one element reads rows where they lie; for others the elements of a
 * position, a tap's channels behind the other's, are copied by runs into a row. */
#ifndef DF_CPU_QUANTIZED_LAST_H
#define DF_CPU_QUANTIZED_LAST_H

#include "conv/shape.h"
#include "quantized/operands.h"

/* Whether all channels meet all filters. */
static inline int df_byte_last_takes(const df_conv *conv) { return conv->groups == 1; }

/* Bytes of the workspace for elements of |dtype|. */
int64_t DF_NAME(df_byte_last_workspace)(const df_conv *conv, int32_t dtype, int32_t threads);

int64_t DF_NAME(df_byte_last_prepack_bytes)(const df_conv *conv);
void DF_NAME(df_byte_last_prepack)(const df_conv *conv, const uint8_t *weight, uint8_t sign,
                                   uint8_t *prepacked);

/* |prepacked|: null where weights aren't constant; |epilogue| has form, limits and result. */
void DF_NAME(df_byte_last_run)(const df_call *call, const df_conv *conv, const uint8_t *prepacked,
                               const df_byte_operands *operands, const df_byte_epilogue *epilogue);

#endif
