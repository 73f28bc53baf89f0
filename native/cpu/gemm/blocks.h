/* gemm/blocks.h: weights of 4 or 8 bits with a scale and a zero point for each block of a row.
 *
 *   w[n][p] = scale[n][p / block] * (bytes[n][p] - zero[n][p / block])
 *
 * Rows are padded to whole blocks. Of two elements of 4 bits in a byte the lower half is the first.
 */
#ifndef DF_CPU_GEMM_BLOCKS_H
#define DF_CPU_GEMM_BLOCKS_H

#include "cpu.h"
#include "simd/vector.h"

#define DF_BLOCKS_INLINE static inline __attribute__((always_inline))

typedef struct df_block_weight {
  const uint8_t *bytes; /* (rows, row) */
  const float *scale;   /* (rows, count) */
  const uint8_t *zero;  /* (rows, zero_row); null for half of the range */
  int64_t size;         /* elements of a row without padding: a multiple of nothing */
  int64_t count;        /* blocks of a row */
  int64_t row, zero_row;
  int32_t bits, shift; /* 4 or 8; a block has 1 << shift elements, 16 or more */
  int32_t across;      /* the columns of a step lie together, else the steps of a column */
} df_block_weight;

/* The zero point of block |index| of row |n|. */
DF_BLOCKS_INLINE int32_t df_block_zero(const df_block_weight *w, int64_t n, int64_t index,
                                       int32_t bits) {
  if (!w->zero)
    return bits == 4 ? 8 : 128;
  const uint8_t *row = w->zero + n * w->zero_row;
  return bits == 4 ? row[index >> 1] >> (index & 1) * 4 & 15 : row[index];
}

/* DF_LANES bytes as integers. */
DF_BLOCKS_INLINE df_ivec df_block_bytes(const uint8_t *from) {
#if defined(__AVX512F__)
  return (df_ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(__AVX2__)
  return (df_ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
  df_ivec found = {0};
  for (int i = 0; i < DF_LANES; i++)
    found[i] = from[i];
  return found;
#endif
}

/* The halves of DF_LANES / 2 bytes as integers, in the order of their elements. */
DF_BLOCKS_INLINE df_ivec df_block_halves(const uint8_t *from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
  const __m512i both = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
  const __m512i shifts = (__m512i)(__v16si){0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4};
  return (df_ivec)_mm512_srlv_epi32(both, shifts) & 15;
#elif defined(__AVX2__)
  int32_t word;
  memcpy(&word, from, sizeof word);
  const __m128i bytes = _mm_cvtsi32_si128(word);
  const __m256i both = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
  return (df_ivec)_mm256_srlv_epi32(both, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4)) & 15;
#else
  df_ivec found = {0};
  for (int i = 0; i < DF_LANES; i++)
    found[i] = from[i / 2] >> i % 2 * 4 & 15;
  return found;
#endif
}

/* The integers of elements |p| to p + DF_LANES of a row, where p is a multiple of DF_LANES. */
DF_BLOCKS_INLINE df_ivec df_block_integers(const uint8_t *row, int64_t p, int32_t bits) {
  return bits == 4 ? df_block_halves(row + p / 2) : df_block_bytes(row + p);
}

/* These elements of row |n|: they lie in one block. */
DF_BLOCKS_INLINE df_vec df_block_load(const df_block_weight *w, int64_t n, int64_t p,
                                      int32_t bits) {
  const int64_t index = p >> w->shift;
  const df_ivec steps =
      df_block_integers(w->bytes + n * w->row, p, bits) - df_block_zero(w, n, index, bits);
  return __builtin_convertvector(steps, df_vec) * w->scale[n * w->count + index];
}

/* A panel that is not the last of a weight has a multiple of so many steps. */
enum { DF_BLOCKS_STEPS = 32 };

/* Makes a panel as df_pack_panel does: |columns| columns, zeros up to |width|, |k| steps. The first
 * element is number |at| of the weight's. */
void DF_NAME(df_blocks_pack)(float *out, const df_block_weight *w, int64_t at, int64_t columns,
                             int64_t width, int64_t k);

#endif
