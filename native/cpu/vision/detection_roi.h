/* vision/detection_roi.h: the linear samples that roi_align reads of a region, and what it makes of
 * them. */
#ifndef DF_CPU_VISION_DETECTION_ROI_H
#define DF_CPU_VISION_DETECTION_ROI_H
#include "real.h"

enum {
  SAMPLES = 256,          /* of a table; a bin with more has several */
  MOST_SAMPLES = 1 << 15, /* of a bin along an axis, so that no region takes forever */
};

typedef struct pooling {
  const df_real *x, *rois, *dy;
  const df_real *read; /* what y has where x is the largest, instead of x; or NULL */
  df_real *y;          /* or dx */
  df_real *last;       /* x with its channels last, then a line of bins per worker */
  const int64_t *batch;
  int64_t samples, regions, channels, height, width;
  int64_t rows, columns; /* of bins */
  int64_t ratio;
  df_real scale;
  int is_align, half_pixel, max, backward;
} pooling;

/* ---- Samples of roi_align ------------------------------------------------------------------- */

typedef struct bins {
  df_real start[2], bin[2]; /* y, x: of the region, and the length of a bin */
  int64_t count[2];         /* samples along a bin */
} bins;

typedef struct table {
  int32_t element[SAMPLES][4];
  df_real weight[SAMPLES][4];
} table;

static inline bins bins_of(const pooling *s, int64_t region) {
  bins b;
  for (int axis = 0; axis < 2; axis++) { /* a region is x1, y1, x2, y2 */
    const df_real shift = s->half_pixel ? 0.5f : 0.0f;
    const df_real first = s->rois[4 * region + 1 - axis] * s->scale - shift;
    const df_real last = s->rois[4 * region + 3 - axis] * s->scale - shift;
    const df_real n = (df_real)(axis ? s->columns : s->rows);
    df_real length = last - first;
    if (!s->half_pixel && !(length > 1.0f))
      length = 1.0f;
    b.start[axis] = first;
    b.bin[axis] = length / n;
    const df_real samples = ceil(length / n);
    b.count[axis] = s->ratio > 0             ? s->ratio
                    : !(samples > 0.0f)      ? 0
                    : samples > MOST_SAMPLES ? MOST_SAMPLES + 1
                                             : (int64_t)samples;
  }
  return b;
}

/* The elements below and above a position of an axis, and the weight of the latter; 0 outside. */
static inline int around(df_real at, int64_t size, int64_t *below, int64_t *above,
                         df_real *weight) {
  if (!(at >= -1.0f && at <= (df_real)size))
    return 0;
  at = at > 0.0f ? at : 0.0f;
  *below = df_min((int64_t)at, size - 1);
  *above = df_min(*below + 1, size - 1);
  *weight = *below == size - 1 ? 0.0f : at - (df_real)*below;
  return 1;
}

/* Samples [first, first + n) of the bin at |row| and |column|, in row-major order. */
static inline void fill(const pooling *s, table *t, const bins *b, int64_t row, int64_t column,
                        int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t iy = (first + i) / b->count[1], ix = (first + i) % b->count[1];
    const df_real y = b->start[0] + (df_real)row * b->bin[0] +
                      ((df_real)iy + 0.5f) * b->bin[0] / (df_real)b->count[0];
    const df_real x = b->start[1] + (df_real)column * b->bin[1] +
                      ((df_real)ix + 0.5f) * b->bin[1] / (df_real)b->count[1];
    int64_t top = 0, bottom = 0, left = 0, right = 0;
    df_real down = 0.0f, along = 0.0f;
    const int inside =
        around(y, s->height, &top, &bottom, &down) && around(x, s->width, &left, &right, &along);
    const int64_t elements[4] = {top * s->width + left, top * s->width + right,
                                 bottom * s->width + left, bottom * s->width + right};
    const df_real weights[4] = {(1.0f - down) * (1.0f - along), (1.0f - down) * along,
                                down * (1.0f - along), down * along};
    for (int k = 0; k < 4; k++) {
      t->element[i][k] = inside ? (int32_t)elements[k] : 0;
      t->weight[i][k] = inside ? weights[k] : 0.0f;
    }
  }
}

/* The sum of the products of |n| samples of a table. */
static inline df_real sum_of(const table *t, const df_real *plane, int64_t n) {
  df_real sum = 0.0f;
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 4; k++)
      sum += t->weight[i][k] * plane[t->element[i][k]];
  return sum;
}

/* The largest of |best| and the products of |n| samples of a table; NaN if one is. */
static inline df_real largest_of(const table *t, const df_real *plane, int64_t n, df_real best) {
  int nan = best != best;
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 4; k++) {
      const df_real product = t->weight[i][k] * plane[t->element[i][k]];
      best = product > best ? product : best;
      nan |= product != product;
    }
  return nan ? NAN : best;
}

/* Where the first of |n| samples is whose product is |best|; its weight. */
static inline int64_t element_of(const table *t, const df_real *plane, int64_t n, df_real best,
                                 df_real *weight) {
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 4; k++) {
      const df_real product = t->weight[i][k] * plane[t->element[i][k]];
      if (product == best || (product != product && best != best)) {
        *weight = t->weight[i][k];
        return t->element[i][k];
      }
    }
  return -1;
}

#endif
