/* conv/outer_tile.h: the innermost loop of the weight gradient: a sum of outer products.
 *
 *   sums[i][j] = sum over positions p of left[shift[i] + at(p)] * right[p][j]
 *
 * A tile of rows i and lanes j lives in registers while all positions pass: per position a vector
 * of the right per column of vectors and a broadcast of the left per row, so that multiply-adds,
 * not loads, are the limit. Positions come in lines: on the left their elements lie together, and
 * lines and images are pitches apart; on the right all positions follow one another. */
#ifndef DF_CPU_CONV_OUTER_TILE_H
#define DF_CPU_CONV_OUTER_TILE_H

#include "cpu.h"
#include "simd/vector.h"

#if DF_LANES == 16
enum { DF_OUTER_ROWS = 14 };
#elif DF_LANES == 8
enum { DF_OUTER_ROWS = 6 };
#else
enum { DF_OUTER_ROWS = 4 };
#endif
enum { DF_OUTER_VECTORS = 2, DF_OUTER_COLUMNS = DF_OUTER_VECTORS * DF_LANES };

typedef struct df_outer {
  const float *left;
  const int32_t *shift;
  const float *right;
  int64_t images, image_pitch;
  int64_t lines, line_pitch;
  int64_t width; /* positions of a line */
} df_outer;

/* sums: rows of DF_OUTER_COLUMNS. */
typedef void (*df_outer_tile)(const df_outer *outer, float *sums);

/* By number of rows less one and of vectors less one. */
extern const df_outer_tile DF_NAME(df_outer_tiles)[DF_OUTER_ROWS][DF_OUTER_VECTORS];

#endif
