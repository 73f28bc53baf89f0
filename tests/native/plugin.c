/* plugin.c: a device library for tests, with kernels that wait, count and fail. Broken on purpose
 * by macros: FAULT_MAJOR, FAULT_SIZE, FAULT_DEVICE_SIZE, FAULT_KERNEL_SIZE, FAULT_NO_RUN,
 * FAULT_NO_COPY, FAULT_NULL, FAULT_NO_ENTRY, FAULT_ASYNCHRONOUS, and FAULT_MEMBERS=, initializers
 * of the device.
 */
#include "dataflow_inline.h"

#include <stdlib.h>

static const df_host *host;

static void increment_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count, (void)worker;
  const df_call *call = context;
  ((double *)call->outputs[0]->data)[index] = ((const double *)call->inputs[0]->data)[index] + 1;
}

/* out = x + 1, a task for each element. */
static df_status run_increment(const df_call *call) {
  call->host->parallel_for(increment_task, (void *)call, df_elements(call->outputs[0]),
                           call->threads);
  return DF_OK;
}

/* Waits until another thread makes the input 1, then sets it to 2. */
static df_status run_wait(const df_call *call) {
  double *x = call->inputs[0]->data;
  double one = 1, value;
  do {
    __atomic_load(x, &value, __ATOMIC_ACQUIRE);
  } while (value != one);
  *x = 2;
  return DF_OK;
}

static df_status run_log(const df_call *call) {
  call->host->log(30, "from a kernel");
  return DF_OK;
}

/* How many states are alive; prepare fails for nodes with two inputs and gives nonsense for three.
 */
static int alive;

static df_status prepare_counted(const df_node *node, df_prepared *out, df_error *error) {
  if (node->n_inputs == 2) {
    snprintf(error->text, sizeof error->text, "two inputs are too many");
    return DF_UNSUPPORTED;
  }
  out->state = malloc(1);
  out->workspace = node->n_inputs == 3 ? -1 : 128;
  alive++;
  return out->state ? DF_OK : DF_OUT_OF_MEMORY;
}

static void release_counted(void *state) {
  free(state);
  alive--;
}

int df_test_alive(void) { return alive; }

static const char *accept_one_input(const df_node *node) {
  return node->n_inputs == 1 ? 0 : "takes one input";
}

#ifdef FAULT_KERNEL_SIZE
#define KERNEL_SIZE 8
#else
#define KERNEL_SIZE sizeof(df_kernel)
#endif
#ifdef FAULT_NO_RUN
#define RUN_INCREMENT 0
#else
#define RUN_INCREMENT run_increment
#endif

static const df_kernel increment = {.struct_size = KERNEL_SIZE,
                                    .op = "increment",
                                    .name = "increment f64",
                                    .operands = "f64->f64",
                                    .accepts = accept_one_input,
                                    .run = RUN_INCREMENT};
static const df_kernel wait_one = {.struct_size = sizeof(df_kernel),
                                   .op = "wait",
                                   .name = "wait f64",
                                   .operands = "f64->",
                                   .run = run_wait};
static const df_kernel log_it = {
    .struct_size = sizeof(df_kernel), .op = "log", .name = "log", .operands = "->", .run = run_log};
static const df_kernel counted = {.struct_size = sizeof(df_kernel),
                                  .op = "counted",
                                  .name = "counted",
                                  .operands = "f64->f64",
                                  .prepare = prepare_counted,
                                  .run = run_increment,
                                  .release = release_counted};
static const df_kernel *const kernels[] = {&increment, &wait_one, &log_it, &counted};

static df_status device_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self, (void)error;
  out->base = malloc((size_t)bytes);
  return out->base ? DF_OK : DF_OUT_OF_MEMORY;
}

static void device_free(void *self, df_buffer *buffer) {
  (void)self;
  free(buffer->base);
}

#ifdef FAULT_NO_COPY
#define DEVICE_COPY 0
#else
static df_status device_copy(void *self, const df_copy *copy, df_error *error) {
  (void)self, (void)copy, (void)error;
  return DF_UNSUPPORTED;
}
#define DEVICE_COPY device_copy
#endif

static df_device device = {
#ifdef FAULT_DEVICE_SIZE
    .struct_size = 16,
#else
    .struct_size = sizeof(df_device),
#endif
    .flags = DF_MEMORY_HOST,
    .name = "test",
    .alloc = device_alloc,
    .free = device_free,
    .copy = DEVICE_COPY,
    .kernels = kernels,
    .n_kernels = sizeof kernels / sizeof kernels[0],
#ifdef FAULT_MEMBERS
    FAULT_MEMBERS
#endif
};
static const df_device *const devices[] = {&device};

static const df_plugin plugin = {
#ifdef FAULT_SIZE
    .struct_size = 12,
#else
    .struct_size = sizeof(df_plugin),
#endif
#ifdef FAULT_MAJOR
    .abi_major = FAULT_MAJOR,
    .abi_minor = 5,
#else
    .abi_major = DF_ABI_MAJOR,
    .abi_minor = DF_ABI_MINOR,
#endif
    .name = "test",
    .version = "1",
    .n_devices = 1,
    .devices = devices,
};

#ifndef FAULT_NO_ENTRY
const df_plugin *df_plugin_entry(const df_host *given) {
  host = given;
#ifdef FAULT_ASYNCHRONOUS
  device.flags |= DF_ASYNCHRONOUS;
#endif
  device.prepare = host->segment_prepare;
  device.run = host->segment_run;
  device.release = host->segment_release;
#ifdef FAULT_NULL
  return 0;
#else
  return &plugin;
#endif
}
#endif
