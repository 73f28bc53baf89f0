/* remote.c: a device with a memory of its own, for tests. Its addresses are handles that fault when
 * the host reads them, its memory begins as noise, and all that it is asked to do waits in a queue
 * that one thread works off: what does not wait for it, or does not copy, gives wrong results. It
 * takes a few ops only.
 */
#include "dataflow_inline.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Added to every address: no process maps memory there. */
static const uint64_t FAR = UINT64_C(1) << 60;

static void *near(const void *handle) { return (void *)((uintptr_t)handle - FAR); }
static void *far(const void *address) { return (void *)((uintptr_t)address + FAR); }

static const df_host *host;

/* ---- The queue ------------------------------------------------------------------------------ */

typedef struct job {
  struct job *next;
  void *prepared; /* of a segment; null for a copy */
  df_run run;
  df_copy copy;
} job;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  job *first;
  job *last;
  int busy;
  int started;
  df_status failed;
  df_error error;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void work(const job *next, df_status *status, df_error *error) {
  *status = DF_OK;
  if (next->prepared)
    *status = host->segment_run(NULL, next->prepared, &next->run, error);
  else
    memcpy((char *)next->copy.to + next->copy.to_offset,
           (const char *)next->copy.from + next->copy.from_offset, (size_t)next->copy.bytes);
}

static void *worker(void *unused) {
  (void)unused;
  pthread_mutex_lock(&queue.lock);
  for (;;) {
    while (!queue.first)
      pthread_cond_wait(&queue.changed, &queue.lock);
    job *next = queue.first;
    queue.first = next->next;
    queue.busy = 1;
    pthread_mutex_unlock(&queue.lock);
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); /* late enough to be seen */
    df_error error = {.step = -1};
    df_status status;
    work(next, &status, &error);
    free(next);
    pthread_mutex_lock(&queue.lock);
    if (status && !queue.failed) {
      queue.failed = status;
      queue.error = error;
    }
    queue.busy = 0;
    pthread_cond_broadcast(&queue.changed);
  }
  return NULL;
}

static df_status enqueue(const job *what, df_error *error) {
  job *next = malloc(sizeof *next);
  pthread_t thread;
  if (!next)
    return error->code = DF_OUT_OF_MEMORY;
  *next = *what;
  next->next = NULL;
  pthread_mutex_lock(&queue.lock);
  if (!queue.started) {
    queue.started = !pthread_create(&thread, NULL, worker, NULL);
    if (queue.started)
      pthread_detach(thread);
  }
  if (queue.first)
    queue.last->next = next;
  else
    queue.first = next;
  queue.last = next;
  pthread_cond_broadcast(&queue.changed);
  pthread_mutex_unlock(&queue.lock);
  return DF_OK;
}

static df_status remote_sync(void *self, df_error *error) {
  (void)self;
  pthread_mutex_lock(&queue.lock);
  while (queue.first || queue.busy)
    pthread_cond_wait(&queue.changed, &queue.lock);
  df_status status = queue.failed;
  if (status)
    *error = queue.error;
  queue.failed = DF_OK;
  pthread_mutex_unlock(&queue.lock);
  return status;
}

/* ---- Memory --------------------------------------------------------------------------------- */

static df_status remote_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self;
  size_t size = ((size_t)bytes + 127) / 64 * 64;
  void *address = aligned_alloc(64, size);
  if (!address)
    return error->code = DF_OUT_OF_MEMORY;
  memset(address, 0xc7, size); /* -102,286 as float32: seen when it is read before it is written */
  out->base = far(address);
  out->owner = address;
  return DF_OK;
}

static void remote_free(void *self, df_buffer *buffer) {
  df_error error = {0};
  (void)remote_sync(self, &error);
  free(buffer->owner);
}

static df_status remote_copy(void *self, const df_copy *copy, df_error *error) {
  (void)self;
  job what = {0};
  df_take(&what.copy, sizeof what.copy, copy);
  if (copy->direction != DF_COPY_TO_HOST)
    what.copy.to = near(copy->to);
  if (copy->direction != DF_COPY_TO_DEVICE)
    what.copy.from = near(copy->from);
  return enqueue(&what, error);
}

/* ---- Segments ------------------------------------------------------------------------------- */

static df_status remote_prepare(void *self, const df_segment *segment, void **prepared,
                                df_error *error) {
  const size_t count = (size_t)segment->n_arenas + 1;
  df_arena *arenas = malloc(count * sizeof *arenas);
  const df_arena **table = malloc(count * sizeof *table);
  df_status status = DF_OUT_OF_MEMORY;
  if (arenas && table) {
    for (int32_t i = 0; i < segment->n_arenas; i++) {
      df_take(&arenas[i], sizeof arenas[i], segment->arenas[i]);
      if (arenas[i].base)
        arenas[i].base = near(arenas[i].base);
      table[i] = &arenas[i];
    }
    df_segment own;
    df_take(&own, sizeof own, segment);
    own.arenas = table;
    status = host->segment_prepare(self, &own, prepared, error);
  }
  free(arenas);
  free(table);
  return status;
}

static df_status remote_run(void *self, void *prepared, const df_run *run, df_error *error) {
  (void)self;
  job what = {.prepared = prepared};
  df_take(&what.run, sizeof what.run, run);
  what.run.slots = NULL; /* slots are the host's: nothing here reads them */
  what.run.n_slots = 0;
  return enqueue(&what, error);
}

static void remote_release(void *self, void *prepared) {
  df_error error = {0};
  (void)remote_sync(self, &error);
  host->segment_release(self, prepared);
}

/* ---- Kernels -------------------------------------------------------------------------------- */

/* y[i] = x[i], any strides in x, four bytes an element. */
static df_status copy_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  const df_tensor *y = call->outputs[0];
  for (int64_t i = 0, count = df_elements(y); i < count; i++) {
    int64_t rest = i, at = 0;
    for (int32_t axis = x->rank - 1; axis >= 0; axis--) {
      at += rest % x->shape[axis] * x->strides[axis];
      rest /= x->shape[axis];
    }
    ((float *)y->data)[i] = ((const float *)x->data)[at];
  }
  return DF_OK;
}

/* y = max(x, 0) */
static df_status relu_run(const df_call *call) {
  const float *x = call->inputs[0]->data;
  float *y = call->outputs[0]->data;
  for (int64_t i = 0, count = df_elements(call->outputs[0]); i < count; i++)
    y[i] = x[i] > 0 ? x[i] : 0;
  return DF_OK;
}

/* dx = dy where y > 0 */
static df_status relu_grad_run(const df_call *call) {
  const float *dy = call->inputs[0]->data, *y = call->inputs[1]->data;
  float *dx = call->outputs[0]->data;
  for (int64_t i = 0, count = df_elements(call->outputs[0]); i < count; i++)
    dx[i] = y[i] > 0 ? dy[i] : 0;
  return DF_OK;
}

/* y = a + b, of one shape */
static df_status add_run(const df_call *call) {
  const float *a = call->inputs[0]->data, *b = call->inputs[1]->data;
  float *y = call->outputs[0]->data;
  for (int64_t i = 0, count = df_elements(call->outputs[0]); i < count; i++)
    y[i] = a[i] + b[i];
  return DF_OK;
}

static const char *one_shape(const df_node *node) {
  const df_operand *a = node->inputs[0], *b = node->inputs[1];
  if (a->rank != b->rank)
    return "remote adds tensors of one shape only";
  for (int32_t axis = 0; axis < a->rank; axis++)
    if (a->shape[axis] != b->shape[axis])
      return "remote adds tensors of one shape only";
  return NULL;
}

/* y (M, N) = a (M, K) b (K, N), any strides; sums through a row of doubles in the workspace */
static df_status matmul_run(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1];
  const int64_t M = a->shape[0], K = a->shape[1], N = b->shape[1];
  double *row = call->workspace;
  for (int64_t m = 0; m < M; m++) {
    for (int64_t n = 0; n < N; n++)
      row[n] = 0;
    for (int64_t k = 0; k < K; k++) {
      float left = ((const float *)a->data)[m * a->strides[0] + k * a->strides[1]];
      for (int64_t n = 0; n < N; n++)
        row[n] += (double)left * ((const float *)b->data)[k * b->strides[0] + n * b->strides[1]];
    }
    for (int64_t n = 0; n < N; n++)
      ((float *)call->outputs[0]->data)[m * N + n] = (float)row[n];
  }
  return DF_OK;
}

static df_status matmul_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = node->inputs[1]->shape[1] * (int64_t)sizeof(double);
  return DF_OK;
}

static const char *of_rank_two(const df_node *node) {
  return node->inputs[0]->rank == 2 && node->inputs[1]->rank == 2 ? NULL
                                                                  : "remote takes matrices only";
}

#define KERNEL(name_, operands_, ...)                                                              \
  static const df_kernel name_##_kernel = {.struct_size = sizeof(df_kernel),                       \
                                           .op = #name_,                                           \
                                           .name = "remote_" #name_,                               \
                                           .operands = operands_,                                  \
                                           .run = name_##_run,                                     \
                                           __VA_ARGS__}
KERNEL(copy, "~f32|i32->f32|i32", .inplace = NULL);
KERNEL(relu, "f32->f32", .inplace = "0<0");
KERNEL(relu_grad, "f32,f32->f32", .inplace = "0<0");
KERNEL(add, "f32,f32->f32", .inplace = "0<0,0<1", .accepts = one_shape);
KERNEL(matmul, "~f32,~f32->f32", .accepts = of_rank_two, .prepare = matmul_prepare);

static const df_kernel *const kernels[] = {&copy_kernel, &relu_kernel, &relu_grad_kernel,
                                           &add_kernel, &matmul_kernel};

static const df_device device = {.struct_size = sizeof device,
                                 .flags = DF_ASYNCHRONOUS,
                                 .name = "remote",
                                 .alignment = 128,
                                 .alloc = remote_alloc,
                                 .free = remote_free,
                                 .copy = remote_copy,
                                 .sync = remote_sync,
                                 .prepare = remote_prepare,
                                 .run = remote_run,
                                 .release = remote_release,
                                 .kernels = kernels,
                                 .n_kernels = sizeof kernels / sizeof *kernels};

static const df_device *const devices[] = {&device};

static const df_plugin plugin = {.struct_size = sizeof plugin,
                                 .abi_major = DF_ABI_MAJOR,
                                 .abi_minor = DF_ABI_MINOR,
                                 .n_devices = 1,
                                 .name = "remote",
                                 .version = "1",
                                 .devices = devices};

const df_plugin *df_plugin_entry(const df_host *given) {
  host = given;
  return &plugin;
}
