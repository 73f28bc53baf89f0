/* simd/half_store.h: vectors of floats to memory that holds float16, and whole rows between the
 * two. */
#ifndef DF_CPU_SIMD_HALF_STORE_H
#define DF_CPU_SIMD_HALF_STORE_H

#include "simd/half.h"

/* Rounds to nearest, ties to even. */
DF_HALF_INLINE void vec_store_float16(uint16_t *to, df_vec value) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < DF_LANES; i++)
    to[i] = df_to_half(value[i]);
#endif
}

enum {
  DF_HALF_ROW = 256,             /* elements that are looked over at a time */
  DF_HALF_VECTORS = DF_LANES > 4 /* whether there are instructions for it */
};

/* The bits of |df_from_half|: the instruction would change those of a NaN. */
static inline void df_row_from_half(float *to, const uint16_t *from, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += DF_HALF_ROW) {
    const int64_t end = begin + DF_HALF_ROW < n ? begin + DF_HALF_ROW : n;
    uint16_t most = 0;
    for (int64_t i = begin; i < end; i++) {
      const uint16_t magnitude = from[i] & 0x7fff;
      most = magnitude > most ? magnitude : most;
    }
    int64_t i = begin;
    for (; DF_HALF_VECTORS && most <= 0x7c00 && i + DF_LANES <= end; i += DF_LANES)
      vec_store(to + i, vec_load_float16(from + i));
    for (; i < end; i++)
      to[i] = df_from_half(from[i]);
  }
}

/* The bits of |df_to_half|. */
static inline void df_row_to_half(uint16_t *to, const float *from, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += DF_HALF_ROW) {
    const int64_t end = begin + DF_HALF_ROW < n ? begin + DF_HALF_ROW : n;
    int nan = 0;
    for (int64_t i = begin; i < end; i++)
      nan |= from[i] != from[i];
    int64_t i = begin;
    for (; DF_HALF_VECTORS && !nan && i + DF_LANES <= end; i += DF_LANES)
      vec_store_float16(to + i, vec_load(from + i));
    for (; i < end; i++)
      to[i] = df_to_half(from[i]);
  }
}

#endif
