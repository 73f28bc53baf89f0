/* quantized/tile_base.c: tiles for every processor: bytes become 16 bits, of which products of
 * pairs are added without saturation. (The instruction that takes bytes saturates at 16 bits.) */
#include "quantized/pairs.h"
#include "quantized/tile.h"

#define DF_BYTE_TILES DF_NAME(df_byte_tiles_base)
#define DF_BYTE_TAPS DF_NAME(df_byte_taps_base)
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

static inline __attribute__((always_inline)) df_ivec add_products(df_ivec sum, pairs a, pairs b) {
  return (df_ivec)((df_uvec)sum + (df_uvec)df_pair_sums(a.even, b.even) +
                   (df_uvec)df_pair_sums(a.odd, b.odd));
}

#include "quantized/tile_loops.h"

#include "quantized/taps_loops.h"
