/* executor/group.h: steps that one call does together. */
#ifndef DF_RUNTIME_EXECUTOR_GROUP_H
#define DF_RUNTIME_EXECUTOR_GROUP_H

#include "executor/resolved.h"

/* Finds steps in a row that one call can do (see df_kernel_run_many): of one kernel, and none
 * writes what another touches. |take| gives memory that lives as long as the resolved segment. */
df_status df_group_steps(const df_segment *segment, df_ready *steps,
                         void *(*take)(void *context, int64_t count, int64_t size), void *context);

#endif
