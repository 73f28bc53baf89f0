/* quantized/round.h: floats rounded to steps within limits. */
#ifndef DF_CPU_QUANTIZED_ROUND_H
#define DF_CPU_QUANTIZED_ROUND_H

#include "simd/vector.h"

typedef uint8_t df_bytes __attribute__((vector_size(DF_LANES)));

#define DF_ROUNDER 12582912.0f /* 1.5 * 2^23 */

/* Limits are small enough for a float that a number of 2^23 and more, whose last bit counts ones,
 * rounds when it is added, half to even; they are kept with it. Of a NaN the limits are left. */
typedef struct df_rounding {
  df_vec least, most;
  int32_t shift;
} df_rounding;

static inline df_rounding df_rounding_of(int32_t zero, int32_t least, int32_t most) {
  const float rounder = DF_ROUNDER;
  df_rounding r = {vec_splat(rounder + (float)(least - zero)),
                   vec_splat(rounder + (float)(most - zero)), 0};
  memcpy(&r.shift, &rounder, sizeof r.shift);
  r.shift -= zero;
  return r;
}

/* The lowest byte of each lane; converting vectors to bytes in general goes through scalars. */
static inline __attribute__((always_inline)) df_bytes df_low_bytes(df_ivec value) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i lowest = _mm256_set1_epi32(0x0c080400); /* of each lane of 128 bits */
  const __m256i fours = _mm256_shuffle_epi8((__m256i)value, lowest);
  return (df_bytes)_mm_cvtsi128_si64(
      _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1)));
#else
  return __builtin_convertvector(value, df_bytes);
#endif
}

/* A product among the steps is rounded with the sum, once. */
static inline df_bytes df_round_steps(df_vec steps, const df_rounding *r) {
  steps = vec_min(vec_max(steps + vec_splat(DF_ROUNDER), r->least), r->most);
  return df_low_bytes((df_ivec)steps - r->shift);
}

/* Stores the first |count| of |size| bytes: by two halves that overlap, where a loop took one at a
 * time. */
static inline __attribute__((always_inline)) void df_store_bytes(uint8_t *to, const uint8_t *from,
                                                                 int64_t size, int64_t count) {
  if (count == size) {
    memcpy(to, from, (size_t)size);
  } else if (size > 8 && count >= 8) {
    memcpy(to, from, 8);
    memcpy(to + count - 8, from + count - 8, 8);
  } else if (size > 4 && count >= 4) {
    memcpy(to, from, 4);
    memcpy(to + count - 4, from + count - 4, 4);
  } else {
    for (int64_t lane = 0; lane < count; lane++)
      to[lane] = from[lane];
  }
}

#endif
