/* quantized/taps_loops.h: sums over the taps of windows on one channel each, with channels as
 * lanes.
 *
 * Included behind quantized/tile_loops.h, with what that needs and
 *   DF_BYTE_TAPS  the name of the function */
#include "quantized/taps.h"

enum { TAP_VECTORS = DF_TAP_CHANNELS / DF_LANES, TAPS_TOGETHER = 8 / TAP_VECTORS };

/* |count| is a constant at every use: |sum| is registers. */
TILE_INLINE void sum_positions(int count, const df_byte_taps *t, const uint8_t *lines,
                               int32_t *sums) {
  const uint8_t *weights = t->weights;
  df_ivec sum[TAPS_TOGETHER * TAP_VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < count * TAP_VECTORS; i++)
    sum[i] = (df_ivec){0};
  for (int64_t group = 0; group < t->groups; group++, lines += t->line)
    for (int64_t x = 0; x < t->taps; x++, weights += DF_TAP_BYTES) {
      const uint8_t *from = lines + x * t->tap;
#pragma GCC unroll 4
      for (int v = 0; v < TAP_VECTORS; v++) {
        const signed_operand w = widen_signed(load_line(weights + v * DF_BYTE_LEAST_LINE));
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
          const df_ivec line = load_line(from + i * t->step + v * DF_BYTE_LEAST_LINE);
          sum[i * TAP_VECTORS + v] =
              add_products(sum[i * TAP_VECTORS + v], widen_unsigned(line), w);
        }
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < count * TAP_VECTORS; i++)
    memcpy(sums + i * DF_LANES, &sum[i], sizeof(df_ivec));
}

void DF_BYTE_TAPS(const df_byte_taps *t) {
  const uint8_t *lines = t->lines;
  int32_t *sums = t->sums;
  for (int64_t left = t->count, count; left > 0; left -= count) {
    count = df_divide_up(left, df_divide_up(left, TAPS_TOGETHER));
    switch (count) {
#define CASE(n)                                                                                    \
  case n:                                                                                          \
    sum_positions(n, t, lines, sums);                                                              \
    break
      CASE(1);
      CASE(2);
#if DF_LANES >= 8
      CASE(3);
      CASE(4);
#endif
#if DF_LANES >= 16
      CASE(5);
      CASE(6);
      CASE(7);
      CASE(8);
#endif
#undef CASE
    default:
      break;
    }
    lines += count * t->step;
    sums += count * DF_TAP_CHANNELS;
  }
}
