/* fused/elementwise.c: elementwise ops in one pass over memory.
 *
 * add_relu: z = max(x + y, 0) with NumPy broadcasting; a NaN stays.
 *
 * fused_elementwise: a program of such ops. Its attribute has for each step the number of the op
 * (DF_STEP_abs, ...) and its operands: numbers of inputs, and behind them of earlier steps; the
 * result is the last step's. A block of elements goes through all steps while it is in the first
 * cache, by the loops that the ops have of their own, so the bits are those of the ops one by one.
 * Each op saves a read and a write of its result.
 *
 * The last step may be a reduction over trailing axes. What it reads is then computed run by run
 * where reduce/reduce.c needs it, and is never in memory: 4 bytes less to write and to read per
 * element.
 */
#include "map/walk.h"
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

enum {
  MOST_STEPS = 12,
  BLOCK = 512 /* elements: the results of all steps are 24 KiB */
};

typedef struct program {
  int32_t inputs, steps;
  int32_t trailing;  /* axes that are reduced at the end; 0 for none */
  int64_t reduction; /* its op */
  int32_t rank;      /* of what the steps compute */
  int64_t shape[DF_WALK_RANK];
  struct {
    df_rows rows;
    int32_t operand[2];
    int32_t arity;
  } step[MOST_STEPS];
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

/* Reads the program up to its end. Returns why it can't be done, or null. */
static const char *parse(program *p, const df_node *node) {
  *p = (program){.inputs = node->n_inputs};
  const int64_t trailing = df_attr_int(node, DF_FUSED_ELEMENTWISE_TRAILING);
  int32_t count;
  const int64_t *code = df_attr_ints(node, DF_FUSED_ELEMENTWISE_PROGRAM, &count);
  for (int32_t at = 0; at < count; p->steps++) {
    if (p->steps == MOST_STEPS)
      return "the program has too many steps";
    const int64_t op = code[at++];
    const df_step_rows *loop = find(op);
    if (!loop) {
      const int last = p->steps > 0 && at + 1 == count && code[at] == p->inputs + p->steps - 1;
      if (trailing <= 0 || !last || !DF_NAME(df_reduces)(op))
        return "the program has an op that can't be a part of one";
      p->trailing = (int32_t)trailing;
      p->reduction = op;
      return NULL;
    }
    p->step[p->steps].rows = loop->rows;
    p->step[p->steps].arity = loop->arity;
    for (int32_t i = 0; i < loop->arity; i++, at++) {
      if (at >= count || code[at] < 0 || code[at] >= p->inputs + p->steps)
        return "a step of the program reads what is not there";
      p->step[p->steps].operand[i] = (int32_t)code[at];
    }
  }
  if (trailing > 0)
    return "it ends with no reduction";
  return p->steps ? NULL : "the program is empty";
}

/* A step whose operands each are one element has one element as its result: it is computed with the
 * first block and has step 0 for those that read it, as an input of one element has. */
static void program_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                         const df_call *call) {
  static const int64_t together[2] = {1, 1};
  const program *p = call->state;
  const int32_t last = p->steps - 1;
  _Alignas(64) float results[MOST_STEPS][BLOCK];
  int64_t result_step[MOST_STEPS] = {0};
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t count = df_min(BLOCK, n - begin);
    for (int32_t s = 0; s <= last; s++) {
      const void *from[2];
      int64_t steps[2] = {0, 0};
      for (int32_t i = 0; i < p->step[s].arity; i++) {
        const int32_t operand = p->step[s].operand[i], own = operand - p->inputs;
        steps[i] = own < 0 ? step[operand] : result_step[own];
        from[i] = own < 0 ? (const float *)in[operand] + begin * steps[i] : results[own];
      }
      /* Only the last step writes to memory: until then the result may lie on an input. */
      float *to = s == last ? (float *)out + begin : results[s];
      result_step[s] = steps[0] || steps[1];
      if (result_step[s]) {
        p->step[s].rows(to, from, steps, count, call);
        continue;
      }
      if (begin == 0 || s == last)
        p->step[s].rows(to, from, together, 1, call);
      for (int64_t i = 1; s == last && i < count; i++)
        to[i] = to[0];
    }
  }
}

/* The shape to which the inputs broadcast. */
static void find_shape(program *p, const df_node *node) {
  for (int32_t i = 0; i < node->n_inputs; i++)
    p->rank = (int32_t)df_max(p->rank, node->inputs[i].rank);
  for (int32_t axis = 0; axis < p->rank; axis++) {
    p->shape[axis] = 1;
    for (int32_t i = 0; i < node->n_inputs; i++) {
      const int32_t own = axis - (p->rank - node->inputs[i].rank);
      if (own >= 0 && node->inputs[i].shape[own] != 1)
        p->shape[axis] = node->inputs[i].shape[own];
    }
  }
}

static const char *accepts(const df_node *node, int reduces) {
  program p;
  if (node->n_inputs < 1 || node->n_inputs > DF_WALK_INPUTS)
    return "it has too many inputs, or none";
  const char *reason = parse(&p, node);
  if (reason)
    return reason;
  if (!reduces)
    return p.trailing ? "it ends with a reduction" : NULL;
  if (!p.trailing)
    return "it doesn't end with a reduction";
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i].rank > DF_WALK_RANK)
      return "an operand has too many axes";
  return NULL;
}

static const char *accepts_program(const df_node *node) { return accepts(node, 0); }

static const char *accepts_reduction(const df_node *node) { return accepts(node, 1); }

static df_status prepare_program(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  program *p = malloc(sizeof *p);
  if (!p)
    return DF_OUT_OF_MEMORY;
  (void)parse(p, node); /* accepts has done it before */
  out->state = p;
  if (p->trailing) {
    find_shape(p, node);
    out->workspace = DF_NAME(df_reduce_workspace)(p->shape, p->rank, p->trailing);
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
  const df_source source = {fetch, &map, p->shape, p->rank, p->trailing};
  return DF_NAME(df_reduce_source)(call, p->reduction, &source);
}

DF_KERNELS(fused_elementwise) = {
    DF_KERNEL("add_relu", "f32", "~f32,~f32->f32", "0<0,0<1", add_relu_run),
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "fused_elementwise",
                       .name = "fused_elementwise f32 " DF_TEXT(DF_ISA),
                       .operands = "~f32*->f32",
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
