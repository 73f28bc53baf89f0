/* linalg/transform.c: Stockham's transform, which needs no bit reversal (Van Loan 1992, 1.7), of
 * any factors; sizes with a large prime factor as a convolution with chirps (Bluestein 1970).
 * Computed in double: a transform of a million floats is then right to their last bit. */
#include "linalg/transform.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;

/* The prime factors of n, with fours for pairs of twos; 0 where one is large. */
static int32_t factors_of(int64_t n, int32_t *factors) {
  int32_t count = 0;
  for (int32_t f = 4; n > 1;) {
    if (n % f == 0) {
      factors[count++] = f;
      n /= f;
    } else if (f >= DF_DFT_LARGEST) {
      return 0;
    } else {
      f = f == 4 ? 2 : f == 2 ? 3 : f + 2;
    }
  }
  return count;
}

int64_t DF_NAME(df_transform_points)(int64_t n) {
  int32_t factors[DF_DFT_MOST_FACTORS];
  int64_t points = 1;
  if (n <= 1 || factors_of(n, factors))
    return n;
  while (points < 2 * n - 1)
    points *= 2;
  return points;
}

/* ---- Passes --------------------------------------------------------------------------------- */

/* A pass by a factor r, of which m numbers lie s apart: y[r p + j] = w^(j p) times the sum over k
 * of x[p + m k] e^(-2 pi i j k / r), each a row of s numbers; w is twiddle |step| of the whole. */
typedef struct pass {
  df_complex x, y;
  const df_transform *t;
  int64_t m, s, step;
} pass;

#define ROW(z, field, index) (z.field + p->s * (index))

static void pass_2(const pass *p) {
  for (int64_t i = 0; i < p->m; i++) {
    const double wr = p->t->twiddles.re[i * p->step], wi = p->t->twiddles.im[i * p->step];
    const double *ar = ROW(p->x, re, i), *ai = ROW(p->x, im, i);
    const double *br = ROW(p->x, re, i + p->m), *bi = ROW(p->x, im, i + p->m);
    double *cr = ROW(p->y, re, 2 * i), *ci = ROW(p->y, im, 2 * i);
    double *dr = ROW(p->y, re, 2 * i + 1), *di = ROW(p->y, im, 2 * i + 1);
    DF_IVDEP
    for (int64_t q = 0; q < p->s; q++) {
      const double re = ar[q] - br[q], im = ai[q] - bi[q];
      cr[q] = ar[q] + br[q];
      ci[q] = ai[q] + bi[q];
      dr[q] = re * wr - im * wi;
      di[q] = re * wi + im * wr;
    }
  }
}

static void pass_4(const pass *p) {
  const double *rr = p->t->twiddles.re, *ri = p->t->twiddles.im;
  for (int64_t i = 0; i < p->m; i++) {
    const int64_t at = i * p->step;
    const double w1r = rr[at], w1i = ri[at], w2r = rr[2 * at], w2i = ri[2 * at], w3r = rr[3 * at],
                 w3i = ri[3 * at];
    const double *x0r = ROW(p->x, re, i), *x0i = ROW(p->x, im, i);
    const double *x1r = ROW(p->x, re, i + p->m), *x1i = ROW(p->x, im, i + p->m);
    const double *x2r = ROW(p->x, re, i + 2 * p->m), *x2i = ROW(p->x, im, i + 2 * p->m);
    const double *x3r = ROW(p->x, re, i + 3 * p->m), *x3i = ROW(p->x, im, i + 3 * p->m);
    double *y0r = ROW(p->y, re, 4 * i), *y0i = ROW(p->y, im, 4 * i);
    double *y1r = ROW(p->y, re, 4 * i + 1), *y1i = ROW(p->y, im, 4 * i + 1);
    double *y2r = ROW(p->y, re, 4 * i + 2), *y2i = ROW(p->y, im, 4 * i + 2);
    double *y3r = ROW(p->y, re, 4 * i + 3), *y3i = ROW(p->y, im, 4 * i + 3);
    DF_IVDEP
    for (int64_t q = 0; q < p->s; q++) {
      const double ar = x0r[q] + x2r[q], ai = x0i[q] + x2i[q];
      const double br = x0r[q] - x2r[q], bi = x0i[q] - x2i[q];
      const double cr = x1r[q] + x3r[q], ci = x1i[q] + x3i[q];
      const double dr = x1i[q] - x3i[q], di = x3r[q] - x1r[q]; /* -i (x1 - x3) */
      y0r[q] = ar + cr;
      y0i[q] = ai + ci;
      y1r[q] = (br + dr) * w1r - (bi + di) * w1i;
      y1i[q] = (br + dr) * w1i + (bi + di) * w1r;
      y2r[q] = (ar - cr) * w2r - (ai - ci) * w2i;
      y2i[q] = (ar - cr) * w2i + (ai - ci) * w2r;
      y3r[q] = (br - dr) * w3r - (bi - di) * w3i;
      y3i[q] = (br - dr) * w3i + (bi - di) * w3r;
    }
  }
}

static void pass_any(const pass *p, int64_t r) {
  const int64_t points = p->t->points, cycle = points / r;
  for (int64_t i = 0; i < p->m; i++)
    for (int64_t j = 0; j < r; j++) {
      double *yr = ROW(p->y, re, r * i + j), *yi = ROW(p->y, im, r * i + j);
      for (int64_t k = 0; k < r; k++) {
        /* both twiddles: of the sum, and behind it */
        const int64_t at = (j * k % r * cycle + j * i * p->step) % points;
        const double wr = p->t->twiddles.re[at], wi = p->t->twiddles.im[at];
        const double *xr = ROW(p->x, re, i + p->m * k), *xi = ROW(p->x, im, i + p->m * k);
        if (k == 0) {
          DF_IVDEP
          for (int64_t q = 0; q < p->s; q++) {
            yr[q] = xr[q] * wr - xi[q] * wi;
            yi[q] = xr[q] * wi + xi[q] * wr;
          }
        } else {
          DF_IVDEP
          for (int64_t q = 0; q < p->s; q++) {
            yr[q] += xr[q] * wr - xi[q] * wi;
            yi[q] += xr[q] * wi + xi[q] * wr;
          }
        }
      }
    }
}

/* The transform of all points of x; y is other memory. The answer is one of them. */
static df_complex passes(const df_transform *t, df_complex x, df_complex y, int64_t columns) {
  pass p = {.x = x, .y = y, .t = t, .m = t->points, .s = columns, .step = 1};
  for (int32_t f = 0; f < t->n_factors; f++) {
    const int32_t r = t->factors[f];
    p.m /= r;
    if (r == 2)
      pass_2(&p);
    else if (r == 4)
      pass_4(&p);
    else
      pass_any(&p, r);
    const df_complex done = p.y;
    p.y = p.x;
    p.x = done;
    p.s *= r;
    p.step *= r;
  }
  return p.x;
}

/* ---- Chirps --------------------------------------------------------------------------------- */

/* rows[k] *= factors[k], in each column. */
static void multiply(df_complex rows, df_complex factors, int64_t n, int64_t columns) {
  for (int64_t k = 0; k < n; k++) {
    const double wr = factors.re[k], wi = factors.im[k];
    double *re = rows.re + k * columns, *im = rows.im + k * columns;
    DF_IVDEP
    for (int64_t q = 0; q < columns; q++) {
      const double a = re[q], b = im[q];
      re[q] = a * wr - b * wi;
      im[q] = a * wi + b * wr;
    }
  }
}

static df_complex swapped(df_complex x) { return (df_complex){x.im, x.re}; }

/* jk = (j^2 + k^2 - (k - j)^2) / 2: with c the chirp, y_k = c_k times the sum over j of x_j c_j
 * conj(c_(k - j)). The inverse transform is the one of numbers whose parts are swapped. */
static df_complex by_chirps(const df_transform *t, df_complex x, df_complex y, int64_t columns) {
  multiply(x, t->chirp, t->n, columns);
  const size_t rest = (size_t)((t->points - t->n) * columns) * sizeof(double);
  memset(x.re + t->n * columns, 0, rest);
  memset(x.im + t->n * columns, 0, rest);
  const df_complex spectrum = passes(t, x, y, columns);
  multiply(spectrum, t->filter, t->points, columns);
  const df_complex found =
      swapped(passes(t, swapped(spectrum), swapped(spectrum.re == x.re ? y : x), columns));
  multiply(found, t->chirp, t->n, columns);
  return found;
}

df_complex DF_NAME(df_transform_run)(const df_transform *t, double *scratch, int64_t columns) {
  const int64_t each = t->points * columns;
  const df_complex x = {scratch, scratch + each}, y = {scratch + 2 * each, scratch + 3 * each};
  return t->points == t->n ? passes(t, x, y, columns) : by_chirps(t, x, y, columns);
}

/* ---- Plans ---------------------------------------------------------------------------------- */

/* w[k] = e^(-i angle k) for k < n; |k| is reduced, so that the angle is exact. */
static void fill_twiddles(df_complex w, int64_t n) {
  for (int64_t k = 0; k < n; k++) {
    w.re[k] = cos(2.0 * pi * (double)k / (double)n);
    w.im[k] = -sin(2.0 * pi * (double)k / (double)n);
  }
}

/* The transform of the conjugate chirp, with the 1 / points of the inverse transform. */
static int fill_chirps(df_transform *t) {
  double *scratch = calloc((size_t)df_transform_scratch(t->points, 1), sizeof *scratch);
  if (!scratch)
    return 0;
  int64_t square = 0; /* k^2 mod 2n, by (k + 1)^2 = k^2 + 2k + 1 */
  for (int64_t k = 0; k < t->n; k++) {
    t->chirp.re[k] = cos(pi * (double)square / (double)t->n);
    t->chirp.im[k] = -sin(pi * (double)square / (double)t->n);
    for (int64_t at = k;; at = t->points - k) {
      scratch[at] = t->chirp.re[k] / (double)t->points;
      scratch[t->points + at] = -t->chirp.im[k] / (double)t->points;
      if (at != k || k == 0)
        break;
    }
    square = (square + 2 * k + 1) % (2 * t->n);
  }
  const df_complex x = {scratch, scratch + t->points},
                   y = {scratch + 2 * t->points, scratch + 3 * t->points};
  const df_complex found = passes(t, x, y, 1);
  memcpy(t->filter.re, found.re, (size_t)t->points * sizeof(double));
  memcpy(t->filter.im, found.im, (size_t)t->points * sizeof(double));
  free(scratch);
  return 1;
}

df_transform *DF_NAME(df_transform_make)(int64_t n) {
  const int64_t points = DF_NAME(df_transform_points)(n), chirps = points == n ? 0 : n + points;
  df_transform *t = malloc(sizeof *t + (size_t)(2 * (points + chirps)) * sizeof(double));
  if (!t)
    return NULL;
  double *at = (double *)(void *)(t + 1);
  *t = (df_transform){.n = n, .points = points, .twiddles = {at, at + points}};
  t->n_factors = factors_of(points, t->factors);
  fill_twiddles(t->twiddles, points);
  if (!chirps)
    return t;
  at += 2 * points;
  t->chirp = (df_complex){at, at + n};
  t->filter = (df_complex){at + 2 * n, at + 2 * n + points};
  if (fill_chirps(t))
    return t;
  free(t);
  return NULL;
}
