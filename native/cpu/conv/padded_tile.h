/* conv/padded_tile.h: the innermost loop of conv/padded.c.
 *
 * Lanes run over filters, as in conv/direct_tile.h; the positions of a tile are neighbours in one
 * row of the output, or in two short ones, and read the source |stride| floats apart. */
#ifndef DF_CPU_CONV_PADDED_TILE_H
#define DF_CPU_CONV_PADDED_TILE_H

#include "conv/direct_tile.h"

enum { DF_PADDED_STRIDE = 2, DF_PADDED_LINES = 2 }; /* the most of them */

/* sums[line * columns + i][lane] = sum over p < k of source[shift[p] + line * pitch + i * stride] *
 * weight[p][lane]; the lanes of a position and of a step lie together, one or two vectors of them.
 */
typedef void (*df_padded_tile)(int64_t k, const float *weight, const float *source,
                               const int32_t *shift, int64_t pitch, float *sums);

/* The tile of some vectors, lines and columns: up to DF_DIRECT_ROWS positions in all. */
df_padded_tile DF_NAME(df_padded_tile_of)(int64_t stride, int64_t vectors, int64_t lines,
                                          int64_t columns);

#endif
