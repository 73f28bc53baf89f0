/* fused/program.h: programs of elementwise ops, computed by each thread for eight elements at a
 * time.
 *
 * The steps are read from the launch's parameters and interpreted: the choice of an op costs some
 * instructions per step, which eight elements share, or sixteen where one input is read, so that
 * memory stays what limits a program of a few steps. Registers can't be indexed, so values that a
 * later step reads have slots of shared memory, which only their thread uses: no barrier is needed.
 * What the step before gave stays in registers. The inputs of the next elements are copied into
 * slots of their own meanwhile, which takes no registers. Each op is computed by the formula of its
 * own kernel and rounded before the next step reads it, so the bits are those of the ops one by
 * one.
 */
#ifndef DF_CUDA_FUSED_PROGRAM_H
#define DF_CUDA_FUSED_PROGRAM_H
#include "fused/plan.h"

#include <cuda_pipeline_primitives.h>

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

/* Offsets of the walked inputs, of the vector or element |index|; the outermost axis needs no
 * division. */
static __device__ __forceinline__ void df_fused_offsets(const df_fused &f, int64_t index,
                                                        int64_t (&offset)[DF_PROGRAM_INPUTS]) {
  const df_walk<DF_PROGRAM_INPUTS> &walk = f.walk;
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
    offset[k] = 0;
#pragma unroll 1
  for (int axis = f.walked > 0 ? walk.rank - 1 : -1; axis >= 0; axis--) {
    int64_t at = index;
    if (axis > 0) {
      index =
          walk.index64
              ? index / walk.shape[axis]
              : static_cast<int64_t>(df_divide(static_cast<uint32_t>(index), walk.divisor[axis]));
      at -= index * walk.shape[axis];
    }
#pragma unroll
    for (int k = 0; k < DF_PROGRAM_INPUTS; k++) {
      if (k >= f.walked)
        break;
      offset[k] += at * walk.strides[k][axis];
    }
  }
}

/* Where element |e| of a slot lies, of the thread whose slots begin at |own|. */
template <int ELEMENTS>
static __device__ __forceinline__ float *df_fused_at(float *own, int slot, int e) {
  return own +
         (slot * (ELEMENTS / DF_FUSED_VECTOR) + e / DF_FUSED_VECTOR) *
             static_cast<int>(blockDim.x) * DF_FUSED_VECTOR +
         e % DF_FUSED_VECTOR;
}

template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_put(float *own, int slot,
                                                    const float (&v)[ELEMENTS]) {
#pragma unroll
  for (int e = 0; e < ELEMENTS; e += DF_FUSED_VECTOR)
    *reinterpret_cast<float4 *>(df_fused_at<ELEMENTS>(own, slot, e)) =
        float4{v[e], v[e + 1], v[e + 2], v[e + 3]};
}

template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_get(float *own, int slot, float (&v)[ELEMENTS]) {
#pragma unroll
  for (int e = 0; e < ELEMENTS; e += DF_FUSED_VECTOR) {
    const float4 four = *reinterpret_cast<const float4 *>(df_fused_at<ELEMENTS>(own, slot, e));
    v[e] = four.x;
    v[e + 1] = four.y;
    v[e + 2] = four.z;
    v[e + 3] = four.w;
  }
}

/* The column of single numbers of this thread, behind all slots. */
template <int ELEMENTS>
static __device__ __forceinline__ float *df_fused_numbers(const df_fused &f, float *shared) {
  return shared + static_cast<int>(blockDim.x) * (f.slots + f.full) * ELEMENTS + threadIdx.x;
}

/* Begins to copy vector |j| of each input that isn't one element. */
template <int ELEMENTS>
static __device__ __forceinline__ void
df_fused_fetch_vector(const df_fused &f, const df_fused_span &span, int shift, int j, float *own) {
  const int64_t begin = span.at + j * span.apart, left = span.end - begin;
  if (left <= 0)
    return;
  int64_t offset[DF_PROGRAM_INPUTS];
  df_fused_offsets(f, begin / DF_FUSED_VECTOR, offset);
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++) {
    if (k >= f.full)
      break;
    const float *from = f.in[k] + (k < f.walked ? offset[k] : begin);
    float *to = df_fused_at<ELEMENTS>(own, f.slot[k] + shift, j * DF_FUSED_VECTOR);
    if (f.still >> k & 1) { /* one number for all */
      __pipeline_memcpy_async(to, from, 4);
    } else if (left >= DF_FUSED_VECTOR) {
      __pipeline_memcpy_async(to, from, 16);
    } else { /* the last elements of a result that isn't a number of vectors */
      __pipeline_memcpy_async(to, from, 4);
      if (left > 1)
        __pipeline_memcpy_async(to + 1, from + 1, 4);
      if (left > 2)
        __pipeline_memcpy_async(to + 2, from + 2, 4);
    }
  }
}

/* Begins to copy the inputs of a thread's elements into their slots, or, with |shift|, their other
 * slots. */
template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_fetch(const df_fused &f, const df_fused_span &span,
                                                      int shift, float *own) {
  if (f.vector) {
#pragma unroll
    for (int j = 0; j < ELEMENTS / DF_FUSED_VECTOR; j++)
      df_fused_fetch_vector<ELEMENTS>(f, span, shift, j, own);
    return;
  }
#pragma unroll 1
  for (int e = 0; e < ELEMENTS; e++) {
    const int64_t index = span.index(e);
    if (index >= span.end)
      return;
    int64_t offset[DF_PROGRAM_INPUTS];
    df_fused_offsets(f, index, offset);
#pragma unroll
    for (int k = 0; k < DF_PROGRAM_INPUTS; k++) {
      if (k >= f.full)
        break;
      __pipeline_memcpy_async(df_fused_at<ELEMENTS>(own, f.slot[k] + shift, e),
                              f.in[k] + (k < f.walked ? offset[k] : index), 4);
    }
  }
}

/* Begins to copy the single numbers among the inputs into this thread's column. */
static __device__ __forceinline__ void df_fused_fetch_numbers(const df_fused &f, float *numbers) {
#pragma unroll
  for (int k = 0; k < DF_PROGRAM_INPUTS; k++)
    if (k >= f.full && k < f.inputs)
      __pipeline_memcpy_async(numbers + f.slot[k] * static_cast<int>(blockDim.x), f.in[k], 4);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

/* Where slot |slot| is for the chunk that |shift| stands for: inputs have two. */
static __device__ __forceinline__ int df_fused_slot(const df_fused &f, uint32_t slot, int shift) {
  return static_cast<int>(slot) + (static_cast<int>(slot) < f.full ? shift : 0);
}

/* A slot or a single number. */
template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_operand(const df_fused &f, float (&to)[ELEMENTS],
                                                        uint32_t operand, int shift, float *own,
                                                        const float *numbers) {
  if (operand & DF_FUSED_SINGLE) {
    const float number = numbers[(operand & ~DF_FUSED_SINGLE) * blockDim.x];
#pragma unroll
    for (int e = 0; e < ELEMENTS; e++)
      to[e] = number;
  } else if (operand & DF_FUSED_STILL) {
    const int slot = df_fused_slot(f, operand & (DF_FUSED_STILL - 1), shift);
#pragma unroll
    for (int e = 0; e < ELEMENTS; e += DF_FUSED_VECTOR)
      to[e] = to[e + 1] = to[e + 2] = to[e + 3] = *df_fused_at<ELEMENTS>(own, slot, e);
  } else {
    df_fused_get(own, df_fused_slot(f, operand, shift), to);
  }
}

/* v[e] = f(v[e]), by a loop whose body is there once. */
template <int ELEMENTS, typename F>
static __device__ __forceinline__ void df_fused_each(float (&v)[ELEMENTS], float *own, int scratch,
                                                     F f) {
  df_fused_put(own, scratch, v);
#pragma unroll 1
  for (int e = 0; e < ELEMENTS; e++) {
    float *at = df_fused_at<ELEMENTS>(own, scratch, e);
    *at = f(*at);
  }
  df_fused_get(own, scratch, v);
}

/* v[e] = the op of two operands of |code|, of v[e] and right[e]. The ops that most steps are come
 * first: a switch is a tree of comparisons. */
template <int ELEMENTS>
static __device__ __forceinline__ void
df_fused_binary(float (&v)[ELEMENTS], const float (&right)[ELEMENTS], uint32_t code) {
#define FORMULA(name, expression)                                                                  \
  if (code == DF_STEP_##name) {                                                                    \
    _Pragma("unroll") for (int e = 0; e < ELEMENTS; e++) {                                         \
      const float a = v[e], b = right[e];                                                          \
      v[e] = expression;                                                                           \
    }                                                                                              \
    return;                                                                                        \
  }
  DF_FUSED_BINARY(FORMULA)
#undef FORMULA
}

/* v[e] = the op of one operand of |code|, of v[e]. */
template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_unary(const df_fused &f, float (&v)[ELEMENTS],
                                                      uint32_t code, float *own) {
  switch (code) {
#define CASE(name, expression)                                                                     \
  case DF_STEP_##name:                                                                             \
    _Pragma("unroll") for (int e = 0; e < ELEMENTS; e++) {                                         \
      const float x = v[e];                                                                        \
      v[e] = expression;                                                                           \
    }                                                                                              \
    break;
#define CASE_RARE(name, expression)                                                                \
  case DF_STEP_##name:                                                                             \
    df_fused_each(v, own, f.scratch, [](float x) -> float { return expression; });                 \
    break;
    DF_FUSED_UNARY(CASE)
    DF_FUSED_RARE(CASE_RARE)
#undef CASE
#undef CASE_RARE
  default:
    break;
  }
}

/* Runs all steps; |v| is the result. */
template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_run(const df_fused &f, int shift, float *own,
                                                    const float *numbers, float (&v)[ELEMENTS]) {
#pragma unroll 1
  for (int s = 0; s < f.steps; s++) {
    const uint32_t step = f.step[s], code = step & (DF_FUSED_TWO - 1);
    const uint32_t first = step >> 8 & 0xff, second = step >> 16 & 0xff, to = step >> 24;
    if (step & DF_FUSED_TWO) {
      float right[ELEMENTS];
      if (second == DF_FUSED_LAST) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++)
          right[e] = v[e];
      } else {
        df_fused_operand(f, right, second, shift, own, numbers);
      }
      if (first != DF_FUSED_LAST)
        df_fused_operand(f, v, first, shift, own, numbers);
      df_fused_binary(v, right, code);
    } else {
      if (first != DF_FUSED_LAST)
        df_fused_operand(f, v, first, shift, own, numbers);
      df_fused_unary(f, v, code, own);
    }
    if (to != DF_FUSED_LAST)
      df_fused_put(own, df_fused_slot(f, to, shift), v);
  }
}

#endif
