/* opencl.h: what the files of the device share. */
#ifndef OPENCL_H
#define OPENCL_H
#include "api.h"
#include "source.h"

/* The functions of the library that was opened. */
extern opencl_api cl;

/* The context of the process. */
typedef struct opencl_context {
  pthread_mutex_t lock;
  void *device, *context;
} opencl_context;
extern opencl_context shared;

extern df_device opencl_device;

/* What a session has open. */
typedef struct session {
  pthread_mutex_t lock; /* of the members below */
  void *queue;
  void *fault;   /* five numbers: a status, the step, what was found, its limit,
                    the segment */
  int64_t named; /* segments so far */
  struct segment *segments;
  struct segment *failed;
} session;

/* Null, or why there is no platform. */
const char *open_library(void);
df_status opencl_open(void *self, const int64_t *values, void **opened, df_error *error);
void opencl_close(void *opened);

df_status opencl_prepare(void *self, const df_segment *given, void **prepared, df_error *error);
df_status opencl_run(void *self, void *prepared, const df_run *run, df_error *error);
df_status opencl_elapsed(void *self, void *prepared, int64_t *nanoseconds, df_error *error);
df_status opencl_sync(void *self, df_error *error);
void opencl_release(void *self, void *prepared);
/* How many programs this process has built; for tests. */
int64_t opencl_builds(void);

/* Notes what OpenCL's status means. */
df_status opencl_fail(df_error *error, const char *what, cl_status status);

/* Calls a function of OpenCL, and leaves with its status where it fails. */
#define CHECK(call, what)                                                                          \
  do {                                                                                             \
    const cl_status status_ = (call);                                                              \
    if (status_)                                                                                   \
      return opencl_fail(error, what, status_);                                                    \
  } while (0)

#endif
