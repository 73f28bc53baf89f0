/* kernels/program.h: the program of a fused_elementwise, read from the attributes of its node.
 *
 * The attribute has for each step the number of the op (DF_STEP_abs, ...) and its operands: numbers
 * of inputs, and behind them of earlier steps; the result is the last step's. With trailing axes
 * the last step is a reduction over so many, of what the step before it gives. */
#ifndef DF_KERNELS_PROGRAM_H
#define DF_KERNELS_PROGRAM_H
#include "dataflow_inline.h"
#include "kernels/attributes.h"

enum { DF_PROGRAM_STEPS = 12, DF_PROGRAM_INPUTS = 6, DF_PROGRAM_OPERANDS = 2 };

typedef struct df_program_step {
  int32_t code, arity;
  int32_t operand[DF_PROGRAM_OPERANDS];
} df_program_step;

typedef struct df_program {
  int32_t inputs, steps;
  int32_t trailing;  /* axes that are reduced at the end; 0 for none */
  int32_t reduction; /* its op */
  df_program_step step[DF_PROGRAM_STEPS];
} df_program;

/* Reads and checks the program of |node|. |arity| gives how many operands an op has as a step, 0
 * where it can't be one. Returns why the program can't be done, or null. */
static inline const char *df_program_read(df_program *p, const df_node *node,
                                          int32_t (*arity)(int64_t code)) {
  memset(p, 0, sizeof *p);
  if (node->n_inputs < 1 || node->n_inputs > DF_PROGRAM_INPUTS)
    return "it has too many inputs, or none";
  p->inputs = node->n_inputs;
  const int64_t trailing = df_attr_int(node, DF_FUSED_ELEMENTWISE_TRAILING);
  int32_t count;
  const int64_t *code = df_attr_ints(node, DF_FUSED_ELEMENTWISE_PROGRAM, &count);
  for (int32_t at = 0; at < count; p->steps++) {
    if (p->steps == DF_PROGRAM_STEPS)
      return "the program has too many steps";
    const int64_t op = code[at++];
    const int32_t operands = arity(op);
    if (!operands) {
      const int last = p->steps > 0 && at + 1 == count && code[at] == p->inputs + p->steps - 1;
      if (trailing <= 0 || !last || op < 0 || op > INT32_MAX)
        return "the program has an op that can't be a part of one";
      p->trailing = (int32_t)trailing;
      p->reduction = (int32_t)op;
      return NULL;
    }
    df_program_step *step = &p->step[p->steps];
    step->code = (int32_t)op;
    step->arity = operands;
    for (int32_t i = 0; i < operands; i++, at++) {
      if (at >= count || code[at] < 0 || code[at] >= p->inputs + p->steps)
        return "a step of the program reads what is not there";
      step->operand[i] = (int32_t)code[at];
    }
  }
  if (trailing > 0)
    return "it ends with no reduction";
  return p->steps ? NULL : "the program is empty";
}

/* The shape to which the inputs broadcast, which all steps have; returns its rank. |shape| has
 * space for the largest rank of an input. */
static inline int32_t df_program_shape(const df_node *node, int64_t *shape) {
  int32_t rank = 0;
  for (int32_t i = 0; i < node->n_inputs; i++)
    rank = node->inputs[i]->rank > rank ? node->inputs[i]->rank : rank;
  for (int32_t axis = 0; axis < rank; axis++) {
    shape[axis] = 1;
    for (int32_t i = 0; i < node->n_inputs; i++) {
      const int32_t own = axis - (rank - node->inputs[i]->rank);
      if (own >= 0 && node->inputs[i]->shape[own] != 1)
        shape[axis] = node->inputs[i]->shape[own];
    }
  }
  return rank;
}

#endif
