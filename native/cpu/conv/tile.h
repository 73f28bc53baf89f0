/* conv/tile.h: the innermost loops of convolutions, on phase-split sources (conv/phase_layout.h).
 */
#ifndef DF_CPU_CONV_TILE_H
#define DF_CPU_CONV_TILE_H

#include "gemm/product.h"
#include "simd/vector.h"

/* out[i * pitch + q] (+)= sum over p < k of a[p * rows + i] * source[shift[p] + q] for the rows of
 * the tile and whole vectors of positions q; the source is read to the end of the last vector. */
typedef void (*df_shift_tile)(int64_t k, const float *a, const float *source, const int32_t *shift,
                              float *out, int64_t pitch, int32_t accumulate);

typedef struct df_shift_tiles {
  df_shift_tile tile;
  int32_t vectors; /* as many as leave no register unused */
} df_shift_tiles;

#if DF_LANES == 16
enum { DF_SHIFT_ROWS = 14, DF_DOT_ROWS = 4, DF_DOT_COLUMNS = 6 };
#elif DF_LANES == 8
enum { DF_SHIFT_ROWS = 6, DF_DOT_ROWS = 3, DF_DOT_COLUMNS = 3 };
#else
enum { DF_SHIFT_ROWS = 4, DF_DOT_ROWS = 2, DF_DOT_COLUMNS = 4 };
#endif
enum { DF_SHIFT_COLUMNS = 8 * DF_LANES }; /* no tile is wider */

/* By number of rows less one. */
extern const df_shift_tiles DF_NAME(df_shift_tile_table)[DF_SHIFT_ROWS];

/* Two stacks of lines, |images| times: line i of the left at left + i * left_pitch, line j of the
 * right at right + shift[j]; both move by their image distance. |count| is a multiple of DF_LANES.
 */
typedef struct df_dot {
  const float *left, *right;
  const int32_t *shift;
  int64_t left_pitch, left_image, right_image;
  int64_t images, count;
} df_dot;

/* out[i * pitch + j] += sum over images and positions of left line i times right line j. */
typedef void (*df_dot_tile)(const df_dot *dot, float *out, int64_t pitch);

/* By number of rows less one and of columns less one. */
extern const df_dot_tile DF_NAME(df_dot_tiles)[DF_DOT_ROWS][DF_DOT_COLUMNS];

#endif
