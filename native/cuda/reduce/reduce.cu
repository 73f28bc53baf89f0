/* reduce/reduce.cu: reductions over any axes of a tensor in memory with any strides, in the order
 * of reduce/reduce.h. */
#include "reduce/reduce.h"

/* Elements as they are, or bfloat16 of which float32 is summed. */
template <typename T> static __device__ __forceinline__ T element(T x) { return x; }
static __device__ __forceinline__ float element(uint16_t x) { return df_from_bfloat(x); }

/* ---- Rows in memory ------------------------------------------------------------------------- */

/* Elements begin + V lane, ... of [begin, end), |step| threads side by side. */
template <typename Op, int V, typename S>
static __device__ __forceinline__ typename Op::W
join_row(const S *x, const df_reduction &p, int64_t begin, int64_t end, int lane, int step) {
  using A = typename Op::A;
  using W = typename Op::W;
  const Op op;
  W total = static_cast<W>(Op::first);
  const int64_t apart = static_cast<int64_t>(step) * V;
  for (int64_t i = begin + lane * V; i < end; i += DF_REDUCE_ROUND * apart) {
    df_vector<S, V> v[DF_REDUCE_ROUND];
#pragma unroll
    for (int r = 0; r < DF_REDUCE_ROUND; r++) {
      const int64_t at = i + r * apart;
      if (at < end)
        v[r] = *reinterpret_cast<const df_vector<S, V> *>(x + df_reduce_offset(p.reduced, at));
      else
        for (int k = 0; k < V; k++)
          v[r].v[k] = Op::first;
    }
    A few = static_cast<A>(element(v[0].v[0]));
#pragma unroll
    for (int r = 0; r < DF_REDUCE_ROUND; r++)
#pragma unroll
      for (int k = r == 0; k < V; k++)
        few = op(few, static_cast<A>(element(v[r].v[k])));
    total = op(total, static_cast<W>(few));
  }
  return total;
}

template <typename S> struct in_memory {
  static constexpr int blocks = 1;
  const S *x;
  template <typename Op>
  __device__ typename Op::W join(const df_reduction &p, int64_t output, int64_t begin, int64_t end,
                                 int lane) const {
    const S *from = x + df_reduce_offset(p.kept, output);
    return p.vector ? join_row<Op, 16 / sizeof(typename Op::T)>(from, p, begin, end, lane, p.group)
                    : join_row<Op, 1>(from, p, begin, end, lane, p.group);
  }
};

/* ---- Columns -------------------------------------------------------------------------------- */

/* V neighbouring columns per thread, p.group threads side by side; the other threads of the block
 * stand below one another. */
template <typename Op, int V, typename S>
static __device__ __forceinline__ void join_columns(typename Op::T *out, typename Op::W *partials,
                                                    const S *x, typename Op::W *shared,
                                                    const df_reduction &p) {
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
    const S *from = x + df_reduce_offset(p.kept, outer) + column * p.column_stride;
    for (int64_t i = begin + thread / p.group; i < end; i += DF_REDUCE_ROUND * below) {
      df_vector<S, V> v[DF_REDUCE_ROUND];
#pragma unroll
      for (int r = 0; r < DF_REDUCE_ROUND; r++) {
        const int64_t at = i + r * below;
        if (at < end)
          v[r] = *reinterpret_cast<const df_vector<S, V> *>(from + df_reduce_offset(p.reduced, at));
        else
          for (int k = 0; k < V; k++)
            v[r].v[k] = Op::first;
      }
#pragma unroll
      for (int k = 0; k < V; k++) {
        A few = static_cast<A>(element(v[0].v[k]));
#pragma unroll
        for (int r = 1; r < DF_REDUCE_ROUND; r++)
          few = op(few, static_cast<A>(element(v[r].v[k])));
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
      df_reduce_deliver<Op>(out, partials, outer * p.columns + column + k,
                            shared[k * DF_BLOCK + thread], p);
}

template <typename Op, typename S>
__global__ void __launch_bounds__(DF_BLOCK)
    reduce_columns(typename Op::T *out, typename Op::W *partials, const S *x, df_reduction p) {
  constexpr int V = 16 / sizeof(typename Op::T);
  DF_SHARED_ARRAY(typename Op::W, shared, [V * DF_BLOCK]);
  if (p.vector)
    join_columns<Op, V>(out, partials, x, shared, p);
  else
    join_columns<Op, 1>(out, partials, x, shared, p);
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename Op, bool mean, typename S> static df_status run_of(const df_call *call) {
  using T = typename Op::T;
  using W = typename Op::W;
  const df_tensor *from = call->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(call, DF_REDUCE_SUM_AXES, &n_axes);
  df_reduction p = df_reduction_of(from->shape, from->strides, from->rank, axes, n_axes);
  if (p.outputs == 0)
    return DF_OK;
  constexpr int V = 16 / sizeof(T);
  const S *x = df_in<const S>(call, 0);
  p.mean = mean;
  p.vector = df_reduce_vectors(p, x, V);
  if (!p.by_columns)
    return df_reduce_by_rows<Op>(call, in_memory<S>{x}, 0, p);
  p.chunks = df_divide_up(p.columns, p.group * (p.vector ? V : 1));
  const dim3 grid(df_blocks(p.outputs / p.columns * p.chunks, 1), static_cast<unsigned>(p.splits));
  const df_status status = DF_LAUNCH(call, (reduce_columns<Op, S>), grid, DF_BLOCK, 0,
                                     df_out<T>(call, 0), static_cast<W *>(call->workspace), x, p);
  return status ? status : df_reduce_join<Op>(call, p);
}

template <typename Op, bool mean> static df_status run(const df_call *call) {
  return run_of<Op, mean, typename Op::T>(call);
}

/* The sum of floats, or of what products of bfloat16 read. */
static df_status run_sum(const df_call *call) {
  using Op = df_sum_of<float, float, double>;
  return call->inputs[0]->dtype == DF_BFLOAT16 ? run_of<Op, false, uint16_t>(call)
                                               : run_of<Op, false, float>(call);
}

/* Workspace for the partial results. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = node->inputs[0];
  int32_t n_axes;
  const int64_t *axes = df_attr_ints(node, DF_REDUCE_SUM_AXES, &n_axes);
  const df_reduction p = df_reduction_of(x->shape, x->strides, x->rank, axes, n_axes);
  out->workspace = df_reduce_workspace(p);
  return DF_OK;
}

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(name, type, mean, ...)                                                              \
  DF_CUDA_KERNEL(name, #type, "~" #type "->" #type, nullptr, .accepts = df_accepts_rank,           \
                 .prepare = prepare, .run = run<__VA_ARGS__, mean>, .capturable = 1)

static const df_kernel records[] = {
    DF_CUDA_KERNEL("reduce_sum", "f32", "~f32|bf16->f32", nullptr, .accepts = df_accepts_rank,
                   .prepare = prepare, .run = run_sum, .capturable = 1),
    RECORD("reduce_sum", f64, false, df_sum_of<double, double, double>),
    RECORD("reduce_sum", i32, false, df_sum_of<int32_t, uint32_t, uint32_t>),
    RECORD("reduce_sum", i64, false, df_sum_of<int64_t, uint64_t, uint64_t>),
    RECORD("reduce_mean", f32, true, df_sum_of<float, float, double>),
    RECORD("reduce_mean", f64, true, df_sum_of<double, double, double>),
    RECORD("reduce_max", f32, false, df_max_of<float>),
    RECORD("reduce_max", f64, false, df_max_of<double>),
    RECORD("reduce_max", i32, false, df_max_of<int32_t>),
    RECORD("reduce_max", i64, false, df_max_of<int64_t>),
    RECORD("reduce_min", f32, false, df_min_of<float>),
    RECORD("reduce_min", f64, false, df_min_of<double>),
    RECORD("reduce_min", i32, false, df_min_of<int32_t>),
    RECORD("reduce_min", i64, false, df_min_of<int64_t>),
    RECORD("reduce_prod", f32, false, df_prod_of<float, float, double>),
    RECORD("reduce_prod", f64, false, df_prod_of<double, double, double>)};
DF_CUDA_FAMILY(reduce, records);
