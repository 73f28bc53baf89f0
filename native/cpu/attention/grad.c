/* attention/grad.c: the gradients of attention, from its result and the log-sums of its rows.
 *
 * Plainly (Dao 2023, FlashAttention-2): for each batch entry, with s as in attention/attention.c,
 *   p[i][j]  = e^(s[i][j] - logsum[i])
 *   dp[i][j] = sum over c of dy[i][c] v[j][c]
 *   delta[i] = sum over c of dy[i][c] y[i][c]        (= sum over j of p[i][j] dp[i][j])
 *   ds[i][j] = scale * p[i][j] (dp[i][j] - delta[i])
 *   dq[i] = sum over j of ds[i][j] k[j]
 *   dk[j] = sum over i of ds[i][j] q[i]
 *   dv[j] = sum over i of p[i][j] dy[i]
 *
 * Five products, 2 m n (3 d + 2 e) operations, where weights that were kept cost four, 2 m n (2 d +
 * 2 e), and 4 m n bytes from forward to backward. Blocks of rows of p and ds stay in the second
 * cache. A task is a batch entry: dk and dv are summed over its blocks in order, so the
 * bits are the same whatever the number of threads. */
#include "attention/matrix.h"
#include "attention/rows.h"

enum {
  SCORES = 128 * 1024, /* floats of p and ds in the second cache */
  LEAST_ROWS = 16,     /* of a block */
  ALIGN = 16,
  MOST_LEAD = 16 /* leading axes */
};

/* The operands, in order. */
enum { DY, Y, LOGSUM, Q, KT, V, MASK };

typedef struct plan {
  df_matrices dy, y, q, kt, v, mask;
  int64_t lead[MOST_LEAD];
  int64_t transposed[2][2]
                    [MOST_LEAD + 2]; /* shapes and strides of dy and y with heads before rows */
  int32_t n_lead, masked;
  int64_t batch, m, n, d, e;
  int64_t rows;       /* of a block */
  int64_t scores_row; /* distance of two rows of p and of ds */
  int64_t block;      /* floats of p or ds */
  df_gemm_split scores, weights, dq;
  df_gemm_split dk[2], dv[2]; /* of a block, and of the last one */
  int64_t scratch;            /* floats per worker */
} plan;

static void plan_blocks(plan *p, int32_t precision) {
  const int64_t fits = SCORES / (2 * df_max(1, p->n)) / LEAST_ROWS * LEAST_ROWS;
  const int64_t most = df_max(LEAST_ROWS, fits);
  p->rows = df_max(1, df_divide_up(p->m, df_max(1, df_divide_up(p->m, most))));
  p->scores_row = df_round_up(p->n, ALIGN) + ALIGN;
  p->block = p->rows * p->scores_row;
  p->scores = df_matrix_split(p->rows, p->n, p->d, precision);
  p->weights = df_matrix_split(p->rows, p->n, p->e, precision);
  p->dq = df_matrix_split(p->rows, p->d, p->n, precision);
  p->scratch = df_max(p->scores.scratch, df_max(p->weights.scratch, p->dq.scratch));
  for (int last = 0; last < 2; last++) {
    const int64_t rows = last && p->m % p->rows ? p->m % p->rows : p->rows;
    p->dk[last] = df_matrix_split(p->n, p->d, rows, precision);
    p->dv[last] = df_matrix_split(p->n, p->e, rows, precision);
    p->scratch = df_max(p->scratch, df_max(p->dk[last].scratch, p->dv[last].scratch));
  }
  p->scratch += 2 * p->block + 2 * p->scores_row; /* the last two for rows of mask and slopes */
}

/* (batch, m, heads..., e) as (batch, heads..., m, e), in |to|. */
static df_matrices transposed_heads(const int64_t *shape, const int64_t *strides, int32_t rank,
                                    int64_t to[2][MOST_LEAD + 2]) {
  for (int32_t i = 0; i < rank; i++) {
    const int32_t axis = i == 0 || i == rank - 1 ? i : i == rank - 2 ? 1 : i + 1;
    to[0][i] = shape[axis];
    to[1][i] = strides[axis];
  }
  return df_matrices_of(to[0], to[1], rank);
}

/* From operands, of a node or a call, which have the same fields. */
#define OPERAND(in, i) df_matrices_of((in)[i]->shape, (in)[i]->strides, (in)[i]->rank)
#define PLAN(p, in, n_in, transpose)                                                               \
  do {                                                                                             \
    if (transpose) {                                                                               \
      (p)->dy = transposed_heads((in)[DY]->shape, (in)[DY]->strides, (in)[DY]->rank,               \
                                 (p)->transposed[0]);                                              \
      (p)->y =                                                                                     \
          transposed_heads((in)[Y]->shape, (in)[Y]->strides, (in)[Y]->rank, (p)->transposed[1]);   \
    } else {                                                                                       \
      (p)->dy = OPERAND(in, DY);                                                                   \
      (p)->y = OPERAND(in, Y);                                                                     \
    }                                                                                              \
    (p)->q = OPERAND(in, Q);                                                                       \
    (p)->kt = OPERAND(in, KT);                                                                     \
    (p)->v = OPERAND(in, V);                                                                       \
    (p)->masked = (n_in) > MASK && (in)[MASK]->dtype != DF_NONE;                                   \
    if ((p)->masked)                                                                               \
      (p)->mask = OPERAND(in, MASK);                                                               \
    plan_sizes(p);                                                                                 \
  } while (0)

static void plan_sizes(plan *p) {
  p->n_lead = p->dy.rank - 2;
  p->m = p->dy.shape[p->n_lead];
  p->e = p->dy.shape[p->n_lead + 1];
  p->d = p->q.shape[p->q.rank - 1];
  p->n = p->kt.shape[p->kt.rank - 1];
  for (int32_t axis = 0; axis < p->n_lead; axis++)
    p->lead[axis] = p->dy.shape[axis];
  p->batch = df_product(p->lead, 0, p->n_lead);
}

/* ---- A task --------------------------------------------------------------------------------- */

typedef struct attention_grad {
  plan p;
  const float *in[MASK + 1];
  float *dq, *dk, *dv;
  float scale, cap;
  int safe;
  float *workspace;
} attention_grad;

static void run_task(void *context, int64_t entry, int64_t count, int32_t worker) {
  (void)count;
  const attention_grad *run = context;
  const plan *p = &run->p;
  float *s = run->workspace + worker * p->scratch, *ds = s + p->block;
  float *mask_row = ds + p->block, *slopes = mask_row + p->scores_row;
  float *scratch = slopes + p->scores_row;
  const df_matrix dy = df_matrix_of(run->in[DY], &p->dy, p->lead, p->n_lead, entry);
  const df_matrix y = df_matrix_of(run->in[Y], &p->y, p->lead, p->n_lead, entry);
  const df_matrix q = df_matrix_of(run->in[Q], &p->q, p->lead, p->n_lead, entry);
  const df_matrix kt = df_matrix_of(run->in[KT], &p->kt, p->lead, p->n_lead, entry);
  const df_matrix v = df_matrix_of(run->in[V], &p->v, p->lead, p->n_lead, entry);
  const df_matrix mask =
      p->masked ? df_matrix_of(run->in[MASK], &p->mask, p->lead, p->n_lead, entry) : (df_matrix){0};
  const df_matrix weights = {s, p->scores_row, 1}, errors = {ds, p->scores_row, 1};
  float *dk = run->dk + entry * p->n * p->d, *dv = run->dv + entry * p->n * p->e;
  for (int64_t first = 0; first < p->m || first == 0; first += p->rows) {
    const int64_t rows = df_min(p->rows, p->m - first);
    const df_matrix own_q = df_matrix_from(q, first, 0), own_dy = df_matrix_from(dy, first, 0);
    df_matrix_multiply(s, p->scores_row, own_q, kt, rows, p->n, p->d, 0, &p->scores, scratch);
    df_matrix_multiply(ds, p->scores_row, own_dy, df_matrix_transposed(v), rows, p->n, p->e, 0,
                       &p->weights, scratch);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t i = first + r;
      df_attention_row row = {.scores = s + r * p->scores_row,
                              .n = p->n,
                              .scale = run->scale,
                              .cap = run->cap,
                              .slopes = run->cap > 0.0f ? slopes : NULL};
      if (p->masked)
        df_attention_mask(&row, mask.at + i * mask.row, mask.column, mask_row);
      float *errors_row = ds + r * p->scores_row;
      df_attention_mean mean = DF_NAME(df_attention_reweigh)(
          &row, errors_row, run->in[LOGSUM][entry * p->m + i], run->safe);
      if (!mean.known)
        mean.delta = DF_NAME(df_attention_dot)(dy.at + i * dy.row, dy.column, y.at + i * y.row,
                                               y.column, p->e);
      DF_NAME(df_attention_errors)(&row, errors_row, mean);
    }
    const int32_t more = first > 0;
    const int last = rows < p->rows;
    df_matrix_multiply(dv, p->e, df_matrix_transposed(weights), own_dy, p->n, p->e, rows, more,
                       &p->dv[last], scratch);
    df_matrix_multiply(dk, p->d, df_matrix_transposed(errors), own_q, p->n, p->d, rows, more,
                       &p->dk[last], scratch);
    df_matrix_multiply(run->dq + (entry * p->m + first) * p->d, p->d, errors,
                       df_matrix_transposed(kt), rows, p->d, p->n, 0, &p->dq, scratch);
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

static df_status run_attention_grad(const df_call *call) {
  attention_grad run = {.dq = call->outputs[0]->data,
                        .dk = call->outputs[1]->data,
                        .dv = call->outputs[2]->data,
                        .scale = (float)df_attr_float(call, DF_ATTENTION_SCALE),
                        .cap = (float)df_attr_float(call, DF_ATTENTION_SOFTCAP),
                        .safe = df_attr_int(call, DF_ATTENTION_SAFE) != 0,
                        .workspace = call->workspace};
  plan *p = &run.p;
  PLAN(p, call->inputs, call->n_inputs, df_attr_int(call, DF_ATTENTION_TRANSPOSED));
  for (int32_t i = 0; i < call->n_inputs; i++)
    run.in[i] = call->inputs[i]->data;
  plan_blocks(p, (int32_t)(intptr_t)call->state);
  df_parallel(call, run_task, &run, p->batch);
  return DF_OK;
}

static df_status prepare_attention_grad(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  plan p = {0};
  PLAN(&p, node->inputs, node->n_inputs, df_attr_int(node, DF_ATTENTION_TRANSPOSED));
  plan_blocks(&p, node->precision);
  out->workspace = p.scratch * (int64_t)sizeof(float) * df_workers(node->threads, p.batch);
  out->state = (void *)(intptr_t)node->precision; /* nothing to release */
  return DF_OK;
}

static const char *accepts_attention_grad(const df_node *node) {
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]->rank > MOST_LEAD + 2)
      return "an operand has too many axes";
  return NULL;
}

DF_KERNELS(attention_grad) = {
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "attention_grad",
                       .name = "attention_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "~f32,~f32,f32,~f32,~f32,~f32,~f32?->f32,f32,f32",
                       .accepts = accepts_attention_grad,
                       .prepare = prepare_attention_grad,
                       .run = run_attention_grad},
    NULL};
