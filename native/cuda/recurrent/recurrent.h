/* recurrent/recurrent.h: what the kernels of recurrent networks share: sizes, the product of a
 * state with the weights, and the lengths of sequences.
 *
 * A step is two launches: a product, whose partial sums (see gemm/gemm.h) are kept apart, and a
 * cell, a thread per unit of a sequence's state, which adds them. */
#ifndef DF_CUDA_RECURRENT_RECURRENT_H
#define DF_CUDA_RECURRENT_RECURRENT_H
#include "gemm/gemm.h"

/* Sizes of one layer in one direction. */
struct df_recurrent {
  int64_t steps, batch, hidden, gates;
  bool reverse;
  const void *lengths; /* null: all sequences have all steps */
  bool int64_lengths;
};

/* From the shapes of x or dx (T, N, gates * H) and of r (gates * H, H). */
static inline df_recurrent df_recurrent_of(const int64_t *x, const int64_t *r) {
  df_recurrent s{};
  s.steps = x[0];
  s.batch = x[1];
  s.hidden = r[1];
  s.gates = s.hidden ? r[0] / s.hidden : 1;
  return s;
}

/* The sums of a product as a cell reads them. */
struct df_recurrent_sums {
  const float *partials; /* null: there are none, the sums are zero */
  int32_t splits;
  int64_t split, row, column; /* distances */

  __device__ __forceinline__ float at(int64_t i, int64_t j) const {
    float sum = 0.0f;
    const float *from = partials + i * row + j * column;
    for (int32_t p = 0; partials && p < splits; p++)
      sum += from[p * split];
    return sum;
  }
};

/* What every cell knows: a thread's position is a sequence and a unit of its state. */
struct df_recurrent_position {
  int64_t count, hidden;
  df_divisor units; /* hidden */
  const void *lengths;
  bool int64_lengths;
  int64_t time;

  /* False behind the last thread. */
  __device__ __forceinline__ bool find(int64_t *index, int64_t *row, int64_t *unit) const {
    *index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (*index >= count)
      return false;
    *row = df_divide(static_cast<uint32_t>(*index), units);
    *unit = *index - *row * hidden;
    return true;
  }
  /* Whether sequence |row| goes on at this time. */
  __device__ __forceinline__ bool goes_on(int64_t row) const {
    if (!lengths)
      return true;
    return time < (int64_lengths ? static_cast<const int64_t *>(lengths)[row]
                                 : static_cast<const int32_t *>(lengths)[row]);
  }
};

static inline df_recurrent_position df_recurrent_position_of(const df_recurrent &s, int64_t time) {
  return {s.batch * s.hidden, s.hidden,        df_divisor_of(df_max(1, s.hidden)),
          s.lengths,          s.int64_lengths, time};
}

/* The time of step |index| in the order of computing. */
static inline int64_t df_recurrent_time(const df_recurrent &s, int64_t index) {
  return s.reverse ? s.steps - 1 - index : index;
}

/* Puts the lengths of a call into |s|: input |index|, when it is there. */
static inline void df_recurrent_lengths(df_recurrent *s, const df_call *call, int32_t index) {
  s->lengths = df_in<const void>(call, index);
  s->int64_lengths = s->lengths && call->inputs[index]->dtype == DF_INT64;
}

/* q = h r' (forward: (batch, hidden) with (gates hidden, hidden)) or dh = dq r (transposed),
 * planned.
 */
static inline df_gemm df_recurrent_product(const df_recurrent &s, const float *r, bool transposed) {
  const int64_t gate_rows = s.gates * s.hidden;
  df_gemm g = transposed ? df_gemm_of(nullptr, nullptr, r, s.batch, s.hidden, gate_rows)
                         : df_gemm_of(nullptr, nullptr, r, s.batch, gate_rows, s.hidden);
  if (!transposed) {
    g.b_row = 1;
    g.b_col = s.hidden;
  }
  return g;
}

/* Floats that the partial sums of the product take. */
static inline int64_t df_recurrent_floats(df_gemm g) {
  df_gemm_plan(&g);
  return g.splits * g.m * g.n;
}

/* Launches the product of |a| with r into |partials|; says in |sums| how they are read. */
static inline df_status df_recurrent_multiply(const df_call *call, df_gemm g, const float *a,
                                              float *partials, df_recurrent_sums *sums) {
  const int64_t rows = g.m;
  g.a = a;
  df_gemm_plan(&g);
  const bool exchanged = g.m != rows || g.a != a;
  *sums = {partials, g.splits, g.m * g.n, exchanged ? 1 : g.n, exchanged ? g.n : 1};
  return df_gemm_run_partials(call, &g, partials);
}

/* A layer without steps hands |from|, or zeros, on; |to| may be absent. */
static inline df_status df_recurrent_pass_on(const df_call *call, float *to, const float *from,
                                             int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  const cudaStream_t stream = static_cast<cudaStream_t>(call->stream);
  if (!to)
    return DF_OK;
  if (from)
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  else
    cudaMemsetAsync(to, 0, bytes, stream);
  return df_launched(call, "a copy of the state");
}

/* accepts: the threads of a step are counted with 31 bits. |steps|: the operand (T, N, ...). */
static inline const char *df_recurrent_accepts(const df_operand *steps, const df_operand *r) {
  return steps->shape[1] * r->shape[1] > INT32_MAX ? "states of 2^31 elements are not supported"
                                                   : static_cast<const char *>(nullptr);
}

#endif
