/* quantized/tile.h: the innermost loop of products of bytes, with sums of 32 bits.
 *
 * Four steps of k are a step here: four bytes of a row or column together, of which one operand is
 * unsigned and the other signed, as the dot products of VNNI take them. A tile of up to
 * DF_BYTE_ROWS x DF_BYTE_VECTORS vectors of sums lives in registers; it ends in memory, where the
 * epilogue finds it in the first cache. Nothing saturates, and sums wrap around. */
#ifndef DF_CPU_QUANTIZED_TILE_H
#define DF_CPU_QUANTIZED_TILE_H

#include "cpu.h"
#include "simd/vector.h"

#include <stdlib.h>

#if DF_LANES == 16
#define DF_BYTE_ROWS 14
#elif DF_LANES == 8
#define DF_BYTE_ROWS 6
#else
#define DF_BYTE_ROWS 4
#endif
#define DF_BYTE_VECTORS 2

enum {
  DF_BYTE_STEP = 4,                              /* bytes of a row in a step */
  DF_BYTE_COLUMNS = DF_BYTE_VECTORS * DF_LANES,  /* of a panel */
  DF_BYTE_LINE = DF_BYTE_STEP * DF_BYTE_COLUMNS, /* bytes of a step of a panel of columns */
  DF_BYTE_LEAST_LINE = DF_BYTE_STEP * DF_LANES   /* of a panel of one vector */
};

/* Step p of row i lies at a + i * a_row + p * a_step, step p of all columns at b + p * b_step;
 * distances are bytes and may be 0. sums[i * DF_BYTE_COLUMNS + j] is overwritten.
 *
 * crowded[i], where it is there and the signed operand is narrow: whether sums of products of steps
 * 2 i and 2 i + 1 may need more than 16 bits; see df_byte_mark_crowded. */
typedef struct df_byte_tile_of {
  const uint8_t *a;
  const uint8_t *b;
  int64_t a_row, a_step, b_step;
  int64_t steps;
  const uint8_t *crowded;
  int32_t *sums;
} df_byte_tile_of;

typedef void (*df_byte_tile)(const df_byte_tile_of *tile);

/* By which operand is unsigned (0: rows, 1: columns), rows less one, and vectors less one. */
typedef df_byte_tile df_byte_tiles[2][DF_BYTE_ROWS][DF_BYTE_VECTORS];

extern const df_byte_tiles DF_NAME(df_byte_tiles_base);
#if DF_LANES >= 8
extern const df_byte_tiles DF_NAME(df_byte_tiles_narrow);
#endif
#ifdef DF_VNNI
extern const df_byte_tiles DF_NAME(df_byte_tiles_vnni);
/* Whether the plugin may use VNNI; the same during all of a process. */
__attribute__((visibility("hidden"))) int df_vnni_granted(void);
#endif

/* |narrow|: the signed operand is; see df_byte_are_narrow. */
static inline const df_byte_tiles *df_byte_tiles_for(int32_t narrow) {
#ifdef DF_VNNI
  if (df_vnni_granted())
    return &DF_NAME(df_byte_tiles_vnni);
#endif
#if DF_LANES >= 8
  if (narrow)
    return &DF_NAME(df_byte_tiles_narrow);
#endif
  (void)narrow;
  return &DF_NAME(df_byte_tiles_base);
}

/* Signed bytes whose positive ones, and whose negative ones, add up to no more have sums of
 * products with unsigned bytes that need no more than 16 bits. */
#define DF_BYTE_MOST (INT16_MAX / UINT8_MAX)

/* Whether |count| signed bytes, two of a step after each other, are so small that no sum of two of
 * their products with unsigned bytes needs more than 16 bits: weights that are quantized to 7 bits
 * are, as they have to be for engines that saturate. */
static inline int32_t df_byte_are_narrow(const uint8_t *bytes, int64_t count) {
  const int8_t *values = (const int8_t *)bytes;
  int32_t above = 0;
  for (int64_t i = 0; i < count; i += 2)
    above |= abs(values[i]) + abs(values[i + 1]) > DF_BYTE_MOST;
  return !above;
}

/* Flags of the pairs of steps of a panel of narrow bytes, whose steps have |line| bytes: whether
 * sums of four products, those of two steps, may need more than 16 bits. Few do: weights are mostly
 * far below the largest of them. */
static inline void df_byte_mark_crowded(uint8_t *crowded, const uint8_t *panel, int64_t steps,
                                        int64_t line) {
  const int8_t *first = (const int8_t *)panel;
  for (int64_t p = 0; p + 2 <= steps; p += 2, first += 2 * line) {
    const int8_t *second = first + line;
    int32_t above = 0;
    for (int64_t i = 0; i < line; i += 2) {
      const int32_t sum = first[i] + first[i + 1] + second[i] + second[i + 1];
      const int32_t size = abs(first[i]) + abs(first[i + 1]) + abs(second[i]) + abs(second[i + 1]);
      above |= size + abs(sum) > 2 * DF_BYTE_MOST; /* the larger of both kinds is half of it */
    }
    *crowded++ = above != 0;
  }
}

#endif
