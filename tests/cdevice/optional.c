/* optional.c: a device with all that is optional, for tests: its memory is known by handles, to
 * which nothing can be added; it compiles segments, refuses nodes, gets prepacked copies from the
 * host, lends memory of the host, has a largest buffer and a clock. It counts what it is asked for.
 */
#include "dataflow_inline.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static const df_host *host;

/* ---- What it was asked for ------------------------------------------------------------------- */

enum { COMPILED, DISCARDED, PREPARED, RELEASED, PREPACKED, LIVE, OUTPUTS, STAGED, COUNTS };
static int64_t counts[COUNTS];
static char last_key[64];

static void count(int which, int64_t more) {
  __atomic_add_fetch(&counts[which], more, __ATOMIC_SEQ_CST);
}

int64_t optional_count(int which) { return __atomic_load_n(&counts[which], __ATOMIC_SEQ_CST); }
const char *optional_key(void) { return last_key; }

/* ---- Memory ---------------------------------------------------------------------------------- */

enum { MOST_BUFFERS = 4096 };
static char *buffers[MOST_BUFFERS]; /* by handle; the first is none */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *at(const void *handle, int64_t offset) {
  return handle ? buffers[(uintptr_t)handle] + offset : NULL;
}
static void *in(const df_call *call, int index) {
  return at(call->inputs[index]->data, call->inputs[index]->offset);
}
static void *out(const df_call *call) {
  return at(call->outputs[0]->data, call->outputs[0]->offset);
}

static df_status optional_alloc(void *self, int64_t bytes, df_buffer *buffer, df_error *error) {
  (void)self;
  uintptr_t handle = 1;
  pthread_mutex_lock(&lock);
  while (handle < MOST_BUFFERS && buffers[handle])
    handle++;
  if (handle < MOST_BUFFERS)
    buffers[handle] = malloc((size_t)bytes + 1);
  pthread_mutex_unlock(&lock);
  if (handle == MOST_BUFFERS || !buffers[handle])
    return error->code = DF_OUT_OF_MEMORY;
  memset(buffers[handle], 0xc7, (size_t)bytes);
  buffer->base = (void *)handle;
  return DF_OK;
}

static void optional_free(void *self, df_buffer *buffer) {
  (void)self;
  free(buffers[(uintptr_t)buffer->base]);
  buffers[(uintptr_t)buffer->base] = NULL;
}

static df_status optional_copy(void *self, const df_copy *copy, df_error *error) {
  (void)self, (void)error;
  const int up = copy->direction == DF_COPY_TO_DEVICE, down = copy->direction == DF_COPY_TO_HOST;
  char *to = down ? (char *)copy->to + copy->to_offset : at(copy->to, copy->to_offset);
  const char *from =
      up ? (const char *)copy->from + copy->from_offset : at(copy->from, copy->from_offset);
  memmove(to, from, (size_t)copy->bytes);
  return DF_OK;
}

static df_status optional_alloc_staging(void *self, int64_t bytes, df_buffer *buffer,
                                        df_error *error) {
  (void)self;
  buffer->base = buffer->owner = aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
  count(STAGED, 1);
  return buffer->base ? DF_OK : (error->code = DF_OUT_OF_MEMORY);
}

static void optional_free_staging(void *self, df_buffer *buffer) {
  (void)self;
  free(buffer->owner);
  count(STAGED, -1);
}

/* ---- Segments -------------------------------------------------------------------------------- */

typedef struct opened {
  int64_t refuses; /* option: segments with an add */
} opened;

static df_status optional_open(void *self, const int64_t *values, void **result, df_error *error) {
  (void)self;
  opened *new = calloc(1, sizeof *new);
  if (!new)
    return error->code = DF_OUT_OF_MEMORY;
  new->refuses = values[0] == INT64_MIN ? 0 : values[0];
  *result = new;
  return DF_OK;
}

/* Late enough that threads which begin at one time meet here. */
static df_status optional_compile(void *self, const df_segment *segment, void **compiled,
                                  df_error *error) {
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  for (int32_t i = 0; i < segment->n_steps; i++) {
    const df_step *step = segment->steps[i];
    if (((opened *)self)->refuses && !strcmp(step->kernel->op, "add")) {
      error->step = i;
      snprintf(error->text, sizeof error->text, "adds are refused today");
      return error->code = DF_UNSUPPORTED;
    }
    for (int32_t k = 0; k < step->n_outputs; k++) {
      const int32_t at = step->first_operand + step->n_inputs + k;
      count(OUTPUTS, 1);
      count(LIVE, segment->operands[at]->flags & DF_LIVE_OUT);
    }
  }
  for (int32_t i = 0; i < segment->n_arenas; i++)
    if (segment->arenas[i]->base)
      return error->code = DF_INTERNAL;
  snprintf(last_key, sizeof last_key, "%s", segment->key);
  *compiled = strdup(segment->key);
  count(COMPILED, 1);
  return DF_OK;
}

static void optional_discard(void *self, void *compiled) {
  (void)self;
  free(compiled);
  count(DISCARDED, 1);
}

static df_status optional_prepare(void *self, const df_segment *segment, void **prepared,
                                  df_error *error) {
  if (!segment->compiled || strcmp(segment->compiled, segment->key) != 0)
    return error->code = DF_INTERNAL;
  count(PREPARED, 1);
  return host->segment_prepare(self, segment, prepared, error);
}

static void optional_release(void *self, void *prepared) {
  count(RELEASED, 1);
  host->segment_release(self, prepared);
}

static df_status optional_elapsed(void *self, void *prepared, int64_t *nanoseconds,
                                  df_error *error) {
  (void)self, (void)prepared, (void)error;
  *nanoseconds = 7000000;
  return DF_OK;
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static df_status copy_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const char *from = in(call, 0);
  char *to = out(call);
  for (int64_t i = 0, n = df_elements(y); i < n; i++) {
    int64_t position = 0, rest = i;
    for (int32_t axis = x->rank - 1; axis >= 0; rest /= x->shape[axis--])
      position += rest % x->shape[axis] * x->strides[axis];
    memcpy(to + i * y->item_bytes, from + position * x->item_bytes, (size_t)x->item_bytes);
  }
  return DF_OK;
}

static df_status relu_run(const df_call *call) {
  const float *x = in(call, 0);
  float *y = out(call);
  for (int64_t i = 0, n = df_elements(call->outputs[0]); i < n; i++)
    y[i] = x[i] > 0 ? x[i] : 0;
  return DF_OK;
}

/* Takes any shape, and finds only here that rows of more than 64 are too long. */
static df_status relu_prepare(const df_node *node, df_prepared *answer, df_error *error) {
  (void)answer;
  const df_operand *x = node->inputs[0];
  if (x->rank == 0 || x->shape[x->rank - 1] <= 64)
    return DF_OK;
  snprintf(error->text, sizeof error->text, "rows of %lld are too long",
           (long long)x->shape[x->rank - 1]);
  return DF_UNSUPPORTED;
}

static const char *one_shape(const df_node *node) {
  const df_operand *a = node->inputs[0], *b = node->inputs[1];
  if (a->rank != b->rank)
    return "optional adds tensors of one shape only";
  for (int32_t axis = 0; axis < a->rank; axis++)
    if (a->shape[axis] != b->shape[axis])
      return "optional adds tensors of one shape only";
  return NULL;
}

static df_status add_run(const df_call *call) {
  const float *a = in(call, 0), *b = in(call, 1);
  float *y = out(call);
  for (int64_t i = 0, n = df_elements(call->outputs[0]); i < n; i++)
    y[i] = a[i] + b[i];
  return DF_OK;
}

static const char *matrices(const df_node *node) {
  return node->inputs[0]->rank == 2 && node->inputs[1]->rank == 2 ? NULL
                                                                  : "optional takes matrices only";
}

/* The right operand transposed; both lie in the host's memory. */
static void transpose(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  const df_operand *b = node->inputs[1];
  for (int64_t k = 0; k < b->shape[0]; k++)
    for (int64_t n = 0; n < b->shape[1]; n++)
      ((float *)prepacked)[n * b->shape[0] + k] =
          ((const float *)source)[k * b->strides[0] + n * b->strides[1]];
  count(PREPACKED, 1);
}

static df_status matmul_prepare(const df_node *node, df_prepared *answer, df_error *error) {
  (void)error;
  const df_operand *b = node->inputs[1];
  answer->workspace = b->shape[1] * (int64_t)sizeof(double);
  if (node->flags >> 1 & 1) {
    answer->replaced = 1 << 1;
    df_ask_prepack(answer, 1, 0, b->shape[0] * b->shape[1] * (int64_t)sizeof(float), transpose);
  }
  return DF_OK;
}

/* y (M, N) = a (M, K) b (K, N), any strides; sums in a row of the workspace */
static df_status matmul_run(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1];
  const int64_t M = a->shape[0], K = a->shape[1], N = b->shape[1];
  const float *left = in(call, 0);
  const int prepacked_b = call->prepacked && call->prepacked[0];
  const float *right =
      prepacked_b ? (const float *)(void *)at(call->prepacked[0], call->prepacked_offsets[0])
                  : in(call, 1);
  const int64_t along = prepacked_b ? 1 : b->strides[0], across = prepacked_b ? K : b->strides[1];
  double *row = (double *)(void *)at(call->workspace, call->workspace_offset);
  float *y = out(call);
  for (int64_t m = 0; m < M; m++) {
    for (int64_t n = 0; n < N; n++)
      row[n] = 0;
    for (int64_t k = 0; k < K; k++)
      for (int64_t n = 0; n < N; n++)
        row[n] += (double)left[m * a->strides[0] + k * a->strides[1]] *
                  (double)right[k * along + n * across];
    for (int64_t n = 0; n < N; n++)
      y[m * N + n] = (float)row[n];
  }
  return DF_OK;
}

#define KERNEL(name_, operands_, ...)                                                              \
  static const df_kernel name_##_kernel = {.struct_size = sizeof(df_kernel),                       \
                                           .op = #name_,                                           \
                                           .name = "optional_" #name_,                             \
                                           .operands = operands_,                                  \
                                           .run = name_##_run,                                     \
                                           __VA_ARGS__}
KERNEL(copy, "~any->any", .inplace = NULL);
KERNEL(relu, "f32->f32", .inplace = "0<0", .prepare = relu_prepare);
KERNEL(add, "f32,f32->f32", .inplace = "0<0,0<1", .accepts = one_shape);
KERNEL(matmul, "~f32,~f32->f32", .accepts = matrices, .prepare = matmul_prepare);

static const df_kernel *const kernels[] = {&copy_kernel, &relu_kernel, &add_kernel, &matmul_kernel};

static const df_device device = {.struct_size = sizeof device,
                                 .flags = DF_HANDLES | DF_HOST_PREPACKS,
                                 .name = "optional",
                                 .alloc = optional_alloc,
                                 .free = optional_free,
                                 .copy = optional_copy,
                                 .prepare = optional_prepare,
                                 .release = optional_release,
                                 .kernels = kernels,
                                 .n_kernels = sizeof kernels / sizeof *kernels,
                                 .options = "refuses",
                                 .open = optional_open,
                                 .close = free,
                                 .compile = optional_compile,
                                 .discard = optional_discard,
                                 .largest_buffer = 1 << 20,
                                 .alloc_staging = optional_alloc_staging,
                                 .free_staging = optional_free_staging,
                                 .elapsed = optional_elapsed};

const df_plugin *df_plugin_entry(const df_host *given) {
  static df_device own;
  static const df_device *const devices[] = {&own};
  static const df_plugin plugin = {.struct_size = sizeof plugin,
                                   .abi_major = DF_ABI_MAJOR,
                                   .abi_minor = DF_ABI_MINOR,
                                   .n_devices = 1,
                                   .name = "optional",
                                   .version = "1",
                                   .devices = devices};
  host = given;
  own = device;
  own.run = host->segment_run;
  return &plugin;
}
