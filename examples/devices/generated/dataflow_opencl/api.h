/* api.h: what the device uses of OpenCL 1.2, looked up in a library when the program runs. */
#ifndef OPENCL_API_H
#define OPENCL_API_H
#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_status; /* 0: success */

enum {
  CL_OUT_OF_MEMORY = -4, /* CL_MEM_OBJECT_ALLOCATION_FAILURE */
  CL_DEVICE_TYPE_DEFAULT = 1,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101f,
  CL_MEM_READ_WRITE = 1,
  CL_QUEUE_PROFILING_ENABLE = 2,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_PROFILING_COMMAND_START = 0x1282,
  CL_PROFILING_COMMAND_END = 0x1283
};

/* Objects of OpenCL are pointers that nobody looks behind. */
#define OPENCL_FUNCTIONS(X)                                                                        \
  X(GetPlatformIDs, (uint32_t count, void **platforms, uint32_t *found))                           \
  X(GetDeviceIDs,                                                                                  \
    (void *platform, uint64_t type, uint32_t count, void **devices, uint32_t *found))              \
  X(GetDeviceInfo, (void *device, uint32_t what, size_t bytes, void *into, size_t *found))         \
  X(ReleaseCommandQueue, (void *queue))                                                            \
  X(ReleaseMemObject, (void *memory))                                                              \
  X(ReleaseKernel, (void *kernel))                                                                 \
  X(ReleaseProgram, (void *program))                                                               \
  X(ReleaseEvent, (void *event))                                                                   \
  X(GetEventProfilingInfo, (void *event, uint32_t what, size_t bytes, void *into, size_t *found))  \
  X(Finish, (void *queue))                                                                         \
  X(EnqueueReadBuffer, (void *queue, void *memory, uint32_t blocking, size_t offset, size_t bytes, \
                        void *to, uint32_t waits, void *const *wait_list, void **event))           \
  X(EnqueueWriteBuffer,                                                                            \
    (void *queue, void *memory, uint32_t blocking, size_t offset, size_t bytes, const void *from,  \
     uint32_t waits, void *const *wait_list, void **event))                                        \
  X(EnqueueCopyBuffer, (void *queue, void *from, void *to, size_t from_offset, size_t to_offset,   \
                        size_t bytes, uint32_t waits, void *const *wait_list, void **event))       \
  X(EnqueueNDRangeKernel,                                                                          \
    (void *queue, void *kernel, uint32_t axes, const size_t *offsets, const size_t *global,        \
     const size_t *local, uint32_t waits, void *const *wait_list, void **event))                   \
  X(BuildProgram, (void *program, uint32_t count, void *const *devices, const char *options,       \
                   void (*notify)(void *, void *), void *data))                                    \
  X(GetProgramBuildInfo,                                                                           \
    (void *program, void *device, uint32_t what, size_t bytes, void *into, size_t *found))         \
  X(SetKernelArg, (void *kernel, uint32_t index, size_t bytes, const void *value))

#define OPENCL_MAKERS(X)                                                                           \
  X(CreateContext,                                                                                 \
    (const intptr_t *properties, uint32_t count, void *const *devices,                             \
     void (*notify)(const char *, const void *, size_t, void *), void *data, cl_status *status))   \
  X(CreateCommandQueue, (void *context, void *device, uint64_t properties, cl_status *status))     \
  X(CreateBuffer, (void *context, uint64_t flags, size_t bytes, void *host, cl_status *status))    \
  X(CreateProgramWithSource,                                                                       \
    (void *context, uint32_t count, const char **texts, const size_t *lengths, cl_status *status)) \
  X(CreateKernel, (void *program, const char *name, cl_status *status))

/* The functions, once a library is open. */
typedef struct opencl_api {
#define OPENCL_MEMBER(name, arguments) cl_status(*name) arguments;
  OPENCL_FUNCTIONS(OPENCL_MEMBER)
#undef OPENCL_MEMBER
#define OPENCL_MEMBER(name, arguments) void *(*name)arguments;
  OPENCL_MAKERS(OPENCL_MEMBER)
#undef OPENCL_MEMBER
} opencl_api;

#endif
