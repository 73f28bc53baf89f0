/* quantized/vnni/tile.c: tiles by the instruction that multiplies four unsigned by four signed
 * bytes and adds them to a sum, without saturation. */
#include "quantized/tile.h"

#define DF_BYTE_TILES DF_NAME(df_byte_tiles_vnni)
#define DF_BYTE_TAPS DF_NAME(df_byte_taps_vnni)
#define DF_BYTE_TOGETHER DF_BYTE_ROWS

typedef df_ivec unsigned_operand, signed_operand;

static inline __attribute__((always_inline)) df_ivec widen_unsigned(df_ivec bytes) { return bytes; }
static inline __attribute__((always_inline)) df_ivec widen_signed(df_ivec bytes) { return bytes; }

static inline __attribute__((always_inline)) df_ivec add_products(df_ivec sum, df_ivec a,
                                                                  df_ivec b) {
#if DF_LANES == 16
  return (df_ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  return (df_ivec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#endif
}

#include "quantized/tile_loops.h"

#include "quantized/taps_loops.h"
