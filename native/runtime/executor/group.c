/* executor/group.c: steps in a row that one call can do. The step of an optimizer over each of
 * hundreds of parameters becomes one call, which a device can make one launch of. */
#include "executor/group.h"

#include <stdlib.h>

/* Memory that a step reads or writes. */
typedef struct touch {
  int64_t begin, end; /* bytes in the arena */
  int32_t arena;
  int32_t step;
  int32_t writes;
  int32_t reserved;
} touch;

static int by_offset(const void *a_, const void *b_) {
  const touch *a = a_, *b = b_;
  if (a->arena != b->arena)
    return a->arena < b->arena ? -1 : 1;
  return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static int64_t operands_of(const df_step *step) {
  return (int64_t)step->n_inputs + step->n_outputs + 1 + step->n_prepacks;
}

/* True when one call of run_many can do both. */
static int alike(const df_segment *segment, const df_step *a, const df_step *b) {
  if (b->body || a->kernel != b->kernel || a->n_inputs != b->n_inputs ||
      a->n_outputs != b->n_outputs)
    return 0;
  const df_operand *const *x = segment->operands + a->first_operand;
  const df_operand *const *y = segment->operands + b->first_operand;
  for (int32_t i = 0; i < a->n_inputs + a->n_outputs; i++)
    if (x[i]->dtype != y[i]->dtype || (x[i]->arena < 0) != (y[i]->arena < 0))
      return 0;
  return 1;
}

/* True when no step in [begin, end) writes what another one touches; |touches| has space for all.
 */
static int independent(const df_segment *segment, int32_t begin, int32_t end, touch *touches) {
  int64_t count = 0;
  for (int32_t s = begin; s < end; s++) {
    const df_step *step = segment->steps[s];
    for (int64_t i = 0; i < operands_of(step); i++) {
      const df_operand *operand = segment->operands[step->first_operand + i];
      if (operand->arena < 0 || operand->bytes <= 0)
        continue;
      int writes = i >= step->n_inputs && i <= step->n_inputs + step->n_outputs;
      /* With negative strides the first element is not the lowest: such an operand may reach as far
       * below its offset as it is long. */
      int64_t below = 0;
      for (int32_t axis = 0; axis < operand->rank && operand->strides; axis++)
        if (operand->strides[axis] < 0)
          below = operand->bytes;
      touches[count++] = (touch){.begin = operand->offset - below,
                                 .end = operand->offset + operand->bytes,
                                 .arena = operand->arena,
                                 .step = s,
                                 .writes = writes};
    }
  }
  qsort(touches, (size_t)count, sizeof *touches, by_offset);
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = i + 1;
         j < count && touches[j].arena == touches[i].arena && touches[j].begin < touches[i].end;
         j++)
      if (touches[i].step != touches[j].step && (touches[i].writes || touches[j].writes))
        return 0;
  return 1;
}

static df_status group(const df_segment *segment, df_ready *steps, int32_t begin, int32_t end,
                       void *(*take)(void *context, int64_t count, int64_t size), void *context) {
  int64_t most = 0;
  for (int32_t s = begin; s < end; s++)
    most += operands_of(segment->steps[s]);
  touch *touches = malloc((size_t)most * sizeof *touches);
  if (!touches)
    return DF_OK; /* they run one by one */
  int alone = !independent(segment, begin, end, touches);
  free(touches);
  if (alone)
    return DF_OK;
  const df_call **calls = take(context, end - begin, sizeof *calls);
  if (!calls)
    return DF_OUT_OF_MEMORY;
  for (int32_t s = begin; s < end; s++)
    calls[s - begin] = &steps[s].call;
  steps[begin].run_many = segment->steps[begin]->kernel->run_many;
  steps[begin].calls = calls;
  steps[begin].group = end - begin;
  return DF_OK;
}

static int has_run_many(const df_step *step) { return !step->body && step->kernel->run_many; }

df_status df_group_steps(const df_segment *segment, df_ready *steps,
                         void *(*take)(void *context, int64_t count, int64_t size), void *context) {
  for (int32_t begin = 0, end; begin < segment->n_steps; begin = end) {
    const df_step *first = segment->steps[begin];
    end = begin + 1;
    if (!has_run_many(first))
      continue;
    while (end < segment->n_steps && alike(segment, first, segment->steps[end]))
      end++;
    df_status status = end - begin < 2 ? DF_OK : group(segment, steps, begin, end, take, context);
    if (status)
      return status;
  }
  return DF_OK;
}
