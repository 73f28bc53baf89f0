/* gemm/linalg.c: c[..., i, j] = sum over p of a[..., i, p] * b[..., p, j].
 *
 * a: (..., M, K), b: (..., K, N) with any strides, leading axes broadcast; c: (..., M, N)
 * contiguous. 2 M N K operations on 4 (M K + K N + M N) bytes per product, and 2 K N less where b
 * has 16 bits. */
#include "gemm/linalg.h"
#include "gemm/batch.h"
#include "gemm/float32.h"
#include "gemm/thin.h"

/* Multiply-adds of the smallest task worth a thread's while. */
enum { GRAIN = 128 * 1024 };

static df_product_sizes product_of_node(const df_node *node) {
  const df_operand *a = node->inputs[0], *b = node->inputs[1], *c = node->outputs[0];
  return df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                             (df_extent){b->shape, b->strides, b->rank},
                             (df_extent){c->shape, c->strides, c->rank}, b->dtype);
}

static df_product_sizes product_of_call(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
  return df_product_sizes_of((df_extent){a->shape, a->strides, a->rank},
                             (df_extent){b->shape, b->strides, b->rank},
                             (df_extent){c->shape, c->strides, c->rank}, b->dtype);
}

static int is_thin(const df_product_sizes *p) {
  return p->batch == 1 &&
         DF_NAME(df_thin_takes)(p->m, p->a.strides[p->a.rank - 1], p->b.strides[p->b.rank - 2],
                                p->b.strides[p->b.rank - 1]);
}

/* AMX tiles are packed from float32. */
static df_gemm_split split_of(const df_product_sizes *p, int32_t threads, int32_t precision) {
  if (p->b_dtype != DF_FLOAT32)
    return DF_NAME(df_gemm_float32_split)(p->m, p->n, p->k, p->batch, threads);
  return DF_NAME(df_gemm_split_for)(p->m, p->n, p->k, p->batch, threads, precision);
}

/* How many tasks of the split are done as one: all of a small product. */
static int64_t group_of(const df_product_sizes *p, const df_gemm_split *split, int32_t threads) {
  const int64_t tasks = split->down * split->across, total = df_max(1, p->batch * tasks);
  if (p->m * p->n * p->k * p->batch <= GRAIN)
    return total;
  const int64_t work = df_divide_up(p->m * p->n * df_max(p->k, 1), tasks);
  return df_max(1, df_min(df_divide_up(total, threads), GRAIN / df_max(1, work)));
}

/* ---- Running -------------------------------------------------------------------------------- */

typedef struct matmul_context {
  df_product_sizes p;
  df_gemm gemm; /* of the first matrices */
  df_gemm_split split;
  int64_t group; /* tasks of the split done as one */
  int64_t total;
  float *workspace;
} matmul_context;

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const matmul_context *matmul = context;
  int64_t tasks = matmul->split.down * matmul->split.across;
  int64_t end = df_min(matmul->total, (index + 1) * matmul->group);
  for (int64_t at = index * matmul->group; at < end; at++) {
    df_gemm gemm = matmul->gemm;
    int64_t matrix = at / tasks;
    if (matrix) {
      gemm.a += df_batch_offset(&matmul->p, &matmul->p.a, matrix);
      df_gemm_advance_b(&gemm, df_batch_offset_b(&matmul->p, matrix));
      gemm.c += df_batch_offset(&matmul->p, &matmul->p.c, matrix);
    }
    DF_NAME(df_gemm_task)(&gemm, &matmul->split, at % tasks,
                          matmul->workspace + worker * matmul->split.scratch);
  }
}

df_status DF_NAME(df_matmul_run)(const df_call *call, const float *bias, float high) {
  matmul_context matmul = {.p = product_of_call(call), .workspace = call->workspace};
  const df_product_sizes *p = &matmul.p;
  matmul.gemm = (df_gemm){.c = call->outputs[0]->data,
                          .a = call->inputs[0]->data,
                          .b = p->b_dtype == DF_FLOAT32 ? call->inputs[1]->data : NULL,
                          .b16 = p->b_dtype == DF_FLOAT32 ? NULL : call->inputs[1]->data,
                          .b16_dtype = p->b_dtype,
                          .m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .c_row = p->c_row,
                          .a_row = p->a_row,
                          .a_col = p->a.strides[p->a.rank - 1],
                          .b_row = p->b.strides[p->b.rank - 2],
                          .b_col = p->b.strides[p->b.rank - 1],
                          .epilogue = {.column_bias = bias, .high = high},
                          .prepacked = call->prepacked ? call->prepacked[0] : NULL};
  if (matmul.gemm.prepacked) { /* b may have no memory */
    matmul.gemm.b = NULL;
    matmul.gemm.b_row = matmul.gemm.b_col = 0;
  }
  if (is_thin(p)) {
    DF_NAME(df_thin_run)(call, &matmul.gemm);
    return DF_OK;
  }
  matmul.split = split_of(p, call->threads, (int32_t)(intptr_t)call->state);
  matmul.total = p->batch * matmul.split.down * matmul.split.across;
  matmul.group = group_of(p, &matmul.split, call->threads);
  df_parallel(call, run_task, &matmul, df_divide_up(matmul.total, matmul.group));
  return DF_OK;
}

/* Copies of input 1 that are asked for where it is constant and one matrix. */
enum { AMX_TILES, PANELS };

static df_gemm weight_of(const df_node *node, const void *source) {
  const df_product_sizes p = product_of_node(node);
  return (df_gemm){.b = source,
                   .n = p.n,
                   .k = p.k,
                   .b_row = p.b.strides[p.b.rank - 2],
                   .b_col = p.b.strides[p.b.rank - 1]};
}

static void prepack_tiles(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  const df_gemm gemm = weight_of(node, source);
  DF_NAME(df_gemm_prepack)(&gemm, prepacked);
}

static void prepack_panels(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  const df_gemm gemm = weight_of(node, source);
  DF_NAME(df_gemm_float32_prepack)(&gemm, prepacked);
}

static void ask_prepack(const df_product_sizes *p, const df_gemm_split *split, df_prepared *out) {
  int64_t bytes = DF_NAME(df_gemm_prepack_bytes)(split, p->n, p->k);
  if (bytes)
    df_ask_prepack(out, 1, AMX_TILES, bytes, prepack_tiles);
  else if (!split->terms && p->b_dtype == DF_FLOAT32) {
    bytes = DF_NAME(df_gemm_float32_prepack_bytes)(p->m, p->n, p->k, p->b.strides[p->b.rank - 1]);
    if (bytes)
      df_ask_prepack(out, 1, PANELS, bytes, prepack_panels);
  }
  if (bytes)
    out->replaced = 1 << 1;
}

df_status DF_NAME(df_matmul_prepare)(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  df_product_sizes p = product_of_node(node);
  if (is_thin(&p)) {
    out->workspace =
        DF_NAME(df_thin_floats)(p.m, p.n, p.k, p.b.strides[p.b.rank - 1]) * (int64_t)sizeof(float);
    return DF_OK;
  }
  out->state = (void *)(intptr_t)node->precision; /* nothing to release */
  const df_gemm_split split = split_of(&p, node->threads, node->precision);
  const int64_t total = p.batch * split.down * split.across;
  out->workspace =
      split.scratch * (int64_t)sizeof(float) *
      df_workers(node->threads, df_divide_up(total, group_of(&p, &split, node->threads)));
  if (node->flags >> 1 & 1 && df_batch_of(&p.b) == 1)
    ask_prepack(&p, &split, out);
  return DF_OK;
}

const char *DF_NAME(df_matmul_accepts)(const df_node *node) {
  if (node->inputs[0]->rank < 2 || node->inputs[1]->rank < 2)
    return "both operands must have at least two axes";
  return NULL;
}

static df_status run_matmul(const df_call *call) { return DF_NAME(df_matmul_run)(call, NULL, 0); }

DF_KERNELS(linalg) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                         .op = "matmul",
                                         .name = "matmul f32 " DF_TEXT(DF_ISA),
                                         .operands = "~f32,~f32|f16|bf16->f32",
                                         .accepts = DF_NAME(df_matmul_accepts),
                                         .prepare = DF_NAME(df_matmul_prepare),
                                         .run = run_matmul},
                      NULL};
