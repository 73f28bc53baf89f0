/* fused/program.h: programs of elementwise ops, computed by each thread for eight elements at a
 * time.
 *
 * The steps are read from the launch's parameters and interpreted: the choice of an op costs some
 * instructions per step, which eight elements share, so that memory stays what limits a program of
 * a few steps. Registers can't be indexed, so values that a later step reads have slots of shared
 * memory, which only their thread uses: no barrier is needed. What the step before gave stays in
 * registers. All inputs are loaded before the first step. Each op is computed by the formula of its
 * own kernel and rounded before the next step reads it, so the bits are those of the ops one by
 * one.
 */
#ifndef DF_CUDA_FUSED_PROGRAM_H
#define DF_CUDA_FUSED_PROGRAM_H
#include "fused/plan.h"

/* The elements of a thread: of a vector, at |at| and |apart| behind; one by one, |together| at each
 * of these positions. Elements from |end| on aren't there. */
struct df_fused_span {
  int64_t at, apart, end;
  int32_t together;

  __device__ int64_t index(int e) const {
    return at + (together == DF_FUSED_VECTOR ? e / DF_FUSED_VECTOR * apart + e % DF_FUSED_VECTOR
                                             : e * apart);
  }
};

/* ---- Operands ------------------------------------------------------------------------------- */

/* Offsets of the inputs that aren't dense, of the vector or element |index|. */
static __device__ __forceinline__ void df_fused_offsets(const df_fused &f, int64_t index,
                                                        int64_t (&offset)[DF_PROGRAM_INPUTS]) {
  const df_walk<DF_PROGRAM_INPUTS> &walk = f.walk;
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
    offset[k] = 0;
#pragma unroll 1
  for (int axis = walk.rank - 1; axis >= 0; axis--) {
    const int64_t rest =
        walk.index64
            ? index / walk.shape[axis]
            : static_cast<int64_t>(df_divide(static_cast<uint32_t>(index), walk.divisor[axis]));
    const int64_t at = index - rest * walk.shape[axis];
    index = rest;
#pragma unroll
    for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
      if (k < f.inputs && !(f.dense >> k & 1))
        offset[k] += at * walk.strides[k][axis];
  }
}

/* Vector |j| of each input that isn't one element. */
static __device__ __forceinline__ void
df_fused_load_vector(const df_fused &f, const df_fused_span &span, int j,
                     float (&to)[DF_PROGRAM_INPUTS][DF_FUSED_ELEMENTS]) {
  const int64_t begin = span.at + j * span.apart, left = span.end - begin;
  if (left <= 0)
    return;
  int64_t offset[DF_PROGRAM_INPUTS];
  df_fused_offsets(f, begin / DF_FUSED_VECTOR, offset);
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++) {
    float *own = &to[k][j * DF_FUSED_VECTOR];
    if (k >= f.inputs || f.single >> k & 1)
      continue;
    const float *from = f.in[k] + (f.dense >> k & 1 ? begin : offset[k]);
    if (f.still >> k & 1) {
      own[0] = own[1] = own[2] = own[3] = *from;
    } else if (left >= DF_FUSED_VECTOR) {
      const float4 four = *reinterpret_cast<const float4 *>(from);
      own[0] = four.x;
      own[1] = four.y;
      own[2] = four.z;
      own[3] = four.w;
    } else { /* the last elements of a result that isn't a number of vectors: all inputs are dense
              */
      own[0] = from[0];
      own[1] = left > 1 ? from[1] : 0.0f;
      own[2] = left > 2 ? from[2] : 0.0f;
      own[3] = 0.0f;
    }
  }
}

/* Where element |e| of a slot lies, of the thread whose slots begin at |own|. */
static __device__ __forceinline__ float *df_fused_at(float *own, uint32_t slot, int e) {
  const int vector = static_cast<int>(slot) * 2 + e / DF_FUSED_VECTOR;
  return own + vector * static_cast<int>(blockDim.x) * DF_FUSED_VECTOR + e % DF_FUSED_VECTOR;
}

static __device__ __forceinline__ void df_fused_put(float *own, uint32_t slot,
                                                    const float (&v)[DF_FUSED_ELEMENTS]) {
#pragma unroll
  for (int e = 0; e < DF_FUSED_ELEMENTS; e += DF_FUSED_VECTOR)
    *reinterpret_cast<float4 *>(df_fused_at(own, slot, e)) =
        float4{v[e], v[e + 1], v[e + 2], v[e + 3]};
}

static __device__ __forceinline__ void df_fused_get(float *own, uint32_t slot,
                                                    float (&v)[DF_FUSED_ELEMENTS]) {
#pragma unroll
  for (int e = 0; e < DF_FUSED_ELEMENTS; e += DF_FUSED_VECTOR) {
    const float4 four = *reinterpret_cast<const float4 *>(df_fused_at(own, slot, e));
    v[e] = four.x;
    v[e + 1] = four.y;
    v[e + 2] = four.z;
    v[e + 3] = four.w;
  }
}

/* The column of single numbers of this thread, behind all slots. */
static __device__ __forceinline__ float *df_fused_numbers(const df_fused &f, float *shared) {
  return shared + static_cast<int>(blockDim.x) * f.slots * DF_FUSED_ELEMENTS + threadIdx.x;
}

/* Puts the inputs of a thread's elements into their slots. */
static __device__ __forceinline__ void df_fused_load(const df_fused &f, const df_fused_span &span,
                                                     float *own) {
  if (!f.vector) {
#pragma unroll 2
    for (int e = 0; e < DF_FUSED_ELEMENTS; e++) {
      const int64_t index = span.index(e);
      int64_t offset[DF_PROGRAM_INPUTS];
      df_fused_offsets(f, index < span.end ? index : 0, offset);
#pragma unroll
      for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
        if (k < f.inputs && !(f.single >> k & 1))
          *df_fused_at(own, f.slot[k], e) =
              index < span.end ? f.in[k][f.dense >> k & 1 ? index : offset[k]] : 0.0f;
    }
    return;
  }
  float held[DF_PROGRAM_INPUTS][DF_FUSED_ELEMENTS] = {};
  df_fused_load_vector(f, span, 0, held);
  df_fused_load_vector(f, span, 1, held);
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
    if (k < f.inputs && !(f.single >> k & 1))
      df_fused_put(own, f.slot[k], held[k]);
}

/* Puts the single numbers among the inputs into this thread's column, once per launch. */
static __device__ __forceinline__ void df_fused_load_numbers(const df_fused &f, float *numbers) {
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
    if (k < f.inputs && f.single >> k & 1)
      numbers[f.slot[k] * static_cast<int>(blockDim.x)] = *f.in[k];
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ void df_fused_operand(float (&to)[DF_FUSED_ELEMENTS],
                                                        const float (&last)[DF_FUSED_ELEMENTS],
                                                        uint32_t operand, float *own,
                                                        const float *numbers) {
  if (operand == DF_FUSED_LAST) {
#pragma unroll
    for (int e = 0; e < DF_FUSED_ELEMENTS; e++)
      to[e] = last[e];
  } else if (operand & DF_FUSED_SINGLE) {
    const float number = numbers[(operand & ~DF_FUSED_SINGLE) * blockDim.x];
#pragma unroll
    for (int e = 0; e < DF_FUSED_ELEMENTS; e++)
      to[e] = number;
  } else {
    df_fused_get(own, operand, to);
  }
}

/* v[e] = f(v[e]), by a loop whose body is there once. */
template <typename F>
static __device__ __forceinline__ void df_fused_each(float (&v)[DF_FUSED_ELEMENTS], float *own,
                                                     uint32_t scratch, F f) {
  df_fused_put(own, scratch, v);
#pragma unroll 1
  for (int e = 0; e < DF_FUSED_ELEMENTS; e++) {
    float *at = df_fused_at(own, scratch, e);
    *at = f(*at);
  }
  df_fused_get(own, scratch, v);
}

/* Runs all steps; |v| is the result. */
static __device__ __forceinline__ void
df_fused_run(const df_fused &f, float *own, const float *numbers, float (&v)[DF_FUSED_ELEMENTS]) {
#pragma unroll 1
  for (int s = 0; s < f.steps; s++) {
    const uint32_t step = f.step[s];
    float left[DF_FUSED_ELEMENTS], right[DF_FUSED_ELEMENTS];
    df_fused_operand(left, v, step >> 8 & 0xff, own, numbers);
    switch (step & 0xff) {
#define CASE_1(name, expression)                                                                   \
  case DF_STEP_##name:                                                                             \
    _Pragma("unroll") for (int e = 0; e < DF_FUSED_ELEMENTS; e++) {                                \
      const float x = left[e];                                                                     \
      v[e] = expression;                                                                           \
    }                                                                                              \
    break;
#define CASE_2(name, expression)                                                                   \
  case DF_STEP_##name:                                                                             \
    df_fused_operand(right, v, step >> 16 & 0xff, own, numbers);                                   \
    _Pragma("unroll") for (int e = 0; e < DF_FUSED_ELEMENTS; e++) {                                \
      const float a = left[e], b = right[e];                                                       \
      v[e] = expression;                                                                           \
    }                                                                                              \
    break;
#define CASE_RARE(name, expression)                                                                \
  case DF_STEP_##name:                                                                             \
    df_fused_each(left, own, f.scratch, [](float x) -> float { return expression; });              \
    _Pragma("unroll") for (int e = 0; e < DF_FUSED_ELEMENTS; e++) v[e] = left[e];                  \
    break;
      DF_FUSED_UNARY(CASE_1)
      DF_FUSED_BINARY(CASE_2)
      DF_FUSED_RARE(CASE_RARE)
#undef CASE_1
#undef CASE_2
#undef CASE_RARE
    default:
      break;
    }
    if (step >> 24 != DF_FUSED_LAST)
      df_fused_put(own, step >> 24, v);
  }
}

#endif
