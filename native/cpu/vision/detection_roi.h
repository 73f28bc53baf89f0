/* vision/detection_roi.h: the linear samples that roi_align reads of a region, and what it makes of
 * them. */
#ifndef DF_CPU_VISION_DETECTION_ROI_H
#define DF_CPU_VISION_DETECTION_ROI_H
#include "cpu.h"

#include <math.h>

enum {
  SAMPLES = 256,          /* of a table; a bin with more has several */
  MOST_SAMPLES = 1 << 15, /* of a bin along an axis, so that no region takes forever */
};

typedef struct pooling {
  const float *x, *rois, *dy;
  float *y;    /* or dx */
  float *last; /* x with its channels last, then a line of bins per worker */
  const int64_t *batch;
  int64_t samples, regions, channels, height, width;
  int64_t rows, columns; /* of bins */
  int64_t ratio;
  float scale;
  int is_align, half_pixel, max, backward;
} pooling;

/* ---- Samples of roi_align ------------------------------------------------------------------- */

typedef struct bins {
  float start[2], bin[2]; /* y, x: of the region, and the length of a bin */
  int64_t count[2];       /* samples along a bin */
} bins;

typedef struct table {
  int32_t element[SAMPLES][4];
  float weight[SAMPLES][4];
} table;

static inline bins bins_of(const pooling *s, int64_t region) {
  bins b;
  for (int axis = 0; axis < 2; axis++) { /* a region is x1, y1, x2, y2 */
    const float shift = s->half_pixel ? 0.5f : 0.0f;
    const float first = s->rois[4 * region + 1 - axis] * s->scale - shift;
    const float last = s->rois[4 * region + 3 - axis] * s->scale - shift;
    const float n = (float)(axis ? s->columns : s->rows);
    float length = last - first;
    if (!s->half_pixel && !(length > 1.0f))
      length = 1.0f;
    b.start[axis] = first;
    b.bin[axis] = length / n;
    const float samples = ceilf(length / n);
    b.count[axis] = s->ratio > 0             ? s->ratio
                    : !(samples > 0.0f)      ? 0
                    : samples > MOST_SAMPLES ? MOST_SAMPLES + 1
                                             : (int64_t)samples;
  }
  return b;
}

/* The elements below and above a position of an axis, and the weight of the latter; 0 outside. */
static inline int around(float at, int64_t size, int64_t *below, int64_t *above, float *weight) {
  if (!(at >= -1.0f && at <= (float)size))
    return 0;
  at = at > 0.0f ? at : 0.0f;
  *below = df_min((int64_t)at, size - 1);
  *above = df_min(*below + 1, size - 1);
  *weight = *below == size - 1 ? 0.0f : at - (float)*below;
  return 1;
}

/* Samples [first, first + n) of the bin at |row| and |column|, in row-major order. */
static inline void fill(const pooling *s, table *t, const bins *b, int64_t row, int64_t column,
                        int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t iy = (first + i) / b->count[1], ix = (first + i) % b->count[1];
    const float y =
        b->start[0] + (float)row * b->bin[0] + ((float)iy + 0.5f) * b->bin[0] / (float)b->count[0];
    const float x = b->start[1] + (float)column * b->bin[1] +
                    ((float)ix + 0.5f) * b->bin[1] / (float)b->count[1];
    int64_t top = 0, bottom = 0, left = 0, right = 0;
    float down = 0.0f, along = 0.0f;
    const int inside =
        around(y, s->height, &top, &bottom, &down) && around(x, s->width, &left, &right, &along);
    const int64_t elements[4] = {top * s->width + left, top * s->width + right,
                                 bottom * s->width + left, bottom * s->width + right};
    const float weights[4] = {(1.0f - down) * (1.0f - along), (1.0f - down) * along,
                              down * (1.0f - along), down * along};
    for (int k = 0; k < 4; k++) {
      t->element[i][k] = inside ? (int32_t)elements[k] : 0;
      t->weight[i][k] = inside ? weights[k] : 0.0f;
    }
  }
}

/* The sum of the products of |n| samples of a table. */
static inline float sum_of(const table *t, const float *plane, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 4; k++)
      sum += t->weight[i][k] * plane[t->element[i][k]];
  return sum;
}

/* The largest of |best| and the products of |n| samples of a table; NaN if one is. */
static inline float largest_of(const table *t, const float *plane, int64_t n, float best) {
  int nan = best != best;
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 4; k++) {
      const float product = t->weight[i][k] * plane[t->element[i][k]];
      best = product > best ? product : best;
      nan |= product != product;
    }
  return nan ? NAN : best;
}

/* Where the first of |n| samples is whose product is |best|; its weight. */
static inline int64_t element_of(const table *t, const float *plane, int64_t n, float best,
                                 float *weight) {
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 4; k++) {
      const float product = t->weight[i][k] * plane[t->element[i][k]];
      if (product == best || (product != product && best != best)) {
        *weight = t->weight[i][k];
        return t->element[i][k];
      }
    }
  return -1;
}

#endif
