/* segment.h: builds segments for the tests of the executor, in the form in which a plan gives them.
 */
#ifndef SEGMENT_H
#define SEGMENT_H

#include "runtime.h"

#include <stddef.h>
#include <string.h>

enum { MOST_STEPS = 8, MOST_OPERANDS = 48, MOST_ARENAS = 4, MOST_BUFFER_STRIDES = 4 };

/* A segment, or the body of a loop, with room for what its tables point to. */
typedef struct builder {
  df_body body;
  df_segment segment;
  df_step steps[MOST_STEPS];
  df_operand operands[MOST_OPERANDS];
  df_arena arenas[MOST_ARENAS];
  df_buffer_stride buffer_strides[MOST_BUFFER_STRIDES];
  const df_step *step_table[MOST_STEPS];
  const df_operand *operand_table[MOST_OPERANDS];
  const df_arena *arena_table[MOST_ARENAS];
  const df_buffer_stride *stride_table[MOST_BUFFER_STRIDES];
} builder;

static const int64_t ONE[1] = {1};

static void begin(builder *b, int64_t iterations) {
  memset(b, 0, sizeof *b);
  for (int i = 0; i < MOST_STEPS; i++)
    b->step_table[i] = &b->steps[i];
  for (int i = 0; i < MOST_OPERANDS; i++)
    b->operand_table[i] = &b->operands[i];
  for (int i = 0; i < MOST_ARENAS; i++)
    b->arena_table[i] = &b->arenas[i];
  for (int i = 0; i < MOST_BUFFER_STRIDES; i++)
    b->stride_table[i] = &b->buffer_strides[i];
  b->body = (df_body){.struct_size = sizeof(df_body),
                      .segment = &b->segment,
                      .iterations = iterations,
                      .buffer_strides = b->stride_table};
  b->segment = (df_segment){.struct_size = sizeof(df_segment),
                            .steps = b->step_table,
                            .operands = b->operand_table,
                            .arenas = b->arena_table,
                            .threads = 2};
}

static int32_t arena(builder *b, void *base, int64_t bytes, int32_t slot) {
  int32_t index = b->segment.n_arenas++;
  b->arenas[index] =
      (df_arena){.struct_size = sizeof(df_arena), .base = base, .bytes = bytes, .slot = slot};
  return index;
}

static df_operand *add_operand(builder *b, df_operand operand) {
  df_operand *added = &b->operands[b->segment.n_operands++];
  *added = operand;
  return added;
}

/* |count| float64s at element |at| of an arena. |shape| has one entry and is |count|. */
static df_operand doubles(int32_t arena, int64_t at, const int64_t *shape) {
  return (df_operand){.struct_size = sizeof(df_operand),
                      .arena = arena,
                      .dtype = DF_FLOAT64,
                      .rank = 1,
                      .item_bytes = 8,
                      .offset = at * 8,
                      .bytes = *shape * 8,
                      .shape = shape,
                      .strides = ONE};
}

static df_operand absent(void) {
  return (df_operand){.struct_size = sizeof(df_operand), .arena = -1, .dtype = DF_NONE};
}

/* Adds a step; its operands follow, in order. */
static df_step *add_step(builder *b, const df_kernel *kernel, int32_t n_inputs, int32_t n_outputs) {
  df_step *step = &b->steps[b->segment.n_steps++];
  *step = (df_step){.struct_size = sizeof(df_step),
                    .kernel = kernel,
                    .first_operand = b->segment.n_operands,
                    .n_inputs = n_inputs,
                    .n_outputs = n_outputs};
  return step;
}

/* out = kernel(a, b) without workspace or prepacked copies. */
static void add_binary(builder *b, const df_kernel *kernel, df_operand x, df_operand y,
                       df_operand out) {
  add_step(b, kernel, 2, 1);
  add_operand(b, x);
  add_operand(b, y);
  add_operand(b, out);
  add_operand(b, absent());
}

static void add_loop(builder *b, const builder *body) {
  add_step(b, NULL, 0, 0)->body = &body->body;
}

#endif
