/* host/internal.h: what the files of the runtime share and nobody else sees. */
#ifndef DF_RUNTIME_HOST_INTERNAL_H
#define DF_RUNTIME_HOST_INTERNAL_H

#include "runtime.h"

/* Fills |error|, which may be null, and returns |code|. */
df_status df_error_set(df_error *error, df_status code, int64_t step, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Makes |cancel| the cancel word of what the calling thread runs; returns the one before. */
const volatile int32_t *df_cancel_swap(const volatile int32_t *cancel);

/* True when |cancel| is given and set. Another thread or a signal handler may be writing it. */
static inline int df_is_cancelled(const volatile int32_t *cancel) {
  return cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED);
}

/* From begin to end, SIGINT also sets *cancel to 1, before the handler that was there sees it. Does
 * nothing, and returns 0, on any thread but the main one, inside another such run, and where SIGINT
 * is ignored or has its default action; each begin that returned 1 needs an end. */
int df_interrupt_begin(volatile int32_t *cancel);
void df_interrupt_end(void);

#endif
