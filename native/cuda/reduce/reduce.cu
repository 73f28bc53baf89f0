/* reduce/reduce.cu: reduce_sum, _mean, _max, _min, _prod over any axes of a tensor with any
 * strides.
 *
 * The kept axes and the reduced axes are merged apart. A group of threads then joins the elements
 * of one output ("by rows"), or threads stand side by side on neighbouring outputs and go through
 * the reduced elements ("by columns"), whichever reads memory in order. A few elements are joined
 * in the element's type, those results in double or modulo 2^n, by trees. When there are few
 * outputs, blocks take splits of the reduced elements and a second launch joins the partial results
 * from the workspace, always in the same order. An element is read once.
 */
#include "map/map.h"
#include "reduce/rows.h"

#include <limits>

enum {
  ROUND = 4,            /* loads of a thread that are in flight at one time */
  WANTED_BLOCKS = 1024, /* that fill a card */
  MOST_SPLITS = 1024,
  SHORT_ROW = 1024 /* elements up to which a warp joins a row */
};

/* ---- Types and ops: T elements, A joins a few of them, W joins the rest --------------------- */

template <typename T_, typename A_, typename W_> struct sum_of {
  using T = T_;
  using A = A_;
  using W = W_;
  static constexpr T first = 0;
  template <typename X> __device__ X operator()(X a, X b) const { return a + b; }
};
template <typename T_, typename A_, typename W_> struct prod_of {
  using T = T_;
  using A = A_;
  using W = W_;
  static constexpr T first = 1;
  template <typename X> __device__ X operator()(X a, X b) const { return a * b; }
};
template <typename T_> struct max_of {
  using T = T_;
  using A = T_;
  using W = T_;
  using limits = std::numeric_limits<T>;
  static constexpr T first = limits::has_infinity ? -limits::infinity() : limits::lowest();
  __device__ T operator()(T a, T b) const { return DF_MAXIMUM(a, b); }
};
template <typename T_> struct min_of {
  using T = T_;
  using A = T_;
  using W = T_;
  using limits = std::numeric_limits<T>;
  static constexpr T first = limits::has_infinity ? limits::infinity() : limits::max();
  __device__ T operator()(T a, T b) const { return DF_MINIMUM(a, b); }
};

/* ---- The plan: follows from shape, strides and axes, but for |vector| ----------------------- */

struct plan {
  df_walk<1> kept, reduced;
  int64_t outputs;                /* product of the kept axes */
  int64_t count;                  /* elements per output */
  int64_t columns, column_stride; /* by columns: the innermost kept axis */
  int64_t chunks;                 /* blocks that cover the columns */
  int64_t length;                 /* reduced elements of a split */
  int32_t splits;
  int32_t by_columns;
  int32_t group;  /* threads per output by rows, threads side by side by columns */
  int32_t vector; /* 16 bytes at a time */
  int32_t mean;
};

/* Axes in order of falling stride: the order in which reduced elements are joined is free. */
static void sort_axes(int64_t *shape, int64_t *strides, int32_t n) {
  for (int32_t i = 1; i < n; i++)
    for (int32_t j = i; j > 0 && std::abs(strides[j - 1]) < std::abs(strides[j]); j--) {
      std::swap(strides[j], strides[j - 1]);
      std::swap(shape[j], shape[j - 1]);
    }
}

/* Splits |count| elements, at least |least| in each split; there are |blocks| blocks without. */
static void choose_splits(plan *p, int64_t blocks, int64_t least) {
  const int64_t splits =
      df_max(1, df_min(df_min(df_divide_up(WANTED_BLOCKS, df_max(blocks, 1)), MOST_SPLITS),
                       p->count / least));
  p->length = df_max(1, df_divide_up(df_divide_up(p->count, splits), 32) * 32);
  if (splits == 1)
    p->length = df_max(1, p->count);
  p->splits = static_cast<int32_t>(df_max(1, df_divide_up(p->count, p->length)));
}

static plan plan_of(const int64_t *shape, const int64_t *strides, int32_t rank, const int64_t *axes,
                    int32_t n_axes) {
  int64_t sizes[2][DF_WALK_RANK], steps[2][DF_WALK_RANK];
  int32_t ranks[2] = {0, 0};
  plan p{};
  for (int32_t axis = 0; axis < rank; axis++) {
    int side = 0;
    for (int32_t i = 0; i < n_axes; i++)
      side |= axes[i] == axis || axes[i] == axis - rank;
    if (shape[axis] == 1)
      continue;
    const int32_t at = ranks[side]++;
    sizes[side][at] = shape[axis];
    steps[side][at] = strides[axis];
  }
  sort_axes(sizes[1], steps[1], ranks[1]);
  df_walk<1> *walks[2] = {&p.kept, &p.reduced};
  for (int side = 0; side < 2; side++) {
    df_tensor one{};
    one.shape = sizes[side];
    one.strides = steps[side];
    one.rank = ranks[side];
    const df_tensor *const operands[1] = {&one};
    if (df_product(sizes[side], 0, ranks[side]) > 0)
      df_walk_plan(walks[side], sizes[side], ranks[side], operands);
  }
  p.outputs = df_product(sizes[0], 0, ranks[0]);
  p.count = df_product(sizes[1], 0, ranks[1]);
  const int32_t last = p.kept.rank - 1, inner = p.reduced.rank - 1;
  p.by_columns = last >= 0 && inner >= 0 && p.kept.shape[last] >= 4 &&
                 std::abs(p.kept.strides[0][last]) < std::abs(p.reduced.strides[0][inner]);
  if (p.by_columns) {
    p.kept.rank--;
    p.columns = p.kept.shape[last];
    p.column_stride = p.kept.strides[0][last];
    p.group = df_power_of_two(df_divide_up(p.columns, 4), DF_WARP);
    p.chunks = df_divide_up(p.columns, 4 * p.group);
    choose_splits(&p, df_divide_up(p.outputs, 4 * p.group), 8 * DF_BLOCK / p.group);
  } else {
    const bool few = p.outputs < 8 * WANTED_BLOCKS;
    p.group =
        p.count > SHORT_ROW && few ? DF_BLOCK : df_power_of_two(df_divide_up(p.count, 4), DF_WARP);
    choose_splits(&p, df_divide_up(p.outputs, DF_BLOCK / p.group), 16 * p.group);
  }
  return p;
}

/* Whether the axis of neighbours can be read |v| elements at a time. */
static bool takes_vectors(const plan &p, const void *x, int v) {
  const df_walk<1> *walks[2] = {&p.kept, &p.reduced};
  bool fits = df_aligned_16(x);
  const int32_t inner = p.reduced.rank - 1;
  for (int side = 0; side < 2; side++)
    for (int32_t axis = 0; axis < walks[side]->rank; axis++)
      if (p.by_columns || side == 0 || axis != inner)
        fits = fits && walks[side]->strides[0][axis] % v == 0;
  if (p.by_columns)
    return fits && p.column_stride == 1 && p.columns % v == 0;
  return fits && inner >= 0 && p.reduced.strides[0][inner] == 1 && p.reduced.shape[inner] % v == 0;
}

/* ---- Kernels -------------------------------------------------------------------------------- */

/* Like df_walk::offsets, but the outermost axis needs no division. */
static __device__ __forceinline__ int64_t offset_of(const df_walk<1> &walk, int64_t index) {
  int64_t offset = 0;
#pragma unroll 1
  for (int axis = walk.rank - 1; axis > 0; axis--) {
    const int64_t rest =
        walk.index64
            ? index / walk.shape[axis]
            : static_cast<int64_t>(df_divide(static_cast<uint32_t>(index), walk.divisor[axis]));
    offset += (index - rest * walk.shape[axis]) * walk.strides[0][axis];
    index = rest;
  }
  return walk.rank > 0 ? offset + index * walk.strides[0][0] : 0;
}

template <typename Op>
static __device__ __forceinline__ typename Op::T finish(typename Op::W total, const plan &p) {
  if constexpr (std::is_floating_point_v<typename Op::W>)
    if (p.mean)
      total /= static_cast<typename Op::W>(p.count);
  return static_cast<typename Op::T>(total);
}

template <typename Op>
static __device__ __forceinline__ void deliver(typename Op::T *out, typename Op::W *partials,
                                               int64_t output, typename Op::W total,
                                               const plan &p) {
  if (p.splits > 1)
    partials[output * p.splits + blockIdx.y] = total;
  else
    out[output] = finish<Op>(total, p);
}

/* Elements begin + V lane, ... of [begin, end), |step| threads side by side. */
template <typename Op, int V>
static __device__ __forceinline__ typename Op::W
join_row(const typename Op::T *x, const plan &p, int64_t begin, int64_t end, int lane, int step) {
  using T = typename Op::T;
  using A = typename Op::A;
  using W = typename Op::W;
  const Op op;
  W total = static_cast<W>(Op::first);
  const int64_t apart = static_cast<int64_t>(step) * V;
  for (int64_t i = begin + lane * V; i < end; i += ROUND * apart) {
    df_vector<T, V> v[ROUND];
#pragma unroll
    for (int r = 0; r < ROUND; r++) {
      const int64_t at = i + r * apart;
      if (at < end)
        v[r] = *reinterpret_cast<const df_vector<T, V> *>(x + offset_of(p.reduced, at));
      else
        for (int k = 0; k < V; k++)
          v[r].v[k] = Op::first;
    }
    A few = static_cast<A>(v[0].v[0]);
#pragma unroll
    for (int r = 0; r < ROUND; r++)
#pragma unroll
      for (int k = r == 0; k < V; k++)
        few = op(few, static_cast<A>(v[r].v[k]));
    total = op(total, static_cast<W>(few));
  }
  return total;
}

template <typename Op>
__global__ void __launch_bounds__(DF_BLOCK)
    reduce_rows(typename Op::T *out, typename Op::W *partials, const typename Op::T *x, plan p) {
  using T = typename Op::T;
  using W = typename Op::W;
  __shared__ W scratch[DF_WARP];
  const int lane = static_cast<int>(threadIdx.x) % p.group;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * (DF_BLOCK / p.group) +
                         static_cast<int>(threadIdx.x) / p.group;
  W total = static_cast<W>(Op::first);
  if (output < p.outputs) {
    const int64_t begin = blockIdx.y * p.length, end = df_min(p.count, begin + p.length);
    const T *from = x + offset_of(p.kept, output);
    total = p.vector ? join_row<Op, 16 / sizeof(T)>(from, p, begin, end, lane, p.group)
                     : join_row<Op, 1>(from, p, begin, end, lane, p.group);
  }
  total = df_group_join(total, static_cast<W>(Op::first), scratch, Op{}, p.group);
  if (lane == 0 && output < p.outputs)
    deliver<Op>(out, partials, output, total, p);
}

/* V neighbouring columns per thread, p.group threads side by side; the other threads of the block
 * stand below one another. */
template <typename Op, int V>
static __device__ __forceinline__ void join_columns(typename Op::T *out, typename Op::W *partials,
                                                    const typename Op::T *x, typename Op::W *shared,
                                                    const plan &p) {
  using T = typename Op::T;
  using A = typename Op::A;
  using W = typename Op::W;
  const Op op;
  const int thread = static_cast<int>(threadIdx.x), below = DF_BLOCK / p.group;
  const int64_t outer = blockIdx.x / p.chunks;
  const int64_t column = (blockIdx.x % p.chunks * p.group + thread % p.group) * V;
  const int64_t begin = blockIdx.y * p.length, end = df_min(p.count, begin + p.length);
  W total[V];
  for (int k = 0; k < V; k++)
    total[k] = static_cast<W>(Op::first);
  if (column < p.columns) {
    const T *from = x + offset_of(p.kept, outer) + column * p.column_stride;
    for (int64_t i = begin + thread / p.group; i < end; i += ROUND * below) {
      df_vector<T, V> v[ROUND];
#pragma unroll
      for (int r = 0; r < ROUND; r++) {
        const int64_t at = i + r * below;
        if (at < end)
          v[r] = *reinterpret_cast<const df_vector<T, V> *>(from + offset_of(p.reduced, at));
        else
          for (int k = 0; k < V; k++)
            v[r].v[k] = Op::first;
      }
#pragma unroll
      for (int k = 0; k < V; k++) {
        A few = static_cast<A>(v[0].v[k]);
#pragma unroll
        for (int r = 1; r < ROUND; r++)
          few = op(few, static_cast<A>(v[r].v[k]));
        total[k] = op(total[k], static_cast<W>(few));
      }
    }
  }
  for (int k = 0; k < V; k++)
    shared[k * DF_BLOCK + thread] = total[k];
  __syncthreads();
  for (int half = DF_BLOCK / 2; half >= p.group; half /= 2) {
    if (thread < half)
      for (int k = 0; k < V; k++) {
        W *own = &shared[k * DF_BLOCK + thread];
        *own = op(*own, own[half]);
      }
    __syncthreads();
  }
  if (thread < p.group && column < p.columns)
    for (int k = 0; k < V; k++)
      deliver<Op>(out, partials, outer * p.columns + column + k, shared[k * DF_BLOCK + thread], p);
}

template <typename Op>
__global__ void __launch_bounds__(DF_BLOCK)
    reduce_columns(typename Op::T *out, typename Op::W *partials, const typename Op::T *x, plan p) {
  constexpr int V = 16 / sizeof(typename Op::T);
  __shared__ typename Op::W shared[V * DF_BLOCK];
  if (p.vector)
    join_columns<Op, V>(out, partials, x, shared, p);
  else
    join_columns<Op, 1>(out, partials, x, shared, p);
}

/* A warp joins the partial results of an output. */
template <typename Op>
__global__ void __launch_bounds__(DF_BLOCK)
    reduce_partials(typename Op::T *out, const typename Op::W *partials, plan p) {
  using W = typename Op::W;
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * (DF_BLOCK / DF_WARP) +
                         static_cast<int>(threadIdx.x) / DF_WARP;
  W total = static_cast<W>(Op::first);
  for (int split = lane; split < p.splits && output < p.outputs; split += DF_WARP)
    total = Op{}(total, partials[output * p.splits + split]);
  total = df_warp_join(total, Op{});
  if (lane == 0 && output < p.outputs)
    out[output] = finish<Op>(total, p);
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename Op, bool mean> static df_status run(const df_call *call) {
  using T = typename Op::T;
  using W = typename Op::W;
  const df_tensor *from = &call->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(call, DF_REDUCE_SUM_AXES, &n_axes);
  plan p = plan_of(from->shape, from->strides, from->rank, axes, n_axes);
  if (p.outputs == 0)
    return DF_OK;
  constexpr int V = 16 / sizeof(T);
  const T *x = df_in<const T>(call, 0);
  T *out = df_out<T>(call, 0);
  W *partials = static_cast<W *>(call->workspace);
  p.mean = mean;
  p.vector = takes_vectors(p, x, V);
  df_status status;
  if (p.by_columns) {
    p.chunks = df_divide_up(p.columns, p.group * (p.vector ? V : 1));
    const dim3 grid(df_blocks(p.outputs / p.columns * p.chunks, 1),
                    static_cast<unsigned>(p.splits));
    status = DF_LAUNCH(call, (reduce_columns<Op>), grid, DF_BLOCK, 0, out, partials, x, p);
  } else {
    const dim3 grid(df_blocks(p.outputs, DF_BLOCK / p.group), static_cast<unsigned>(p.splits));
    status = DF_LAUNCH(call, (reduce_rows<Op>), grid, DF_BLOCK, 0, out, partials, x, p);
  }
  if (status || p.splits == 1)
    return status;
  return DF_LAUNCH(call, (reduce_partials<Op>), df_blocks(p.outputs, DF_BLOCK / DF_WARP), DF_BLOCK,
                   0, out, partials, p);
}

/* Workspace for the partial results. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = &node->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(node, DF_REDUCE_SUM_AXES, &n_axes);
  const plan p = plan_of(x->shape, x->strides, x->rank, axes, n_axes);
  if (p.splits > 1)
    out->workspace = p.splits * p.outputs * static_cast<int64_t>(sizeof(double));
  return DF_OK;
}

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(name, type, mean, ...)                                                              \
  DF_CUDA_KERNEL(name, #type, "~" #type "->" #type, nullptr, .accepts = df_accepts_rank,           \
                 .prepare = prepare, .run = run<__VA_ARGS__, mean>, .capturable = 1)

static const df_kernel records[] = {
    RECORD("reduce_sum", f32, false, sum_of<float, float, double>),
    RECORD("reduce_sum", f64, false, sum_of<double, double, double>),
    RECORD("reduce_sum", i32, false, sum_of<int32_t, uint32_t, uint32_t>),
    RECORD("reduce_sum", i64, false, sum_of<int64_t, uint64_t, uint64_t>),
    RECORD("reduce_mean", f32, true, sum_of<float, float, double>),
    RECORD("reduce_mean", f64, true, sum_of<double, double, double>),
    RECORD("reduce_max", f32, false, max_of<float>),
    RECORD("reduce_max", f64, false, max_of<double>),
    RECORD("reduce_max", i32, false, max_of<int32_t>),
    RECORD("reduce_max", i64, false, max_of<int64_t>),
    RECORD("reduce_min", f32, false, min_of<float>),
    RECORD("reduce_min", f64, false, min_of<double>),
    RECORD("reduce_min", i32, false, min_of<int32_t>),
    RECORD("reduce_min", i64, false, min_of<int64_t>),
    RECORD("reduce_prod", f32, false, prod_of<float, float, double>),
    RECORD("reduce_prod", f64, false, prod_of<double, double, double>)};
DF_CUDA_FAMILY(reduce, records);
