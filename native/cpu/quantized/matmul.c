/* quantized/matmul.c: products of matrices of bytes.
 *
 *   matmul_integer      c = sum over p of (a[..., i, p] - a_zero) (b[..., p, j] - b_zero)
 *   matmul_dequantized  c a_scale b_scale + bias
 *   matmul_requantized  round((c + bias) a_scale b_scale / y_scale) + y_zero, saturated
 *
 * a: (..., M, K), b: (..., K, N) with any strides, leading axes broadcast. Rows are unsigned and
 * read as they lie where they can be; columns are signed, and packed beforehand where b is constant
 * and one matrix. Panels of columns pass over the rows of a task, which stay in the second cache.
 */
#include "gemm/batch.h"
#include "quantized/operands.h"
#include "quantized/pack.h"

enum {
  GRAIN = 256 * 1024,   /* multiply-adds of the smallest task worth a thread's while */
  STAYING = 384 * 1024, /* bytes of rows that stay in the second cache */
  ONE_SET = 1024,       /* bytes from one line to the next of few sets of the first cache */
  COLUMN_VECTORS = 6    /* of a task: sums, and the epilogue's arrays by column */
};

/* How products are split into tasks: each |down| x |across|, by whole panels. */
typedef struct plan {
  df_product_sizes p;
  int64_t steps, height;
  int64_t down, across;
  int64_t rows, columns; /* of a task */
  int64_t group;         /* rows of a task that pass under its columns together */
  int32_t as_it_lies;    /* rows are not packed */
  int32_t prepacked;
  int64_t packed_rows, packed_columns, sums, vectors; /* offsets of a task's scratch, in bytes */
  int64_t scratch;
} plan;

static plan make_plan(df_product_sizes p, int32_t dtype, int32_t prepacked, int32_t threads) {
  plan w = {.p = p, .steps = df_byte_steps(p.k), .prepacked = prepacked};
  w.height = df_byte_height(p.m);
  w.as_it_lies = dtype == DF_UINT8 && p.a.strides[p.a.rank - 1] == 1 && p.k % DF_BYTE_STEP == 0 &&
                 (p.m == 1 || p.a_row % ONE_SET);
  const int64_t panels = df_byte_panels(p.n), heights = df_divide_up(p.m, w.height);
  const int64_t work = df_times(df_times(p.m, p.n), df_times(p.k, p.batch));
  const int64_t tasks = threads > 1 ? df_max(1, df_min(4 * threads, work / GRAIN)) : 1;
  const int64_t each = df_divide_up(tasks, p.batch);
  w.columns = df_divide_up(panels, df_min(panels, each)) * DF_BYTE_COLUMNS;
  w.across = df_divide_up(p.n, w.columns);
  w.rows = df_divide_up(heights, df_min(heights, df_divide_up(each, w.across))) * w.height;
  w.down = df_divide_up(p.m, w.rows);
  const int64_t row = df_byte_row(p.k), together = STAYING / (row * w.height);
  w.group = df_max(1, df_min(w.rows / w.height, together)) * w.height;
  const int64_t padded = df_min(w.columns, panels * DF_BYTE_COLUMNS);
  w.packed_columns = w.as_it_lies ? 0 : df_round_up(w.group * row, 64);
  w.sums = w.packed_columns + (prepacked ? 0 : padded * w.steps * DF_BYTE_STEP);
  w.vectors = w.sums + df_round_up(2 * w.group * (int64_t)sizeof(int32_t), 64);
  w.scratch = w.vectors + padded * COLUMN_VECTORS * (int64_t)sizeof(int32_t);
  return w;
}

static df_product_sizes sizes_of_node(const df_node *node, df_byte_form form) {
  const df_operand *a = node->inputs[0], *b = node->inputs[df_byte_right(form)];
  const df_operand *c = node->outputs[0];
  return df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                             (df_extent){b->shape, b->strides, b->rank},
                             (df_extent){c->shape, c->strides, c->rank}, b->dtype);
}

static df_product_sizes sizes_of_call(const df_byte_operands *o, const df_tensor *c) {
  const df_tensor *a = o->left, *b = o->right;
  return df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                             (df_extent){b->shape, b->strides, b->rank},
                             (df_extent){c->shape, c->strides, c->rank}, b->dtype);
}

/* ---- Prepacked columns: their sums, then panels ---------------------------------------------- */

static int64_t sum_bytes(int64_t n) {
  return df_byte_sum_bytes(df_byte_panels(n) * DF_BYTE_COLUMNS);
}

static int64_t prepacked_bytes(const df_product_sizes *p) {
  const int64_t columns = df_byte_panels(p->n) * DF_BYTE_COLUMNS;
  const int64_t steps = df_byte_steps(p->k);
  return sum_bytes(p->n) + columns * steps * DF_BYTE_STEP +
         df_byte_flag_bytes(df_byte_panels(p->n), steps);
}

static void pack_all(int32_t *sums, uint8_t *panels, const uint8_t *b, const df_product_sizes *p,
                     int64_t columns, int32_t dtype) {
  const int64_t steps = df_byte_steps(p->k);
  df_byte_pack_columns(panels, b, p->b.strides[p->b.rank - 2], p->b.strides[p->b.rank - 1], columns,
                       p->k, df_byte_sign(dtype, 0));
  DF_NAME(df_byte_column_sums)(sums, panels, columns, steps, steps * DF_BYTE_LINE, 0);
}

static void prepack(const df_node *node, const void *source, void *prepacked, df_byte_form form) {
  const df_product_sizes p = sizes_of_node(node, form);
  uint8_t *panels = (uint8_t *)prepacked + sum_bytes(p.n);
  memset(prepacked, 0, (size_t)prepacked_bytes(&p));
  pack_all(prepacked, panels, source, &p, p.n, node->inputs[df_byte_right(form)]->dtype);
  const int64_t count = df_byte_panels(p.n), last = p.n - (count - 1) * DF_BYTE_COLUMNS;
  df_byte_note_panels(prepacked, sum_bytes(p.n), panels, count, df_byte_steps(p.k), DF_BYTE_LINE,
                      df_byte_line(last));
}

static void prepack_second(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  prepack(node, source, prepacked, DF_BYTE_SUMS);
}

static void prepack_fourth(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  prepack(node, source, prepacked, DF_BYTE_FLOATS);
}

/* ---- Running --------------------------------------------------------------------------------- */

typedef struct matmul {
  plan w;
  df_byte_operands o;
  df_byte_epilogue epilogue;
  const uint8_t *prepacked;
  uint8_t *workspace;
} matmul;

/* Fills the vectors by column of columns [j, j + count); the first of them may be |sums|. */
static void fill_vectors(const matmul *c, df_byte_epilogue *e, int32_t *vectors,
                         const int32_t *sums, int64_t j, int64_t count) {
  const df_byte_operands *o = &c->o;
  const int64_t k = c->w.p.k, pitch = df_byte_panels(count) * DF_BYTE_COLUMNS;
  const int by_row = o->left_zero && df_elements(o->left_zero) > 1;
  const int32_t left = by_row ? 0 : df_byte_zero(o->left_zero, 0, o->left->dtype, 1);
  int32_t *add = vectors + pitch, *zero = add + pitch, *rest = zero + pitch;
  float *scale = (float *)(void *)(rest + pitch), *bias = scale + pitch;
  int any = 0;
  memset(add, 0, (size_t)(pitch * (COLUMN_VECTORS - 1)) * sizeof *add);
  for (int64_t i = 0; i < count; i++) {
    zero[i] = df_byte_zero(o->right_zero, j + i, o->right->dtype, 0);
    any |= zero[i];
    rest[i] = (int32_t)((uint32_t)sums[i] - (uint32_t)k * (uint32_t)zero[i]);
    add[i] = (int32_t)((uint32_t)df_byte_bias(o, j + i) - (uint32_t)left * (uint32_t)rest[i]);
  }
  if (o->form != DF_BYTE_SUMS)
    for (int64_t i = 0; i < count; i++)
      scale[i] = df_byte_scale(o, j + i);
  if (o->bias && o->form == DF_BYTE_FLOATS)
    memcpy(bias, (const float *)o->bias->data + j, (size_t)count * sizeof *bias);
  e->column_add = add;
  e->column_zero = any ? zero : NULL;
  e->column_sum = by_row ? rest : NULL;
  e->column_scale = scale;
  e->column_bias = o->bias && o->form == DF_BYTE_FLOATS ? bias : NULL;
}

/* Rows [i, i + rows) by the columns of a task. */
static void multiply_rows(const matmul *c, df_byte_product product, const uint8_t *a, int64_t i,
                          int64_t rows, uint8_t *scratch) {
  const plan *w = &c->w;
  const df_product_sizes *p = &w->p;
  const df_byte_operands *o = &c->o;
  int32_t *row_sums = (int32_t *)(void *)(scratch + w->sums), *row_zeros = row_sums + w->group;
  df_byte_epilogue *e = &product.epilogue;
  product.a = a + i * p->a_row;
  product.a_row = p->a_row;
  if (!w->as_it_lies) {
    df_byte_pack_rows(scratch, product.a, p->a_row, p->a.strides[p->a.rank - 1], rows, p->k,
                      df_byte_sign(o->left->dtype, 1));
    product.a = scratch;
    product.a_row = df_byte_row(p->k);
  }
  product.m = rows;
  product.a_panel = w->height * product.a_row;
  e->out = (char *)e->out + i * e->out_row * (e->form == DF_BYTE_STEPS ? 1 : 4);
  if (e->column_zero) {
    DF_NAME(df_byte_row_sums)(row_sums, product.a, rows, w->steps, product.a_row, 1);
    e->row_sum = row_sums;
  }
  if (e->column_sum) {
    const int64_t m = p->a.shape[p->a.rank - 2];
    for (int64_t row = 0; row < rows; row++)
      row_zeros[row] = df_byte_zero(o->left_zero, (i + row) % m, o->left->dtype, 1);
    e->row_zero = row_zeros;
  }
  DF_NAME(df_byte_multiply)(&product);
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const matmul *c = context;
  const plan *w = &c->w;
  const df_product_sizes *p = &w->p;
  uint8_t *scratch = c->workspace + worker * w->scratch;
  const int64_t matrix = index / (w->down * w->across);
  const int64_t first = index / w->across % w->down * w->rows, j = index % w->across * w->columns;
  const int64_t end = df_min(p->m, first + w->rows), columns = df_min(w->columns, p->n - j);
  const int64_t panel = w->steps * DF_BYTE_LINE, item = c->o.form == DF_BYTE_STEPS ? 1 : 4;
  const uint8_t *a = (const uint8_t *)c->o.left->data + df_batch_offset(p, &p->a, matrix);
  int32_t *vectors = (int32_t *)(void *)(scratch + w->vectors);
  const int32_t *sums = vectors;
  df_byte_product product = {.steps = w->steps,
                             .n = columns,
                             .height = w->height,
                             .a_step = DF_BYTE_STEP,
                             .b_panel = panel,
                             .epilogue = c->epilogue};
  if (c->prepacked) {
    sums = (const int32_t *)(const void *)c->prepacked + j;
    product.b = c->prepacked + sum_bytes(p->n) + j / DF_BYTE_COLUMNS * panel;
    product.crowded = df_byte_noted_panels(c->prepacked, sum_bytes(p->n), df_byte_panels(p->n),
                                           w->steps, DF_BYTE_LINE, j / DF_BYTE_COLUMNS);
  } else {
    const uint8_t *b = (const uint8_t *)c->o.right->data + df_batch_offset_b(p, matrix);
    product.b = scratch + w->packed_columns;
    pack_all(vectors, scratch + w->packed_columns, b + j * p->b.strides[p->b.rank - 1], p, columns,
             c->o.right->dtype);
  }
  fill_vectors(c, &product.epilogue, vectors, sums, j, columns);
  product.epilogue.out = (char *)c->epilogue.out + (df_batch_offset(p, &p->c, matrix) + j) * item;
  for (int64_t i = first; i < end; i += w->group)
    multiply_rows(c, product, a, i, df_min(w->group, end - i), scratch);
}

static df_status run(const df_call *call, df_byte_form form, int32_t relu) {
  matmul c = {.o = df_byte_operands_of(call, form), .workspace = call->workspace};
  const df_product_sizes p = sizes_of_call(&c.o, call->outputs[0]);
  c.prepacked = call->prepacked ? call->prepacked[0] : NULL;
  c.w = make_plan(p, c.o.left->dtype, c.prepacked != NULL, call->threads);
  c.epilogue = df_byte_epilogue_of(&c.o, call->outputs[0]->data, p.c_row, relu);
  df_parallel(call, run_task, &c, p.batch * c.w.down * c.w.across);
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_byte_form form) {
  const int32_t right = df_byte_right(form);
  const df_product_sizes p = sizes_of_node(node, form);
  const int32_t constant = (node->flags >> right & 1) && df_batch_of(&p.b) == 1;
  const plan w = make_plan(p, node->inputs[0]->dtype, constant, node->threads);
  out->workspace = w.scratch * df_workers(node->threads, p.batch * w.down * w.across);
  if (constant) {
    out->replaced = 1 << right;
    df_ask_prepack(out, right, 0, prepacked_bytes(&p),
                   right == 1 ? prepack_second : prepack_fourth);
  }
  return DF_OK;
}

static const char *accepts(const df_node *node, df_byte_form form) {
  const df_operand *b = node->inputs[df_byte_right(form)];
  if (node->inputs[0]->rank < 2 || b->rank < 2)
    return "both operands must have at least two axes";
  const char *reason = df_accepts_elements(node);
  if (reason)
    return reason;
  const df_operand *zero = form == DF_BYTE_SUMS && node->n_inputs > 2 ? node->inputs[2] : NULL;
  const int by_row = zero && zero->dtype != DF_NONE && df_operand_elements(zero) > 1;
  return by_row && sizes_of_node(node, form).row_axis != 2
             ? "rows of a transposed batch have zero points of their own"
             : NULL;
}

DF_BYTE_KERNEL(matmul_integer, DF_BYTE_SUMS, "~u8|i8,~u8|i8,u8|i8?,u8|i8?->i32", 0);
DF_BYTE_KERNEL(matmul_dequantized, DF_BYTE_FLOATS, "~u8|i8,f32,u8|i8,~u8|i8,f32,u8|i8,f32?->f32",
               0);
DF_BYTE_KERNEL(matmul_requantized, DF_BYTE_STEPS,
               "~u8|i8,f32,u8|i8,~u8|i8,f32,u8|i8,f32,u8|i8,f32|i32?->u8|i8",
               df_attr_int(call, DF_MATMUL_REQUANTIZED_RELU) != 0);

DF_KERNELS(quantized_matmul) = {&kernel_matmul_integer, &kernel_matmul_dequantized,
                                &kernel_matmul_requantized, NULL};
