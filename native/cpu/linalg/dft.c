/* linalg/dft.c: dft(x; axis, inverse), x seen as (outer, n, inner) pairs. Neighbouring columns are
 * transformed together. */
#include "linalg/transform.h"

#include <stdlib.h>

enum { FIRST_CACHES = 1 << 15 }; /* points at a time that stay close to the core */

typedef struct dft {
  const df_transform *t;
  const void *x;
  void *y;
  double *scratch; /* of each worker */
  int64_t each, columns, inner, count;
  int inverse;
} dft;

static int64_t columns_of(int64_t points) {
  return df_max(1, df_min(DF_DFT_COLUMNS, FIRST_CACHES / points));
}

/* The first pair of column |c|. */
static int64_t pair_of(const dft *d, int64_t c) {
  return c / d->inner * d->t->n * d->inner + c % d->inner;
}

/* The inverse transform is the one of numbers whose parts are swapped. */
#define DEFINE_DFT(type, T)                                                                        \
  static void block_##type(const dft *d, double *scratch, int64_t first, int64_t columns) {        \
    const int64_t n = d->t->n, each = d->t->points * columns;                                      \
    for (int64_t c = 0; c < columns; c++) {                                                        \
      const T *x = (const T *)d->x + 2 * pair_of(d, first + c);                                    \
      double *re = scratch + (d->inverse ? each : 0) + c,                                          \
             *im = scratch + (d->inverse ? 0 : each) + c;                                          \
      for (int64_t k = 0; k < n; k++) {                                                            \
        re[k * columns] = (double)x[2 * k * d->inner];                                             \
        im[k * columns] = (double)x[2 * k * d->inner + 1];                                         \
      }                                                                                            \
    }                                                                                              \
    df_complex found = DF_NAME(df_transform_run)(d->t, scratch, columns);                          \
    if (d->inverse)                                                                                \
      found = (df_complex){found.im, found.re};                                                    \
    for (int64_t c = 0; c < columns; c++) {                                                        \
      T *y = (T *)d->y + 2 * pair_of(d, first + c);                                                \
      for (int64_t k = 0; k < n; k++) {                                                            \
        y[2 * k * d->inner] = (T)found.re[k * columns + c];                                        \
        y[2 * k * d->inner + 1] = (T)found.im[k * columns + c];                                    \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  static void task_##type(void *context, int64_t index, int64_t count, int32_t worker) {           \
    const dft *d = context;                                                                        \
    int64_t begin, end;                                                                            \
    df_task_range(index, count, d->count, d->columns, &begin, &end);                               \
    for (; begin < end; begin += d->columns)                                                       \
      block_##type(d, d->scratch + worker * d->each, begin, df_min(d->columns, end - begin));      \
  }                                                                                                \
  static df_status dft_##type##_run(const df_call *call) { return run(call, task_##type); }

static df_status run(const df_call *call, df_task task) {
  const df_tensor *x = call->inputs[0];
  const int64_t elements = df_elements(x);
  if (elements == 0)
    return DF_OK;
  const int64_t axis = df_axis(call, DF_DFT_AXIS, x->rank), n = x->shape[axis];
  const df_transform *t = call->state;
  dft d = {.t = t,
           .x = x->data,
           .y = call->outputs[0]->data,
           .scratch = call->workspace,
           .columns = columns_of(t->points),
           .inner = df_product(x->shape, axis + 1, x->rank - 1),
           .count = elements / 2 / n,
           .inverse = df_attr_int(call, DF_DFT_INVERSE) != 0};
  d.each = df_transform_scratch(t->points, d.columns);
  const int64_t blocks = df_divide_up(d.count, d.columns);
  df_parallel(call, task, &d, df_min(blocks, df_task_count(call, 8 * elements, DF_GRAIN)));
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *x = node->inputs[0];
  const int64_t axis = df_axis(node, DF_DFT_AXIS, x->rank);
  if (df_product(x->shape, 0, x->rank) == 0)
    return DF_OK;
  df_transform *t = DF_NAME(df_transform_make)(x->shape[axis]);
  if (!t)
    return DF_OUT_OF_MEMORY;
  out->state = t;
  out->workspace = df_transform_scratch(t->points, columns_of(t->points)) *
                   (int64_t)sizeof(double) * node->threads;
  return DF_OK;
}

DEFINE_DFT(f32, float)
DEFINE_DFT(f64, double)

#define RECORD(type)                                                                               \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = "dft",                                                                  \
                     .name = "dft " #type " " DF_TEXT(DF_ISA),                                     \
                     .operands = #type "->" #type,                                                 \
                     .prepare = prepare,                                                           \
                     .release = free,                                                              \
                     .run = dft_##type##_run}
DF_KERNELS(dft) = {RECORD(f32), RECORD(f64), NULL};
