/* linalg/det.c: det(x) and cofactor(x) of square matrices, in double, by elimination with partial
 * pivots. */
#include "cpu.h"

#include <math.h>

enum { FEW = 4 }; /* rows up to which determinants of minors cost no more than an inverse */

static void swap_rows(double *a, double *b, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    const double x = a[j];
    a[j] = b[j];
    b[j] = x;
  }
}

static int64_t pivot_of(const double *a, int64_t n, int64_t width, int64_t column) {
  int64_t best = column;
  for (int64_t i = column + 1; i < n; i++)
    if (fabs(a[i * width + column]) > fabs(a[best * width + column]))
      best = i;
  return best;
}

/* The determinant of n rows of |a|, which is overwritten; of none 1. */
static double determinant(double *a, int64_t n) {
  double found = 1.0;
  for (int64_t k = 0; k < n; k++) {
    const int64_t best = pivot_of(a, n, n, k);
    const double pivot = a[best * n + k];
    if (best != k)
      swap_rows(a + best * n, a + k * n, n);
    found *= best == k ? pivot : -pivot;
    if (pivot == 0.0)
      return 0.0;
    for (int64_t i = k + 1; i < n; i++) {
      const double by = a[i * n + k] / pivot;
      for (int64_t j = k + 1; j < n; j++)
        a[i * n + j] -= by * a[k * n + j];
    }
  }
  return found;
}

/* Element by element, with the rest of the matrix in |minor|. */
static void by_minors(double *y, const double *a, double *minor, int64_t n) {
  for (int64_t row = 0; row < n; row++)
    for (int64_t column = 0; column < n; column++) {
      double *to = minor;
      for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
          if (i != row && j != column)
            *to++ = a[i * n + j];
      const double found = determinant(minor, n - 1);
      y[row * n + column] = (row + column) % 2 ? -found : found;
    }
}

/* The determinant times the inverse's transpose, by elimination in |both|, of a matrix beside the
 * identity; 0 where pivots of very different size would cost its digits. */
static int by_inverse(double *y, const double *a, double *both, int64_t n) {
  const int64_t width = 2 * n;
  for (int64_t i = 0; i < n; i++) {
    memcpy(both + i * width, a + i * n, (size_t)n * sizeof *a);
    memset(both + i * width + n, 0, (size_t)n * sizeof *a);
    both[i * width + n + i] = 1.0;
  }
  double found = 1.0, least = INFINITY, most = 0.0;
  for (int64_t k = 0; k < n; k++) {
    const int64_t best = pivot_of(both, n, width, k);
    const double pivot = both[best * width + k];
    least = fmin(least, fabs(pivot));
    most = fmax(most, fabs(pivot));
    if (!(least > 1e-8 * most))
      return 0;
    if (best != k)
      swap_rows(both + best * width, both + k * width, width);
    found *= best == k ? pivot : -pivot;
    for (int64_t j = 0; j < width; j++)
      both[k * width + j] /= pivot;
    for (int64_t i = 0; i < n; i++) {
      const double by = both[i * width + k];
      if (i != k)
        for (int64_t j = 0; j < width; j++)
          both[i * width + j] -= by * both[k * width + j];
    }
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++)
      y[i * n + j] = found * both[j * width + n + i];
  return 1;
}

static void cofactors(double *y, const double *a, double *scratch, int64_t n) {
  if (n <= FEW || !by_inverse(y, a, scratch, n))
    by_minors(y, a, scratch, n);
}

/* ---- Running -------------------------------------------------------------------------------- */

typedef struct matrices {
  const void *x;
  void *y;
  double *scratch; /* of each worker: a matrix, its cofactors, and a matrix beside the identity */
  int64_t n, count;
} matrices;

static int64_t scratch_of(int64_t n) { return 4 * n * n; }

#define DEFINE_TASKS(type, T)                                                                      \
  static const double *matrix_##type(const matrices *m, int64_t index, double *a) {                \
    const T *x = (const T *)m->x + index * m->n * m->n;                                            \
    for (int64_t i = 0; i < m->n * m->n; i++)                                                      \
      a[i] = (double)x[i];                                                                         \
    return a;                                                                                      \
  }                                                                                                \
  static void det_##type##_task(void *context, int64_t index, int64_t count, int32_t worker) {     \
    const matrices *m = context;                                                                   \
    double *a = m->scratch + worker * scratch_of(m->n);                                            \
    int64_t at, end;                                                                               \
    df_task_range(index, count, m->count, 1, &at, &end);                                           \
    for (; at < end; at++) {                                                                       \
      matrix_##type(m, at, a);                                                                     \
      ((T *)m->y)[at] = (T)determinant(a, m->n);                                                   \
    }                                                                                              \
  }                                                                                                \
  static void cofactor_##type##_task(void *context, int64_t index, int64_t count,                  \
                                     int32_t worker) {                                             \
    const matrices *m = context;                                                                   \
    const int64_t size = m->n * m->n;                                                              \
    double *a = m->scratch + worker * scratch_of(m->n), *found = a + size;                         \
    int64_t at, end;                                                                               \
    df_task_range(index, count, m->count, 1, &at, &end);                                           \
    for (; at < end; at++) {                                                                       \
      cofactors(found, matrix_##type(m, at, a), found + size, m->n);                               \
      for (int64_t i = 0; i < size; i++)                                                           \
        ((T *)m->y)[at * size + i] = (T)found[i];                                                  \
    }                                                                                              \
  }                                                                                                \
  static df_status det_##type##_run(const df_call *call) { return run(call, det_##type##_task); }  \
  static df_status cofactor_##type##_run(const df_call *call) {                                    \
    return run(call, cofactor_##type##_task);                                                      \
  }

static df_status run(const df_call *call, df_task task) {
  const df_tensor *x = call->inputs[0];
  const int64_t n = x->shape[x->rank - 1];
  matrices m = {.x = x->data,
                .y = call->outputs[0]->data,
                .scratch = call->workspace,
                .n = n,
                .count = df_product(x->shape, 0, x->rank - 2)};
  if (m.count > 0)
    df_parallel(call, task, &m,
                df_min(m.count, df_task_count(call, m.count * n * n * n, DF_GRAIN)));
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *x = node->inputs[0];
  out->workspace = scratch_of(x->shape[x->rank - 1]) * (int64_t)sizeof(double) * node->threads;
  return DF_OK;
}

DEFINE_TASKS(f32, float)
DEFINE_TASKS(f64, double)

#define RECORD(op_, type)                                                                          \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = #op_,                                                                   \
                     .name = #op_ " " #type " " DF_TEXT(DF_ISA),                                   \
                     .operands = #type "->" #type,                                                 \
                     .prepare = prepare,                                                           \
                     .run = op_##_##type##_run}
DF_KERNELS(det) = {RECORD(det, f32), RECORD(det, f64), RECORD(cofactor, f32), RECORD(cofactor, f64),
                   NULL};
