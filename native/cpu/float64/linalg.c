/* float64/linalg.c: c[..., i, j] = sum over p of a[..., i, p] * b[..., p, j], in float64.
 *
 * a: (..., M, K), b: (..., K, N) with any strides, leading axes broadcast; c: (..., M, N)
 * contiguous. 2 M N K operations on 8 (M K + K N + M N) bytes per product. A sum is made in blocks
 * of DF_DOUBLE_STEPS steps, however many threads there are. */
#include "float64/product.h"
#include "gemm/batch.h"

enum {
  GRAIN = 128 * 1024, /* multiply-adds of the smallest task worth a thread's while */
  FEW = 4             /* rows up to which a right operand is read where it lies */
};

typedef struct matmul {
  df_product_sizes p;
  const double *a, *b;
  double *c, *workspace;
  int64_t a_col, b_row, b_col;
  int64_t down, across; /* blocks of a product */
  int64_t width;        /* of a block */
  int64_t scratch;      /* doubles of each worker */
  int32_t lies;         /* b is read as it lies */
} matmul;

static df_product_sizes sizes_of_node(const df_node *node) {
  const df_operand *a = node->inputs[0], *b = node->inputs[1], *c = node->outputs[0];
  return df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                             (df_extent){b->shape, b->strides, b->rank},
                             (df_extent){c->shape, c->strides, c->rank}, b->dtype);
}

static int64_t blocks_down(const df_product_sizes *p) {
  return df_divide_up(p->m, DF_DOUBLE_TASK_ROWS);
}

static int lies(const df_product_sizes *p) {
  return p->m <= FEW && p->b.strides[p->b.rank - 1] == 1;
}

/* Long rows where they are read as they lie: the processor fetches ahead what follows in one. */
static int64_t width_of(const df_product_sizes *p, int32_t threads) {
  const int64_t longest = df_round_up(df_divide_up(p->n, threads), DF_DOUBLE_COLUMNS);
  return lies(p) ? df_max(DF_DOUBLE_BLOCK, longest) : DF_DOUBLE_BLOCK;
}

/* Doubles of each worker. */
static int64_t scratch_of(const df_product_sizes *p) {
  return df_double_panels(p->n, p->k) + df_double_tiles(p->m, p->k);
}

static int64_t tasks_of(const df_product_sizes *p, int32_t threads) {
  const int64_t total = p->batch * blocks_down(p) * df_divide_up(p->n, width_of(p, threads));
  const int64_t work = p->m * p->n * p->k * p->batch;
  return df_max(1, df_min(total, df_min(4 * (int64_t)threads, work / GRAIN)));
}

static void gather_panels(const matmul *m, const double *b, int64_t columns, int64_t steps,
                          double *panels) {
  for (int64_t j = 0; j < columns; j += DF_DOUBLE_COLUMNS) {
    const int64_t width = df_min(DF_DOUBLE_COLUMNS, columns - j);
    double *to = panels + j * steps;
    if (m->b_row == 1 && m->b_col != 1) { /* a column after the other, as they lie */
      for (int64_t t = 0; t < width; t++)
        for (int64_t p = 0; p < steps; p++)
          to[p * DF_DOUBLE_COLUMNS + t] = b[p + (j + t) * m->b_col];
    } else {
      for (int64_t p = 0; p < steps; p++)
        for (int64_t t = 0; t < width; t++)
          to[p * DF_DOUBLE_COLUMNS + t] = b[p * m->b_row + (j + t) * m->b_col];
    }
    for (int64_t p = 0; p < steps && width < DF_DOUBLE_COLUMNS; p++)
      for (int64_t t = width; t < DF_DOUBLE_COLUMNS; t++)
        to[p * DF_DOUBLE_COLUMNS + t] = 0.0;
  }
}

static double dot(const double *a, const double *b, int64_t n) {
  enum { SUMS = 4, STEP = SUMS * DF_DOUBLE_LANES };
  df_double_vec sum[SUMS] = {{0}};
  int64_t p = 0;
  for (; p + STEP <= n; p += STEP)
    for (int s = 0; s < SUMS; s++)
      sum[s] += *(const df_double_vec_unaligned *)(a + p + s * DF_DOUBLE_LANES) *
                *(const df_double_vec_unaligned *)(b + p + s * DF_DOUBLE_LANES);
  const df_double_vec joined = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  double total = 0.0;
  for (int lane = 0; lane < DF_DOUBLE_LANES; lane++)
    total += joined[lane];
  for (; p < n; p++)
    total += a[p] * b[p];
  return total;
}

/* One row of c from rows of b as they lie, of which four are read together. */
static void add_rows(const double *a, int64_t a_col, const double *b, int64_t b_row, int64_t steps,
                     double *c, int64_t columns) {
  for (int64_t j = 0; j < columns; j++)
    c[j] = 0.0;
  for (int64_t p = 0; p < steps; p += 4) {
    const double *row[4];
    double factor[4] = {0.0};
    const int64_t count = df_min(4, steps - p);
    for (int64_t r = 0; r < 4; r++) {
      row[r] = b + (p + df_min(r, count - 1)) * b_row;
      if (r < count)
        factor[r] = a[(p + r) * a_col];
    }
    if (count == 4) {
      DF_IVDEP for (int64_t j = 0; j < columns; j++) c[j] +=
          (factor[0] * row[0][j] + factor[1] * row[1][j]) +
          (factor[2] * row[2][j] + factor[3] * row[3][j]);
    } else {
      for (int64_t r = 0; r < count; r++)
        for (int64_t j = 0; j < columns; j++)
          c[j] += factor[r] * row[r][j];
    }
  }
}

/* One block: rows from |i| on, columns from |j| on. */
static void multiply(const matmul *m, const double *a, const double *b, double *c, int64_t i,
                     int64_t j, double *panels) {
  const df_product_sizes *p = &m->p;
  double *tiles = panels + df_double_panels(p->n, p->k);
  const int64_t rows = df_min(DF_DOUBLE_TASK_ROWS, p->m - i);
  const int64_t columns = df_min(m->width, p->n - j);
  a += i * p->a_row;
  b += j * m->b_col;
  c += i * p->c_row + j;
  if (m->lies) {
    for (int64_t r = 0; r < rows; r++)
      add_rows(a + r * p->a_row, m->a_col, b, m->b_row, p->k, c + r * p->c_row, columns);
    return;
  }
  if (p->m <= FEW && m->b_row == 1 && m->a_col == 1) {
    for (int64_t t = 0; t < columns; t++)
      for (int64_t r = 0; r < rows; r++)
        c[r * p->c_row + t] = dot(a + r * p->a_row, b + t * m->b_col, p->k);
    return;
  }
  for (int64_t q = 0; q < p->k || q == 0; q += DF_DOUBLE_STEPS) {
    const int64_t steps = df_min(DF_DOUBLE_STEPS, p->k - q);
    gather_panels(m, b + q * m->b_row, columns, steps, panels);
    df_double_gather_rows(rows, steps, a + q * m->a_col, p->a_row, m->a_col, tiles);
    df_double_block(rows, columns, steps, tiles, panels, c, p->c_row, q == 0);
  }
}

static void multiply_blocks(void *context, int64_t index, int64_t count, int32_t worker) {
  const matmul *m = context;
  const int64_t blocks = m->down * m->across;
  int64_t at, end;
  df_task_range(index, count, m->p.batch * blocks, 1, &at, &end);
  for (; at < end; at++) {
    const int64_t matrix = at / blocks, block = at % blocks;
    multiply(
        m, m->a + df_batch_offset(&m->p, &m->p.a, matrix), m->b + df_batch_offset_b(&m->p, matrix),
        m->c + df_batch_offset(&m->p, &m->p.c, matrix), block / m->across * DF_DOUBLE_TASK_ROWS,
        block % m->across * m->width, m->workspace + worker * m->scratch);
  }
}

static df_status run(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
  matmul m = {.p = df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                                       (df_extent){b->shape, b->strides, b->rank},
                                       (df_extent){c->shape, c->strides, c->rank}, b->dtype),
              .a = a->data,
              .b = b->data,
              .c = c->data,
              .workspace = call->workspace,
              .a_col = a->strides[a->rank - 1],
              .b_row = b->strides[b->rank - 2],
              .b_col = b->strides[b->rank - 1]};
  m.down = blocks_down(&m.p);
  m.lies = lies(&m.p);
  m.width = width_of(&m.p, call->threads);
  m.across = df_divide_up(m.p.n, m.width);
  m.scratch = scratch_of(&m.p);
  if (m.p.batch * m.down * m.across > 0)
    df_parallel(call, multiply_blocks, &m, tasks_of(&m.p, call->threads));
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_product_sizes p = sizes_of_node(node);
  out->workspace = scratch_of(&p) * (int64_t)sizeof(double) *
                   df_workers(node->threads, tasks_of(&p, node->threads));
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  if (node->inputs[0]->rank < 2 || node->inputs[1]->rank < 2)
    return "both operands must have at least two axes";
  return NULL;
}

DF_KERNELS(matmul_float64) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                 .op = "matmul",
                                                 .name = "matmul f64 " DF_TEXT(DF_ISA),
                                                 .operands = "~f64,~f64->f64",
                                                 .accepts = accepts,
                                                 .prepare = prepare,
                                                 .run = run},
                              NULL};
