/* linalg/transform.h: the discrete Fourier transform of several columns of complex numbers. */
#ifndef DF_CPU_LINALG_TRANSFORM_H
#define DF_CPU_LINALG_TRANSFORM_H
#include "cpu.h"

enum {
  DF_DFT_COLUMNS = 8,       /* transformed together: a vector of double each */
  DF_DFT_MOST_FACTORS = 64, /* no number of 63 bits has more */
  DF_DFT_LARGEST = 31       /* factor that costs less as a sum of products than by chirps */
};

/* Real and imaginary parts apart, so that loops become vector code. */
typedef struct df_complex {
  double *re, *im;
} df_complex;

/* How n points are transformed. Made once for a node; what it points to lies behind it. */
typedef struct df_transform {
  int64_t n;
  int64_t points;           /* n, or the power of two that a convolution with chirps takes */
  df_complex twiddles;      /* e^(-2 pi i k / points) */
  df_complex chirp, filter; /* with chirps: e^(-pi i k^2 / n), and the transform of its conjugate */
  int32_t n_factors;
  int32_t factors[DF_DFT_MOST_FACTORS];
} df_transform;

/* Doubles of scratch that a transform of |columns| takes. */
static inline int64_t df_transform_scratch(int64_t points, int64_t columns) {
  return 4 * points * columns;
}

/* How many points are computed for |n|. */
int64_t DF_NAME(df_transform_points)(int64_t n);

/* A plan for |n| points, at least one, to be released by free; null without memory. */
df_transform *DF_NAME(df_transform_make)(int64_t n);

/* The transform of scratch[0..n) of |columns| columns, which lie beside each other; |scratch| is
 * df_transform_scratch doubles: the points' real parts, imaginary parts, and as many again. The
 * result is where the answer says, in the scratch. */
df_complex DF_NAME(df_transform_run)(const df_transform *t, double *scratch, int64_t columns);

#endif
