/* gemm/float32.h: products computed in float32 throughout. */
#ifndef DF_CPU_GEMM_FLOAT32_H
#define DF_CPU_GEMM_FLOAT32_H

#include "gemm/product.h"

/* The split of each of |batch| products of the same size. */
df_gemm_split DF_NAME(df_gemm_float32_split)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                             int32_t threads);

/* The same where b is quantized in blocks. */
df_gemm_split DF_NAME(df_gemm_blocks_split)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                            int32_t threads);

/* Bytes of a constant b that is packed once for all runs; 0 where packing it each time, or reading
 * it as it lies, takes about as long. */
int64_t DF_NAME(df_gemm_float32_prepack_bytes)(int64_t m, int64_t n, int64_t k, int64_t b_col);

/* Prepacks all of b, whose address, size and strides |gemm| has. */
void DF_NAME(df_gemm_float32_prepack)(const df_gemm *gemm, float *prepacked);

/* Computes task |index| of down * across on the calling thread; |scratch|: 64-byte aligned. */
void DF_NAME(df_gemm_float32_task)(const df_gemm *gemm, const df_gemm_split *split, int64_t index,
                                   float *scratch);

#endif
