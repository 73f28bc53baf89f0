/* attention/operands.h: sizes and operands of attention and its gradient, as their kernels see
 * them.
 *
 * Per batch entry: s = scale * q kt + mask, p = softmax(s) along rows, y = p v, with q (m, d),
 * kt (d, n), v (n, e), mask that broadcasts to (m, n). k is the transpose of kt: a row per key. */
#ifndef DF_CUDA_ATTENTION_OPERANDS_H
#define DF_CUDA_ATTENTION_OPERANDS_H
#include "map/floats.h"

/* Operands that batch entries have matrices of. */
enum {
  DF_ATTENTION_Q,
  DF_ATTENTION_K,
  DF_ATTENTION_V,
  DF_ATTENTION_MASK,
  DF_ATTENTION_DY,
  DF_ATTENTION_Y,
  DF_ATTENTION_OPERANDS
};
enum {
  DF_ATTENTION_MOST_HEAD = 128, /* of d and e: tiles have complete rows of them */
  DF_ATTENTION_BLOCK = 128      /* threads */
};

/* The matrices of an operand: that of batch entry 0, and the strides, 0 along an axis of size 1. */
struct df_attention_matrix {
  const float *at; /* null where the operand is absent */
  int64_t row, column;
  int32_t width; /* elements of a row */
  bool fours;    /* that lie side by side in aligned groups of four */
  bool halves;   /* elements are bfloat16: of what attention/prepack.cu reads */

  __device__ __forceinline__ df_attention_matrix behind(int64_t elements) const {
    df_attention_matrix out = *this;
    out.at =
        halves ? reinterpret_cast<const float *>(reinterpret_cast<const uint16_t *>(at) + elements)
               : at + elements;
    return out;
  }

  __device__ __forceinline__ float element(int64_t index) const {
    return halves ? df_fetch(reinterpret_cast<const uint16_t *>(at) + index) : at[index];
  }
};

/* What a kernel gets. */
struct df_attention {
  int32_t m, n, d, e;
  float scale;
  bool safe; /* weights that are NaN are 0 */
  df_attention_matrix matrices[DF_ATTENTION_OPERANDS];
  int64_t masks;                           /* different ones */
  df_walk<DF_ATTENTION_OPERANDS + 1> walk; /* over the batch; the last numbers the masks */

  /* The matrices of entry |index| of the batch, each of which has a block; returns the number of
   * its mask. */
  __device__ __forceinline__ int64_t
  entry(int64_t index, df_attention_matrix (&own)[DF_ATTENTION_OPERANDS]) const {
    int64_t offset[DF_ATTENTION_OPERANDS + 1];
    walk.offsets_in_short(static_cast<uint32_t>(index), offset);
#pragma unroll
    for (int i = 0; i < DF_ATTENTION_OPERANDS; i++) {
      own[i] = matrices[i];
      own[i].at += offset[i];
    }
    return offset[DF_ATTENTION_OPERANDS];
  }
};

/* What operand |operand| of |walk| has before entry |index| of the batch, in elements. */
static __device__ __forceinline__ int64_t df_attention_offset(const df_attention &p, int operand,
                                                              int64_t index) {
  int64_t offset = 0;
  uint32_t left = static_cast<uint32_t>(index);
#pragma unroll 1
  for (int axis = p.walk.rank - 1; axis >= 0; axis--) {
    const uint32_t rest = df_divide(left, p.walk.divisor[axis]);
    const uint32_t at = left - rest * static_cast<uint32_t>(p.walk.shape[axis]);
    offset += at * p.walk.strides[operand][axis];
    left = rest;
  }
  return offset;
}

/* The last two axes of |x| as a matrix, or their transpose. */
static inline df_attention_matrix df_attention_matrix_of(const df_tensor &x, bool transposed) {
  const int32_t axis[2] = {x.rank - (transposed ? 1 : 2), x.rank - (transposed ? 2 : 1)};
  int64_t stride[2] = {0, 0}, size[2] = {1, 1};
  for (int side = 0; side < 2; side++) {
    if (axis[side] < 0)
      continue;
    size[side] = x.shape[axis[side]];
    stride[side] = size[side] == 1 ? 0 : x.strides[axis[side]];
  }
  df_attention_matrix out{static_cast<const float *>(x.data), stride[0], stride[1],
                          static_cast<int32_t>(size[1]),      false,     x.dtype == DF_BFLOAT16};
  out.fours = stride[1] == 1 && size[1] > 0 && size[1] % 4 == 0 && stride[0] % 4 == 0 &&
              reinterpret_cast<uintptr_t>(out.at) % (out.halves ? 8 : 16) == 0;
  return out;
}

/* From operands by the numbers above, null where they are absent, with heads before rows. |lead| is
 * the shape of the batch; it has no more axes than can be walked over. */
static inline df_attention
df_attention_of(const df_tensor *const (&operands)[DF_ATTENTION_OPERANDS], const int64_t *lead,
                int32_t n_lead, double scale, bool safe) {
  df_attention out{};
  df_tensor outer[DF_ATTENTION_OPERANDS + 1] = {};
  const df_tensor *walked[DF_ATTENTION_OPERANDS + 1];
  for (int i = 0; i < DF_ATTENTION_OPERANDS; i++) {
    walked[i] = &outer[i];
    if (!operands[i])
      continue;
    outer[i] = *operands[i];
    outer[i].rank = static_cast<int32_t>(df_max(0, outer[i].rank - 2));
    out.matrices[i] = df_attention_matrix_of(*operands[i], i == DF_ATTENTION_K);
  }
  int64_t numbers[DF_WALK_RANK];
  df_tensor &number = outer[DF_ATTENTION_OPERANDS] = outer[DF_ATTENTION_MASK];
  walked[DF_ATTENTION_OPERANDS] = &number;
  out.masks = 1;
  for (int32_t axis = number.rank - 1; axis >= 0; axis--) {
    const bool same = number.shape[axis] == 1 || number.strides[axis] == 0;
    numbers[axis] = same ? 0 : out.masks;
    out.masks *= same ? 1 : number.shape[axis];
  }
  number.strides = numbers;
  df_walk_plan(&out.walk, lead, n_lead, walked);
  for (int i = 0; i < DF_ATTENTION_OPERANDS; i++)
    for (int32_t axis = 0; axis < out.walk.rank; axis++)
      out.matrices[i].fours = out.matrices[i].fours && out.walk.strides[i][axis] % 4 == 0;
  const df_tensor *q = operands[DF_ATTENTION_Q], *v = operands[DF_ATTENTION_V];
  out.m = static_cast<int32_t>(q->shape[q->rank - 2]);
  out.d = static_cast<int32_t>(q->shape[q->rank - 1]);
  out.n = static_cast<int32_t>(v->shape[v->rank - 2]);
  out.e = static_cast<int32_t>(v->shape[v->rank - 1]);
  out.scale = static_cast<float>(scale);
  out.safe = safe;
  return out;
}

/* Operands of bfloat16 as floats, for kernels that read nothing else. */
struct df_attention_floats {
  df_tensor made[DF_ATTENTION_OPERANDS];
  int64_t strides[DF_ATTENTION_OPERANDS][DF_WALK_RANK];

  /* Puts them at |*workspace|, which is advanced behind them, and into |operands|. */
  df_status fill(const df_call *call, const df_tensor *(&operands)[DF_ATTENTION_OPERANDS],
                 char **workspace) {
    df_status status = DF_OK;
    for (int i = 0; i < DF_ATTENTION_OPERANDS && !status; i++) {
      const df_tensor *from = operands[i];
      if (!from || from->dtype != DF_BFLOAT16)
        continue;
      made[i] = df_floats_of(*from, reinterpret_cast<float *>(*workspace), strides[i]);
      operands[i] = &made[i];
      *workspace += df_floats_bytes(df_elements(from));
      status = df_fill_floats(call, *from, made[i]);
    }
    return status;
  }

  /* Bytes for those of a node. */
  static int64_t bytes(const df_node *node) {
    int64_t sum = 0;
    for (int32_t i = 0; i < node->n_inputs; i++)
      if (node->inputs[i]->dtype == DF_BFLOAT16)
        sum += df_floats_bytes(df_operand_elements(node->inputs[i]));
    return sum;
  }
};

/* Null when the kernels take q, kt and v, else why not. */
static inline const char *df_attention_accepts(const df_node *node, const df_operand *q,
                                               const df_operand *kt, const df_operand *v) {
  const char *reason = df_accepts_rank(node);
  if (reason)
    return reason;
  if (df_attr_float(node, DF_ATTENTION_SOFTCAP) > 0)
    return "scores are capped";
  if (q->shape[q->rank - 1] > DF_ATTENTION_MOST_HEAD ||
      v->shape[v->rank - 1] > DF_ATTENTION_MOST_HEAD)
    return "heads are larger than 128";
  if (q->shape[q->rank - 2] > INT32_MAX / 2 || kt->shape[kt->rank - 1] > INT32_MAX / 2)
    return "there are more than 2^30 rows or keys";
  return nullptr;
}

/* Lets |kernel| have |bytes| of dynamic shared memory, which may be more than 48 KiB, if so many
 * blocks can be launched. */
template <typename F>
static inline df_status df_attention_allow(const df_call *call, F *kernel, int64_t blocks,
                                           int bytes) {
  if (blocks > INT32_MAX)
    return df_fail(call, DF_UNSUPPORTED, "attention of %lld tiles is too large",
                   static_cast<long long>(blocks));
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  return status ? df_fail(call, DF_DEVICE, "attention: %d bytes of shared memory: %s", bytes,
                          cudaGetErrorString(status))
                : df_status(DF_OK);
}

#endif
