/* reduce/reduce.c: reduce_sum, _mean, _max, _min, _prod over any axes of a tensor with any strides.
 *
 * The kept axes and the reduced axes are merged apart. A unit of work is then either one output,
 * whose elements are read along the innermost reduced axis (reduce/by_rows.c), or up to DF_CHUNK
 * neighbouring outputs to which the kernel adds one row after another (reduce/by_columns.c),
 * whichever reads memory in order. Runs of at most DF_CHUNK elements are reduced in the element's
 * type, runs are joined in double or int64. When there are few outputs, the runs are split into
 * partitions that depend on the shape only, and the partitions' results, kept in the workspace, are
 * joined in order. */
#include "reduce/reduce.h"
#include "reduce/reduction.h"
#include "reduce/short_rows.h"
#include "simd/block.h"
#include "simd/vector.h"

/* ---- Types and ops -------------------------------------------------------------------------- */

#define MAX_OF(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN_OF(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define SUM_OF(a, b) ((a) + (b))
#define PROD_OF(a, b) ((a) * (b))
#define PROD_INT(a, b) ((uint64_t)(a) * (uint64_t)(b)) /* wraps */

enum { BY_VECTORS = 2 };

typedef double doubles __attribute__((vector_size(DF_LANES * 4)));
typedef double doubles_unaligned __attribute__((vector_size(DF_LANES * 4), aligned(8), may_alias));
typedef int64_t doubles_mask __attribute__((vector_size(DF_LANES * 4)));

/* The larger one per lane; a NaN wins. */
static inline doubles larger_doubles(doubles a, doubles b) {
  const doubles_mask keep = (b <= a) | (a != a);
  return (doubles)((keep & (doubles_mask)a) | (~keep & (doubles_mask)b));
}

/* The largest of sign * x times the sign, of DF_LANES doubles or more. */
static double extreme_of(const double *x, int64_t n, double sign) {
  enum { LANES = DF_LANES / 2 };
  doubles one = *(const doubles_unaligned *)x * sign;
  doubles two =
      *(const doubles_unaligned *)(x + n - LANES) * sign; /* some are read for the second time */
  int64_t i = LANES;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    one = larger_doubles(one, *(const doubles_unaligned *)(x + i) * sign);
    two = larger_doubles(two, *(const doubles_unaligned *)(x + i + LANES) * sign);
  }
  if (i + LANES <= n)
    one = larger_doubles(one, *(const doubles_unaligned *)(x + i) * sign);
  one = larger_doubles(one, two);
  double most = one[0];
  for (int lane = 1; lane < LANES; lane++)
    most = DF_MAXIMUM(most, one[lane]);
  return most * sign;
}

/* |W| is the type to compute in: unsigned for integer sums, which wrap. |field| is f or i, |V| its
 * type. |twice|: an element may be taken for the second time, and with
 * BY_VECTORS doubles are compared as vectors. What is left of a row behind full
 * blocks is joined in a few lanes. */
#define DEFINE_REDUCER(name, T, W, field, V, OP, first, finish, twice, rows)                       \
  static df_reduced name##_run(const void *from, int64_t n) {                                      \
    enum { FEW = sizeof(T) == 8 ? 8 : 16 };                                                        \
    const T *x = from;                                                                             \
    W total = (W)(first);                                                                          \
    int64_t i = 0;                                                                                 \
    if ((twice) == BY_VECTORS && n >= DF_LANES)                                                    \
      return (df_reduced){.field = (V)extreme_of(from, n, (double)(first) < 0.0 ? 1.0 : -1.0)};    \
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
    if (n - i >= FEW) {                                                                            \
      W lanes[FEW];                                                                                \
      for (int j = 0; j < FEW; j++)                                                                \
        lanes[j] = (W)x[i + j];                                                                    \
      for (i += FEW; i + FEW <= n; i += FEW)                                                       \
        for (int j = 0; j < FEW; j++)                                                              \
          lanes[j] = OP((W)x[i + j], lanes[j]);                                                    \
      if (twice && i < n) {                                                                        \
        for (int j = 0; j < FEW; j++)                                                              \
          lanes[j] = OP((W)x[n - FEW + j], lanes[j]);                                              \
        i = n;                                                                                     \
      }                                                                                            \
      for (int width = FEW / 2; width > 0; width /= 2)                                             \
        for (int j = 0; j < width; j++)                                                            \
          lanes[j] = OP(lanes[j + width], lanes[j]);                                               \
      total = OP(lanes[0], total);                                                                 \
    }                                                                                              \
    for (; i < n; i++)                                                                             \
      total = OP((W)x[i], total);                                                                  \
    return (df_reduced){.field = (V)(T)total};                                                     \
  }                                                                                                \
  static df_reduced name##_join(df_reduced a, df_reduced b) {                                      \
    return (df_reduced){.field = (V)OP((V)b.field, (V)a.field)};                                   \
  }                                                                                                \
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
  static void name##_fold(df_reduced *totals, const void *partial, int64_t n) {                    \
    const T *p = partial;                                                                          \
    for (int64_t j = 0; j < n; j++)                                                                \
      totals[j].field = (V)OP((V)p[j], totals[j].field);                                           \
  }                                                                                                \
  static void name##_store(void *out, int64_t index, df_reduced total, int64_t count) {            \
    (void)count;                                                                                   \
    ((T *)out)[index] = (T)(total.field finish);                                                   \
  }                                                                                                \
  static const df_reducer name = {sizeof(T),   {.field = (V)(first)}, name##_run,                  \
                                  name##_join, name##_clear,          name##_add,                  \
                                  name##_fold, name##_store,          rows};

DEFINE_REDUCER(sum_f32, float, float, f, double, SUM_OF, 0.0f, , 0, DF_NAME(df_sum_rows))
DEFINE_REDUCER(sum_f64, double, double, f, double, SUM_OF, 0.0, , 0, NULL)
DEFINE_REDUCER(sum_i32, int32_t, uint32_t, i, uint64_t, SUM_OF, 0, , 0, NULL)
DEFINE_REDUCER(sum_i64, int64_t, uint64_t, i, uint64_t, SUM_OF, 0, , 0, NULL)
DEFINE_REDUCER(mean_f32, float, float, f, double, SUM_OF, 0.0f, / (double)count, 0,
               DF_NAME(df_sum_rows))
DEFINE_REDUCER(mean_f64, double, double, f, double, SUM_OF, 0.0, / (double)count, 0, NULL)
DEFINE_REDUCER(max_f32, float, float, f, double, MAX_OF, -INFINITY, , 1,
               DF_NAME(df_largest_of_rows))
DEFINE_REDUCER(max_f64, double, double, f, double, MAX_OF, -(double)INFINITY, , BY_VECTORS, NULL)
DEFINE_REDUCER(max_i32, int32_t, int32_t, i, int64_t, MAX_OF, INT32_MIN, , 1, NULL)
DEFINE_REDUCER(max_i64, int64_t, int64_t, i, int64_t, MAX_OF, INT64_MIN, , 1, NULL)
DEFINE_REDUCER(min_f32, float, float, f, double, MIN_OF, INFINITY, , 1,
               DF_NAME(df_smallest_of_rows))
DEFINE_REDUCER(min_f64, double, double, f, double, MIN_OF, (double)INFINITY, , BY_VECTORS, NULL)
DEFINE_REDUCER(min_i32, int32_t, int32_t, i, int64_t, MIN_OF, INT32_MAX, , 1, NULL)
DEFINE_REDUCER(min_i64, int64_t, int64_t, i, int64_t, MIN_OF, INT64_MAX, , 1, NULL)
DEFINE_REDUCER(prod_f32, float, float, f, double, PROD_OF, 1.0f, , 0, NULL)
DEFINE_REDUCER(prod_f64, double, double, f, double, PROD_OF, 1.0, , 0, NULL)
DEFINE_REDUCER(prod_i32, int32_t, uint32_t, i, uint64_t, PROD_INT, 1, , 0, NULL)
DEFINE_REDUCER(prod_i64, int64_t, uint64_t, i, uint64_t, PROD_INT, 1, , 0, NULL)
DEFINE_REDUCER(max_i8, int8_t, int8_t, i, int64_t, MAX_OF, INT8_MIN, , 1, NULL)
DEFINE_REDUCER(max_u8, uint8_t, uint8_t, i, int64_t, MAX_OF, 0, , 1, NULL)
DEFINE_REDUCER(min_i8, int8_t, int8_t, i, int64_t, MIN_OF, INT8_MAX, , 1, NULL)
DEFINE_REDUCER(min_u8, uint8_t, uint8_t, i, int64_t, MIN_OF, UINT8_MAX, , 1, NULL)

/* ---- Running -------------------------------------------------------------------------------- */

static df_status reduce(const df_call *call, const df_reducer *op) {
  const df_tensor *x = call->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(call, DF_REDUCE_SUM_AXES, &n_axes);
  df_reduce_plan plan;
  DF_NAME(df_reduce_plan_make)(&plan, x->shape, x->strides, x->rank, axes, n_axes);
  return DF_NAME(df_reduction_run)(
      call, (df_reduction){op, &plan, x->data, call->outputs[0]->data, call->workspace, NULL});
}

/* Workspace for the results of partitions. */
static df_status reduce_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *x = node->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(node, DF_REDUCE_SUM_AXES, &n_axes);
  df_reduce_plan plan;
  DF_NAME(df_reduce_plan_make)(&plan, x->shape, x->strides, x->rank, axes, n_axes);
  if (plan.partitions > 1)
    out->workspace = plan.partitions * plan.outputs * (int64_t)sizeof(df_reduced);
  return DF_OK;
}

/* ---- Of what is fetched --------------------------------------------------------------------- */

static const struct {
  int64_t code;
  const df_reducer *op;
} fetching[] = {{DF_STEP_reduce_sum, &sum_f32},
                {DF_STEP_reduce_mean, &mean_f32},
                {DF_STEP_reduce_max, &max_f32},
                {DF_STEP_reduce_min, &min_f32},
                {DF_STEP_reduce_prod, &prod_f32}};

static const df_reducer *fetching_op(int64_t code) {
  for (size_t i = 0; i < sizeof fetching / sizeof *fetching; i++)
    if (fetching[i].code == code)
      return fetching[i].op;
  return NULL;
}

static void plan_trailing(df_reduce_plan *plan, const int64_t *shape, int32_t rank,
                          int32_t trailing) {
  int64_t strides[DF_WALK_RANK], axes[DF_WALK_RANK], step = 1;
  for (int32_t axis = rank - 1; axis >= 0; step *= shape[axis--])
    strides[axis] = step;
  for (int32_t i = 0; i < trailing; i++)
    axes[i] = rank - 1 - i;
  DF_NAME(df_reduce_plan_make)(plan, shape, strides, rank, axes, trailing);
}

int DF_NAME(df_reduces)(int64_t op) { return fetching_op(op) != NULL; }

df_status DF_NAME(df_reduce_source)(const df_call *call, int64_t op, const df_source *source) {
  const df_reducer *known = fetching_op(op);
  DF_ASSUME(known);
  df_reduce_plan plan;
  plan_trailing(&plan, source->shape, source->rank, source->trailing);
  return DF_NAME(df_reduction_run)(
      call, (df_reduction){known, &plan, NULL, call->outputs[0]->data, call->workspace, source});
}

int64_t DF_NAME(df_reduce_workspace)(const int64_t *shape, int32_t rank, int32_t trailing) {
  df_reduce_plan plan;
  plan_trailing(&plan, shape, rank, trailing);
  return plan.partitions > 1 ? plan.partitions * plan.outputs * (int64_t)sizeof(df_reduced) : 0;
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
  X(prod, f64)                                                                                     \
  X(prod, i32)                                                                                     \
  X(prod, i64)                                                                                     \
  X(max, i8)                                                                                       \
  X(max, u8)                                                                                       \
  X(min, i8)                                                                                       \
  X(min, u8)

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
