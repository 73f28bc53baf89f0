/* gemm/thin.c: c = a b for up to four rows of a. There is one multiply-add per row and element of
 * b, so reading b is all that counts: nothing is packed.
 *
 * Where the columns of b lie together, a task takes dot products, some columns at a time, a vector
 * of them where they are short; where the rows do, it adds rows of b times elements of a. In both
 * cases k goes in blocks whose sums are added up on their own, so that rounding does not grow with
 * k. Tasks of a large product that adds rows are such blocks, which are read from begin to end. */
#include "gemm/thin.h"
#include "simd/half.h"

enum {
  MOST_ROWS = 4,
  COLUMNS = 4,       /* dot products at a time: as many streams from memory */
  SHORT = 8,         /* vectors of a dot product whose lanes take as long to add up */
  K_BLOCK = 2048,    /* of a dot product, distributed over lanes */
  K_STEPS = 256,     /* of a column's sum, one after the other */
  STEPS = 8,         /* of them at a time, as memory is read best */
  SOME = 4,          /* of them where fewer are left */
  WIDTH = 1024,      /* columns whose sums lie on the stack */
  WIDEST = 4096,     /* columns whose sums stay in the cache while a block's steps are added */
  GRAIN = 64 * 1024, /* elements of b of the smallest task worth a thread's while */
  LARGE = 256 * 1024 /* of one whose rows are long enough, or whole */
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

/* sums[i][j] += sum over |steps| steps, at most |most|, from |p| on, of a[i][step] times
 * b[step][j]: what is read of b is there for all rows. */
THIN_INLINE void add_steps(int rows, int most, float *sums, int64_t sums_row, const float *a,
                           const df_gemm *g, const void *b, int64_t p, int64_t steps,
                           int64_t columns, int32_t dtype) {
  df_vec left[MOST_ROWS][STEPS] = {{{0}}}, right[STEPS];
  int64_t from[STEPS];
#pragma GCC unroll 8
  for (int s = 0; s < most; s++) {
    const int64_t step = p + (s < steps ? s : 0);
    from[s] = step * g->b_row;
    right[s] = vec_zero();
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
      left[i][s] = vec_splat(a[i * g->a_row + step * g->a_col]);
  }
  for (int64_t j = 0; j < columns; j += DF_LANES) {
    int64_t count = columns - j;
#pragma GCC unroll 8
    for (int s = 0; s < most; s++)
      if (s < steps)
        right[s] = count >= DF_LANES ? vec_load_from(b, from[s] + j, dtype)
                                     : vec_load_partial_from(b, from[s] + j, count, dtype);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
      df_vec sum = vec_load(sums + i * sums_row + j);
#pragma GCC unroll 8
      for (int s = 0; s < most; s++)
        if (s < steps)
          sum += left[i][s] * right[s];
      vec_store(sums + i * sums_row + j, sum);
    }
  }
}

/* Sums over steps [from, end) of columns [begin, begin + columns) of all rows, b_col == 1, in
 * order. Whole vectors of them are written. */
THIN_INLINE void add_rows(int rows, const df_gemm *g, float *sums, int64_t sums_row, int64_t from,
                          int64_t end, int64_t begin, int64_t columns, int32_t dtype) {
  const void *b = df_gemm_b(g, begin);
  int64_t p = from;
  for (int i = 0; i < rows; i++)
    memset(sums + i * sums_row, 0, (size_t)df_round_up(columns, DF_LANES) * sizeof(float));
  for (; p + STEPS <= end; p += STEPS)
    add_steps(rows, STEPS, sums, sums_row, g->a, g, b, p, STEPS, columns, dtype);
  if (p + SOME <= end) {
    add_steps(rows, SOME, sums, sums_row, g->a, g, b, p, SOME, columns, dtype);
    p += SOME;
  }
  if (p < end)
    for (int i = 0; i < rows; i++)
      add_steps(1, SOME, sums + i * sums_row, sums_row, g->a + i * g->a_row, g, b, p,
                df_min(SOME, end - p), columns, dtype);
}

/* ---- Tasks ---------------------------------------------------------------------------------- */

/* Functions for each number of rows: the time to compile grows faster than a function. */
#define ROWS(rows)                                                                                 \
  static __attribute__((noinline)) void dots_##rows(const df_gemm *g, int64_t j) {                 \
    DF_BY_DTYPE(df_gemm_b_dtype(g), dot, rows, COLUMNS, g, 0, j)                                   \
  }                                                                                                \
  static __attribute__((noinline)) void add_##rows(const df_gemm *g, float *sums,                  \
                                                   int64_t sums_row, int64_t from, int64_t end,    \
                                                   int64_t begin, int64_t columns) {               \
    DF_BY_DTYPE(df_gemm_b_dtype(g), add_rows, rows, g, sums, sums_row, from, end, begin, columns)  \
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

/* What adds rows of b, by the rows of a. */
typedef void (*adder)(const df_gemm *g, float *sums, int64_t sums_row, int64_t from, int64_t end,
                      int64_t begin, int64_t columns);
static adder adder_of(const df_gemm *g) {
  static const adder adders[MOST_ROWS] = {add_1, add_2, add_3, add_4};
  DF_ASSUME(g->m >= 1 && g->m <= MOST_ROWS);
  return adders[g->m - 1];
}

static int takes_dots(const df_gemm *g) {
  return g->b_row == 1 && g->a_col == 1 && (g->b_col != 1 || g->n == 1);
}

/* Columns [begin, begin + columns), at most WIDTH, of all rows. */
static void add_blocks(const df_gemm *g, int64_t begin, int64_t columns) {
  float total[MOST_ROWS][WIDTH], sums[MOST_ROWS][WIDTH];
  const int64_t floats = df_round_up(columns, DF_LANES);
  const adder add = adder_of(g);
  for (int64_t i = 0; i < g->m; i++)
    memset(total[i], 0, (size_t)floats * sizeof(float));
  for (int64_t from = 0; from < g->k; from += K_STEPS) {
    add(g, sums[0], WIDTH, from, df_min(g->k, from + K_STEPS), begin, columns);
    for (int64_t i = 0; i < g->m; i++)
      for (int64_t j = 0; j < floats; j++)
        total[i][j] += sums[i][j];
  }
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = 0; j < columns; j++)
      store(g, i, begin + j, total[i][j]);
}

void DF_NAME(df_thin_columns)(const df_gemm *g, int64_t begin, int64_t end) {
  static void (*const dots[])(const df_gemm *, int64_t) = {dots_1, dots_2, dots_3, dots_4};
  int64_t j = begin;
  if (g->m < 1 || g->m > MOST_ROWS)
    return;
  if (takes_dots(g)) {
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
    add_blocks(g, j, df_min(WIDTH, end - j));
}

static void run_columns(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const df_gemm *g = context;
  int64_t begin, end;
  df_task_range(index, count, g->n, DF_LANES, &begin, &end);
  DF_NAME(df_thin_columns)(g, begin, end);
}

/* ---- Sums of blocks ------------------------------------------------------------------------- */

/* Tasks by columns would read some of each row, over and over jump to the next, and what the
 * processor fetches ahead ends there. So they share the blocks of k, whose rows lie together: the
 * sums of each block are kept, and added up in the order of blocks when all are there. */
typedef struct block_sums {
  const df_gemm *gemm;
  float *sums; /* of a block after another, of a row of a after another */
  int64_t row; /* floats of a row of them */
} block_sums;

static int64_t blocks_of(int64_t k) { return df_divide_up(k, K_STEPS); }

/* Columns that fill no vector would take as much of it as one, and lie together anyway. */
int64_t DF_NAME(df_thin_floats)(int64_t m, int64_t n, int64_t k, int64_t b_col) {
  if (b_col != 1 || n < DF_LANES || k <= K_STEPS || n < (2 * GRAIN) / k)
    return 0;
  return m * blocks_of(k) * df_round_up(n, DF_LANES);
}

/* All columns of a block after another are the range of the tasks. */
static void run_blocks(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const block_sums *all = context;
  const df_gemm *g = all->gemm;
  const adder add = adder_of(g);
  int64_t at, end;
  df_task_range(index, count, blocks_of(g->k) * all->row, DF_LANES, &at, &end);
  while (at < end) {
    const int64_t block = at / all->row, begin = at % all->row, from = block * K_STEPS;
    const int64_t floats = df_min(df_min(WIDEST, all->row - begin), end - at);
    add(g, all->sums + block * g->m * all->row + begin, all->row, from,
        df_min(g->k, from + K_STEPS), begin, df_min(floats, g->n - begin));
    at += floats;
  }
}

static void add_up(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const block_sums *all = context;
  const df_gemm *g = all->gemm;
  int64_t begin, end;
  df_task_range(index, count, all->row, DF_LANES, &begin, &end);
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = begin; j < end; j += DF_LANES) {
      df_vec total = vec_zero();
      for (int64_t block = 0; block < blocks_of(g->k); block++)
        total += vec_load(all->sums + (block * g->m + i) * all->row + j);
      const int64_t columns = df_min(DF_LANES, g->n - j);
      if (g->epilogue.column_bias)
        total += vec_load_partial(g->epilogue.column_bias + j, columns);
      vec_store_partial(g->c + i * g->c_row + j, vec_activate(total, g->epilogue.high), columns);
    }
}

/* Of at least LARGE elements of b, unless threads would have nothing to do. */
static int64_t tasks_of(const df_call *call, int64_t elements) {
  return df_max(df_task_count(call, elements, LARGE),
                df_min(call->threads, df_max(1, elements / GRAIN)));
}

void DF_NAME(df_thin_run)(const df_call *call, const df_gemm *gemm) {
  df_gemm g = *gemm;
  const int64_t elements = g.n * g.k;
  if (DF_NAME(df_thin_floats)(g.m, g.n, g.k, g.b_col)) {
    block_sums all = {.gemm = &g, .sums = call->workspace, .row = df_round_up(g.n, DF_LANES)};
    df_parallel(call, run_blocks, &all, tasks_of(call, elements));
    df_parallel(call, add_up, &all, df_task_count(call, g.m * blocks_of(g.k) * g.n, GRAIN));
    return;
  }
  const int64_t most = df_max(1, df_divide_up(g.n, DF_LANES));
  df_parallel(call, run_columns, &g, df_min(most, df_task_count(call, elements, GRAIN)));
}
