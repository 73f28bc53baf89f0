/* session.c: the library, its context, and the queue of each session.
 *
 * The library libOpenCL.so.1, or the one that the variable DATAFLOW_OPENCL
 * names, is opened when the process first asks for the device; nothing of it is
 * linked.
 */
#define _GNU_SOURCE
#include "opencl.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

opencl_api cl;
opencl_context shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

df_status opencl_fail(df_error *error, const char *what, cl_status status) {
  snprintf(error->text, sizeof error->text, "%s: OpenCL's status is %d", what, (int)status);
  return error->code = status == CL_OUT_OF_MEMORY || status == -5 || status == -61
                           ? DF_OUT_OF_MEMORY
                           : DF_DEVICE;
}

/* ---- The library ----------------------------------------------------------------------------- */

/* Null, or why there is no platform. */
const char *open_library(void) {
  const char *named = getenv("DATAFLOW_OPENCL");
  void *library = dlopen(named ? named : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  uint32_t platforms = 0;
  if (!library)
    return "there is no libOpenCL.so.1 (of an ICD loader, e.g. Debian's "
           "ocl-icd-libopencl1)";
#define OPENCL_LOOK_UP(name, arguments)                                                            \
  *(void **)&cl.name = dlsym(library, "cl" #name);                                                 \
  if (!cl.name)                                                                                    \
    return "its library has no cl" #name;
  OPENCL_FUNCTIONS(OPENCL_LOOK_UP)
  OPENCL_MAKERS(OPENCL_LOOK_UP)
  if (cl.GetPlatformIDs(0, NULL, &platforms) || !platforms)
    return "OpenCL has no platform (on a CPU Debian's pocl-opencl-icd is one)";
  return NULL;
}

/* Under the lock: the first device of the first platform that has one. Compilers of platforms
 * install handlers of signals for themselves, which the process shall not have. */
static df_status find_device(df_error *error) {
  void *platforms[8];
  uint32_t n_platforms = 0, found = 0;
  cl_status status = 0;
  CHECK(cl.GetPlatformIDs(8, platforms, &n_platforms), "clGetPlatformIDs");
  for (uint32_t k = 0; k < n_platforms && k < 8 && !found; k++)
    if (cl.GetDeviceIDs(platforms[k], CL_DEVICE_TYPE_DEFAULT, 1, &shared.device, &found))
      found = 0;
  if (!found)
    return opencl_fail(error, "no platform has a device", -1);
  uint64_t largest = 0;
  CHECK(
      cl.GetDeviceInfo(shared.device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof largest, &largest, NULL),
      "clGetDeviceInfo");
  opencl_device.largest_buffer = (int64_t)largest;
  shared.context = cl.CreateContext(NULL, 1, &shared.device, NULL, NULL, &status);
  return shared.context ? DF_OK : opencl_fail(error, "clCreateContext", status);
}

static df_status open_context(df_error *error) {
  enum { SIGNALS = 32 };
  struct sigaction kept[SIGNALS];
  if (shared.context)
    return DF_OK;
  for (int number = 1; number < SIGNALS; number++)
    sigaction(number, NULL, &kept[number]);
  const df_status status = find_device(error);
  for (int number = 1; number < SIGNALS; number++)
    if (number != SIGKILL && number != SIGSTOP)
      sigaction(number, &kept[number], NULL);
  return status;
}

df_status opencl_open(void *self, const int64_t *values, void **opened, df_error *error) {
  (void)self, (void)values;
  static const int64_t none[5] = {0};
  cl_status status = 0;
  pthread_mutex_lock(&shared.lock);
  const df_status ready = open_context(error);
  pthread_mutex_unlock(&shared.lock);
  session *s = ready ? NULL : calloc(1, sizeof *s);
  if (!s)
    return ready ? ready : (error->code = DF_OUT_OF_MEMORY);
  pthread_mutex_init(&s->lock, NULL);
  *opened = s;
  s->queue =
      cl.CreateCommandQueue(shared.context, shared.device, CL_QUEUE_PROFILING_ENABLE, &status);
  if (s->queue)
    s->fault = cl.CreateBuffer(shared.context, CL_MEM_READ_WRITE, sizeof none, NULL, &status);
  if (s->fault)
    status = cl.EnqueueWriteBuffer(s->queue, s->fault, 1, 0, sizeof none, none, 0, NULL, NULL);
  if (!status)
    return DF_OK;
  if (s->fault)
    cl.ReleaseMemObject(s->fault);
  if (s->queue)
    cl.ReleaseCommandQueue(s->queue);
  free(s);
  return opencl_fail(error, "opening a queue", status);
}

void opencl_close(void *opened) {
  session *s = opened;
  cl.Finish(s->queue);
  cl.ReleaseMemObject(s->fault);
  cl.ReleaseCommandQueue(s->queue);
  pthread_mutex_destroy(&s->lock);
  free(s);
}
