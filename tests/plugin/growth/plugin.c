/* plugin.c: a device and its kernels that use as much of the contract as one file can: operands,
 * attributes, workspaces, states, prepacked copies, errors, and copies of what the host made. It is
 * built with the header of each minor and kept (keep.py), and with a header whose structs are
 * larger.
 */
#include "dataflow_inline.h"

#include <stdlib.h>

static const df_host *host;

/* y = x < 0 ? alpha * x : x, through the workspace; the state counts elements. */
static df_status leaky_relu_prepare(const df_node *node, df_prepared *out, df_error *error) {
  const int64_t n = df_operand_elements(node->inputs[0]);
  if (df_attr_float(node, 0) < 0) {
    snprintf(error->text, sizeof error->text, "alpha is below zero");
    return DF_UNSUPPORTED;
  }
  int64_t *state = (int64_t *)malloc(sizeof *state);
  if (!state)
    return DF_OUT_OF_MEMORY;
  *state = n;
  out->state = state;
  out->workspace = n * (int64_t)sizeof(float);
  return DF_OK;
}

static df_status leaky_relu_run(const df_call *call) {
  const float *x = (const float *)call->inputs[0]->data;
  float *y = (float *)call->outputs[0]->data, *scratch = (float *)call->workspace;
  const int64_t n = *(const int64_t *)call->state;
  const float alpha = (float)df_attr_float(call, 0);
  for (int64_t i = 0; i < n; i++) {
    if (x[i] > 1e30f)
      return df_fail(call, DF_INVALID, "element %lld is too large", (long long)i);
    scratch[i] = x[i] < 0 ? alpha * x[i] : x[i];
  }
  memcpy(y, scratch, (size_t)n * sizeof *y);
  return DF_OK;
}

/* The right operand transposed. */
static void transpose(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  const df_operand *b = node->inputs[1];
  for (int64_t k = 0; k < b->shape[0]; k++)
    for (int64_t n = 0; n < b->shape[1]; n++)
      ((float *)prepacked)[n * b->shape[0] + k] =
          ((const float *)source)[k * b->strides[0] + n * b->strides[1]];
}

static df_status matmul_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *b = node->inputs[1];
  if (node->flags >> 1 & 1)
    df_ask_prepack(out, 1, 3, b->shape[0] * b->shape[1] * (int64_t)sizeof(float), transpose);
  return DF_OK;
}

static df_status matmul_run(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1], *y = call->outputs[0];
  const int64_t M = a->shape[0], K = a->shape[1], N = b->shape[1];
  const float *prepacked_b = call->prepacked ? (const float *)call->prepacked[0] : 0;
  for (int64_t m = 0; m < M; m++)
    for (int64_t n = 0; n < N; n++) {
      double sum = 0;
      for (int64_t k = 0; k < K; k++)
        sum += (double)((const float *)a->data)[m * a->strides[0] + k * a->strides[1]] *
               (prepacked_b ? prepacked_b[n * K + k]
                            : ((const float *)b->data)[k * b->strides[0] + n * b->strides[1]]);
      ((float *)y->data)[m * N + n] = (float)sum;
    }
  return DF_OK;
}

static const char *matrices(const df_node *node) {
  return node->inputs[0]->rank == 2 && node->inputs[1]->rank == 2 ? 0 : "takes matrices";
}

static df_status copy_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  for (int64_t i = 0, n = df_elements(y); i < n; i++) {
    int64_t at = 0, rest = i;
    for (int32_t axis = x->rank - 1; axis >= 0; rest /= x->shape[axis--])
      at += rest % x->shape[axis] * x->strides[axis];
    memcpy((char *)y->data + i * y->item_bytes, (const char *)x->data + at * x->item_bytes,
           (size_t)x->item_bytes);
  }
  return DF_OK;
}

#define KERNEL(name_, operands_, ...)                                                              \
  static const df_kernel name_##_kernel = {.struct_size = sizeof(df_kernel),                       \
                                           .op = #name_,                                           \
                                           .name = "kept_" #name_,                                 \
                                           .operands = operands_,                                  \
                                           .run = name_##_run,                                     \
                                           __VA_ARGS__}
KERNEL(leaky_relu, "f32->f32", .inplace = "0<0", .prepare = leaky_relu_prepare, .release = free);
KERNEL(matmul, "~f32,~f32->f32", .accepts = matrices, .prepare = matmul_prepare);
KERNEL(copy, "~any->any", .inplace = 0);
static const df_kernel *const kernels[] = {&leaky_relu_kernel, &matmul_kernel, &copy_kernel};

static df_status kept_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self;
  out->base = out->owner = aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
  return out->base ? DF_OK : (error->code = DF_OUT_OF_MEMORY);
}

static void kept_free(void *self, df_buffer *buffer) {
  (void)self;
  free(buffer->owner);
}

static df_status kept_copy(void *self, const df_copy *copy, df_error *error) {
  (void)self, (void)error;
  memmove((char *)copy->to + copy->to_offset, (const char *)copy->from + copy->from_offset,
          (size_t)copy->bytes);
  return DF_OK;
}

/* Gives the host's executor a segment of its own with arenas of its own. */
static df_status kept_prepare(void *self, const df_segment *segment, void **prepared,
                              df_error *error) {
  const size_t count = (size_t)segment->n_arenas + 1;
  df_arena *arenas = (df_arena *)malloc(count * sizeof *arenas);
  const df_arena **table = (const df_arena **)malloc(count * sizeof *table);
  df_status status = DF_OUT_OF_MEMORY;
  if (arenas && table) {
    for (int32_t i = 0; i < segment->n_arenas; i++) {
      df_take(&arenas[i], sizeof arenas[i], segment->arenas[i]);
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

static df_status kept_run(void *self, void *prepared, const df_run *run, df_error *error) {
  if (!DF_HAS(df_run, run, fault))
    return DF_INTERNAL;
  df_run own;
  df_take(&own, sizeof own, run);
  return host->segment_run(self, prepared, &own, error);
}

#ifdef NOISE /* what a larger struct has at its end */
#define LATER .noise = {0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5},
#else
#define LATER
#endif

const df_plugin *df_plugin_entry(const df_host *given) {
  static df_device device;
  static const df_device *const devices[] = {&device};
  static const df_plugin plugin = {LATER.struct_size = sizeof plugin,
                                   .abi_major = DF_ABI_MAJOR,
                                   .abi_minor = DF_ABI_MINOR,
                                   .n_devices = 1,
                                   .name = "kept",
                                   .version = "1",
                                   .devices = devices};
  host = given;
  device = (df_device){LATER.struct_size = sizeof device,
                       .flags = DF_MEMORY_HOST,
                       .name = "kept",
                       .alignment = 64,
                       .alloc = kept_alloc,
                       .free = kept_free,
                       .copy = kept_copy,
                       .prepare = kept_prepare,
                       .run = kept_run,
                       .release = host->segment_release,
                       .kernels = kernels,
                       .n_kernels = sizeof kernels / sizeof *kernels};
  return &plugin;
}
