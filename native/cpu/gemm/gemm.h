/* gemm/gemm.h: computes products of float matrices, for matmul, attention and convolution. */
#ifndef DF_CPU_GEMM_GEMM_H
#define DF_CPU_GEMM_GEMM_H

#include "gemm/product.h"

/* The split of each of |batch| products of the same size; |precision| is the node's. Where less
 * than float32 is wanted, products go to AMX tiles if there are any and they are faster. */
df_gemm_split DF_NAME(df_gemm_split_for)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                         int32_t threads, int32_t precision);

/* Bytes of a prepacked copy of b that pays where b is constant: 0 for none, never more than b has.
 */
int64_t DF_NAME(df_gemm_prepack_bytes)(const df_gemm_split *split, int64_t n, int64_t k);

/* Prepacks b (its strides, n and k) for all products that ask for so many bytes. */
void DF_NAME(df_gemm_prepack)(const df_gemm *gemm, void *prepacked);

/* Computes task |index| of down * across on the calling thread; |scratch|: 64-byte aligned. */
void DF_NAME(df_gemm_task)(const df_gemm *gemm, const df_gemm_split *split, int64_t index,
                           float *scratch);

#endif
