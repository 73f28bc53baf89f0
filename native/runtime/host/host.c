/* host/host.c: the table that plugins get, the log, and how the runtime fills an error. */
#include "host/internal.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic(df_log_fn) log_callback;

void df_set_log(df_log_fn callback) { atomic_store(&log_callback, callback); }

static void log_text(int32_t severity, const char *text) {
  df_log_fn callback = atomic_load(&log_callback);
  if (callback)
    callback(severity, text);
}

const df_host *df_host_table(void) {
  static const df_host host = {
      .struct_size = sizeof(df_host),
      .abi_major = DF_ABI_MAJOR,
      .abi_minor = DF_ABI_MINOR,
      .parallel_for = df_parallel_for,
      .log = log_text,
      .segment_prepare = df_segment_prepare,
      .segment_run = df_segment_run,
      .segment_release = df_segment_release,
  };
  return &host;
}

df_status df_error_set(df_error *error, df_status code, int64_t step, const char *format, ...) {
  if (!error)
    return code;
  error->code = code;
  error->step = (int32_t)step;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return code;
}
