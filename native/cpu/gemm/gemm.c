/* gemm/gemm.c: chooses float32 or AMX tiles. */
#include "gemm/gemm.h"
#include "gemm/amx/gemm.h"
#include "gemm/float32.h"

df_gemm_split DF_NAME(df_gemm_split_for)(int64_t m, int64_t n, int64_t k, int64_t batch,
                                         int32_t threads, int32_t precision) {
#ifdef DF_AMX
  const df_gemm_split split = DF_NAME(df_gemm_amx_split)(m, n, k, batch, threads, precision);
  if (split.terms)
    return split;
#endif
  (void)precision;
  return DF_NAME(df_gemm_float32_split)(m, n, k, batch, threads);
}

int64_t DF_NAME(df_gemm_prepack_bytes)(const df_gemm_split *split, int64_t n, int64_t k) {
#ifdef DF_AMX
  if (split->terms == 1)
    return DF_NAME(df_gemm_amx_prepack_bytes)(n, k);
#endif
  (void)split, (void)n, (void)k;
  return 0;
}

void DF_NAME(df_gemm_prepack)(const df_gemm *gemm, void *prepacked) {
#ifdef DF_AMX
  DF_NAME(df_gemm_amx_prepack)(gemm, prepacked);
#endif
  (void)gemm, (void)prepacked;
}

void DF_NAME(df_gemm_task)(const df_gemm *gemm, const df_gemm_split *split, int64_t index,
                           float *scratch) {
#ifdef DF_AMX
  if (split->terms) {
    DF_NAME(df_gemm_amx_task)(gemm, split, index, scratch);
    return;
  }
#endif
  DF_NAME(df_gemm_float32_task)(gemm, split, index, scratch);
}
