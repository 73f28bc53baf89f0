/* gemm/gemm.c: chooses float32 or AMX tiles. */
#include "gemm/gemm.h"
#include "gemm/amx/gemm.h"
#include "gemm/float32.h"

df_gemm_cut DF_NAME(df_gemm_cut_at)(int64_t m, int64_t n, int64_t k, int64_t batch, int32_t threads,
                                    int32_t precision) {
#ifdef DF_AMX
  const df_gemm_cut cut = DF_NAME(df_gemm_amx_cut)(m, n, k, batch, threads, precision);
  if (cut.parts)
    return cut;
#endif
  (void)precision;
  return DF_NAME(df_gemm_float32_cut)(m, n, k, batch, threads);
}

int64_t DF_NAME(df_gemm_pack_bytes)(const df_gemm_cut *cut, int64_t n, int64_t k) {
#ifdef DF_AMX
  if (cut->parts == 1)
    return DF_NAME(df_gemm_amx_pack_bytes)(n, k);
#endif
  (void)cut, (void)n, (void)k;
  return 0;
}

void DF_NAME(df_gemm_pack)(const df_gemm *gemm, void *packed) {
#ifdef DF_AMX
  DF_NAME(df_gemm_amx_pack)(gemm, packed);
#endif
  (void)gemm, (void)packed;
}

void DF_NAME(df_gemm_piece)(const df_gemm *gemm, const df_gemm_cut *cut, int64_t index,
                            float *scratch) {
#ifdef DF_AMX
  if (cut->parts) {
    DF_NAME(df_gemm_amx_piece)(gemm, cut, index, scratch);
    return;
  }
#endif
  DF_NAME(df_gemm_float32_piece)(gemm, cut, index, scratch);
}
