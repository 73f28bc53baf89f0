/* quantized/product.c: tiles over packed operands, and the epilogue of each. */
#include "quantized/product.h"
#include "quantized/pairs.h"
#include "quantized/round.h"

#define FINISH_INLINE static inline __attribute__((always_inline))

static inline df_uvec load_wrapping(const int32_t *from) { return (df_uvec)df_load_ints(from); }

static inline df_uvec splat_int(int32_t value) { return (df_uvec)(value - (df_ivec){0}); }

FINISH_INLINE void store_words(void *to, df_vec value, int64_t count) {
  if (count == DF_LANES)
    vec_store(to, value);
  else
    vec_store_partial(to, value, count);
}

/* |form| and |filters|, which says that all but what is of rows is absent, are constants at the
 * uses. */
FINISH_INLINE void finish(df_byte_form form, int filters, const df_byte_epilogue *e,
                          const int32_t *sums, int64_t row, int64_t rows, int64_t column,
                          int64_t columns) {
  const df_rounding r = df_rounding_of(e->zero, e->least, e->most);
  for (int64_t i = row; i < row + rows; i++, sums += DF_BYTE_COLUMNS)
    for (int64_t j = 0; j < columns; j += DF_LANES) {
      const int64_t at = column + j, to = i * e->out_row + at,
                    count = df_min(DF_LANES, columns - j);
      df_uvec sum = load_wrapping(sums + j);
      if (filters || e->row_add)
        sum += splat_int(e->row_add[i]);
      if (!filters && e->column_add)
        sum += load_wrapping(e->column_add + at);
      if (!filters && e->row_zero)
        sum -= splat_int(e->row_zero[i]) * load_wrapping(e->column_sum + at);
      if (!filters && e->column_zero)
        sum -= splat_int(e->row_sum[i]) * load_wrapping(e->column_zero + at);
      if (form == DF_BYTE_SUMS) {
        store_words((float *)e->out + to, (df_vec)sum, count);
        continue;
      }
      df_vec value = __builtin_convertvector((df_ivec)sum, df_vec);
      value *=
          filters || e->row_scale ? vec_splat(e->row_scale[i]) : vec_load(e->column_scale + at);
      if (form == DF_BYTE_STEPS) {
        const df_bytes steps = df_round_steps(value, &r);
        df_store_bytes((uint8_t *)e->out + to, (const uint8_t *)&steps, DF_LANES, count);
        continue;
      }
      if (e->row_bias)
        value += vec_splat(e->row_bias[i]);
      if (!filters && e->column_bias)
        value += vec_load(e->column_bias + at);
      store_words((float *)e->out + to, value, count);
    }
}

/* Steps where only columns have a sum and a scale, which stay in registers for all rows. */
static void finish_columns(const df_byte_epilogue *e, const int32_t *sums, int64_t row,
                           int64_t rows, int64_t column, int64_t columns) {
  const df_rounding r = df_rounding_of(e->zero, e->least, e->most);
  for (int64_t j = 0; j < columns; j += DF_LANES) {
    const df_uvec add = load_wrapping(e->column_add + column + j);
    const df_vec scale = vec_load(e->column_scale + column + j);
    const int64_t count = df_min(DF_LANES, columns - j);
    uint8_t *to = (uint8_t *)e->out + row * e->out_row + column + j;
    for (int64_t i = 0; i < rows; i++, to += e->out_row) {
      const df_uvec sum = load_wrapping(sums + i * DF_BYTE_COLUMNS + j) + add;
      const df_bytes steps =
          df_round_steps(__builtin_convertvector((df_ivec)sum, df_vec) * scale, &r);
      df_store_bytes(to, (const uint8_t *)&steps, DF_LANES, count);
    }
  }
}

void DF_NAME(df_byte_finish)(const df_byte_epilogue *epilogue, const int32_t *sums, int64_t row,
                             int64_t rows, int64_t column, int64_t columns) {
  const df_byte_epilogue e = *epilogue;
  const int filters =
      e.row_add && !e.column_add && !e.row_zero && !e.column_zero && e.row_scale && !e.column_bias;
  const int by_columns =
      e.column_add && !e.row_add && !e.row_zero && !e.column_zero && !e.row_scale;
  if (e.form == DF_BYTE_STEPS && by_columns)
    finish_columns(&e, sums, row, rows, column, columns);
  else if (e.form == DF_BYTE_SUMS)
    finish(DF_BYTE_SUMS, 0, &e, sums, row, rows, column, columns);
  else if (e.form == DF_BYTE_FLOATS && filters)
    finish(DF_BYTE_FLOATS, 1, &e, sums, row, rows, column, columns);
  else if (e.form == DF_BYTE_FLOATS)
    finish(DF_BYTE_FLOATS, 0, &e, sums, row, rows, column, columns);
  else if (filters)
    finish(DF_BYTE_STEPS, 1, &e, sums, row, rows, column, columns);
  else
    finish(DF_BYTE_STEPS, 0, &e, sums, row, rows, column, columns);
}

/* Panel |i| of rows by panel |j| of columns. */
static void multiply_panels(const df_byte_product *p, const df_byte_tiles *tiles, int64_t i,
                            int64_t j) {
  _Alignas(64) int32_t sums[DF_BYTE_ROWS * DF_BYTE_COLUMNS];
  const int64_t row = i * p->height, column = j * DF_BYTE_COLUMNS;
  const int64_t rows = df_min(p->height, p->m - row);
  const int64_t columns = df_min(DF_BYTE_COLUMNS, p->n - column);
  const int64_t weights = p->unsigned_columns ? i : j; /* the panel of them */
  const df_byte_tile_of tile = {
      .a = p->a + i * p->a_panel,
      .b = p->b + j * p->b_panel,
      .a_row = p->a_row,
      .a_step = p->a_step,
      .b_step = df_byte_line(columns),
      .steps = p->steps,
      .crowded = p->crowded ? p->crowded + weights * df_byte_flags(p->steps) : NULL,
      .sums = sums};
  DF_ASSUME(rows > 0 && rows <= DF_BYTE_ROWS);
  (*tiles)[p->unsigned_columns][rows - 1][columns > DF_LANES](&tile);
  DF_NAME(df_byte_finish)(&p->epilogue, sums, row, rows, column, columns);
}

void DF_NAME(df_byte_multiply)(const df_byte_product *product) {
  const df_byte_tiles *tiles = df_byte_tiles_for(product->crowded != NULL);
  const int64_t down = df_divide_up(product->m, product->height);
  const int64_t across = df_byte_panels(product->n);
  if (product->rows_outer) {
    for (int64_t i = 0; i < down; i++)
      for (int64_t j = 0; j < across; j++)
        multiply_panels(product, tiles, i, j);
  } else {
    for (int64_t j = 0; j < across; j++)
      for (int64_t i = 0; i < down; i++)
        multiply_panels(product, tiles, i, j);
  }
}

/* ---- Sums of operands: products with ones, which are narrow -----------------------------------
 */

void DF_NAME(df_byte_column_sums)(int32_t *sums, const uint8_t *b, int64_t columns, int64_t steps,
                                  int64_t panel, int32_t is_unsigned) {
  static const uint8_t ones[DF_BYTE_STEP] = {1, 1, 1, 1};
  _Alignas(64) int32_t found[DF_BYTE_COLUMNS];
  for (int64_t j = 0; j < columns; j += DF_BYTE_COLUMNS, b += panel) {
    const int64_t some = df_min(DF_BYTE_COLUMNS, columns - j);
    const df_byte_tile_of tile = {
        .a = ones, .b = b, .b_step = df_byte_line(some), .steps = steps, .sums = found};
    (*df_byte_tiles_for(1))[is_unsigned][0][some > DF_LANES](&tile);
    memcpy(sums + j, found, (size_t)some * sizeof *sums);
  }
}

void DF_NAME(df_byte_row_sums)(int32_t *sums, const uint8_t *a, int64_t rows, int64_t steps,
                               int64_t row, int32_t is_unsigned) {
  uint8_t ones[DF_BYTE_LEAST_LINE];
  _Alignas(64) int32_t found[DF_BYTE_ROWS * DF_BYTE_COLUMNS];
  memset(ones, 1, sizeof ones);
  for (int64_t i = 0; i < rows; i += DF_BYTE_ROWS) {
    const int64_t some = df_min(DF_BYTE_ROWS, rows - i);
    const df_byte_tile_of tile = {.a = a + i * row,
                                  .b = ones,
                                  .a_row = row,
                                  .a_step = DF_BYTE_STEP,
                                  .steps = steps,
                                  .sums = found};
    (*df_byte_tiles_for(1))[!is_unsigned][some - 1][0](&tile);
    for (int64_t r = 0; r < some; r++)
      sums[i + r] = found[r * DF_BYTE_COLUMNS];
  }
}
