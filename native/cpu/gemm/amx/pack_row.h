/* gemm/amx/pack_row.h: 32 floats to a row of a tile. */
#ifndef DF_CPU_GEMM_AMX_PACK_ROW_H
#define DF_CPU_GEMM_AMX_PACK_ROW_H

#include "simd/vector.h"

#define DF_AMX_INLINE static inline __attribute__((always_inline))

/* What is left of 2 vectors, rounded to words; |pairs|: their words in interleave. */
DF_AMX_INLINE __m512i df_amx_round(__m512 low, __m512 high, int pairs) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512i words = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  return pairs ? _mm512_permutexvar_epi16(interleave, words) : words;
}

DF_AMX_INLINE void df_amx_rest(__m512 *low, __m512 *high, __m512i words, int pairs) {
  __m512i first, second;
  if (pairs) {
    first = _mm512_slli_epi32(words, 16);
    second = _mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000u));
  } else {
    first = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(words)), 16);
    second = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1)), 16);
  }
  *low = _mm512_sub_ps(*low, _mm512_castsi512_ps(first));
  *high = _mm512_sub_ps(*high, _mm512_castsi512_ps(second));
}

DF_AMX_INLINE __m512i df_amx_larger(__m512i largest, __m512 x) {
  __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_max_epu32(largest, bits);
}

/* Two vectors to words, |apart| for each term: one behind the other, or interleaved for |pairs|.
 */
DF_AMX_INLINE void df_amx_split(__m512i *words, __m512 low, __m512 high, int pairs, int terms) {
#pragma GCC unroll 3
  for (int term = 0; term < terms; term++) {
    words[term] = df_amx_round(low, high, pairs);
    if (term + 1 < terms)
      df_amx_rest(&low, &high, words[term], pairs);
  }
}

#endif
