/* opencl.c: a device on OpenCL. Its memory is known by handles, its kernels are text that is built
 * when a segment is prepared, and a queue of each session works them off in order. */
#include "opencl.h"

#include <stdatomic.h>

df_device opencl_device;
static atomic_llong held; /* bytes of all buffers */

static df_status opencl_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self;
  cl_status status = 0;
  out->base = cl.CreateBuffer(shared.context, CL_MEM_READ_WRITE, (size_t)(bytes > 0 ? bytes : 1),
                              NULL, &status);
  out->owner = out->base;
  if (!out->base)
    return opencl_fail(error, "clCreateBuffer", status);
  held += bytes;
  return DF_OK;
}

/* What waits in a queue keeps the memory that it uses. */
static void opencl_free(void *self, df_buffer *buffer) {
  (void)self;
  cl.ReleaseMemObject(buffer->base);
  held -= buffer->bytes;
}

static df_status opencl_copy(void *self, const df_copy *c, df_error *error) {
  const session *s = self;
  const size_t to = (size_t)c->to_offset, from = (size_t)c->from_offset, bytes = (size_t)c->bytes;
  if (!bytes)
    return DF_OK;
  if (c->direction == DF_COPY_TO_DEVICE)
    CHECK(cl.EnqueueWriteBuffer(s->queue, c->to, 1, to, bytes, (const char *)c->from + from, 0,
                                NULL, NULL),
          "clEnqueueWriteBuffer");
  else if (c->direction == DF_COPY_TO_HOST)
    CHECK(cl.EnqueueReadBuffer(s->queue, (void *)c->from, 1, from, bytes, (char *)c->to + to, 0,
                               NULL, NULL),
          "clEnqueueReadBuffer");
  else
    CHECK(cl.EnqueueCopyBuffer(s->queue, (void *)c->from, c->to, from, to, bytes, 0, NULL, NULL),
          "clEnqueueCopyBuffer");
  return DF_OK;
}

static df_status opencl_memory(void *self, int64_t *available, int64_t *total, df_error *error) {
  (void)self;
  uint64_t bytes = 0;
  CHECK(cl.GetDeviceInfo(shared.device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, NULL),
        "clGetDeviceInfo");
  *total = (int64_t)bytes;
  *available = *total > held ? *total - held : 0;
  return DF_OK;
}

static void *opencl_failed(void *self) { return ((session *)self)->failed; }

const df_plugin *df_plugin_entry(const df_host *host) {
  (void)host;
  static const df_device *const devices[] = {&opencl_device};
  static const df_plugin plugin = {.struct_size = sizeof plugin,
                                   .abi_major = DF_ABI_MAJOR,
                                   .abi_minor = DF_ABI_MINOR,
                                   .n_devices = 1,
                                   .name = "opencl",
                                   .version = "0.1.0",
                                   .devices = devices};
  opencl_device = (df_device){.struct_size = sizeof opencl_device,
                              .flags = DF_ASYNCHRONOUS | DF_HANDLES,
                              .name = "opencl",
                              .alignment = 64,
                              .unavailable = open_library(),
                              .alloc = opencl_alloc,
                              .free = opencl_free,
                              .copy = opencl_copy,
                              .sync = opencl_sync,
                              .prepare = opencl_prepare,
                              .run = opencl_run,
                              .release = opencl_release,
                              .open = opencl_open,
                              .close = opencl_close,
                              .memory = opencl_memory,
                              .failed = opencl_failed,
                              .elapsed = opencl_elapsed};
  opencl_device.n_kernels = source_kernels("opencl", &opencl_device.kernels);
  return &plugin;
}
