/* gemm/amx/gemm.h: the product of gemm/product.h on AMX tiles, from operands in bfloat16
 * terms.
 *
 * Bounds of the errors are in gemm/amx/pack.h. A panel of an operand that is not ordinary there
 * (numbers near the ends of float32's range, infinities, NaN) makes the products that it is
 * part of use float32. */
#ifndef DF_CPU_GEMM_AMX_GEMM_H
#define DF_CPU_GEMM_AMX_GEMM_H

#include "gemm/product.h"

/* Whether the plugin may use AMX tiles; the same during all of a process. */
__attribute__((visibility("hidden"))) int df_amx_granted(void);

/* Parts that |precision| asks for, a df_node.precision: 0 for float32. */
static inline int df_amx_terms(int32_t precision) {
  return precision == DF_BF16 ? 1 : precision == DF_TF32 ? 2 : precision == DF_BF16X6 ? 3 : 0;
}

/* Bytes of b in one term, and how it is packed. */
int64_t DF_NAME(df_gemm_amx_prepack_bytes)(int64_t n, int64_t k);
void DF_NAME(df_gemm_amx_prepack)(const df_gemm *gemm, void *prepacked);

/* A split without terms: AMX tiles are not there, not wanted or slower. */
df_gemm_split DF_NAME(df_gemm_amx_split)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                         int32_t threads, int32_t precision);
void DF_NAME(df_gemm_amx_task)(const df_gemm *gemm, const df_gemm_split *split, int64_t index,
                               float *scratch);

#endif
