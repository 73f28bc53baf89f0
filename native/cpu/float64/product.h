/* float64/product.h: a block of a product of matrices of float64, from panels of the right operand.
 *
 * The sums of DF_DOUBLE_ROWS rows by one panel of columns stay in registers over up to
 * DF_DOUBLE_STEPS steps; 2 operations on a multiply-add, one load of the left operand's per row and
 * of the right one's per vector. */
#ifndef DF_CPU_FLOAT64_PRODUCT_H
#define DF_CPU_FLOAT64_PRODUCT_H

#include "cpu.h"
#include "simd/vector.h"

enum {
  DF_DOUBLE_LANES = DF_LANES / 2,
  DF_DOUBLE_VECTORS =
      3, /* of a panel: with 4 rows 12 sums, 3 vectors and a factor fill 16 registers */
  DF_DOUBLE_COLUMNS = DF_DOUBLE_VECTORS * DF_DOUBLE_LANES,
  DF_DOUBLE_ROWS = DF_LANES == 16 ? 8 : 4,
  DF_DOUBLE_STEPS = 256,                   /* of a block: its panels stay in the second cache */
  DF_DOUBLE_BLOCK = 8 * DF_DOUBLE_COLUMNS, /* columns of one */
  DF_DOUBLE_TASK_ROWS = 96
};

typedef double df_double_vec __attribute__((vector_size(DF_LANES * 4)));
typedef double df_double_vec_unaligned
    __attribute__((vector_size(DF_LANES * 4), aligned(8), may_alias));

/* c of |rows| rows and |columns| columns, at most a tile, from |steps| steps; |begins|: its sums
 * begin here, else they go on. Rows of |b| are as long as a panel. */
static inline __attribute__((always_inline)) void
df_double_sums(const int rows, int64_t steps, const double *a, int64_t a_row, int64_t a_col,
               const double *b, int64_t b_row, double *c, int64_t c_row, int64_t columns,
               int32_t begins) {
  df_double_vec sum[DF_DOUBLE_ROWS][DF_DOUBLE_VECTORS];
  for (int i = 0; i < rows; i++)
    for (int v = 0; v < DF_DOUBLE_VECTORS; v++)
      sum[i][v] = (df_double_vec){0};
  for (int64_t p = 0; p < steps; p++) {
    const df_double_vec_unaligned *from = (const df_double_vec_unaligned *)(b + p * b_row);
    df_double_vec right[DF_DOUBLE_VECTORS];
    for (int v = 0; v < DF_DOUBLE_VECTORS; v++)
      right[v] = from[v];
    for (int i = 0; i < rows; i++) {
      const double factor = a[i * a_row + p * a_col];
      for (int v = 0; v < DF_DOUBLE_VECTORS; v++)
        sum[i][v] += factor * right[v];
    }
  }
  for (int i = 0; i < rows; i++) {
    double *to = c + i * c_row;
    if (columns == DF_DOUBLE_COLUMNS) {
      df_double_vec_unaligned *stored = (df_double_vec_unaligned *)to;
      for (int v = 0; v < DF_DOUBLE_VECTORS; v++)
        stored[v] = sum[i][v] + (begins ? (df_double_vec){0} : (df_double_vec)stored[v]);
    } else {
      for (int64_t j = 0; j < columns; j++) {
        const double found = sum[i][j / DF_DOUBLE_LANES][j % DF_DOUBLE_LANES];
        to[j] = begins ? found : to[j] + found;
      }
    }
  }
}

static inline __attribute__((always_inline)) void
df_double_tile(int64_t rows, int64_t steps, const double *a, int64_t a_row, int64_t a_col,
               const double *b, int64_t b_row, double *c, int64_t c_row, int64_t columns,
               int32_t begins) {
#define DF_DOUBLE_CASE(count)                                                                      \
  case count:                                                                                      \
    df_double_sums(count, steps, a, a_row, a_col, b, b_row, c, c_row, columns, begins);            \
    break;
  switch (rows) {
    DF_DOUBLE_CASE(1)
    DF_DOUBLE_CASE(2)
    DF_DOUBLE_CASE(3)
    DF_DOUBLE_CASE(4)
#if DF_LANES == 16
    DF_DOUBLE_CASE(5)
    DF_DOUBLE_CASE(6)
    DF_DOUBLE_CASE(7)
    DF_DOUBLE_CASE(8)
#endif
  default:
    break;
  }
#undef DF_DOUBLE_CASE
}

/* The left operand's rows as |df_double_block| reads them: of each tile a step after the other. */
static inline void df_double_gather_rows(int64_t rows, int64_t steps, const double *a,
                                         int64_t a_row, int64_t a_col, double *tiles) {
  for (int64_t i = 0; i < rows; i++) {
    const double *from = a + i * a_row;
    double *to = tiles + i / DF_DOUBLE_ROWS * DF_DOUBLE_ROWS * steps + i % DF_DOUBLE_ROWS;
    for (int64_t p = 0; p < steps; p++)
      to[p * DF_DOUBLE_ROWS] = from[p * a_col];
  }
}

/* c, |rows| by |columns|, from tiles of rows and panels of columns that lie one behind another. */
static inline void df_double_block(int64_t rows, int64_t columns, int64_t steps,
                                   const double *tiles, const double *panels, double *c,
                                   int64_t c_row, int32_t begins) {
  for (int64_t j = 0; j < columns; j += DF_DOUBLE_COLUMNS)
    for (int64_t i = 0; i < rows; i += DF_DOUBLE_ROWS)
      df_double_tile(df_min(DF_DOUBLE_ROWS, rows - i), steps, tiles + i * steps, 1, DF_DOUBLE_ROWS,
                     panels + j * steps, DF_DOUBLE_COLUMNS, c + i * c_row + j, c_row,
                     df_min(DF_DOUBLE_COLUMNS, columns - j), begins);
}

/* Doubles of the panels of a block, and of its rows. */
static inline int64_t df_double_panels(int64_t columns, int64_t steps) {
  return df_round_up(df_min(columns, DF_DOUBLE_BLOCK), DF_DOUBLE_COLUMNS) *
         df_min(steps, DF_DOUBLE_STEPS);
}

static inline int64_t df_double_tiles(int64_t rows, int64_t steps) {
  return df_round_up(df_min(rows, DF_DOUBLE_TASK_ROWS), DF_DOUBLE_ROWS) *
         df_min(steps, DF_DOUBLE_STEPS);
}

#endif
