/* quantized/product.h: products of packed bytes, and what happens to their sums.
 *
 * Packed, one operand is unsigned and the other signed: bytes of the other kind have their highest
 * bit inverted, and their zero point moves by 128. With U the unsigned elements less their zero
 * point u, and S the signed ones less s,
 *
 *   sum (U - u) (S - s) = sum U S - u (sum S - k s) - s sum U
 *
 * so zero points cost sums of rows and columns, of which those of weights are known beforehand. */
#ifndef DF_CPU_QUANTIZED_PRODUCT_H
#define DF_CPU_QUANTIZED_PRODUCT_H

#include "quantized/tile.h"

typedef enum df_byte_form {
  DF_BYTE_SUMS,   /* int32 */
  DF_BYTE_FLOATS, /* float32: scaled, with a bias */
  DF_BYTE_STEPS   /* bytes: scaled, rounded half to even, moved by a zero point, saturated */
} df_byte_form;

/* Of arrays by row or column those that are null do nothing. Arrays by column have space for whole
 * panels. */
typedef struct df_byte_epilogue {
  df_byte_form form;
  int32_t zero, least, most; /* of steps */
  void *out;
  int64_t out_row; /* elements from one row to the next */
  const int32_t *row_add, *column_add;
  const int32_t *row_zero, *column_sum; /* their product is subtracted */
  const int32_t *row_sum, *column_zero; /* likewise */
  const float *row_scale, *column_scale;
  const float *row_bias, *column_bias;
} df_byte_epilogue;

typedef struct df_byte_product {
  int32_t unsigned_columns;
  const uint8_t *crowded; /* flags of the signed panels, if these are narrow, or null; see
                             df_byte_tile_of */
  int32_t rows_outer; /* a panel of rows meets all columns before the next does; else reversed */
  int64_t m, n, steps;
  int64_t height; /* rows of a panel */
  const uint8_t *a, *b;
  int64_t a_panel, a_row, a_step; /* bytes from one panel, row and step to the next */
  int64_t b_panel;
  df_byte_epilogue epilogue;
} df_byte_product;

void DF_NAME(df_byte_multiply)(const df_byte_product *product);

/* Stores sums[i * DF_BYTE_COLUMNS + j] as result (row + i, column + j). A single row may have any
 * number of columns. */
void DF_NAME(df_byte_finish)(const df_byte_epilogue *epilogue, const int32_t *sums, int64_t row,
                             int64_t rows, int64_t column, int64_t columns);

static inline int64_t df_byte_steps(int64_t k) { return df_divide_up(k, DF_BYTE_STEP); }

static inline int64_t df_byte_panels(int64_t columns) {
  return df_divide_up(columns, DF_BYTE_COLUMNS);
}

/* Flags of a panel. */
static inline int64_t df_byte_flags(int64_t steps) { return steps / 2; }

/* Bytes of a step of a panel that has |columns|. */
static inline int64_t df_byte_line(int64_t columns) {
  return columns > DF_LANES ? DF_BYTE_LINE : DF_BYTE_LEAST_LINE;
}

/* Rows of a panel where |rows| are split into the fewest about equal panels. */
static inline int64_t df_byte_height(int64_t rows) { return df_even_split(rows, DF_BYTE_ROWS); }

/* sums[j] of the columns of packed panels that are unsigned or not. */
void DF_NAME(df_byte_column_sums)(int32_t *sums, const uint8_t *b, int64_t columns, int64_t steps,
                                  int64_t panel, int32_t is_unsigned);

/* sums[i] of rows, the steps of a row together and rows |row| apart. */
void DF_NAME(df_byte_row_sums)(int32_t *sums, const uint8_t *a, int64_t rows, int64_t steps,
                               int64_t row, int32_t is_unsigned);

#endif
