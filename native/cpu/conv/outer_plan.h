/* conv/outer_plan.h: how the sums of outer products of a weight gradient are split, by sizes and by
 * the number of threads only. */
#ifndef DF_CPU_CONV_OUTER_PLAN_H
#define DF_CPU_CONV_OUTER_PLAN_H

#include "conv/phase_layout.h"
#include "conv/shape.h"

typedef struct df_outer_plan {
  df_conv conv; /* of the product: the roles of x and dy may be exchanged */
  int32_t exchanged;
  df_phase_layout down, across;
  int64_t span;  /* floats of a row of a phase */
  int64_t k;     /* rows of the left: channels * taps */
  int64_t total; /* floats of dw */
  /* Blocks of positions: some images, or a band of rows of one. */
  int64_t images, image_blocks;
  int64_t band, bands;
  int64_t blocks;
  int64_t plane; /* floats of the phases of one image's plane */
  int64_t pitch; /* of all images; an odd number of cache lines, so that rows don't collide */
  int64_t group; /* channels split by phases at a time */
  /* Tasks. */
  int64_t block_splits; /* all but the first sum into copies of dw */
  int64_t channels, channel_splits;
  int64_t filters, filter_splits;
  int64_t scratch; /* floats of a task's workspace */
} df_outer_plan;

/* Whether filters fill the lanes well enough, and there is enough to do for each of them. */
int DF_NAME(df_outer_takes)(const df_conv *conv);

df_outer_plan DF_NAME(df_outer_make_plan)(const df_conv *conv, int32_t threads);

/* Floats of the phases of a plane of the left for |rows| of the output. */
static inline int64_t df_outer_plane(const df_outer_plan *p, int64_t rows) {
  return p->down.phases * p->across.phases * (rows + p->down.reach) * p->span;
}

#endif
