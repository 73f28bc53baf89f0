/* fused/elementwise.c: elementwise ops in one pass over memory.
 *
 * add_relu: z = max(x + y, 0) with NumPy broadcasting; a NaN stays.
 *
 * fused_elementwise: a program of such ops, see kernels/program.h. A block of elements goes through
 * all steps while it is in the first cache, by the loops that the ops have of their own, so the
 * bits are those of the ops one by one. Each op saves a read and a write of its result. Floats of
 * 16 bits are cast block by block, as casts beside the program would have done.
 *
 * The last step may be a reduction over trailing axes. What it reads is then computed run by run
 * where reduce/reduce.c needs it, and is never in memory: 4 bytes less to write and to read per
 * element.
 */
#include "assume.h"
#include "kernels/program.h"
#include "map/convert.h"
#include "map/run.h"
#include "reduce/reduce.h"

#include <stdlib.h>

static void add_relu_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                          const df_call *call) {
  (void)call;
  float *z = out;
  const float *x = in[0], *y = in[1];
  if (!step[0]) { /* addition commutes: the scalar goes right */
    x = in[1];
    y = in[0];
  }
  if (step[0] && step[1]) {
    DF_IVDEP
    for (int64_t i = 0; i < n; i++) {
      float sum = x[i] + y[i];
      z[i] = sum < 0.0f ? 0.0f : sum;
    }
  } else {
    const float b = *y;
    DF_IVDEP
    for (int64_t i = 0; i < n; i++) {
      float sum = x[i] + b;
      z[i] = sum < 0.0f ? 0.0f : sum;
    }
  }
}

static df_status add_relu_run(const df_call *call) { return df_map_run(call, 2, add_relu_rows); }

/* ---- Programs ------------------------------------------------------------------------------- */

enum { BLOCK = 512 }; /* elements: the results of all steps are 24 KiB */

typedef struct program {
  df_program steps;
  df_rows rows[DF_PROGRAM_STEPS];
  int32_t rank; /* of what the steps compute */
  int64_t shape[DF_WALK_RANK];
} program;

/* The loop of an op, null when it has none here. */
static const df_step_rows *find(int64_t code) {
  const df_step_rows *const tables[] = {DF_NAME(df_arithmetic_steps), DF_NAME(df_activation_steps)};
  for (int i = 0; i < 2; i++)
    for (const df_step_rows *loop = tables[i]; loop->rows; loop++)
      if (loop->code == code)
        return loop;
  return NULL;
}

static int32_t arity_of(int64_t code) {
  const df_step_rows *loop = find(code);
  return loop ? loop->arity : 0;
}

static const df_fit rounded = {0}; /* floats of 16 bits have no options */

/* |count| floats of an input from |begin| on, or the one that it is, where they lie or in |loaded|.
 */
static const float *input_block(int32_t dtype, const void *x, int64_t begin, int64_t step,
                                int64_t count, float *loaded) {
  if (dtype == DF_FLOAT32)
    return (const float *)x + begin * step;
  if (step || begin == 0)
    DF_NAME(df_convert)(loaded, DF_FLOAT32, (const uint16_t *)x + begin * step, dtype,
                        step ? count : 1, rounded);
  return loaded;
}

/* A step whose operands each are one element has one element as its result: it is computed with the
 * first block and has step 0 for those that read it, as an input of one element has. */
static void program_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                         const df_call *call) {
  static const int64_t together[2] = {1, 1};
  const program *state = call->state;
  const df_program *p = &state->steps;
  DF_ASSUME(p->steps > 0 && p->inputs == call->n_inputs);
  const int32_t last = p->steps - 1;
  const int32_t result = p->trailing ? DF_FLOAT32 : call->outputs[0]->dtype;
  _Alignas(64) float results[DF_PROGRAM_STEPS][BLOCK], loaded[DF_PROGRAM_INPUTS][BLOCK];
  int64_t result_step[DF_PROGRAM_STEPS] = {0};
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t count = df_min(BLOCK, n - begin);
    const float *input[DF_PROGRAM_INPUTS];
    for (int32_t i = 0; i < p->inputs; i++)
      input[i] = input_block(call->inputs[i]->dtype, in[i], begin, step[i], count, loaded[i]);
    for (int32_t s = 0; s <= last; s++) {
      const void *from[2];
      int64_t steps[2] = {0, 0};
      for (int32_t i = 0; i < p->step[s].arity; i++) {
        const int32_t operand = p->step[s].operand[i], own = operand - p->inputs;
        steps[i] = own < 0 ? step[operand] : result_step[own];
        from[i] = own < 0 ? input[operand] : results[own];
      }
      /* Only the last step writes to memory: until then the result may lie on an input. */
      float *to = s == last && result == DF_FLOAT32 ? (float *)out + begin : results[s];
      result_step[s] = steps[0] || steps[1];
      if (result_step[s]) {
        state->rows[s](to, from, steps, count, call);
        continue;
      }
      if (begin == 0 || s == last)
        state->rows[s](to, from, together, 1, call);
      for (int64_t i = 1; s == last && i < count; i++)
        to[i] = to[0];
    }
    if (result != DF_FLOAT32)
      DF_NAME(df_convert)((uint16_t *)out + begin, result, results[last], DF_FLOAT32, count,
                          rounded);
  }
}

static const char *accepts(const df_node *node, int reduces) {
  df_program p;
  const char *reason = df_program_read(&p, node, arity_of);
  if (reason)
    return reason;
  if (!reduces)
    return p.trailing ? "it ends with a reduction" : NULL;
  if (!p.trailing)
    return "it doesn't end with a reduction";
  if (!DF_NAME(df_reduces)(p.reduction))
    return "its last op is no reduction";
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]->rank > DF_WALK_RANK)
      return "an operand has too many axes";
  return NULL;
}

static const char *accepts_program(const df_node *node) { return accepts(node, 0); }

static const char *accepts_reduction(const df_node *node) { return accepts(node, 1); }

static df_status prepare_program(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  program *p = calloc(1, sizeof *p);
  if (!p)
    return DF_OUT_OF_MEMORY;
  (void)df_program_read(&p->steps, node, arity_of); /* accepts has done it before */
  for (int32_t s = 0; s < p->steps.steps; s++)
    p->rows[s] = find(p->steps.step[s].code)->rows;
  out->state = p;
  if (p->steps.trailing) {
    p->rank = df_program_shape(node, p->shape);
    out->workspace = DF_NAME(df_reduce_workspace)(p->shape, p->rank, p->steps.trailing);
  }
  return DF_OK;
}

static df_status run_program(const df_call *call) {
  return df_map_run(call, call->n_inputs, program_rows);
}

static void fetch(const void *context, int64_t index, int64_t n, float *to) {
  df_map map = *(const df_map *)context;
  map.out =
      (char *)((uintptr_t)to - (uintptr_t)index * sizeof(float)); /* where element 0 would be */
  df_map_range(&map, index, index + n);
}

static df_status run_reduction(const df_call *call) {
  const program *p = call->state;
  df_walk walk;
  df_map map = df_map_make(call, call->n_inputs, program_rows, p->shape, p->rank, &walk);
  const df_source source = {fetch, &map, p->shape, p->rank, p->steps.trailing};
  return DF_NAME(df_reduce_source)(call, p->steps.reduction, &source);
}

DF_KERNELS(fused_elementwise) = {
    DF_KERNEL("add_relu", "f32", "~f32,~f32->f32", "0<0,0<1", add_relu_run),
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "fused_elementwise",
                       .name = "fused_elementwise f32 " DF_TEXT(DF_ISA),
                       .operands = "~f32|f16|bf16*->f32|f16|bf16",
                       .inplace = "0<0,0<1,0<2,0<3,0<4,0<5",
                       .accepts = accepts_program,
                       .prepare = prepare_program,
                       .release = free,
                       .run = run_program},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "fused_elementwise",
                       .name = "fused_elementwise and reduction f32 " DF_TEXT(DF_ISA),
                       .operands = "~f32*->f32",
                       .accepts = accepts_reduction,
                       .prepare = prepare_program,
                       .release = free,
                       .run = run_reduction},
    NULL};
