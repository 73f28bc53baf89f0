/* reduce/short_rows.h: sums and extremes of many short rows. */
#ifndef DF_CPU_REDUCE_SHORT_ROWS_H
#define DF_CPU_REDUCE_SHORT_ROWS_H

#include "cpu.h"

enum { DF_ROWS_TOGETHER = 16 }; /* at most */

/* sums[i] = sum of |n| contiguous floats from rows[i] on, i < count <= DF_ROWS_TOGETHER. */
void DF_NAME(df_sum_rows)(const float *const *rows, int64_t count, int64_t n, float *sums);

/* The largest and the smallest likewise, n > 0; a NaN wins. */
void DF_NAME(df_largest_of_rows)(const float *const *rows, int64_t count, int64_t n, float *most);
void DF_NAME(df_smallest_of_rows)(const float *const *rows, int64_t count, int64_t n, float *least);

#endif
