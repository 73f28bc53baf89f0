/* attention/attention.c: y = softmax(scale * q kt + mask) v, without the scores in memory.
 *
 * Plainly: for each batch entry and row i
 *   s[j] = scale * sum over c of q[i][c] kt[c][j] + mask[i][j]
 *   p[j] = e^(s[j] - max s) / sum e^(s - max s)
 *   y[i] = sum over j of p[j] v[j]
 *
 * 2 m n (d + e) operations and m n exponentials. From memory come q, kt, v once (and once more per
 * block of rows), the mask, and y goes there: 4 (m d + n d + n e + m e) bytes, where the ops one by
 * one read and write 4 m n bytes for each of product, scale, mask, softmax and product.
 *
 * A task is a block of rows of a batch entry. A block of columns of kt and of rows of v is packed
 * into the second cache, and the task passes over its rows tile by tile: the scores of a tile's
 * rows stay in the first cache from the first product through the softmax to the second one.
 * Several blocks of columns are joined by the online softmax; see attention/rows.c.
 *
 * Where less than float32 is wanted and AMX tiles multiply faster, the rows of a task
 * go in larger blocks, whose scores stay in the second cache, and their products are gemm/gemm.h's.
 *
 * Few rows (decoding has one) would not earn what packing costs, which is a load and a store for
 * each element that they multiply once: kt and v are read as they lie, by gemm/thin.h. All columns
 * are one block then. */
#include "attention/matrix.h"
#include "attention/rows.h"
#include "gemm/pack.h"
#include "gemm/thin.h"
#include "gemm/tile.h"

#include <math.h>
#include <string.h>

enum {
  PANELS = 128 * 1024, /* floats of kt and v in the second cache */
  SCORES = 8 * 1024,   /* floats of a tile's rows in the first */
  MOST_TILES = 40,     /* of rows in a task */
  ONE_SET = 1024,      /* floats from one line to the next of the same set */
  BLOCK = 64 * 1024,   /* floats of a block's rows in the second */
  ALIGN = 16,
  MOST_LEAD = 16,   /* leading axes */
  FEW_ROWS = 3,     /* for which packing does not pay */
  SMALL = 64 * 1024 /* multiply-adds below which a second thread does not pay */
};

typedef struct plan {
  df_matrices q, kt, v, mask;
  int64_t lead[MOST_LEAD];
  int32_t n_lead, masked;
  int64_t batch, m, n, d, e;
  int64_t y_row;      /* distance of two rows of y */
  int64_t transposed; /* the rows of a batch entry lie |y_row| apart between others' */
  int64_t heads;      /* whose rows lie between each other */
  int64_t rows, down; /* of a task; tasks per batch entry */
  int64_t height;     /* rows of a tile, or of a block */
  int32_t blocks;     /* products are gemm/gemm.h's */
  int32_t thin;       /* products are gemm/thin.h's */
  df_gemm_split first, second, last; /* of a block; the last one's second */
  int64_t columns;                   /* of a block */
  int64_t scores_row;                /* distance of two rows of scores */
  int64_t kt_floats, v_floats, q_floats, scores_floats, sums_floats;
  int64_t scratch; /* floats per worker */
} plan;

static int64_t packed_floats(int64_t floats) { return df_round_up(floats + DF_LANES, ALIGN); }

/* Tasks per batch entry: few enough that packing, which each does, stays small beside the tiles,
 * and so many that threads end together. In steps of packing a float: a tile's row is 1/32. */
static int64_t tasks_down(int64_t m, int64_t batch, int64_t work, int32_t threads) {
  const int64_t tiles = df_divide_up(m, DF_TILE_ROWS), least = df_divide_up(tiles, MOST_TILES);
  if (threads == 1 || work <= SMALL)
    return least;
  int64_t best = least;
  double best_cost = 0.0;
  for (int64_t down = least; down <= df_min(tiles, least + 4 * threads); down++) {
    const int64_t rounds = df_divide_up(batch * down, threads);
    const double cost = (double)rounds * ((double)df_divide_up(tiles, down) * 0.4 + 0.4);
    if (best_cost == 0.0 || cost < best_cost) {
      best_cost = cost;
      best = down;
    }
  }
  return best;
}

/* Rows of a split when |rows| are split the fewest times into at most |most|. */
static int64_t even_rows(int64_t rows, int64_t most) {
  return df_divide_up(rows, df_divide_up(rows, df_max(1, most)));
}

/* The floats of a worker, from those of its parts that are packed, and its rows of scores. */
static void plan_scratch(plan *p, int64_t score_rows) {
  p->scores_floats = (score_rows + 1) * p->scores_row; /* and one of a mask */
  p->sums_floats =
      df_round_up(p->rows * (int64_t)(sizeof(df_attention_sum) / sizeof(float)), ALIGN);
  p->scratch = p->kt_floats + p->v_floats + p->q_floats + p->scores_floats + p->sums_floats;
}

/* The rest of a plan, from its sizes. */
static void plan_blocks(plan *p, int32_t threads, int32_t precision) {
  p->thin = p->m <= FEW_ROWS &&
            DF_NAME(df_thin_takes)(p->m, p->q.column, p->kt.row, p->kt.column) &&
            DF_NAME(df_thin_takes)(p->m, 1, p->v.row, p->v.column);
  if (p->thin) {
    p->rows = p->height = df_max(1, p->m);
    p->down = 1;
    p->columns = df_max(1, p->n);
    p->scores_row = packed_floats(p->n);
    p->kt_floats = p->v_floats = p->q_floats = 0;
    plan_scratch(p, p->rows);
    return;
  }
  const int64_t most =
      df_max(1, df_min(PANELS / df_max(1, p->d + p->e), SCORES / DF_TILE_ROWS) / DF_TILE_COLUMNS);
  const int64_t blocks = df_max(1, df_divide_up(p->n, most * DF_TILE_COLUMNS));
  p->columns = df_max(1, df_round_up(df_divide_up(p->n, blocks), DF_TILE_COLUMNS));
  const int64_t down = tasks_down(p->m, p->batch, p->batch * p->m * p->n * (p->d + p->e), threads);
  p->rows = df_max(1, df_divide_up(p->m, down));
  p->down = df_divide_up(p->m, p->rows);
  p->height = even_rows(p->rows, DF_TILE_ROWS);
  p->scores_row = p->columns + ALIGN;
  p->kt_floats = packed_floats(p->d * df_round_up(p->columns, DF_TILE_COLUMNS));
  p->v_floats = packed_floats(p->columns * df_round_up(p->e, DF_TILE_COLUMNS));
  p->q_floats = packed_floats(p->d * DF_TILE_ROWS);
  const int64_t tall = even_rows(p->rows, BLOCK / p->scores_row);
  p->first = df_matrix_split(tall, p->columns, p->d, precision);
  p->second = df_matrix_split(tall, p->e, p->columns, precision);
  p->last = df_matrix_split(tall, p->e, p->n % p->columns, precision); /* if there is one */
  p->blocks = p->first.terms || p->second.terms;
  if (p->blocks) {
    p->height = tall;
    p->kt_floats = df_max(p->first.scratch, df_max(p->second.scratch, p->last.scratch));
    p->v_floats = p->q_floats = 0;
  }
  plan_scratch(p, df_max(p->height, DF_TILE_ROWS));
}

/* From operands and results, of a node or a call, which have the same fields. */
#define PLAN(p, in, n_in, y)                                                                       \
  do {                                                                                             \
    (p)->q = df_matrices_of((in)[0]->shape, (in)[0]->strides, (in)[0]->rank);                      \
    (p)->kt = df_matrices_of((in)[1]->shape, (in)[1]->strides, (in)[1]->rank);                     \
    (p)->v = df_matrices_of((in)[2]->shape, (in)[2]->strides, (in)[2]->rank);                      \
    (p)->masked = (n_in) > 3 && (in)[3]->dtype != DF_NONE;                                         \
    if ((p)->masked)                                                                               \
      (p)->mask = df_matrices_of((in)[3]->shape, (in)[3]->strides, (in)[3]->rank);                 \
    plan_sizes(p, (y)->shape, (y)->rank);                                                          \
  } while (0)

/* The batch is that of y, whose axes are (..., m, e), or (batch, m, heads..., e) when transposed.
 */
static void plan_sizes(plan *p, const int64_t *y, int32_t rank) {
  p->m = p->q.shape[p->q.rank - 2];
  p->d = p->q.shape[p->q.rank - 1];
  p->n = p->kt.shape[p->kt.rank - 1];
  p->e = p->v.shape[p->v.rank - 1];
  p->n_lead = rank - 2;
  p->y_row = p->e;
  for (int32_t axis = 0; axis < p->n_lead; axis++)
    p->lead[axis] = y[axis];
  for (int32_t axis = 1; p->transposed && axis < p->n_lead; axis++) {
    p->lead[axis] = y[axis + 1];
    p->y_row *= y[axis + 1];
  }
  p->heads = p->transposed ? df_product(p->lead, 1, p->n_lead) : 1;
  p->batch = df_product(p->lead, 0, p->n_lead);
}

/* ---- A task --------------------------------------------------------------------------------- */

typedef struct attention {
  plan p;
  const float *q, *kt, *v, *mask;
  float *y, *logsum; /* null where nobody wants it */
  float scale, cap;
  int safe;
  float *workspace;
} attention;

/* What a task works on: its matrices, and its slice of the workspace. */
typedef struct task {
  df_matrix q, kt, v;
  const float *mask;
  float *y, *logsum;
  float *kt_panels, *v_panels, *q_panel, *scores, *mask_row; /* panels, or space for products */
  df_attention_sum *sums;                                    /* of each row */
} task;

static int64_t panel_width(int64_t columns) {
  return columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES;
}

/* Panels of |columns| columns of b, |k| steps each. */
static void pack_panels(float *to, df_matrix b, int64_t k, int64_t columns) {
  for (int64_t j = 0; j < columns; j += DF_TILE_COLUMNS) {
    const int64_t some = df_min(DF_TILE_COLUMNS, columns - j);
    df_pack_panel(to + j * k, b.at + j * b.column, b.row, b.column, some, panel_width(some), k);
  }
}

/* A factor that is packed, or whose rows lie |row| apart. */
typedef struct factor {
  const float *at;
  int64_t row;
  int32_t packed;
} factor;

/* c (rows, columns) = a times packed panels. */
static void multiply(float *c, int64_t c_row, factor a, const float *panels, int64_t rows,
                     int64_t k, int64_t columns, int32_t accumulate) {
  const df_tile_epilogue epilogue = {
      .accumulate = accumulate, .a_row = a.row, .a_step = DF_TILE_ROWS};
  for (int64_t j = 0; j < columns; j += DF_TILE_COLUMNS) {
    const int64_t some = df_min(DF_TILE_COLUMNS, columns - j);
    const int64_t vectors = panel_width(some) / DF_LANES;
    const df_tile tile = a.packed ? DF_NAME(df_tiles)[rows - 1][vectors - 1]
                                  : DF_NAME(df_row_tiles)[rows - 1][vectors - 1];
    tile(k, a.at, panels + j * k, c + j, c_row, some, &epilogue);
  }
}

/* A row whose weights are NaN gets weights of 0: y has 0 v of the columns before |begin|, so that a
 * NaN or an infinity of v stays, and the scores of the |n| columns from there on are 0. */
static void clear_row(const attention *run, const task *at, float *scores, float *y,
                      df_attention_sum *sum, int64_t begin, int64_t n) {
  const int64_t e = run->p.e;
  memset(scores, 0, (size_t)n * sizeof *scores);
  memset(y, 0, (size_t)e * sizeof *y);
  for (int64_t key = 0; key < begin; key++) {
    const float *v = at->v.at + key * at->v.row;
    for (int64_t j = 0; j < e; j++)
      y[j] += 0.0f * v[j * at->v.column];
  }
  *sum = (df_attention_sum){1.0, INFINITY};
}

/* Scores -> weights of rows [i, i + rows) in columns [begin, begin + n), and what y has of those
 * before. */
static void weigh_rows(const attention *run, const task *at, int64_t i, int64_t first, int64_t rows,
                       int64_t begin, int64_t n) {
  const plan *p = &run->p;
  for (int64_t r = 0; r < rows; r++) {
    df_attention_row row = {
        .scores = at->scores + r * p->scores_row, .n = n, .scale = run->scale, .cap = run->cap};
    if (p->masked)
      df_attention_mask(&row, at->mask + (i + r) * p->mask.row + begin * p->mask.column,
                        p->mask.column, at->mask_row);
    df_attention_sum *sum = &at->sums[i + r - first];
    const int last = begin + n == p->n;
    const float kept = DF_NAME(df_attention_weights)(&row, sum, last);
    float *y = at->y + (i + r) * p->y_row;
    if (run->safe && last && isnan(sum->sum))
      clear_row(run, at, row.scores, y, sum, begin, n);
    else if (begin)
      for (int64_t j = 0; j < p->e; j++)
        y[j] *= kept;
  }
}

/* Rows [i, i + rows) of a task that begins at |first|, against columns [begin, begin + n). */
typedef void rows_of_task(const attention *run, const task *at, int64_t i, int64_t first,
                          int64_t rows, int64_t begin, int64_t n);

/* Where the columns are packed. */
static void tile_rows(const attention *run, const task *at, int64_t i, int64_t first, int64_t rows,
                      int64_t begin, int64_t n) {
  const plan *p = &run->p;
  factor q = {at->q.at + i * p->q.row, p->q.row, 0};
  if (p->q.column != 1 || q.row % ONE_SET == 0) {
    df_pack_tile(at->q_panel, q.at, q.row, p->q.column, rows, p->d, DF_TILE_ROWS);
    q = (factor){at->q_panel, 0, 1};
  }
  const factor weights = {at->scores, p->scores_row, 0};
  multiply(at->scores, p->scores_row, q, at->kt_panels, rows, p->d, n, 0);
  weigh_rows(run, at, i, first, rows, begin, n);
  multiply(at->y + i * p->y_row, p->y_row, weights, at->v_panels, rows, n, p->e, begin > 0);
}

/* Where products are gemm/gemm.h's, from the operands as they lie. */
static void block_rows(const attention *run, const task *at, int64_t i, int64_t first, int64_t rows,
                       int64_t begin, int64_t n) {
  const plan *p = &run->p;
  const df_matrix weights = {at->scores, p->scores_row, 1};
  df_matrix_multiply(at->scores, p->scores_row, df_matrix_from(at->q, i, 0),
                     df_matrix_from(at->kt, 0, begin), rows, n, p->d, 0, &p->first, at->kt_panels);
  weigh_rows(run, at, i, first, rows, begin, n);
  df_matrix_multiply(at->y + i * p->y_row, p->y_row, weights, df_matrix_from(at->v, begin, 0), rows,
                     p->e, n, begin > 0, n < p->columns ? &p->last : &p->second, at->kt_panels);
}

/* Where they are gemm/thin.h's, which takes all columns at once. */
static void thin_rows(const attention *run, const task *at, int64_t i, int64_t first, int64_t rows,
                      int64_t begin, int64_t n) {
  const plan *p = &run->p;
  const df_matrix q = df_matrix_from(at->q, i, 0);
  const df_gemm scores = {.c = at->scores,
                          .a = q.at,
                          .b = at->kt.at,
                          .m = rows,
                          .n = n,
                          .k = p->d,
                          .c_row = p->scores_row,
                          .a_row = q.row,
                          .a_col = q.column,
                          .b_row = at->kt.row,
                          .b_col = at->kt.column};
  const df_gemm sums = {.c = at->y + i * p->y_row,
                        .a = at->scores,
                        .b = at->v.at,
                        .m = rows,
                        .n = p->e,
                        .k = n,
                        .c_row = p->y_row,
                        .a_row = p->scores_row,
                        .a_col = 1,
                        .b_row = at->v.row,
                        .b_col = at->v.column};
  DF_NAME(df_thin_columns)(&scores, 0, n);
  weigh_rows(run, at, i, first, rows, begin, n);
  DF_NAME(df_thin_columns)(&sums, 0, p->e);
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const attention *run = context;
  const plan *p = &run->p;
  const int64_t entry = index / p->down, first = index % p->down * p->rows;
  const int64_t end = df_min(p->m, first + p->rows);
  const int64_t y_entry = p->transposed
                              ? entry / p->heads * p->m * p->y_row + entry % p->heads * p->e
                              : entry * p->m * p->e;
  float *scratch = run->workspace + worker * p->scratch;
  task at = {.q = df_matrix_of(run->q, &p->q, p->lead, p->n_lead, entry),
             .kt = df_matrix_of(run->kt, &p->kt, p->lead, p->n_lead, entry),
             .v = df_matrix_of(run->v, &p->v, p->lead, p->n_lead, entry),
             .y = run->y + y_entry,
             .logsum = run->logsum ? run->logsum + entry * p->m : NULL,
             .kt_panels = scratch,
             .v_panels = scratch + p->kt_floats};
  at.q_panel = at.v_panels + p->v_floats;
  at.scores = at.q_panel + p->q_floats;
  at.mask_row = at.scores + p->scores_floats - p->scores_row;
  at.sums = (df_attention_sum *)(void *)(at.scores + p->scores_floats);
  if (p->masked)
    at.mask = run->mask + df_matrix_offset(&p->mask, p->lead, p->n_lead, entry);
  for (int64_t i = first; i < end; i++)
    at.sums[i - first] = (df_attention_sum){0.0, -INFINITY};
  rows_of_task *const run_rows = p->thin ? thin_rows : p->blocks ? block_rows : tile_rows;
  for (int64_t begin = 0; begin < p->n || begin == 0; begin += p->columns) {
    const int64_t n = df_min(p->columns, p->n - begin);
    if (!p->blocks && !p->thin) {
      pack_panels(at.kt_panels, df_matrix_from(at.kt, 0, begin), p->d, n);
      pack_panels(at.v_panels, df_matrix_from(at.v, begin, 0), n, p->e);
    }
    for (int64_t i = first; i < end; i += p->height)
      run_rows(run, &at, i, first, df_min(p->height, end - i), begin, n);
  }
  if (at.logsum)
    for (int64_t i = first; i < end; i++)
      at.logsum[i] = DF_NAME(df_attention_logsum)(&at.sums[i - first]);
}

/* ---- Running -------------------------------------------------------------------------------- */

static df_status run_attention(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  attention run = {.p = {.transposed = df_attr_int(call, DF_ATTENTION_TRANSPOSED)},
                   .q = call->inputs[0]->data,
                   .kt = call->inputs[1]->data,
                   .v = call->inputs[2]->data,
                   .y = y->data,
                   .scale = (float)df_attr_float(call, DF_ATTENTION_SCALE),
                   .cap = (float)df_attr_float(call, DF_ATTENTION_SOFTCAP),
                   .safe = df_attr_int(call, DF_ATTENTION_SAFE) != 0,
                   .workspace = call->workspace};
  plan *p = &run.p;
  PLAN(p, call->inputs, call->n_inputs, y);
  if (p->masked)
    run.mask = call->inputs[3]->data;
  if (call->n_outputs > 1 && call->outputs[1]->dtype != DF_NONE)
    run.logsum = call->outputs[1]->data;
  if (p->batch * p->m == 0)
    return DF_OK;
  plan_blocks(p, call->threads, (int32_t)(intptr_t)call->state);
  df_parallel(call, run_task, &run, p->batch * p->down);
  return DF_OK;
}

static df_status prepare_attention(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  plan p = {.transposed = df_attr_int(node, DF_ATTENTION_TRANSPOSED)};
  PLAN(&p, node->inputs, node->n_inputs, node->outputs[0]);
  plan_blocks(&p, node->threads, node->precision);
  out->workspace = p.scratch * (int64_t)sizeof(float) * df_workers(node->threads, p.batch * p.down);
  out->state = (void *)(intptr_t)node->precision; /* nothing to release */
  return DF_OK;
}

static const char *accepts_attention(const df_node *node) {
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]->rank > MOST_LEAD + 2)
      return "an operand has too many axes";
  return NULL;
}

DF_KERNELS(attention) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                            .op = "attention",
                                            .name = "attention f32 " DF_TEXT(DF_ISA),
                                            .operands = "~f32,~f32,~f32,~f32?->f32,f32?",
                                            .accepts = accepts_attention,
                                            .prepare = prepare_attention,
                                            .run = run_attention},
                         NULL};
