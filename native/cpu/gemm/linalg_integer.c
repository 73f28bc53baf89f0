/* gemm/linalg_integer.c: c[..., i, j] = sum over p of a[..., i, p] * b[..., p, j] of integers,
 * wrapped around.
 *
 * a: (..., M, K), b: (..., K, N) with any strides, leading axes broadcast; c: (..., M, N)
 * contiguous. 2 M N K operations on M K + K N + M N elements per product; integers with a sign have
 * the bits of those without. Some steps of a panel of two vectors of columns are copied to the
 * stack, and the sums of four rows by it stay in registers. Of few rows b is read where it lies. */
#include "gemm/batch.h"
#include "simd/vector.h"

enum {
  GRAIN = 64 * 1024, /* multiply-adds of the smallest task worth a thread's while */
  FEW = 2,           /* rows up to which a right operand is read where it lies */
  ROWS = 4,          /* of a tile */
  STEPS = 128,       /* of a panel: it stays in the first cache */
  BLOCK_ROWS = 64,
  BLOCK_COLUMNS = 512
};

typedef struct product {
  df_product_sizes p;
  const void *a, *b;
  void *c;
  int64_t a_col, b_row, b_col;
  int64_t down, across; /* blocks of a product */
} product;

#define INTEGER_INLINE static inline __attribute__((always_inline))

/* Of a type |T| without sign of so many |bits|: the product's task. Single elements are multiplied
 * in |W|, in which nothing overflows that has a sign. */
#define DEFINE_PRODUCT(bits, T, W)                                                                 \
  typedef T vec_##bits __attribute__((vector_size(DF_LANES * 4)));                                 \
  typedef T vec_##bits##_unaligned                                                                 \
      __attribute__((vector_size(DF_LANES * 4), aligned(sizeof(T)), may_alias));                   \
  enum { LANES_##bits = DF_LANES * 4 / sizeof(T) };                                                \
                                                                                                   \
  /* |steps| rows of |columns| columns, into rows of so many |vectors|. */                         \
  static void fill_panel_##bits(const product *m, const T *b, int64_t steps, int64_t columns,      \
                                int64_t vectors, T *panel) {                                       \
    const int64_t width = vectors * LANES_##bits;                                                  \
    if (m->b_row == 1 && m->b_col != 1) { /* a column after the other, as they lie */              \
      for (int64_t j = 0; j < columns; j++)                                                        \
        for (int64_t p = 0; p < steps; p++)                                                        \
          panel[p * width + j] = b[p + j * m->b_col];                                              \
    } else if (m->b_col == 1 && columns == width) {                                                \
      for (int64_t p = 0; p < steps; p++)                                                          \
        memcpy(panel + p * width, b + p * m->b_row, (size_t)width * sizeof(T));                    \
      return;                                                                                      \
    } else {                                                                                       \
      for (int64_t p = 0; p < steps; p++)                                                          \
        for (int64_t j = 0; j < columns; j++)                                                      \
          panel[p * width + j] = b[p * m->b_row + j * m->b_col];                                   \
    }                                                                                              \
    for (int64_t p = 0; p < steps; p++)                                                            \
      for (int64_t j = columns; j < width; j++)                                                    \
        panel[p * width + j] = 0;                                                                  \
  }                                                                                                \
                                                                                                   \
  /* |rows| rows of c by a panel; |begins|: their sums begin here, else they go on. */             \
  INTEGER_INLINE void tile_##bits(const int rows, const int vectors, int64_t steps, const T *a,    \
                                  int64_t a_row, int64_t a_col, const T *panel, T *c,              \
                                  int64_t c_row, int64_t columns, int begins) {                    \
    vec_##bits sum[ROWS][2];                                                                       \
    for (int i = 0; i < rows; i++)                                                                 \
      for (int v = 0; v < vectors; v++)                                                            \
        sum[i][v] = (vec_##bits){0};                                                               \
    for (int64_t p = 0; p < steps; p++) {                                                          \
      const vec_##bits##_unaligned *from =                                                         \
          (const vec_##bits##_unaligned *)(panel + p * vectors * LANES_##bits);                    \
      for (int i = 0; i < rows; i++) {                                                             \
        const vec_##bits factor = a[i * a_row + p * a_col] - (vec_##bits){0};                      \
        for (int v = 0; v < vectors; v++)                                                          \
          sum[i][v] += factor * from[v];                                                           \
      }                                                                                            \
    }                                                                                              \
    for (int i = 0; i < rows; i++) {                                                               \
      T *to = c + i * c_row;                                                                       \
      if (columns == vectors * LANES_##bits) {                                                     \
        vec_##bits##_unaligned *stored = (vec_##bits##_unaligned *)to;                             \
        for (int v = 0; v < vectors; v++)                                                          \
          stored[v] = begins ? sum[i][v] : sum[i][v] + stored[v];                                  \
      } else {                                                                                     \
        T sums[2 * LANES_##bits] = {0};                                                            \
        for (int v = 0; v < vectors; v++)                                                          \
          *(vec_##bits##_unaligned *)(sums + v * LANES_##bits) = sum[i][v];                        \
        for (int64_t j = 0; j < columns; j++)                                                      \
          to[j] = (T)(begins ? sums[j] : to[j] + sums[j]);                                         \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  INTEGER_INLINE void tiles_##bits(const int vectors, const product *m, const T *a, const T *b,    \
                                   T *c, int64_t rows, int64_t columns) {                          \
    const df_product_sizes *s = &m->p;                                                             \
    _Alignas(64) T panel[STEPS * 2 * LANES_##bits];                                                \
    for (int64_t q = 0; q < s->k || q == 0; q += STEPS) {                                          \
      const int64_t steps = df_min(STEPS, s->k - q);                                               \
      fill_panel_##bits(m, b + q * m->b_row, steps, columns, vectors, panel);                      \
      const T *left = a + q * m->a_col;                                                            \
      int64_t i = 0;                                                                               \
      for (; i + ROWS <= rows; i += ROWS)                                                          \
        tile_##bits(ROWS, vectors, steps, left + i * s->a_row, s->a_row, m->a_col, panel,          \
                    c + i * s->c_row, s->c_row, columns, q == 0);                                  \
      for (; i < rows; i++)                                                                        \
        tile_##bits(1, vectors, steps, left + i * s->a_row, s->a_row, m->a_col, panel,             \
                    c + i * s->c_row, s->c_row, columns, q == 0);                                  \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* One row of c from rows of b as they lie, of which four are read together. */                  \
  static void add_rows_##bits(const product *m, const T *a, const T *b, T *restrict c,             \
                              int64_t columns) {                                                   \
    int64_t p = 0;                                                                                 \
    memset(c, 0, (size_t)columns * sizeof *c);                                                     \
    for (; p + 4 <= m->p.k; p += 4) {                                                              \
      const T *row = b + p * m->b_row, *left = a + p * m->a_col;                                   \
      const T *second = row + m->b_row, *third = second + m->b_row, *fourth = third + m->b_row;    \
      const W f[4] = {left[0], left[m->a_col], left[2 * m->a_col], left[3 * m->a_col]};            \
      for (int64_t j = 0; j < columns; j++)                                                        \
        c[j] = (T)(c[j] + f[0] * row[j] + f[1] * second[j] + f[2] * third[j] + f[3] * fourth[j]);  \
    }                                                                                              \
    for (; p < m->p.k; p++)                                                                        \
      for (int64_t j = 0; j < columns; j++)                                                        \
        c[j] = (T)(c[j] + (W)a[p * m->a_col] * b[p * m->b_row + j]);                               \
  }                                                                                                \
                                                                                                   \
  /* One column of c, of rows of a that lie beside each other. */                                  \
  static void dot_rows_##bits(const product *m, const T *a, const T *b, T *c, int64_t rows) {      \
    for (int64_t r = 0; r < rows; r++) {                                                           \
      W sum = 0;                                                                                   \
      for (int64_t p = 0; p < m->p.k; p++)                                                         \
        sum += (W)a[r * m->p.a_row + p] * b[p];                                                    \
      c[r * m->p.c_row] = (T)sum;                                                                  \
    }                                                                                              \
  }                                                                                                \
                                                                                                   \
  /* Rows from |i| on, columns from |j| on. */                                                     \
  static void block_##bits(const product *m, const T *a, const T *b, T *c, int64_t i, int64_t j) { \
    const df_product_sizes *s = &m->p;                                                             \
    const int64_t rows = df_min(BLOCK_ROWS, s->m - i), end = df_min(j + BLOCK_COLUMNS, s->n);      \
    a += i * s->a_row;                                                                             \
    c += i * s->c_row;                                                                             \
    if (s->n == 1 && m->a_col == 1 && m->b_row == 1) {                                             \
      dot_rows_##bits(m, a, b, c, rows);                                                           \
      return;                                                                                      \
    }                                                                                              \
    if (s->m <= FEW && m->b_col == 1) {                                                            \
      for (int64_t r = 0; r < rows; r++)                                                           \
        add_rows_##bits(m, a + r * s->a_row, b + j, c + r * s->c_row + j, end - j);                \
      return;                                                                                      \
    }                                                                                              \
    for (; j + LANES_##bits < end; j += 2 * LANES_##bits)                                          \
      tiles_##bits(2, m, a, b + j * m->b_col, c + j, rows, df_min(2 * LANES_##bits, end - j));     \
    if (j < end)                                                                                   \
      tiles_##bits(1, m, a, b + j * m->b_col, c + j, rows, end - j);                               \
  }                                                                                                \
                                                                                                   \
  static void task_##bits(void *context, int64_t index, int64_t count, int32_t worker) {           \
    (void)worker;                                                                                  \
    const product *m = context;                                                                    \
    const int64_t blocks = m->down * m->across;                                                    \
    int64_t at, end;                                                                               \
    df_task_range(index, count, m->p.batch * blocks, 1, &at, &end);                                \
    for (; at < end; at++) {                                                                       \
      const int64_t matrix = at / blocks, block = at % blocks;                                     \
      block_##bits(m, (const T *)m->a + df_batch_offset(&m->p, &m->p.a, matrix),                   \
                   (const T *)m->b + df_batch_offset_b(&m->p, matrix),                             \
                   (T *)m->c + df_batch_offset(&m->p, &m->p.c, matrix),                            \
                   block / m->across * BLOCK_ROWS, block % m->across * BLOCK_COLUMNS);             \
    }                                                                                              \
  }                                                                                                \
  static df_status run_##bits(const df_call *call) { return run(call, task_##bits); }

static df_status run(const df_call *call, df_task task) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
  product m = {.p = df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                                        (df_extent){b->shape, b->strides, b->rank},
                                        (df_extent){c->shape, c->strides, c->rank}, b->dtype),
               .a = a->data,
               .b = b->data,
               .c = c->data,
               .a_col = a->strides[a->rank - 1],
               .b_row = b->strides[b->rank - 2],
               .b_col = b->strides[b->rank - 1]};
  m.down = df_divide_up(m.p.m, BLOCK_ROWS);
  m.across = df_divide_up(m.p.n, BLOCK_COLUMNS);
  const int64_t blocks = m.p.batch * m.down * m.across;
  const int64_t work = df_times(df_times(m.p.m, m.p.n), df_times(m.p.k, m.p.batch));
  if (blocks > 0)
    df_parallel(call, task, &m, df_min(blocks, df_task_count(call, work, GRAIN)));
  return DF_OK;
}

DEFINE_PRODUCT(8, uint8_t, uint32_t)
DEFINE_PRODUCT(16, uint16_t, uint32_t)
DEFINE_PRODUCT(32, uint32_t, uint32_t)
DEFINE_PRODUCT(64, uint64_t, uint64_t)

static const char *accepts(const df_node *node) {
  if (node->inputs[0]->rank < 2 || node->inputs[1]->rank < 2)
    return "both operands must have at least two axes";
  return NULL;
}

#define RECORD(type, bits)                                                                         \
  DF_KERNEL_IF("matmul", #type, "~" #type ",~" #type "->" #type, NULL, accepts, run_##bits)
DF_KERNELS(matmul_of_integers) = {RECORD(i8, 8),   RECORD(u8, 8),   RECORD(i16, 16),
                                  RECORD(u16, 16), RECORD(i32, 32), RECORD(u32, 32),
                                  RECORD(i64, 64), RECORD(u64, 64), NULL};
