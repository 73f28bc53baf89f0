/* reduce/source.h: a tensor that another kernel computes as it goes. */
#ifndef DF_CPU_REDUCE_SOURCE_H
#define DF_CPU_REDUCE_SOURCE_H

#include "cpu.h"

/* Elements of a contiguous tensor: to[0..n) = those from |index| on. */
typedef struct df_source {
  void (*fetch)(const void *context, int64_t index, int64_t n, float *to);
  const void *context;
  const int64_t *shape;
  int32_t rank;
  int32_t trailing; /* axes that are reduced, the last ones; at least 1 */
} df_source;

#endif
