/* pool/rows.h: maxima and means of windows, a row of outputs at a time. */
#ifndef DF_CPU_POOL_ROWS_H
#define DF_CPU_POOL_ROWS_H

#include "pool/window.h"

/* Of the pooling ops with kernel, strides, pads and dilations from attribute |first| on. */
static inline df_window df_pool_window(const df_attribute *const *a, int32_t n, int32_t first,
                                       const int64_t *in, const int64_t *out, int32_t rank) {
  return df_window_make(rank - 2, in + 2, out + 2,
                        df_attribute_ints(a, n, first + DF_MAX_POOL_KERNEL, NULL),
                        df_attribute_ints(a, n, first + DF_MAX_POOL_STRIDES, NULL),
                        df_attribute_ints(a, n, first + DF_MAX_POOL_PADS, NULL),
                        df_attribute_ints(a, n, first + DF_MAX_POOL_DILATIONS, NULL));
}

/* Whether a padded row of the input is short enough for the stack. */
int DF_NAME(df_pool_rows_fit)(const df_window *w);

/* y = largest of each window of |planes| planes; a NaN in it wins. */
void DF_NAME(df_max_rows)(const df_window *w, int64_t planes, const float *x, float *y);

/* The same of one plane with the argmax of each maximum in it: the first of equals; -1 where a
 * window lies in the padding whole. */
void DF_NAME(df_max_indices)(const df_window *w, const float *x, float *y, int32_t *indices);

/* y = mean of each window of |planes| planes; |pads_count|: over the padding too. */
void DF_NAME(df_avg_rows)(const df_window *w, int64_t planes, const float *x, float *y,
                          int32_t pads_count);

#endif
