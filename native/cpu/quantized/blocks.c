/* quantized/blocks.c: products with a weight of 4 or 8 bits, quantized in blocks along its rows.
 *
 *   matmul_blocks        y[..., i, n] = sum over p of a[..., i, p] w[n][p]
 *   matmul_blocks, transposed           sum over p of a[..., i, p] w[p][n]
 *
 * a: (..., M, K) with any strides. Many rows pass over panels into which blocks are dequantized
 * (gemm/blocks.h), a few read the weight where it lies (quantized/blocks_thin.h).
 */
#include "gemm/batch.h"
#include "gemm/float32.h"
#include "quantized/blocks_thin.h"

enum { GRAIN = 128 * 1024 }; /* multiply-adds of the smallest task worth a thread's while */

typedef struct product {
  df_product_sizes p;
  df_block_weight weight;
  df_gemm gemm;
  df_gemm_split split;
  int64_t total;
  float *workspace;
} product;

static int32_t log2_of(int64_t block) {
  int32_t shift = 0;
  while (INT64_C(1) << shift < block)
    shift++;
  return shift;
}

/* The sizes of a product; the strides of the weight count elements of rows without padding. */
static df_product_sizes sizes_of(df_extent a, df_extent c, const int64_t *shape,
                                 const int64_t *strides) {
  return df_product_sizes_of(a, (df_extent){shape, strides, 2}, c, DF_FLOAT32);
}

static void weight_extent(int64_t rows, int64_t size, int transposed, int64_t shape[2],
                          int64_t strides[2]) {
  shape[0] = transposed ? rows : size;
  shape[1] = transposed ? size : rows;
  strides[0] = transposed ? size : 1;
  strides[1] = transposed ? 1 : size;
}

static int is_thin(const df_product_sizes *p, int transposed) {
  return !transposed && p->batch == 1 && DF_NAME(df_blocks_thin_takes)(p->m);
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const product *c = context;
  const int64_t tasks = c->split.down * c->split.across, matrix = index / tasks;
  df_gemm gemm = c->gemm;
  if (matrix) {
    gemm.a += df_batch_offset(&c->p, &c->p.a, matrix);
    gemm.c += df_batch_offset(&c->p, &c->p.c, matrix);
  }
  DF_NAME(df_gemm_float32_task)
  (&gemm, &c->split, index % tasks, c->workspace + worker * c->split.scratch);
}

/* ---- The kernel ----------------------------------------------------------------------------- */

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *a = node->inputs[0], *b = node->inputs[1], *c = node->outputs[0];
  const int transposed = df_attr_int(node, DF_MATMUL_BLOCKS_TRANSPOSED) != 0;
  int64_t shape[2], strides[2];
  weight_extent(b->shape[0], df_attr_int(node, DF_MATMUL_BLOCKS_SIZE), transposed, shape, strides);
  const df_product_sizes p = sizes_of((df_extent){a->shape, a->strides, a->rank},
                                      (df_extent){c->shape, c->strides, c->rank}, shape, strides);
  if (is_thin(&p, transposed)) {
    const int64_t block = df_attr_int(node, DF_MATMUL_BLOCKS_BLOCK);
    out->workspace = DF_NAME(df_blocks_thin_bytes)(p.m, b->shape[1] * block);
    return DF_OK;
  }
  const df_gemm_split split = DF_NAME(df_gemm_blocks_split)(p.m, p.n, p.k, p.batch, node->threads);
  out->workspace = split.scratch * (int64_t)sizeof(float) *
                   df_workers(node->threads, p.batch * split.down * split.across);
  return DF_OK;
}

static df_status run(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1], *y = call->outputs[0];
  const df_tensor *zero =
      call->n_inputs > 3 && call->inputs[3]->dtype != DF_NONE ? call->inputs[3] : NULL;
  const int transposed = df_attr_int(call, DF_MATMUL_BLOCKS_TRANSPOSED) != 0;
  const int64_t size = df_attr_int(call, DF_MATMUL_BLOCKS_SIZE), count = b->shape[1];
  int64_t shape[2], strides[2];
  weight_extent(b->shape[0], size, transposed, shape, strides);
  product c = {.p = sizes_of((df_extent){a->shape, a->strides, a->rank},
                             (df_extent){y->shape, y->strides, y->rank}, shape, strides),
               .weight = {.bytes = b->data,
                          .scale = call->inputs[2]->data,
                          .zero = zero ? zero->data : NULL,
                          .size = size,
                          .count = count,
                          .row = count * b->shape[2],
                          .zero_row = zero ? zero->shape[1] : 0,
                          .bits = (int32_t)df_attr_int(call, DF_MATMUL_BLOCKS_BITS),
                          .shift = log2_of(df_attr_int(call, DF_MATMUL_BLOCKS_BLOCK)),
                          .across = transposed},
               .workspace = call->workspace};
  const df_product_sizes *p = &c.p;
  c.gemm = (df_gemm){.c = y->data,
                     .a = a->data,
                     .blocks = &c.weight,
                     .m = p->m,
                     .n = p->n,
                     .k = p->k,
                     .c_row = p->c_row,
                     .a_row = p->a_row,
                     .a_col = p->a.strides[p->a.rank - 1],
                     .b_row = strides[0],
                     .b_col = strides[1]};
  if (p->m * p->n * p->batch == 0)
    return DF_OK;
  if (is_thin(p, transposed)) {
    DF_NAME(df_blocks_thin_run)(call, &c.gemm, call->workspace);
    return DF_OK;
  }
  c.split = DF_NAME(df_gemm_blocks_split)(p->m, p->n, p->k, p->batch, call->threads);
  c.total = p->batch * c.split.down * c.split.across;
  if (p->m * p->n * p->k * p->batch <= GRAIN)
    for (int64_t index = 0; index < c.total; index++)
      run_task(&c, index, c.total, 0);
  else
    df_parallel(call, run_task, &c, c.total);
  return DF_OK;
}

DF_KERNELS(quantized_blocks) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                   .op = "matmul_blocks",
                                                   .name = "matmul_blocks " DF_TEXT(DF_ISA),
                                                   .operands = "~f32,u8,f32,u8?->f32",
                                                   .prepare = prepare,
                                                   .run = run},
                                NULL};
