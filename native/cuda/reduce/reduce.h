/* reduce/reduce.h: how reduce_sum, _mean, _max, _min, _prod find their order, and the kernel that
 * joins the elements of a row, which are in memory or are computed where they are needed.
 *
 * The kept axes and the reduced axes are merged apart. A group of threads then joins the elements
 * of one output ("by rows"), or threads stand side by side on neighbouring outputs and go through
 * the reduced elements ("by columns"), whichever reads memory in order. A few elements are joined
 * in the element's type, those results in double or modulo 2^n, by trees. When there are few
 * outputs, blocks take splits of the reduced elements and a second launch joins the partial results
 * from the workspace, always in the same order. An element is read once.
 */
#ifndef DF_CUDA_REDUCE_REDUCE_H
#define DF_CUDA_REDUCE_REDUCE_H
#include "map/map.h"
#include "reduce/rows.h"

#include <limits>

enum {
  DF_REDUCE_ROUND = 4,     /* loads of a thread that are in flight at one time */
  DF_REDUCE_BLOCKS = 1024, /* that fill a card */
  DF_REDUCE_SPLITS = 1024,
  DF_REDUCE_SHORT = 1024 /* elements up to which a warp joins a row */
};

/* ---- Types and ops: T elements, A joins a few of them, W joins the rest --------------------- */

template <typename T_, typename A_, typename W_> struct df_sum_of {
  using T = T_;
  using A = A_;
  using W = W_;
  static constexpr T first = 0;
  template <typename X> __device__ X operator()(X a, X b) const { return a + b; }
};
template <typename T_, typename A_, typename W_> struct df_prod_of {
  using T = T_;
  using A = A_;
  using W = W_;
  static constexpr T first = 1;
  template <typename X> __device__ X operator()(X a, X b) const { return a * b; }
};
template <typename T_> struct df_max_of {
  using T = T_;
  using A = T_;
  using W = T_;
  using limits = std::numeric_limits<T>;
  static constexpr T first = limits::has_infinity ? -limits::infinity() : limits::lowest();
  __device__ T operator()(T a, T b) const { return DF_MAXIMUM(a, b); }
};
template <typename T_> struct df_min_of {
  using T = T_;
  using A = T_;
  using W = T_;
  using limits = std::numeric_limits<T>;
  static constexpr T first = limits::has_infinity ? limits::infinity() : limits::max();
  __device__ T operator()(T a, T b) const { return DF_MINIMUM(a, b); }
};

/* ---- The plan: follows from shape, strides and axes, but for |vector| ----------------------- */

struct df_reduction {
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
static inline void df_reduce_sort(int64_t *shape, int64_t *strides, int32_t n) {
  for (int32_t i = 1; i < n; i++)
    for (int32_t j = i; j > 0 && std::abs(strides[j - 1]) < std::abs(strides[j]); j--) {
      std::swap(strides[j], strides[j - 1]);
      std::swap(shape[j], shape[j - 1]);
    }
}

/* Splits |count| elements, at least |least| in each split; there are |blocks| blocks without. */
static inline void df_reduce_split(df_reduction *p, int64_t blocks, int64_t least) {
  const int64_t splits =
      df_max(1, df_min(df_min(df_divide_up(DF_REDUCE_BLOCKS, df_max(blocks, 1)), DF_REDUCE_SPLITS),
                       p->count / least));
  p->length = df_max(1, df_divide_up(df_divide_up(p->count, splits), 32) * 32);
  if (splits == 1)
    p->length = df_max(1, p->count);
  p->splits = static_cast<int32_t>(df_max(1, df_divide_up(p->count, p->length)));
}

static inline df_reduction df_reduction_of(const int64_t *shape, const int64_t *strides,
                                           int32_t rank, const int64_t *axes, int32_t n_axes) {
  int64_t sizes[2][DF_WALK_RANK], steps[2][DF_WALK_RANK];
  int32_t ranks[2] = {0, 0};
  df_reduction p{};
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
  df_reduce_sort(sizes[1], steps[1], ranks[1]);
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
    df_reduce_split(&p, df_divide_up(p.outputs, 4 * p.group), 8 * DF_BLOCK / p.group);
  } else {
    const bool few = p.outputs < 8 * DF_REDUCE_BLOCKS;
    p.group = p.count > DF_REDUCE_SHORT && few ? DF_BLOCK
                                               : df_power_of_two(df_divide_up(p.count, 4), DF_WARP);
    df_reduce_split(&p, df_divide_up(p.outputs, DF_BLOCK / p.group), 16 * p.group);
  }
  return p;
}

/* Whether the axis of neighbours can be read |v| elements at a time. */
static inline bool df_reduce_vectors(const df_reduction &p, const void *x, int v) {
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
static __device__ __forceinline__ int64_t df_reduce_offset(const df_walk<1> &walk, int64_t index) {
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
static __device__ __forceinline__ typename Op::T df_reduce_finish(typename Op::W total,
                                                                  const df_reduction &p) {
  if constexpr (std::is_floating_point_v<typename Op::W>)
    if (p.mean)
      total /= static_cast<typename Op::W>(p.count);
  return static_cast<typename Op::T>(total);
}

template <typename Op>
static __device__ __forceinline__ void
df_reduce_deliver(typename Op::T *out, typename Op::W *partials, int64_t output,
                  typename Op::W total, const df_reduction &p) {
  if (p.splits > 1)
    partials[output * p.splits + blockIdx.y] = total;
  else
    out[output] = df_reduce_finish<Op>(total, p);
}

/* Joins rows of what |source| has: source.join<Op>(p, output, begin, end, lane) gives the elements
 * [begin, end) of the row of an output joined, of which the lane takes every p.group-th vector.
 * source.blocks are to fit on a multiprocessor. */
template <typename Op, typename Source>
__global__ void __launch_bounds__(DF_BLOCK, Source::blocks)
    df_reduce_rows(typename Op::T *out, typename Op::W *partials,
                   const __grid_constant__ Source source, const __grid_constant__ df_reduction p) {
  using W = typename Op::W;
  DF_SHARED_ARRAY(W, scratch, [DF_WARP]);
  const int lane = static_cast<int>(threadIdx.x) % p.group;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * (DF_BLOCK / p.group) +
                         static_cast<int>(threadIdx.x) / p.group;
  W total = static_cast<W>(Op::first);
  if (output < p.outputs) {
    const int64_t begin = blockIdx.y * p.length, end = df_min(p.count, begin + p.length);
    total = source.template join<Op>(p, output, begin, end, lane);
  }
  total = df_group_join(total, static_cast<W>(Op::first), scratch, Op{}, p.group);
  if (lane == 0 && output < p.outputs)
    df_reduce_deliver<Op>(out, partials, output, total, p);
}

/* A warp joins the partial results of an output. */
template <typename Op>
__global__ void __launch_bounds__(DF_BLOCK)
    df_reduce_partials(typename Op::T *out, const typename Op::W *partials, df_reduction p) {
  using W = typename Op::W;
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int64_t output = static_cast<int64_t>(blockIdx.x) * (DF_BLOCK / DF_WARP) +
                         static_cast<int>(threadIdx.x) / DF_WARP;
  W total = static_cast<W>(Op::first);
  for (int split = lane; split < p.splits && output < p.outputs; split += DF_WARP)
    total = Op{}(total, partials[output * p.splits + split]);
  total = df_warp_join(total, Op{});
  if (lane == 0 && output < p.outputs)
    out[output] = df_reduce_finish<Op>(total, p);
}

/* ---- Launching ------------------------------------------------------------------------------ */

/* Bytes of workspace for partial results. */
static inline int64_t df_reduce_workspace(const df_reduction &p) {
  return p.splits > 1 ? p.splits * p.outputs * static_cast<int64_t>(sizeof(double)) : 0;
}

/* The second launch, where the rows are split. */
template <typename Op> static df_status df_reduce_join(const df_call *call, const df_reduction &p) {
  if (p.splits == 1)
    return DF_OK;
  return DF_LAUNCH(call, (df_reduce_partials<Op>), df_blocks(p.outputs, DF_BLOCK / DF_WARP),
                   DF_BLOCK, 0, df_out<typename Op::T>(call, 0),
                   static_cast<const typename Op::W *>(call->workspace), p);
}

/* Output 0 by rows; |shared| is the dynamic shared memory of a block that |source| needs. */
template <typename Op, typename Source>
static df_status df_reduce_by_rows(const df_call *call, const Source &source, size_t shared,
                                   const df_reduction &p) {
  const dim3 grid(df_blocks(p.outputs, DF_BLOCK / p.group), static_cast<unsigned>(p.splits));
  const df_status status = DF_LAUNCH(call, (df_reduce_rows<Op, Source>), grid, DF_BLOCK, shared,
                                     df_out<typename Op::T>(call, 0),
                                     static_cast<typename Op::W *>(call->workspace), source, p);
  return status ? status : df_reduce_join<Op>(call, p);
}

#endif
