/* reduce/reduce.c: reduce_sum, _mean, _max, _min, _prod over any axes of a tensor with any strides.
 *
 * The kept axes and the reduced axes are merged apart. A unit of work is then either one output,
 * whose elements are read along the innermost reduced axis ("by rows"), or up to DF_CHUNK
 * neighbouring outputs to which the kernel adds one row after another ("by columns"), whichever
 * reads memory in order. Runs of at most DF_CHUNK elements are reduced in the element's type, runs
 * are joined in double or int64. When there are few outputs, the runs are split into partitions
 * that depend on the shape only, and the partitions' results, kept in the workspace, are joined in
 * order. Short rows of floats are taken some at a time (reduce/short_rows.h). A tensor that another
 * kernel computes as it goes (reduce/reduce.h) is fetched run by run.
 */
#include "reduce/reduce.h"
#include "map/walk.h"
#include "reduce/short_rows.h"
#include "simd/block.h"

enum {
  RUN = DF_CHUNK, /* elements of a row that are reduced in the element's type */
  FEW_UNITS = 16, /* units below which the reduced elements are split too */
  MOST_PARTITIONS = 64,
  COLUMN_ROWS = 64, /* rows that are added in the element's type */
  FETCHED = 4 * RUN /* elements of short rows that are fetched at a time */
};

/* A joined result: |f| for float types, |i| for integers. */
typedef union value {
  double f;
  int64_t i;
} value;

/* What one op does with one type. */
typedef struct reducer {
  int64_t item;
  value identity;
  value (*run)(const void *x, int64_t n); /* n <= RUN contiguous elements */
  value (*join)(value a, value b);
  void (*clear)(void *partial, int64_t n);              /* partial[0..n) = identity */
  void (*add)(void *partial, const void *x, int64_t n); /* partial[j] = op(partial[j], x[j]) */
  void (*fold)(value *totals, const void *partial, int64_t n); /* totals[j] = op(..., partial[j]) */
  void (*store)(void *out, int64_t index, value total, int64_t count);
  void (*rows)(const float *const *rows, int64_t count, int64_t n, float *totals); /* or null */
} reducer;

/* ---- Types and ops -------------------------------------------------------------------------- */

#define MAX_OF(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN_OF(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define SUM_OF(a, b) ((a) + (b))
#define PROD_OF(a, b) ((a) * (b))

/* |W| is the type to compute in: unsigned for integer sums, which wrap. |field| is f or i, |V| its
 * type. */
#define DEFINE_REDUCER(name, T, W, field, V, OP, first, finish, rows)                              \
  static value name##_run(const void *from, int64_t n) {                                           \
    const T *x = from;                                                                             \
    W total = (W)(first);                                                                          \
    int64_t i = 0;                                                                                 \
    if (n >= DF_BLOCK_LANES) {                                                                     \
      W lanes[DF_BLOCK_LANES];                                                                     \
      for (int j = 0; j < DF_BLOCK_LANES; j++)                                                     \
        lanes[j] = (W)x[j];                                                                        \
      for (i = DF_BLOCK_LANES; i + DF_BLOCK_LANES <= n; i += DF_BLOCK_LANES)                       \
        for (int j = 0; j < DF_BLOCK_LANES; j++)                                                   \
          lanes[j] = OP((W)x[i + j], lanes[j]);                                                    \
      for (int width = DF_BLOCK_LANES / 2; width > 0; width /= 2)                                  \
        for (int j = 0; j < width; j++)                                                            \
          lanes[j] = OP(lanes[j + width], lanes[j]);                                               \
      total = lanes[0];                                                                            \
    }                                                                                              \
    for (; i < n; i++)                                                                             \
      total = OP((W)x[i], total);                                                                  \
    return (value){.field = (V)(T)total};                                                          \
  }                                                                                                \
  static value name##_join(value a, value b) { return (value){.field = (V)OP(b.field, a.field)}; } \
  static void name##_clear(void *partial, int64_t n) {                                             \
    T *p = partial;                                                                                \
    for (int64_t j = 0; j < n; j++)                                                                \
      p[j] = (T)(first);                                                                           \
  }                                                                                                \
  static void name##_add(void *partial, const void *from, int64_t n) {                             \
    T *restrict p = partial;                                                                       \
    const T *restrict x = from;                                                                    \
    for (int64_t j = 0; j < n; j++)                                                                \
      p[j] = (T)OP((W)x[j], (W)p[j]);                                                              \
  }                                                                                                \
  static void name##_fold(value *totals, const void *partial, int64_t n) {                         \
    const T *p = partial;                                                                          \
    for (int64_t j = 0; j < n; j++)                                                                \
      totals[j].field = (V)OP((V)p[j], totals[j].field);                                           \
  }                                                                                                \
  static void name##_store(void *out, int64_t index, value total, int64_t count) {                 \
    (void)count;                                                                                   \
    ((T *)out)[index] = (T)(total.field finish);                                                   \
  }                                                                                                \
  static const reducer name = {sizeof(T),   {.field = (V)(first)}, name##_run,                     \
                               name##_join, name##_clear,          name##_add,                     \
                               name##_fold, name##_store,          rows};

DEFINE_REDUCER(sum_f32, float, float, f, double, SUM_OF, 0.0f, , DF_NAME(df_sum_rows))
DEFINE_REDUCER(sum_f64, double, double, f, double, SUM_OF, 0.0, , NULL)
DEFINE_REDUCER(sum_i32, int32_t, uint32_t, i, uint64_t, SUM_OF, 0, , NULL)
DEFINE_REDUCER(sum_i64, int64_t, uint64_t, i, uint64_t, SUM_OF, 0, , NULL)
DEFINE_REDUCER(mean_f32, float, float, f, double, SUM_OF, 0.0f, / (double)count,
               DF_NAME(df_sum_rows))
DEFINE_REDUCER(mean_f64, double, double, f, double, SUM_OF, 0.0, / (double)count, NULL)
DEFINE_REDUCER(max_f32, float, float, f, double, MAX_OF, -INFINITY, , DF_NAME(df_largest_of_rows))
DEFINE_REDUCER(max_f64, double, double, f, double, MAX_OF, -(double)INFINITY, , NULL)
DEFINE_REDUCER(max_i32, int32_t, int32_t, i, int64_t, MAX_OF, INT32_MIN, , NULL)
DEFINE_REDUCER(max_i64, int64_t, int64_t, i, int64_t, MAX_OF, INT64_MIN, , NULL)
DEFINE_REDUCER(min_f32, float, float, f, double, MIN_OF, INFINITY, , DF_NAME(df_smallest_of_rows))
DEFINE_REDUCER(min_f64, double, double, f, double, MIN_OF, (double)INFINITY, , NULL)
DEFINE_REDUCER(min_i32, int32_t, int32_t, i, int64_t, MIN_OF, INT32_MAX, , NULL)
DEFINE_REDUCER(min_i64, int64_t, int64_t, i, int64_t, MIN_OF, INT64_MAX, , NULL)
DEFINE_REDUCER(prod_f32, float, float, f, double, PROD_OF, 1.0f, , NULL)
DEFINE_REDUCER(prod_f64, double, double, f, double, PROD_OF, 1.0, , NULL)

/* ---- The plan ------------------------------------------------------------------------------- */

typedef struct plan {
  df_walk kept, reduced;
  int64_t outputs;    /* product of the kept axes */
  int64_t count;      /* elements per output */
  int64_t inner;      /* by rows: length and stride of the innermost reduced axis ... */
  int64_t stride;     /* ... by columns: of the innermost kept axis */
  int64_t strips;     /* rows, or runs of a row, per output */
  int64_t per_row;    /* strips in a row (1 by columns) */
  int64_t units;      /* outputs by rows, chunks of outputs by columns */
  int64_t chunks;     /* by columns: chunks per row */
  int64_t partitions; /* into which the strips are split */
  int by_columns;
} plan;

/* Reduced axes in order of falling stride: the order in which they are added is free. */
static void sort_axes(int64_t *shape, int64_t *strides, int32_t n) {
  for (int32_t i = 1; i < n; i++)
    for (int32_t j = i; j > 0; j--) {
      const int64_t before = strides[j - 1] < 0 ? -strides[j - 1] : strides[j - 1];
      const int64_t here = strides[j] < 0 ? -strides[j] : strides[j];
      if (before >= here)
        break;
      int64_t swap = strides[j];
      strides[j] = strides[j - 1];
      strides[j - 1] = swap;
      swap = shape[j];
      shape[j] = shape[j - 1];
      shape[j - 1] = swap;
    }
}

/* The whole plan follows from shape, strides and axes: prepare and run find the same. */
static void plan_make(plan *plan, const int64_t *shape, const int64_t *strides, int32_t rank,
                      const int64_t *axes, int32_t n_axes) {
  int64_t sizes[2][DF_WALK_RANK], steps[2][DF_WALK_RANK];
  int32_t ranks[2] = {0, 0};
  for (int32_t axis = 0; axis < rank; axis++) {
    int reduced = 0;
    for (int32_t i = 0; i < n_axes; i++)
      reduced |= axes[i] == axis || axes[i] == axis - rank;
    if (shape[axis] == 1)
      continue;
    const int32_t at = ranks[reduced]++;
    sizes[reduced][at] = shape[axis];
    steps[reduced][at] = strides[axis];
  }
  sort_axes(sizes[1], steps[1], ranks[1]);
  df_walk *walks[2] = {&plan->kept, &plan->reduced};
  for (int side = 0; side < 2; side++) {
    const df_tensor one = {.shape = sizes[side], .strides = steps[side], .rank = ranks[side]};
    df_walk_plan(walks[side], sizes[side], ranks[side], &one, 1);
  }
  plan->outputs = df_product(sizes[0], 0, ranks[0]);
  plan->count = df_product(sizes[1], 0, ranks[1]);
  df_walk *kept = &plan->kept, *reduced = &plan->reduced;
  const int64_t kept_stride = kept->strides[0][kept->rank - 1];
  const int64_t reduced_stride = reduced->strides[0][reduced->rank - 1];
  const int64_t neighbours = kept->shape[kept->rank - 1];
  plan->by_columns = neighbours >= 4 && (kept_stride < 0 ? -kept_stride : kept_stride) <
                                            (reduced_stride < 0 ? -reduced_stride : reduced_stride);
  /* The innermost axis is taken out of its walk; what stays counts rows. */
  df_walk *walk = plan->by_columns ? kept : reduced;
  const int32_t inner = --walk->rank;
  plan->inner = walk->shape[inner];
  plan->stride = walk->strides[0][inner];
  plan->chunks = plan->by_columns ? df_divide_up(plan->inner, DF_CHUNK) : 1;
  plan->per_row = plan->by_columns ? 1 : df_divide_up(plan->inner, 32 * RUN);
  plan->strips = df_product(reduced->shape, 0, reduced->rank) * plan->per_row;
  plan->units = df_product(kept->shape, 0, kept->rank) * plan->chunks;
  plan->partitions = 1;
  if (plan->units < FEW_UNITS && plan->outputs > 0)
    plan->partitions = df_max(1, df_min(df_min(MOST_PARTITIONS, plan->strips),
                                        plan->outputs * plan->count / (2 * DF_GRAIN)));
}

/* ---- Running -------------------------------------------------------------------------------- */

typedef struct reduction {
  const reducer *op;
  const plan *plan;
  const char *x;
  void *out;
  value *partials;         /* partitions x outputs, when there are several partitions */
  const df_source *source; /* read instead of x, or null */
} reduction;

static void deliver(const reduction *r, int64_t partition, int64_t output, value total) {
  if (r->plan->partitions > 1)
    r->partials[partition * r->plan->outputs + output] = total;
  else
    r->op->store(r->out, output, total, r->plan->count);
}

/* n elements from number |at| on, with a stride, n <= 32 RUN. */
static value reduce_strip(const reduction *r, int64_t at, int64_t n, value total) {
  const reducer *op = r->op;
  const int64_t stride = r->plan->stride;
  uint64_t buffer[RUN];
  for (int64_t begin = 0; begin < n; begin += RUN) {
    const int64_t some = df_min(RUN, n - begin);
    const void *run = buffer;
    if (r->source)
      r->source->fetch(r->source->context, at + begin, some, (float *)(void *)buffer);
    else if (stride == 1)
      run = r->x + (at + begin) * op->item;
    else
      df_gather_row((char *)buffer, r->x + (at + begin * stride) * op->item, stride, some,
                    op->item);
    total = op->join(total, op->run(run, some));
  }
  return total;
}

static value reduce_output(const reduction *r, int64_t at, int64_t strip, int64_t end) {
  const plan *plan = r->plan;
  const df_walk *rows = &plan->reduced;
  value total = r->op->identity;
  if (strip >= end)
    return total;
  df_cursor cursor;
  df_cursor_set(&cursor, rows, strip / plan->per_row);
  int64_t task = strip % plan->per_row;
  for (; strip < end; strip++) {
    const int64_t first = task * 32 * RUN;
    total = reduce_strip(r, at + cursor.offset[0] + first * plan->stride,
                         df_min(32 * RUN, plan->inner - first), total);
    if (++task == plan->per_row) {
      task = 0;
      if (rows->rank)
        df_cursor_advance(&cursor, rows, 1);
    }
  }
  return total;
}

/* Outputs first..first+n from x on, strips strip..end. */
static void reduce_columns(const reduction *r, const char *x, int64_t partition, int64_t first,
                           int64_t n, int64_t strip, int64_t end) {
  const plan *plan = r->plan;
  const df_walk *rows = &plan->reduced;
  const reducer *op = r->op;
  value totals[DF_CHUNK];
  uint64_t partial[DF_CHUNK], buffer[DF_CHUNK];
  for (int64_t j = 0; j < n; j++)
    totals[j] = op->identity;
  DF_ASSUME(rows->inputs == 1);
  df_cursor cursor;
  df_cursor_set(&cursor, rows, strip);
  while (strip < end) {
    op->clear(partial, n);
    for (const int64_t stop = df_min(end, strip + COLUMN_ROWS); strip < stop; strip++) {
      const void *row = x + cursor.offset[0] * op->item;
      if (plan->stride != 1) {
        df_gather_row((char *)buffer, row, plan->stride, n, op->item);
        row = buffer;
      }
      op->add(partial, row, n);
      df_cursor_advance(&cursor, rows, 1);
    }
    op->fold(totals, partial, n);
  }
  for (int64_t j = 0; j < n; j++)
    deliver(r, partition, first + j, totals[j]);
}

/* Whether a result is one short row. */
static int by_short_rows(const reduction *r) {
  const plan *plan = r->plan;
  return r->op->rows && !plan->by_columns && plan->strips == 1 && plan->stride == 1 &&
         plan->inner <= RUN && plan->partitions == 1;
}

/* Outputs [begin, end), |cursor| is that of the first. */
static void reduce_short_rows(const reduction *r, df_cursor *cursor, int64_t begin, int64_t end) {
  const plan *plan = r->plan;
  for (int64_t unit = begin, some; unit < end; unit += some) {
    const float *rows[DF_ROWS_TOGETHER];
    float totals[DF_ROWS_TOGETHER], fetched[FETCHED];
    some = df_min(DF_ROWS_TOGETHER, end - unit);
    if (r->source) {
      some = df_min(some, FETCHED / plan->inner);
      r->source->fetch(r->source->context, unit * plan->inner, some * plan->inner, fetched);
    }
    for (int64_t i = 0; i < some; i++) {
      if (r->source) {
        rows[i] = fetched + i * plan->inner;
        continue;
      }
      rows[i] = (const float *)(const void *)r->x + cursor->offset[0];
      if (plan->kept.rank)
        df_cursor_advance(cursor, &plan->kept, 1);
    }
    r->op->rows(rows, some, plan->inner, totals);
    for (int64_t i = 0; i < some; i++)
      r->op->store(r->out, unit + i, (value){.f = (double)totals[i]}, plan->count);
  }
}

static void reduce_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const reduction *r = context;
  const plan *plan = r->plan;
  const df_walk *kept = &plan->kept;
  int64_t begin, end;
  df_task_range(index, count, plan->units * plan->partitions, 1, &begin, &end);
  df_cursor cursor;
  if (by_short_rows(r)) {
    df_cursor_set(&cursor, kept, begin);
    reduce_short_rows(r, &cursor, begin, end);
    return;
  }
  for (int64_t task = begin; task < end; task++) {
    const int64_t partition = task / plan->units, unit = task % plan->units;
    const int64_t strip = partition * plan->strips / plan->partitions;
    const int64_t strip_end = (partition + 1) * plan->strips / plan->partitions;
    if (task == begin || unit == 0)
      df_cursor_set(&cursor, kept, unit / plan->chunks);
    const int64_t at = cursor.offset[0];
    if (plan->by_columns) {
      const int64_t column = unit % plan->chunks * DF_CHUNK;
      reduce_columns(r, r->x + (at + column * plan->stride) * r->op->item, partition,
                     unit / plan->chunks * plan->inner + column,
                     df_min(DF_CHUNK, plan->inner - column), strip, strip_end);
    } else {
      deliver(r, partition, unit, reduce_output(r, at, strip, strip_end));
    }
    if (kept->rank && (unit + 1) % plan->chunks == 0)
      df_cursor_advance(&cursor, kept, 1);
  }
}

static df_status run_plan(const df_call *call, reduction r) {
  const plan *plan = r.plan;
  const reducer *op = r.op;
  if (plan->outputs == 0)
    return DF_OK;
  if (plan->count == 0) {
    for (int64_t i = 0; i < plan->outputs; i++)
      op->store(r.out, i, op->identity, 0);
    return DF_OK;
  }
  const int64_t tasks = df_task_count(call, plan->outputs * plan->count, DF_GRAIN);
  df_parallel(call, reduce_task, &r, df_min(tasks, plan->units * plan->partitions));
  if (plan->partitions > 1)
    for (int64_t i = 0; i < plan->outputs; i++) {
      value total = op->identity;
      for (int64_t partition = 0; partition < plan->partitions; partition++)
        total = op->join(total, r.partials[partition * plan->outputs + i]);
      op->store(r.out, i, total, plan->count);
    }
  return DF_OK;
}

static df_status reduce(const df_call *call, const reducer *op) {
  const df_tensor *x = &call->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(call, DF_REDUCE_SUM_AXES, &n_axes);
  plan plan;
  plan_make(&plan, x->shape, x->strides, x->rank, axes, n_axes);
  return run_plan(call,
                  (reduction){op, &plan, x->data, call->outputs[0].data, call->workspace, NULL});
}

/* Workspace for the results of partitions. */
static df_status reduce_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *x = &node->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(node, DF_REDUCE_SUM_AXES, &n_axes);
  plan plan;
  plan_make(&plan, x->shape, x->strides, x->rank, axes, n_axes);
  if (plan.partitions > 1)
    out->workspace = plan.partitions * plan.outputs * (int64_t)sizeof(value);
  return DF_OK;
}

/* ---- Of what is fetched --------------------------------------------------------------------- */

static const struct {
  int64_t code;
  const reducer *op;
} fetching[] = {{DF_STEP_reduce_sum, &sum_f32},
                {DF_STEP_reduce_mean, &mean_f32},
                {DF_STEP_reduce_max, &max_f32},
                {DF_STEP_reduce_min, &min_f32},
                {DF_STEP_reduce_prod, &prod_f32}};

static const reducer *fetching_op(int64_t code) {
  for (size_t i = 0; i < sizeof fetching / sizeof *fetching; i++)
    if (fetching[i].code == code)
      return fetching[i].op;
  return NULL;
}

static void plan_trailing(plan *plan, const int64_t *shape, int32_t rank, int32_t trailing) {
  int64_t strides[DF_WALK_RANK], axes[DF_WALK_RANK], step = 1;
  for (int32_t axis = rank - 1; axis >= 0; step *= shape[axis--])
    strides[axis] = step;
  for (int32_t i = 0; i < trailing; i++)
    axes[i] = rank - 1 - i;
  plan_make(plan, shape, strides, rank, axes, trailing);
}

int DF_NAME(df_reduces)(int64_t op) { return fetching_op(op) != NULL; }

df_status DF_NAME(df_reduce_source)(const df_call *call, int64_t op, const df_source *source) {
  plan plan;
  plan_trailing(&plan, source->shape, source->rank, source->trailing);
  return run_plan(call, (reduction){fetching_op(op), &plan, NULL, call->outputs[0].data,
                                    call->workspace, source});
}

int64_t DF_NAME(df_reduce_workspace)(const int64_t *shape, int32_t rank, int32_t trailing) {
  plan plan;
  plan_trailing(&plan, shape, rank, trailing);
  return plan.partitions > 1 ? plan.partitions * plan.outputs * (int64_t)sizeof(value) : 0;
}

/* ---- Records -------------------------------------------------------------------------------- */

#define OPS(X)                                                                                     \
  X(sum, f32)                                                                                      \
  X(sum, f64)                                                                                      \
  X(sum, i32)                                                                                      \
  X(sum, i64)                                                                                      \
  X(mean, f32)                                                                                     \
  X(mean, f64)                                                                                     \
  X(max, f32)                                                                                      \
  X(max, f64)                                                                                      \
  X(max, i32)                                                                                      \
  X(max, i64)                                                                                      \
  X(min, f32)                                                                                      \
  X(min, f64)                                                                                      \
  X(min, i32)                                                                                      \
  X(min, i64)                                                                                      \
  X(prod, f32)                                                                                     \
  X(prod, f64)

#define RUN_OF(op, type)                                                                           \
  static df_status reduce_##op##_##type(const df_call *call) { return reduce(call, &op##_##type); }
OPS(RUN_OF)

#define RECORD(op_, type)                                                                          \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = "reduce_" #op_,                                                         \
                     .name = "reduce_" #op_ " " #type " " DF_TEXT(DF_ISA),                         \
                     .operands = "~" #type "->" #type,                                             \
                     .prepare = reduce_prepare,                                                    \
                     .run = reduce_##op_##_##type},

DF_KERNELS(reduce) = {OPS(RECORD) NULL};
