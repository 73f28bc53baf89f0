/* reduce/reduce.h: reductions of floats that are computed where they are needed, and are nowhere in
 * memory. */
#ifndef DF_CPU_REDUCE_REDUCE_H
#define DF_CPU_REDUCE_REDUCE_H

#include "reduce/source.h"

/* Whether the op of a step (DF_STEP_reduce_sum, ...) can be computed so. */
int DF_NAME(df_reduces)(int64_t op);

/* Output 0 = the reduction of the step |op|; the bits are those of the tensor in memory. */
df_status DF_NAME(df_reduce_source)(const df_call *call, int64_t op, const df_source *source);

/* Bytes of workspace that it takes. */
int64_t DF_NAME(df_reduce_workspace)(const int64_t *shape, int32_t rank, int32_t trailing);

#endif
