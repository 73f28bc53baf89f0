/* gemm/thin.c: c = a b for up to four rows of a. There is one multiply-add per row and element of
 * b, so reading b is all that counts: nothing is packed.
 *
 * Where the columns of b lie together, a task takes dot products, some columns at a time, a vector
 * of them where they are short; where the rows do, it adds rows of b times elements of a. In both
 * cases k goes in blocks whose sums are added up on their own, so that rounding does not grow with
 * k. */
#include "gemm/thin.h"
#include "simd/half.h"

enum {
  MOST_ROWS = 4,
  COLUMNS = 4,       /* dot products at a time: as many streams from memory */
  SHORT = 8,         /* vectors of a dot product whose lanes take as long to add up */
  K_BLOCK = 2048,    /* of a dot product, distributed over lanes */
  K_STEPS = 256,     /* of a column's sum, one after the other */
  STEPS = 4,         /* of them at a time */
  WIDTH = 1024,      /* columns whose sums lie on the stack */
  GRAIN = 64 * 1024, /* elements of b of the smallest task worth a thread's while */
};

#define THIN_INLINE static inline __attribute__((always_inline))

int DF_NAME(df_thin_takes)(int64_t m, int64_t a_col, int64_t b_row, int64_t b_col) {
  return m <= MOST_ROWS && ((b_row == 1 && a_col == 1) || b_col == 1);
}

static void store(const df_gemm *g, int64_t i, int64_t j, float sum) {
  if (g->epilogue.column_bias)
    sum += g->epilogue.column_bias[j];
  g->c[i * g->c_row + j] = df_activate(sum, g->epilogue.high);
}

/* Columns [j, j + columns) of |rows| rows from |first| on, b_row == 1. */
THIN_INLINE void dot(int rows, int columns, const df_gemm *g, int64_t first, int64_t j,
                     int32_t dtype) {
  const float *a = g->a + first * g->a_row;
  const void *b = df_gemm_b(g, j * g->b_col);
  float total[MOST_ROWS][COLUMNS] = {{0}};
  for (int64_t begin = 0; begin < g->k; begin += K_BLOCK) {
    int64_t end = df_min(g->k, begin + K_BLOCK), p = begin;
    df_vec sum[MOST_ROWS][COLUMNS];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++)
        sum[i][c] = vec_zero();
    for (; p < end; p += DF_LANES) {
      int64_t count = end - p;
      df_vec left[MOST_ROWS];
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) {
        const float *from = a + i * g->a_row + p;
        left[i] = count >= DF_LANES ? vec_load(from) : vec_load_partial(from, count);
      }
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++) {
        const int64_t at = c * g->b_col + p;
        df_vec right = count >= DF_LANES ? vec_load_from(b, at, dtype)
                                         : vec_load_partial_from(b, at, count, dtype);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
          sum[i][c] += left[i] * right;
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++)
        total[i][c] += vec_sum(sum[i][c]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++)
      store(g, first + i, j + c, total[i][c]);
}

/* Lane c is the sum of the lanes of row[c], in the order of vec_sum: each round adds halves of two
 * rows at once. */
THIN_INLINE df_vec sums_of_rows(df_vec row[DF_LANES]) {
#define ROUND(s)                                                                                   \
  _Pragma("GCC unroll 16") for (int i = 0; i < (s); i++) row[i] =                                  \
      DF_SHUFFLE(row[i], row[i + (s)], DF_LOWER, s) +                                              \
      DF_SHUFFLE(row[i], row[i + (s)], DF_UPPER, s);
#if DF_LANES == 16
  ROUND(8)
#endif
#if DF_LANES >= 8
  ROUND(4)
#endif
  ROUND(2)
  ROUND(1)
#undef ROUND
  return row[0];
}

/* DF_LANES columns from |j| on of all rows, b_row == 1, with a short k: the lanes of all columns
 * are added up together. */
THIN_INLINE void short_dots(const df_gemm *g, int64_t j, int32_t dtype) {
  const void *b = df_gemm_b(g, j * g->b_col);
  for (int64_t i = 0; i < g->m; i++) {
    const float *a = g->a + i * g->a_row;
    df_vec sum[DF_LANES];
#pragma GCC unroll 16
    for (int c = 0; c < DF_LANES; c++)
      sum[c] = vec_zero();
    int64_t p = 0;
    for (; p + DF_LANES <= g->k; p += DF_LANES) {
      const df_vec left = vec_load(a + p);
#pragma GCC unroll 16
      for (int c = 0; c < DF_LANES; c++)
        sum[c] += left * vec_load_from(b, c * g->b_col + p, dtype);
    }
    if (p < g->k) {
      const df_vec left = vec_load_partial(a + p, g->k - p);
#pragma GCC unroll 16
      for (int c = 0; c < DF_LANES; c++)
        sum[c] += left * vec_load_partial_from(b, c * g->b_col + p, g->k - p, dtype);
    }
    df_vec total = sums_of_rows(sum);
    if (g->epilogue.column_bias)
      total += vec_load(g->epilogue.column_bias + j);
    vec_store(g->c + i * g->c_row + j, vec_activate(total, g->epilogue.high));
  }
}

/* sums[i][j] += sum over up to four steps, from |p| on, of a[i][step] times b[step][j]: what is
 * read of b is there for all rows. The columns of a task end before the row of b does, and what the
 * processor fetches ahead by itself ends there: so the next steps are fetched while these are read.
 */
THIN_INLINE void add_steps(int rows, float (*sums)[WIDTH], const float *a, const df_gemm *g,
                           const void *b, int64_t p, int64_t steps, int64_t columns,
                           int32_t dtype) {
  df_vec left[MOST_ROWS][STEPS] = {{{0}}}, right[STEPS];
  int64_t from[STEPS];
  const int64_t next = STEPS * g->b_row, size = dtype == DF_FLOAT32 ? 4 : 2;
#pragma GCC unroll 4
  for (int s = 0; s < STEPS; s++) {
    const int64_t step = p + (s < steps ? s : 0);
    from[s] = step * g->b_row;
    right[s] = vec_zero();
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
      left[i][s] = vec_splat(a[i * g->a_row + step * g->a_col]);
  }
  for (int64_t j = 0; j < columns; j += DF_LANES) {
    int64_t count = columns - j;
#pragma GCC unroll 4
    for (int s = 0; s < STEPS; s++)
      if (s < steps) {
        __builtin_prefetch((const char *)b + (from[s] + next + j) * size, 0, 2);
        right[s] = count >= DF_LANES ? vec_load_from(b, from[s] + j, dtype)
                                     : vec_load_partial_from(b, from[s] + j, count, dtype);
      }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
      df_vec sum = vec_load(sums[i] + j);
#pragma GCC unroll 4
      for (int s = 0; s < STEPS; s++)
        if (s < steps)
          sum += left[i][s] * right[s];
      vec_store(sums[i] + j, sum);
    }
  }
}

/* Of four rows two at a time: elements of a for more of them are not kept in registers. */
THIN_INLINE void add_steps_of_rows(int rows, float (*sums)[WIDTH], const df_gemm *g, const void *b,
                                   int64_t p, int64_t columns, int32_t dtype) {
  const int first = rows == 4 ? 2 : rows;
  add_steps(first, sums, g->a, g, b, p, STEPS, columns, dtype);
  if (first < rows)
    add_steps(rows - first, sums + first, g->a + first * g->a_row, g, b, p, STEPS, columns, dtype);
}

/* Columns [begin, begin + columns) of all rows, b_col == 1. */
THIN_INLINE void add_rows(int rows, const df_gemm *g, int64_t begin, int64_t columns,
                          int32_t dtype) {
  const void *b = df_gemm_b(g, begin);
  float total[MOST_ROWS][WIDTH], sums[MOST_ROWS][WIDTH];
  int64_t floats = df_divide_up(columns, DF_LANES) * DF_LANES;
  for (int i = 0; i < rows; i++)
    memset(total[i], 0, (size_t)floats * sizeof(float));
  for (int64_t from = 0; from < g->k; from += K_STEPS) {
    int64_t end = df_min(g->k, from + K_STEPS), p = from;
    for (int i = 0; i < rows; i++)
      memset(sums[i], 0, (size_t)floats * sizeof(float));
    for (; p + STEPS <= end; p += STEPS)
      add_steps_of_rows(rows, sums, g, b, p, columns, dtype);
    for (int i = 0; p < end && i < rows; i++)
      add_steps(1, sums + i, g->a + i * g->a_row, g, b, p, end - p, columns, dtype);
    for (int i = 0; i < rows; i++)
      for (int64_t j = 0; j < floats; j++)
        total[i][j] += sums[i][j];
  }
  for (int i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      store(g, i, begin + j, total[i][j]);
}

/* ---- Tasks ---------------------------------------------------------------------------------- */

/* Functions for each number of rows: the time to compile grows faster than a function. */
#define ROWS(rows)                                                                                 \
  static __attribute__((noinline)) void dots_##rows(const df_gemm *g, int64_t j) {                 \
    DF_BY_DTYPE(df_gemm_b_dtype(g), dot, rows, COLUMNS, g, 0, j)                                   \
  }                                                                                                \
  static __attribute__((noinline)) void add_##rows(const df_gemm *g, int64_t begin,                \
                                                   int64_t columns) {                              \
    DF_BY_DTYPE(df_gemm_b_dtype(g), add_rows, rows, g, begin, columns)                             \
  }
ROWS(1)
ROWS(2)
ROWS(3)
ROWS(4)
#undef ROWS

static __attribute__((noinline)) void single_dot(const df_gemm *g, int64_t i, int64_t j) {
  DF_BY_DTYPE(df_gemm_b_dtype(g), dot, 1, 1, g, i, j)
}

static __attribute__((noinline)) void lanes_of_dots(const df_gemm *g, int64_t j) {
  DF_BY_DTYPE(df_gemm_b_dtype(g), short_dots, g, j)
}

void DF_NAME(df_thin_columns)(const df_gemm *g, int64_t begin, int64_t end) {
  static void (*const dots[])(const df_gemm *, int64_t) = {dots_1, dots_2, dots_3, dots_4};
  static void (*const add[])(const df_gemm *, int64_t, int64_t) = {add_1, add_2, add_3, add_4};
  int64_t j = begin;
  if (g->m < 1 || g->m > MOST_ROWS)
    return;
  if (g->b_row == 1 && g->a_col == 1 && (g->b_col != 1 || g->n == 1)) {
    for (; g->k <= SHORT * DF_LANES && j + DF_LANES <= end; j += DF_LANES)
      lanes_of_dots(g, j);
    for (; j + COLUMNS <= end; j += COLUMNS)
      dots[g->m - 1](g, j);
    for (; j < end; j++)
      for (int64_t i = 0; i < g->m; i++)
        single_dot(g, i, j);
    return;
  }
  for (; j < end; j += WIDTH)
    add[g->m - 1](g, j, df_min(WIDTH, end - j));
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const df_gemm *g = context;
  int64_t begin, end;
  df_task_range(index, count, g->n, DF_LANES, &begin, &end);
  DF_NAME(df_thin_columns)(g, begin, end);
}

void DF_NAME(df_thin_run)(const df_call *call, const df_gemm *gemm) {
  df_gemm g = *gemm;
  int64_t most = df_divide_up(g.n, DF_LANES);
  df_parallel(call, run_task, &g, df_max(1, df_min(most, df_task_count(call, g.n * g.k, GRAIN))));
}
