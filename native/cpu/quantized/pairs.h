/* quantized/pairs.h: bytes as integers, and products of pairs of 16 bits. */
#ifndef DF_CPU_QUANTIZED_PAIRS_H
#define DF_CPU_QUANTIZED_PAIRS_H

#include "simd/vector.h"

static inline df_ivec df_load_ints(const int32_t *from) {
  df_ivec value;
  memcpy(&value, from, sizeof value);
  return value;
}

static inline void df_store_ints(int32_t *to, df_ivec value) { memcpy(to, &value, sizeof value); }

/* Per lane the sum of the products of the lower and of the upper 16 bits, exactly for products of
 * bytes and of their differences. */
static inline __attribute__((always_inline)) df_ivec df_pair_sums(df_ivec a, df_ivec b) {
#if defined(__AVX512BW__)
  return (df_ivec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (df_ivec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (df_ivec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const df_ivec low = ((df_ivec)((df_uvec)a << 16) >> 16) * ((df_ivec)((df_uvec)b << 16) >> 16);
  return low + (a >> 16) * (b >> 16);
#endif
}

static inline int32_t df_pair(int32_t low, int32_t high) {
  return (int32_t)(((uint32_t)low & 0xffff) | (uint32_t)high << 16);
}

/* As integers; converting vectors of bytes in general goes through scalars. */
static inline __attribute__((always_inline)) df_uvec df_load_bytes(const uint8_t *from) {
#if defined(__AVX512F__)
  return (df_uvec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(__AVX2__)
  return (df_uvec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
  df_uvec value = {0};
  for (int i = 0; i < DF_LANES; i++)
    value[i] = from[i];
  return value;
#endif
}

#endif
