/* gemm/batch.h: the sizes of a batch of products of matrices, whose leading axes broadcast. */
#ifndef DF_CPU_GEMM_BATCH_H
#define DF_CPU_GEMM_BATCH_H

#include "cpu.h"

/* One operand or result without its dtype: what df_operand and df_tensor have in common. */
typedef struct df_extent {
  const int64_t *shape;
  const int64_t *strides;
  int32_t rank;
} df_extent;

typedef struct df_product_sizes {
  df_extent a, b, c;
  int64_t m, n, k;
  int64_t batch; /* products after folding */
  int64_t a_row, c_row;
  int32_t row_axis; /* of c, from its end, that the rows of a product are along; mostly 2 */
  int32_t b_dtype;
} df_product_sizes;

static inline int64_t df_batch_of(const df_extent *x) {
  return df_product(x->shape, 0, x->rank - 2);
}

/* True when all leading axes and the rows of x together are one axis of even stride. */
static inline int df_rows_are_even(const df_extent *x) {
  int64_t expected = 0;
  int seen = 0;
  for (int32_t axis = x->rank - 2; axis >= 0; axis--) {
    if (x->shape[axis] == 1)
      continue;
    if (seen && x->strides[axis] != expected)
      return 0;
    seen = 1;
    expected = x->strides[axis] * x->shape[axis];
  }
  return 1;
}

/* The stride of the innermost axis before the last that has more than one row. */
static inline int64_t df_row_stride(const df_extent *x) {
  for (int32_t axis = x->rank - 2; axis >= 0; axis--)
    if (x->shape[axis] != 1)
      return x->strides[axis];
  return x->strides[x->rank - 2];
}

/* The axis of a but the last with most elements, from the end. */
static inline int32_t df_longest_axis(const df_extent *a) {
  int32_t found = 2;
  for (int32_t back = 3; back <= a->rank; back++)
    if (a->shape[a->rank - back] > a->shape[a->rank - found])
      found = back;
  return found;
}

/* Sizes of the product. A batch of a that meets one single b is a product with more rows; where
 * their strides forbid it (a transposed view), rows are along the longest axis. */
static inline df_product_sizes df_product_sizes_of(df_extent a, df_extent b, df_extent c,
                                                   int32_t b_dtype) {
  df_product_sizes p = {.a = a, .b = b, .c = c, .row_axis = 2, .b_dtype = b_dtype};
  p.m = a.shape[a.rank - 2];
  p.k = a.shape[a.rank - 1];
  p.n = b.shape[b.rank - 1];
  p.a_row = a.strides[a.rank - 2];
  p.c_row = p.n;
  p.batch = df_batch_of(&c);
  if (p.batch <= 1 || df_batch_of(&b) != 1 || df_batch_of(&a) != p.batch)
    return p;
  if (df_rows_are_even(&a)) {
    p.m *= p.batch;
    p.batch = 1;
    p.a_row = df_row_stride(&a);
  } else {
    p.row_axis = df_longest_axis(&a);
    p.batch = p.batch * p.m / a.shape[a.rank - p.row_axis];
    p.m = a.shape[a.rank - p.row_axis];
    p.a_row = a.strides[a.rank - p.row_axis];
    p.c_row = df_product(c.shape, c.rank - p.row_axis + 1, c.rank);
  }
  return p;
}

/* Elements from the start of x, which is a or c, to its matrix number |index|: of the axes of c but
 * the last and that of the rows. */
static inline int64_t df_batch_offset(const df_product_sizes *p, const df_extent *x,
                                      int64_t index) {
  const df_extent *c = &p->c;
  int64_t offset = 0;
  for (int32_t back = 2; back <= c->rank; back++) {
    if (back == p->row_axis)
      continue;
    int64_t size = c->shape[c->rank - back];
    if (back <= x->rank && x->shape[x->rank - back] != 1)
      offset += index % size * x->strides[x->rank - back];
    index /= size;
  }
  return offset;
}

/* Likewise for b, which is one matrix where the rows of a product are along another axis: there
 * |index| counts rows, too, that b doesn't have. */
static inline int64_t df_batch_offset_b(const df_product_sizes *p, int64_t index) {
  return p->row_axis == 2 ? df_batch_offset(p, &p->b, index) : 0;
}

#endif
