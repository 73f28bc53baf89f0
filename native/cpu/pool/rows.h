/* pool/rows.h: maxima and means of windows, a row of outputs at a time. */
#ifndef DF_CPU_POOL_ROWS_H
#define DF_CPU_POOL_ROWS_H

#include "pool/window.h"

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
