/* simd/half.h: vectors of floats from memory that holds float32, float16 or bfloat16.
 *
 * The dtype is a constant where a loop is inlined: one source gives a loop for each. */
#ifndef DF_CPU_SIMD_HALF_H
#define DF_CPU_SIMD_HALF_H

#include "dataflow.h"
#include "kernels/half.h"
#include "simd/vector.h"

#define DF_HALF_INLINE static inline __attribute__((always_inline))

DF_HALF_INLINE df_vec vec_load_float16(const uint16_t *from) {
#if defined(__AVX512F__)
  return (df_vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__)
  return (df_vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
  df_vec value = vec_zero();
  for (int i = 0; i < DF_LANES; i++)
    value[i] = df_from_half(from[i]);
  return value;
#endif
}

DF_HALF_INLINE df_vec vec_load_bfloat16(const uint16_t *from) {
#if defined(__AVX512F__)
  const __m256i bits = _mm256_loadu_si256((const __m256i *)from);
  return (df_vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
#elif defined(__AVX2__)
  const __m128i bits = _mm_loadu_si128((const __m128i *)from);
  return (df_vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
#else
  df_vec value = vec_zero();
  for (int i = 0; i < DF_LANES; i++)
    value[i] = df_from_bfloat(from[i]);
  return value;
#endif
}

/* Elements |at| and behind of a row of |dtype|. */
DF_HALF_INLINE df_vec vec_load_from(const void *row, int64_t at, int32_t dtype) {
  if (dtype == DF_FLOAT16)
    return vec_load_float16((const uint16_t *)row + at);
  if (dtype == DF_BFLOAT16)
    return vec_load_bfloat16((const uint16_t *)row + at);
  return vec_load((const float *)row + at);
}

/* The first |count| of them (0 to DF_LANES), zeros behind; touches nothing beyond. */
DF_HALF_INLINE df_vec vec_load_partial_from(const void *row, int64_t at, int64_t count,
                                            int32_t dtype) {
  if (dtype != DF_FLOAT16 && dtype != DF_BFLOAT16)
    return vec_load_partial((const float *)row + at, count);
  uint16_t lanes[DF_LANES] = {0};
  memcpy(lanes, (const uint16_t *)row + at, (size_t)count * sizeof *lanes);
  return vec_load_from(lanes, 0, dtype);
}

/* Element |at|. */
DF_HALF_INLINE float df_load_from(const void *row, int64_t at, int32_t dtype) {
  if (dtype == DF_FLOAT16)
    return df_from_half(((const uint16_t *)row)[at]);
  if (dtype == DF_BFLOAT16)
    return df_from_bfloat(((const uint16_t *)row)[at]);
  return ((const float *)row)[at];
}

/* Calls |f| with its arguments and |dtype| as a constant behind them. */
#define DF_BY_DTYPE(dtype, f, ...)                                                                 \
  switch (dtype) {                                                                                 \
  case DF_FLOAT16:                                                                                 \
    f(__VA_ARGS__, DF_FLOAT16);                                                                    \
    break;                                                                                         \
  case DF_BFLOAT16:                                                                                \
    f(__VA_ARGS__, DF_BFLOAT16);                                                                   \
    break;                                                                                         \
  default:                                                                                         \
    f(__VA_ARGS__, DF_FLOAT32);                                                                    \
  }

#endif
