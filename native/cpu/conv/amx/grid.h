/* conv/amx/grid.h: an image as AMX tiles read it in a convolution.
 *
 * Per block of 32 channels, term and phase of the strides lie 16 planes, one per pair of channels,
 * whose elements are pairs of bfloat16. A plane has zeros where the window reads padding. Flat
 * position q = y * span + x reads, for a tap, element q + shift of the tap's phase: so 16 positions
 * of 16 pairs are a tile, wherever they begin, and nothing is gathered. Positions in the last
 * columns of a row, where x is not below the width, are computed and dropped. */
#ifndef DF_CPU_CONV_AMX_GRID_H
#define DF_CPU_CONV_AMX_GRID_H

#include "conv/shape.h"
#include "gemm/amx/pack.h"

enum { DF_GRID_PHASES = 16, DF_GRID_TAPS = 64 };

typedef struct df_grid {
  int64_t terms;
  int64_t blocks; /* of channels */
  int64_t taps, phases;
  int64_t height, width; /* of the result */
  int64_t rows, span;    /* of a plane */
  int64_t in_rows, in_span;
  int64_t stride[2], pad[2];
  int64_t plane;       /* elements of a plane, an odd number of cache lines */
  int64_t block_words; /* of all terms and phases */
  int64_t image_words; /* of all blocks, with what is read behind the last */
  int64_t positions;
  int32_t phase_at[DF_GRID_PHASES][2];
  int32_t tap_phase[DF_GRID_TAPS];
  int32_t tap_shift[DF_GRID_TAPS]; /* elements of the plane */
} df_grid;

/* Words from a block of channels to what a tap reads at position 0: of pairs, and of lines. */
static inline int64_t df_grid_pair_words(const df_grid *g, int64_t tap) {
  return 2 * (g->tap_phase[tap] * 16 * g->plane + g->tap_shift[tap]);
}

static inline int64_t df_grid_line_words(const df_grid *g, int64_t tap) {
  return g->tap_phase[tap] * 32 * g->plane + g->tap_shift[tap];
}

/* False where there are too many taps or phases. */
int DF_NAME(df_grid_make)(df_grid *grid, const df_conv *conv, int terms);

/* The panels of block |block| of an image of |channels| channels; returns the largest magnitude as
 * df_amx_pack does. */
uint32_t DF_NAME(df_grid_pack)(uint16_t *out, const df_grid *grid, const float *image,
                               int64_t channels, int64_t block);

/* The same with a plane of its own for each channel, whose elements are words, and zeros in all
 * that no element of the image fills, also behind the last block. */
uint32_t DF_NAME(df_grid_pack_lines)(uint16_t *out, const df_grid *grid, const float *image,
                                     int64_t channels, int64_t block);

#endif
