/* quantized/tile_base.c: tiles for every processor: bytes become 16 bits, of which products of
 * pairs are added without saturation. (The instruction that takes bytes saturates at 16 bits.) */
#include "quantized/tile.h"

#define DF_BYTE_TILES DF_NAME(df_byte_tiles_base)
#define DF_BYTE_TOGETHER (DF_LANES == 16 ? 7 : 3)

/* The first and third byte of each step, and the second and fourth. */
typedef struct pairs {
  df_ivec even, odd;
} pairs;
typedef pairs unsigned_operand, signed_operand;

typedef int16_t words __attribute__((vector_size(DF_LANES * 4)));
typedef uint16_t unsigned_words __attribute__((vector_size(DF_LANES * 4)));

static inline __attribute__((always_inline)) pairs widen_unsigned(df_ivec bytes) {
  const unsigned_words w = (unsigned_words)bytes;
  return (pairs){(df_ivec)(w & 0xff), (df_ivec)(w >> 8)};
}

static inline __attribute__((always_inline)) pairs widen_signed(df_ivec bytes) {
  const words w = (words)bytes;
  return (pairs){(df_ivec)((words)((unsigned_words)w << 8) >> 8), (df_ivec)(w >> 8)};
}

static inline __attribute__((always_inline)) df_ivec pair_sums(df_ivec a, df_ivec b) {
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

static inline __attribute__((always_inline)) df_ivec add_products(df_ivec sum, pairs a, pairs b) {
  return (df_ivec)((df_uvec)sum + (df_uvec)pair_sums(a.even, b.even) +
                   (df_uvec)pair_sums(a.odd, b.odd));
}

#include "quantized/tile_loops.h"
