/* vision/grid_sample.h: which elements samples at a block of positions of a grid read, and their
 * weights.
 *
 * A tap of the product of all axes' taps is a whole number per axis, and padding says which element
 * it reads. */
#ifndef DF_CPU_VISION_GRID_SAMPLE_H
#define DF_CPU_VISION_GRID_SAMPLE_H
#include "real.h"

enum {
  AXES = 3,
  MOST_TAPS = 4,      /* of an axis */
  MOST_ALL_TAPS = 64, /* of all axes */
  ENTRIES = 1024,     /* taps of a block of positions: tables stay in the first cache */
  FAR_OUTSIDE = 4,    /* positions that far outside read padding alone */
};

typedef enum padding { ZEROS, BORDER, REFLECTION } padding;

typedef struct sampling {
  const df_real *grid, *x, *dy;
  df_real *y; /* or dx, or dgrid */
  int64_t samples, channels, positions, plane;
  int64_t block;         /* positions of a table */
  int64_t channel_block; /* grad_input: channels of a task */
  int32_t sizes[AXES];
  int32_t spatial, taps, all_taps;
  int8_t tap_of[MOST_ALL_TAPS][AXES]; /* per tap of all axes the tap of each */
  padding padding;
  int align_corners, normalized;
} sampling;

/* Taps t of position p of a block are entries t * block + p: of one axis, or of all. */
typedef struct axis_table {
  int32_t element[ENTRIES]; /* -1 reads zero */
  df_real weight[ENTRIES], slope[ENTRIES];
} axis_table;

typedef struct table {
  int32_t element[ENTRIES];
  df_real weight[ENTRIES];
  df_real slope[AXES][ENTRIES];
} table;

/* ---- One axis ------------------------------------------------------------------------------- */

/* After how many elements reflections repeat. */
static inline int32_t period_of(const sampling *s, int32_t size) {
  return s->align_corners ? (size > 1 ? 2 * (size - 1) : 1) : 2 * size;
}

/* Positions in elements of an axis; one so far outside that taps would overflow is replaced by one
 * that reads the same, and one that is no number by the lowest, with |lost| NaN in its place. */
static inline void positions_of(const sampling *s, df_real *at, df_real *lost, const df_real *grid,
                                int64_t n, int32_t axis) {
  const df_real length = (df_real)s->sizes[axis];
  const df_real first = s->align_corners ? 0.0f : -0.5f;
  const df_real half = s->align_corners ? (length - 1.0f) / 2.0f : length / 2.0f;
  for (int64_t p = 0; p < n; p++) {
    const df_real given = grid[p * s->spatial];
    at[p] = s->normalized ? (given + 1.0f) * half + first : given;
  }
  if (s->padding == REFLECTION) {
    const df_real period = (df_real)period_of(s, s->sizes[axis]);
    for (int64_t p = 0; p < n; p++) {
      if (fabs(at[p]) > period)
        at[p] = fmod(at[p], period);
      lost[p] = isnan(at[p]) ? (df_real)NAN : 0.0f;
      if (!isfinite(at[p]))
        at[p] = 0.0f;
    }
    return;
  }
  const df_real low = -FAR_OUTSIDE, high = length + FAR_OUTSIDE;
  for (int64_t p = 0; p < n; p++) {
    lost[p] = isnan(at[p]) ? (df_real)NAN : 0.0f;
    const df_real above = at[p] > low ? at[p] : low; /* NaN is low */
    at[p] = above < high ? above : high;
  }
}

/* Elements that |n| taps read, in their place; -1 for zero. */
static inline void read_elements(const sampling *s, int32_t *tap, int64_t n, int32_t size) {
  if (s->padding == ZEROS) {
    for (int64_t p = 0; p < n; p++)
      tap[p] = tap[p] < size ? tap[p] : -1;
  } else if (s->padding == BORDER) {
    for (int64_t p = 0; p < n; p++) {
      const int32_t below = tap[p] < size ? tap[p] : size - 1;
      tap[p] = below > 0 ? below : 0;
    }
  } else {
    const int32_t period = period_of(s, size), shift = !s->align_corners;
    for (int64_t p = 0; p < n; p++) {
      if (tap[p] >= 0 && tap[p] < size)
        continue;
      const int32_t within = (tap[p] % period + period) % period;
      const int32_t mirrored = within < size ? within : period - within - shift;
      tap[p] = mirrored < size ? mirrored : size - 1;
    }
  }
}

/* Keys' kernel (1981) with a = -0.75 at distances |d| of at most 1, or of 1 to 2; its derivative.
 */
static inline df_real cubic_near(df_real d) { return (1.25f * d - 2.25f) * d * d + 1.0f; }
static inline df_real cubic_near_slope(df_real d) { return (3.75f * d - 4.5f) * d; }
static inline df_real cubic_far(df_real d) { return ((-0.75f * d + 3.75f) * d - 6.0f) * d + 3.0f; }
static inline df_real cubic_far_slope(df_real d) { return (-2.25f * d + 7.5f) * d - 6.0f; }

/* The table of one axis for |n| positions from |grid| on. What is interpolated at no number is
 * none, as PyTorch's is: only the nearest element, and lines within edges, take the lowest
 * position. */
static inline void fill_axis(const sampling *s, axis_table *to, const df_real *grid, int64_t n,
                             int32_t axis) {
  const int64_t block = s->block;
  df_real at[ENTRIES], lost[ENTRIES];
  positions_of(s, at, lost, grid, n, axis);
  df_real *weight = to->weight, *slope = to->slope;
  if (s->taps == 1) {
    for (int64_t p = 0; p < n; p++) {
      to->element[p] = (int32_t)rint(at[p]);
      weight[p] = 1.0f;
      slope[p] = 0.0f;
    }
  } else {
    const int32_t before = s->taps == 4;
    for (int64_t p = 0; p < n; p++) {
      const df_real below = floor(at[p]);
      to->element[p] = (int32_t)below - before;
      at[p] -= below;
    }
    if (s->padding == ZEROS || s->taps == 4)
      for (int64_t p = 0; p < n; p++)
        at[p] += lost[p];
    for (int32_t tap = 1; tap < s->taps; tap++)
      for (int64_t p = 0; p < n; p++)
        to->element[tap * block + p] = to->element[p] + tap;
  }
  if (s->taps == 2)
    for (int64_t p = 0; p < n; p++) {
      weight[p] = 1.0f - at[p];
      weight[block + p] = at[p];
      slope[p] = -1.0f;
      slope[block + p] = 1.0f;
    }
  if (s->taps == 4)
    for (int64_t p = 0; p < n; p++) {
      const df_real t = at[p];
      weight[p] = cubic_far(t + 1.0f);
      weight[block + p] = cubic_near(t);
      weight[2 * block + p] = cubic_near(1.0f - t);
      weight[3 * block + p] = cubic_far(2.0f - t);
      slope[p] = cubic_far_slope(t + 1.0f);
      slope[block + p] = cubic_near_slope(t);
      slope[2 * block + p] = -cubic_near_slope(1.0f - t);
      slope[3 * block + p] = -cubic_far_slope(2.0f - t);
    }
  for (int32_t tap = 0; tap < s->taps; tap++)
    read_elements(s, to->element + tap * block, n, s->sizes[axis]);
}

/* ---- A block of positions ------------------------------------------------------------------- */

/* The table of |n| positions from |grid| on; slopes where they are |wanted|. */
static inline void fill(const sampling *s, table *to, const df_real *grid, int64_t n, int wanted) {
  axis_table axes[AXES];
  DF_ASSUME(s->spatial >= 1 && s->spatial <= AXES);
  for (int32_t axis = 0; axis < s->spatial; axis++)
    fill_axis(s, &axes[axis], grid + s->spatial - 1 - axis, n, axis);
  for (int32_t t = 0; t < s->all_taps; t++) {
    const int8_t *of = s->tap_of[t];
    int32_t *element = to->element + t * s->block;
    df_real *weight = to->weight + t * s->block;
    memcpy(element, axes[0].element + of[0] * s->block, (size_t)n * sizeof *element);
    memcpy(weight, axes[0].weight + of[0] * s->block, (size_t)n * sizeof *weight);
    for (int32_t axis = 1; axis < s->spatial; axis++) {
      const int32_t *own = axes[axis].element + of[axis] * s->block, size = s->sizes[axis];
      const df_real *by = axes[axis].weight + of[axis] * s->block;
      for (int64_t p = 0; p < n; p++) {
        const int32_t outside = (element[p] | own[p]) >> 31; /* all ones where one is -1 */
        element[p] = (element[p] * size + own[p]) | outside;
        weight[p] *= by[p];
      }
    }
    for (int32_t along = 0; wanted && along < s->spatial; along++) {
      df_real *slope = to->slope[along] + t * s->block;
      for (int32_t axis = 0; axis < s->spatial; axis++) {
        const axis_table *a = &axes[axis];
        const df_real *by = (axis == along ? a->slope : a->weight) + of[axis] * s->block;
        for (int64_t p = 0; p < n; p++)
          slope[p] = axis == 0 ? by[p] : slope[p] * by[p];
      }
    }
  }
}

/* An element of a plane, 0 for -1: by its bits, since a condition becomes a branch per tap. */
static inline df_real element_at(const df_real *plane, int32_t element) {
  const int32_t outside = element >> 31;
  df_real_bits bits;
  df_real read;
  memcpy(&bits, plane + (element & ~outside), sizeof bits);
  bits &= ~outside;
  memcpy(&read, &bits, sizeof read);
  return read;
}

#endif
