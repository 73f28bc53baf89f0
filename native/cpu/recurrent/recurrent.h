/* recurrent/recurrent.h: what the kernels of recurrent networks share: the product of a state with
 * the weights, packed once per call, and the loop over the steps.
 *
 * A step depends on the one before only within a sequence of the batch, so threads take sequences
 * and run through many steps alone. Where there are too few sequences they take units of the state
 * instead, and meet after every step. */
#ifndef DF_CPU_RECURRENT_RECURRENT_H
#define DF_CPU_RECURRENT_RECURRENT_H

#include "cpu.h"

/* Sizes of one layer in one direction. */
typedef struct df_recurrent {
  int64_t steps, batch, hidden;
  int64_t gates;
  int64_t reverse;
  const df_tensor *lengths; /* null: all sequences have all steps */
} df_recurrent;

/* A factor b (k, groups * hidden), packed: |panels| has each group padded to whole panels. It is r
 * transposed (forward: k = hidden, a group per gate), or r as it is (k = gates * hidden, one
 * group). */
typedef struct df_recurrent_weight {
  float *panels;
  int64_t k, groups, hidden;
  int transposed;
} df_recurrent_weight;

/* A range of the batch and of the units of the state. */
typedef struct df_recurrent_range {
  int64_t row, rows_end;
  int64_t unit, units_end;
  float *scratch; /* for packed rows of a */
} df_recurrent_range;

/* Step |index| in the order of computing, of one range. */
typedef void (*df_recurrent_step)(const void *context, int64_t index,
                                  const df_recurrent_range *range);

/* Floats of a packed weight, and of the scratch of one thread. */
int64_t DF_NAME(df_recurrent_weight_floats)(int64_t k, int64_t groups, int64_t hidden);
int64_t DF_NAME(df_recurrent_scratch_floats)(int64_t k, int64_t batch);

/* Fills the panels from r, contiguous. */
void DF_NAME(df_recurrent_pack)(const df_call *call, const df_recurrent_weight *weight,
                                const float *r);

/* c[i][g * hidden + u] = sum over p of a[i][p] b[p][g * hidden + u] for the range's rows and units,
 * plus |bias|, or plus what c holds. Rows of a and c lie |a_row| and |c_row| apart. */
void DF_NAME(df_recurrent_multiply)(const df_recurrent_weight *weight, float *c, int64_t c_row,
                                    const float *a, int64_t a_row, const float *bias,
                                    int accumulate, const df_recurrent_range *range);

/* step(context, 0 .. count - 1) for all ranges; |scratch| has space for each thread. */
void DF_NAME(df_recurrent_run)(const df_call *call, const df_recurrent *sizes, int64_t count,
                               df_recurrent_step step, const void *context, float *scratch,
                               int64_t k);

/* The time of step |index|. */
static inline int64_t df_recurrent_time(const df_recurrent *s, int64_t index) {
  return s->reverse ? s->steps - 1 - index : index;
}

/* Whether sequence |row| goes on at time |t|. */
static inline int df_recurrent_goes_on(const df_recurrent *s, int64_t row, int64_t t) {
  if (!s->lengths)
    return 1;
  if (s->lengths->dtype == DF_INT32)
    return t < ((const int32_t *)s->lengths->data)[row];
  return t < ((const int64_t *)s->lengths->data)[row];
}

/* Input |index|, null when it is absent. */
static inline const float *df_recurrent_input(const df_call *call, int32_t index) {
  return index < call->n_inputs ? call->inputs[index]->data : NULL;
}

/* The same with its shape and strides. */
static inline const df_tensor *df_recurrent_present(const df_call *call, int32_t index) {
  return index < call->n_inputs && call->inputs[index]->data ? call->inputs[index] : NULL;
}

/* |count| rounded up so that what follows in a workspace is aligned. */
static inline int64_t df_recurrent_floats(int64_t count) { return df_divide_up(count, 16) * 16; }

#endif
