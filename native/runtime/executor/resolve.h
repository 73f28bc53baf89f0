/* executor/resolve.h: makes resolved segments. */
#ifndef DF_RUNTIME_EXECUTOR_RESOLVE_H
#define DF_RUNTIME_EXECUTOR_RESOLVE_H

#include "executor/resolved.h"

/* Resolves |segment| or fills |error| and returns null. */
df_resolved *df_resolve(const df_segment *segment, df_error *error);

void df_resolved_free(df_resolved *resolved);

#endif
