/* quantized/tile_narrow.c: tiles of weights that are narrow, for processors without VNNI: one
 * instruction multiplies bytes and adds pairs of products in 16 bits, where none of these
 * saturates, and another adds pairs of the sums. */
#include "quantized/tile.h"

#if DF_LANES >= 8

#define DF_BYTE_TILES DF_NAME(df_byte_tiles_narrow)
#define DF_BYTE_TAPS DF_NAME(df_byte_taps_narrow)
#define DF_BYTE_TOGETHER DF_BYTE_ROWS

typedef df_ivec unsigned_operand, signed_operand;

static inline __attribute__((always_inline)) df_ivec widen_unsigned(df_ivec bytes) { return bytes; }
static inline __attribute__((always_inline)) df_ivec widen_signed(df_ivec bytes) { return bytes; }

#if DF_LANES == 16
typedef __m512i words;
#define multiply_add(a, b) _mm512_maddubs_epi16((__m512i)(a), (__m512i)(b))
#define add_words(a, b) _mm512_add_epi16(a, b)
#define widen_sum(sum, pairs)                                                                      \
  (df_ivec) _mm512_add_epi32((__m512i)(sum), _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
#else
typedef __m256i words;
#define multiply_add(a, b) _mm256_maddubs_epi16((__m256i)(a), (__m256i)(b))
#define add_words(a, b) _mm256_add_epi16(a, b)
#define widen_sum(sum, pairs)                                                                      \
  (df_ivec) _mm256_add_epi32((__m256i)(sum), _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
#endif

static inline
    __attribute__((always_inline)) df_ivec add_products(df_ivec sum, df_ivec a, df_ivec b) {
  return widen_sum(sum, multiply_add(a, b));
}

/* Products are most of what bounds these tiles, of which two steps need six thus instead of eight
 * in the units of a processor that multiplies 16 bytes at once. */
static inline __attribute__((always_inline)) df_ivec add_pairs(df_ivec sum, df_ivec a, df_ivec b,
                                                               df_ivec c, df_ivec d) {
  const words pairs = add_words(multiply_add(a, b), multiply_add(c, d));
  return widen_sum(sum, pairs);
}
#define add_pairs add_pairs

#include "quantized/tile_loops.h"

#include "quantized/taps_loops.h"

#endif
