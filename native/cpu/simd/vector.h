/* simd/vector.h: the widest vector of floats that the instruction set has, with GCC's vector types.
 *
 * One source serves every instruction set: what the compiler's flags allow decides DF_LANES. */
#ifndef DF_CPU_SIMD_VECTOR_H
#define DF_CPU_SIMD_VECTOR_H

#include "assume.h"

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__AVX512F__)
#define DF_LANES 16
#elif defined(__AVX2__)
#define DF_LANES 8
#else
#define DF_LANES 4
#endif

typedef float df_vec __attribute__((vector_size(DF_LANES * 4)));
typedef float df_vec_unaligned __attribute__((vector_size(DF_LANES * 4), aligned(4), may_alias));
typedef int32_t df_ivec __attribute__((vector_size(DF_LANES * 4)));
typedef uint32_t df_uvec __attribute__((vector_size(DF_LANES * 4))); /* wraps around */

static inline df_vec vec_load(const float *from) { return *(const df_vec_unaligned *)from; }
static inline void vec_store(float *to, df_vec value) { *(df_vec_unaligned *)to = value; }
static inline df_vec vec_zero(void) { return (df_vec){0}; }
static inline df_vec vec_splat(float value) { return value - (df_vec){0}; }

/* The first |count| lanes (0 to DF_LANES) from memory, the others zero; touches nothing beyond. */
static inline df_vec vec_load_partial(const float *from, int64_t count) {
  DF_ASSUME(count >= 0 && count <= DF_LANES);
#if defined(__AVX512F__)
  return (df_vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#elif defined(__AVX2__)
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (df_vec)_mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane));
#else
  float lanes[DF_LANES] = {0};
  for (int64_t i = 0; i < count; i++)
    lanes[i] = from[i];
  return vec_load(lanes);
#endif
}

/* ---- Lanes of two vectors ---------------------------------------------------------------------
 *
 * A shuffle takes lane n of |a| for index n, of |b| for index DF_LANES + n. The indices are
 * constants, since clang knows no other kind. */
#if DF_LANES == 16
#define DF_EACH_LANE(f, s)                                                                         \
  f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s),        \
      f(10, s), f(11, s), f(12, s), f(13, s), f(14, s), f(15, s)
#elif DF_LANES == 8
#define DF_EACH_LANE(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define DF_EACH_LANE(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define DF_SHUFFLE(a, b, f, s) __builtin_shufflevector(a, b, DF_EACH_LANE(f, s))
#else
#define DF_SHUFFLE(a, b, f, s) __builtin_shuffle(a, b, (df_ivec){DF_EACH_LANE(f, s)})
#endif
#define DF_STEP_TWO(i, s) (2 * (i) + (s))
#define DF_NEXT(i, s) ((i) + (s))
#define DF_ROTATED(i, s) (((i) + (s)) % DF_LANES)
#define DF_ZIPPED(i, s) ((s) + (i) / 2 + (i) % 2 * DF_LANES)

/* Elements 0, 2, 4, ... of the two vectors as they follow each other. */
static inline df_vec vec_even(df_vec a, df_vec b) { return DF_SHUFFLE(a, b, DF_STEP_TWO, 0); }

/* Elements 1, 3, 5, ... */
static inline df_vec vec_odd(df_vec a, df_vec b) { return DF_SHUFFLE(a, b, DF_STEP_TWO, 1); }

/* Lanes 1 and up of |a|, then lane 0 of |b|. */
static inline df_vec vec_next(df_vec a, df_vec b) { return DF_SHUFFLE(a, b, DF_NEXT, 1); }

/* Lanes 1 and up, then lane 0. */
static inline df_vec vec_rotate(df_vec a) { return DF_SHUFFLE(a, a, DF_ROTATED, 1); }

/* a[0], b[0], a[1], b[1], ...: of the lower halves, and of the upper ones. */
static inline df_vec vec_zip_low(df_vec a, df_vec b) { return DF_SHUFFLE(a, b, DF_ZIPPED, 0); }

static inline df_vec vec_zip_high(df_vec a, df_vec b) {
  return DF_SHUFFLE(a, b, DF_ZIPPED, DF_LANES / 2);
}

/* Lane index[i] of |a| at i; the indices are within the vector. */
static inline df_vec vec_permute(df_vec a, df_ivec index) {
#if defined(__AVX512F__)
  return (df_vec)_mm512_permutexvar_ps((__m512i)index, (__m512)a);
#elif defined(__AVX2__)
  return (df_vec)_mm256_permutevar8x32_ps((__m256)a, (__m256i)index);
#else
  df_vec value = a;
  for (int i = 0; i < DF_LANES; i++)
    value[i] = a[index[i]];
  return value;
#endif
}

/* What a kernel does to its sums last: nothing where |high| is 0, or else min(max(sum, 0),
 * high), which is relu where |high| is INFINITY. NaN stays NaN. */
static inline float df_activate(float sum, float high) {
  if (high == 0.0f)
    return sum;
  return sum < 0.0f ? 0.0f : sum > high ? high : sum;
}

/* Every |stride|-th element from |from| on; with stride 2 all of two vectors is read. */
static inline __attribute__((always_inline)) df_vec vec_load_steps(const float *from,
                                                                   int64_t stride) {
  df_vec value = vec_zero();
  if (stride == 1)
    return vec_load(from);
  if (stride == 2)
    return vec_even(vec_load(from), vec_load(from + DF_LANES));
  for (int i = 0; i < DF_LANES; i++)
    value[i] = from[i * stride];
  return value;
}

static inline void vec_store_partial(float *to, df_vec value, int64_t count) {
  DF_ASSUME(count >= 0 && count <= DF_LANES);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)value);
#elif defined(__AVX2__)
  /* No masked store: AMD's processors take 12 cycles for one. */
  if (count == DF_LANES) {
    vec_store(to, value);
    return;
  }
  __m128 rest = _mm256_castps256_ps128((__m256)value);
  if (count & 4) {
    _mm_storeu_ps(to, rest);
    rest = _mm256_extractf128_ps((__m256)value, 1);
    to += 4;
  }
  if (count & 2) {
    _mm_storel_pi((__m64 *)(void *)to, rest);
    rest = _mm_movehl_ps(rest, rest);
    to += 2;
  }
  if (count & 1)
    _mm_store_ss(to, rest);
#else
  for (int64_t i = 0; i < count; i++)
    to[i] = value[i];
#endif
}

/* The first |count| lanes (0 to DF_LANES) of |value|, the others zero, whatever they were. */
static inline df_vec vec_first(df_vec value, int64_t count) {
  df_ivec lane = {0};
  for (int i = 0; i < DF_LANES; i++)
    lane[i] = i;
  const df_ivec inside = lane < (int32_t)count;
  return (df_vec)(inside & (df_ivec)value);
}

/* Lanes [first, first + count) from memory, where the first of them lies at |from|; the others are
 * zero. Touches nothing beyond, and nothing at all when |count| is not positive. */
static inline df_vec vec_load_lanes(const float *from, int64_t first, int64_t count) {
  DF_ASSUME(first >= 0 && count <= DF_LANES - first && count <= DF_LANES);
#if defined(__AVX512F__)
  uint32_t mask = count > 0 ? ((1u << count) - 1) << first : 0;
  return (df_vec)_mm512_maskz_loadu_ps((__mmask16)mask, from - first);
#else
  df_vec value = vec_zero();
  for (int64_t i = 0; i < count; i++)
    value[first + i] = from[i];
  return value;
#endif
}

/* max(value, 0), and NaN stays NaN: the instruction returns its second operand then. */
static inline df_vec vec_relu(df_vec value) {
#if defined(__AVX512F__)
  return (df_vec)_mm512_max_ps(_mm512_setzero_ps(), (__m512)value);
#elif defined(__AVX2__)
  return (df_vec)_mm256_max_ps(_mm256_setzero_ps(), (__m256)value);
#elif defined(__SSE2__)
  return (df_vec)_mm_max_ps(_mm_setzero_ps(), (__m128)value);
#else
  df_ivec negative = value < vec_zero();
  return (df_vec)(~negative & (df_ivec)value);
#endif
}

/* The larger one per lane; of a NaN and a number the number where it is |b|. */
static inline df_vec vec_max(df_vec a, df_vec b) {
#if defined(__AVX512F__)
  return (df_vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (df_vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (df_vec)_mm_max_ps((__m128)a, (__m128)b);
#else
  df_ivec above = a > b;
  return (df_vec)((above & (df_ivec)a) | (~above & (df_ivec)b));
#endif
}

/* The smaller one per lane; of a NaN and a number the number where it is |b|. */
static inline df_vec vec_min(df_vec a, df_vec b) {
#if defined(__AVX512F__)
  return (df_vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (df_vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (df_vec)_mm_min_ps((__m128)a, (__m128)b);
#else
  df_ivec below = a < b;
  return (df_vec)((below & (df_ivec)a) | (~below & (df_ivec)b));
#endif
}

/* |df_activate| of each lane. */
static inline df_vec vec_activate(df_vec sum, float high) {
  return high == 0.0f ? sum : vec_min(vec_splat(high), vec_relu(sum));
}

/* The larger one per lane; a NaN wins, of two the first. */
static inline df_vec vec_larger(df_vec a, df_vec b) {
#if defined(__AVX512F__)
  /* The instruction returns its second operand when there is a NaN; where the first is one (tokens
   * 0 and 1 of the table) it is taken instead. */
  return (df_vec)_mm512_fixupimm_ps(_mm512_max_ps((__m512)a, (__m512)b), (__m512)a,
                                    _mm512_set1_epi32(0x11), 0);
#else
  df_ivec keep = (b <= a) | (a != a);
  return (df_vec)((keep & (df_ivec)a) | (~keep & (df_ivec)b));
#endif
}

/* |value| where x >= least or x is NaN, else 0. */
static inline df_vec vec_unless_below(df_vec value, df_vec x, float least) {
#if defined(__AVX512F__)
  __mmask16 stays = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_NLT_UQ);
  return (df_vec)_mm512_maskz_mov_ps(stays, (__m512)value);
#else
  df_ivec below = x < vec_splat(least);
  return (df_vec)(~below & (df_ivec)value);
#endif
}

/* |value| where |x| is above 0, else 0; also where x is NaN. */
static inline df_vec vec_where_positive(df_vec x, df_vec value) {
#if defined(__AVX512F__)
  __mmask16 above = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return (df_vec)_mm512_maskz_mov_ps(above, (__m512)value);
#else
  df_ivec above = x > vec_zero();
  return (df_vec)(above & (df_ivec)value);
#endif
}

/* The largest lane. */
static inline float vec_largest(df_vec value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#elif defined(__AVX2__)
  __m128 most =
      _mm_max_ps(_mm256_castps256_ps128((__m256)value), _mm256_extractf128_ps((__m256)value, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
#else
  float lanes[DF_LANES], most;
  vec_store(lanes, value);
  most = lanes[0];
  for (int i = 1; i < DF_LANES; i++)
    most = lanes[i] > most ? lanes[i] : most;
  return most;
#endif
}

/* Sum of the lanes, halves first: always in the same order. */
static inline float vec_sum(df_vec value) {
  float lanes[DF_LANES];
  vec_store(lanes, value);
#pragma GCC unroll 4
  for (int half = DF_LANES / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; i++)
      lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/* Transposes a square of DF_LANES rows in registers: log2(DF_LANES) rounds that each exchange,
 * between rows |step| apart, blocks of |step| lanes. */
/* Lane |i| of the lower result: of the first operand, or of the second with the block bit cleared.
 */
#define DF_LOWER(i, s) (((i) & (s)) ? DF_LANES + ((i) & ~(s)) : (i))
#define DF_UPPER(i, s) (DF_LOWER(i, s) + (s))

/* The same for the squares of |size| lanes on and beside the diagonal: lane b * size + j of row
 * a * size + i becomes lane b * size + i of row a * size + j. */
static inline __attribute__((always_inline)) void vec_transpose_squares(df_vec row[DF_LANES],
                                                                        int size) {
#define DF_ROUND(s)                                                                                \
  _Pragma("GCC unroll 16") for (int i = 0; i < DF_LANES; i++) {                                    \
    if (!(i & (s))) {                                                                              \
      df_vec a = row[i], b = row[i + (s)];                                                         \
      row[i] = DF_SHUFFLE(a, b, DF_LOWER, s);                                                      \
      row[i + (s)] = DF_SHUFFLE(a, b, DF_UPPER, s);                                                \
    }                                                                                              \
  }
  DF_ROUND(1)
  DF_ROUND(2)
#if DF_LANES >= 8
  if (size >= 8) {
    DF_ROUND(4)
  }
#endif
#if DF_LANES >= 16
  if (size >= 16) {
    DF_ROUND(8)
  }
#endif
  (void)size; /* where there are four lanes */
#undef DF_ROUND
}

static inline __attribute__((always_inline)) void vec_transpose(df_vec row[DF_LANES]) {
  vec_transpose_squares(row, DF_LANES);
}

#endif
