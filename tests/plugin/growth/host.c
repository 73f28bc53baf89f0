/* host.c: what a host does with a plugin, for the tests of growth: it opens the library that its
 * argument names, prepares a leaky_relu and a matmul with a prepacked copy, runs them on the device
 * as one segment, and meets an error. Built with a header whose structs have |noise| at their ends,
 * it fills that.
 */
#include "check.h"
#include "runtime.h"

#include <stddef.h>
#include <string.h>

#ifdef NOISE
#define FRESH(type)                                                                                \
  {.struct_size = sizeof(type), .noise = {0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5}}
#else
#define FRESH(type) {.struct_size = sizeof(type)}
#endif

static const int64_t ROWS[2] = {2, 3}, COLUMNS[2] = {3, 2}, SQUARE[2] = {2, 2};
static const int64_t BY_3[2] = {3, 1}, BY_2[2] = {2, 1}, ONE[1] = {1};

static df_operand matrix(int32_t arena, int64_t offset, const int64_t *shape,
                         const int64_t *strides) {
  df_operand found = FRESH(df_operand);
  found.arena = arena;
  found.dtype = DF_FLOAT32;
  found.rank = 2;
  found.item_bytes = 4;
  found.offset = offset;
  found.bytes = 4 * shape[0] * shape[1];
  found.shape = shape;
  found.strides = strides;
  return found;
}

static df_operand bytes_at(int32_t arena, int64_t offset, int64_t bytes) {
  df_operand found = FRESH(df_operand);
  found.arena = arena;
  found.dtype = DF_UINT8;
  found.rank = 1;
  found.item_bytes = 1;
  found.offset = offset;
  found.bytes = bytes;
  found.shape = ONE;
  found.strides = ONE;
  return found;
}

static df_operand absent(void) {
  df_operand found = FRESH(df_operand);
  found.arena = -1;
  return found;
}

static const df_kernel *kernel_of(const df_device *device, const char *op) {
  for (int64_t i = 0; i < device->n_kernels; i++)
    if (!strcmp(device->kernels[i]->op, op))
      return device->kernels[i];
  return NULL;
}

int main(int argc, char **argv) {
  df_error error = {0};
  const df_plugin *plugin = argc > 1 ? df_library_open(argv[1], &error) : NULL;
  if (!plugin) {
    fprintf(stderr, "%s\n", error.text);
    return 2;
  }
  const df_device *device = plugin->devices[0];
  CHECK(plugin->n_devices == 1 && device->n_kernels == 3);
  df_held held = {0}, memory = {0}, segment_held = {0};
  CHECK(df_hold_device(device, NULL, &held, &error) == DF_OK);
  CHECK(df_hold_memory(&held, 1024, &memory, &error) == DF_OK);
  float *x = memory.buffer.base;
  const float values[6] = {1, -2, 3, -4, 5, -6}, weights[6] = {1, 2, 3, 4, 5, 6};
  memcpy(x, values, sizeof values);
  memcpy(x + 16, weights, sizeof weights);

  /* x (2, 3) at 0, w (3, 2) at 64, h (2, 3) at 128, y (2, 2) at 192, workspace at 256, prepack at
   * 512 */
  df_operand operands[8] = {matrix(0, 0, ROWS, BY_3),
                            matrix(0, 128, ROWS, BY_3),
                            bytes_at(0, 256, 24),
                            matrix(0, 128, ROWS, BY_3),
                            matrix(0, 64, COLUMNS, BY_2),
                            matrix(0, 192, SQUARE, BY_2),
                            absent(),
                            bytes_at(0, 512, 24)};
  const df_operand *table[8];
  for (int i = 0; i < 8; i++)
    table[i] = &operands[i];
  df_attribute alpha = FRESH(df_attribute);
  alpha.kind = DF_ATTR_FLOAT;
  alpha.f = 0.5;
  const df_attribute *attributes[1] = {&alpha};

  df_node nodes[2] = {FRESH(df_node), FRESH(df_node)};
  nodes[0].n_inputs = nodes[0].n_outputs = nodes[0].n_attributes = 1;
  nodes[0].inputs = table;
  nodes[0].outputs = table + 1;
  nodes[0].attributes = attributes;
  nodes[1].n_inputs = 2;
  nodes[1].n_outputs = 1;
  nodes[1].inputs = table + 3;
  nodes[1].outputs = table + 5;
  nodes[1].flags = 2;
  const df_kernel *kernels[2] = {kernel_of(device, "leaky_relu"), kernel_of(device, "matmul")};
  CHECK(!df_accepts(kernels[0], &nodes[0]) && !df_accepts(kernels[1], &nodes[1]));
  df_prepared_set set = {0};
  CHECK(df_prepare_set(2, kernels, nodes, &set, &error) == DF_OK);
  CHECK(set.prepared[0].workspace == 24 && set.prepared[1].n_prepacks == 1);
  const df_prepack *prepack = set.prepared[1].prepacks[0];
  CHECK(prepack->input == 1 && prepack->kind == 3 && prepack->bytes == 24);
  prepack->prepack(&nodes[1], NULL, x + 16, x + 128);
  memset(x + 16, 0, sizeof weights); /* the copy alone is read */

  df_step steps[2] = {FRESH(df_step), FRESH(df_step)};
  steps[0].n_inputs = steps[0].n_outputs = steps[0].n_attributes = 1;
  steps[0].kernel = kernels[0];
  steps[0].state = set.prepared[0].state;
  steps[0].attributes = attributes;
  steps[1].first_operand = 3;
  steps[1].n_inputs = 2;
  steps[1].n_outputs = steps[1].n_prepacks = 1;
  steps[1].kernel = kernels[1];
  const df_step *step_table[2] = {&steps[0], &steps[1]};
  df_arena arena = FRESH(df_arena);
  arena.slot = -1;
  arena.base = x;
  arena.bytes = 1024;
  const df_arena *arenas[1] = {&arena};
  df_segment segment = FRESH(df_segment);
  segment.n_steps = 2;
  segment.n_operands = 8;
  segment.n_arenas = 1;
  segment.steps = step_table;
  segment.operands = table;
  segment.arenas = arenas;
  segment.threads = 1;
  CHECK(df_hold_segment(&held, NULL, &segment, &segment_held, &error) == DF_OK);
  df_run run = FRESH(df_run);
  int64_t calls = 0;
  run.calls = &calls;
  CHECK(device->run(segment_held.self, segment_held.prepared, &run, &error) == DF_OK);
  CHECK(calls == 2);
  const float *y = x + 48; /* of (1, -1, 3; -2, 5, -3) (1, 2; 3, 4; 5, 6) */
  CHECK(y[0] == 13 && y[1] == 16 && y[2] == -2 && y[3] == -2);

  x[0] = 2e30f;
  CHECK(device->run(segment_held.self, segment_held.prepared, &run, &error) == DF_INVALID);
  CHECK(error.step == 0);
  CHECK_TEXT(error.text, "element 0 is too large");
  alpha.f = -1;
  df_prepared_set refused = {0};
  CHECK(df_prepare_set(1, kernels, nodes, &refused, &error) == DF_UNSUPPORTED);
  CHECK_TEXT(error.text, "alpha is below zero");
  df_let_go(&segment_held);
  df_release_set(&set);
  df_let_go(&memory);
  df_let_go(&held);
  return failures != 0;
}
