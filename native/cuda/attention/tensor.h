/* attention/tensor.h: attention and its gradient on tensor cores, where less than float32 is
 * wanted: attention/tensor.cu and attention/tensor_grad.cu. */
#ifndef DF_CUDA_ATTENTION_TENSOR_H
#define DF_CUDA_ATTENTION_TENSOR_H
#include "attention/gradients.h"
#include "attention/prepack.h"
#include "attention/state.h"

/* Whether products at this precision have a number format of tensor cores. */
static inline bool df_attention_has_format(int32_t precision) {
  return precision == DF_TF32 || precision == DF_BF16;
}

enum { DF_ATTENTION_TENSOR_ROWS = 64 }; /* of a tile */

/* What attend of attention/attention.cu computes, on |blocks| blocks, of |a|, which is prepacked of
 * |p|. */
df_status df_attention_tensor_run(const df_call *call, const df_attention &p,
                                  const df_attention_prepacked &a, const df_attention_results &r,
                                  int64_t blocks, int32_t precision);

/* What attend_grad of attention/grad.cu computes. */
df_status df_attention_tensor_grad_run(const df_call *call, const df_attention_prepacked &a,
                                       const df_attention_gradients &g, int32_t precision);

#endif
