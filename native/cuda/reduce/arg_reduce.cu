/* reduce/arg_reduce.cu: argmax and argmin along one axis of an operand of any strides.
 *
 * The first of equal elements wins, with select_last_index the last; a NaN wins over every number.
 * Rows are joined by a group of threads, long ones by a block, and few long ones by several blocks,
 * whose winners meet in the workspace. Where another axis has its elements side by side, columns go
 * to threads side by side, with others below one another. An element is read once.
 */
#include "map/map.h"
#include "reduce/columns.h"

enum {
  LOADS = 4, /* of a thread that are in flight at one time */
  MOST_SPLITS = 256,
  LEAST_SPLIT = 16384 /* elements */
};

struct job {
  const void *x;
  int64_t *y;
  df_walk<1> others;    /* the axes beside the one */
  int64_t outer, inner; /* product of their sizes; of columns, |inner| of them side by side */
  int64_t size, apart;  /* elements along the axis, and how far each lies from the next */
  int64_t chunks;       /* blocks that cover |inner|; 0: rows */
  int64_t length;       /* elements of a split */
  int32_t splits;
  int32_t group; /* rows: threads of one; columns: side by side */
  int32_t last;  /* select_last_index */

  /* The elements at index |i| of the other axes. */
  template <typename T> __device__ const T *along(int64_t i) const {
    int64_t offset[1];
    others.offsets(i, offset);
    return static_cast<const T *>(x) + offset[0];
  }
};

/* An element and where it stands; -1: nothing yet. */
template <typename T> struct candidate {
  T value;
  int64_t index;
};

template <typename T, bool largest> struct chooser {
  bool last;

  __device__ bool better(T a, T b) const { return largest ? a > b : a < b; }
  /* Whether |x|, which stands behind |best|, replaces it. */
  __device__ bool takes(T x, T best) const {
    return last ? x == best || better(x, best) || x != x
                : better(x, best) || (x != x && best == best);
  }
  __device__ candidate<T> operator()(candidate<T> a, candidate<T> b) const {
    if (a.index < 0 || b.index < 0)
      return a.index < 0 ? b : a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan)
      return a_nan ? a : b;
    if (!a_nan && a.value != b.value)
      return better(a.value, b.value) ? a : b;
    return (a.index < b.index) != last ? a : b;
  }
};

/* Of the elements first, first + step, ... before |end|, |apart| from one another in memory. */
template <typename T, bool largest>
static __device__ __forceinline__ candidate<T> search(const T *x, int64_t first, int64_t end,
                                                      int64_t step, int64_t apart,
                                                      chooser<T, largest> choose) {
  candidate<T> best{T(0), -1};
  for (int64_t i = first; i < end; i += LOADS * step) {
    T v[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; k++)
      v[k] = i + k * step < end ? x[(i + k * step) * apart] : T(0);
#pragma unroll
    for (int k = 0; k < LOADS; k++)
      if (i + k * step < end && (best.index < 0 || choose.takes(v[k], best.value)))
        best = {v[k], i + k * step};
  }
  return best;
}

template <typename T, bool largest>
__global__ void __launch_bounds__(DF_BLOCK) arg_rows(job j, candidate<T> *states) {
  DF_SHARED_ARRAY(candidate<T>, scratch, [DF_WARP]);
  const chooser<T, largest> choose{j.last != 0};
  const int lane = static_cast<int>(threadIdx.x) % j.group;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (DF_BLOCK / j.group) + threadIdx.x / j.group;
  const int64_t begin = blockIdx.y * j.length;
  const int64_t end = row < j.outer ? df_min(j.size, begin + j.length) : begin;
  candidate<T> best = search(j.along<T>(df_min(row, j.outer - 1)), begin + lane, end,
                             int64_t{j.group}, j.apart, choose);
  for (int mask = (j.group < DF_WARP ? j.group : int{DF_WARP}) / 2; mask > 0; mask /= 2)
    best = choose(best, candidate<T>{__shfl_xor_sync(0xffffffffu, best.value, mask),
                                     __shfl_xor_sync(0xffffffffu, best.index, mask)});
  if (j.group > DF_WARP) {
    if (threadIdx.x % DF_WARP == 0)
      scratch[threadIdx.x / DF_WARP] = best;
    __syncthreads();
    for (int warp = 0; warp < DF_BLOCK / DF_WARP && lane == 0; warp++)
      best = choose(best, scratch[warp]);
  }
  if (lane != 0 || row >= j.outer)
    return;
  if (states)
    states[row * j.splits + blockIdx.y] = best;
  else
    j.y[row] = best.index;
}

/* The winner of a row's splits. */
template <typename T, bool largest>
__global__ void __launch_bounds__(DF_BLOCK) arg_join(job j, const candidate<T> *states) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (row >= j.outer)
    return;
  candidate<T> best = states[row * j.splits];
  for (int split = 1; split < j.splits; split++)
    best = chooser<T, largest>{j.last != 0}(best, states[row * j.splits + split]);
  j.y[row] = best.index;
}

template <typename T, bool largest> __global__ void __launch_bounds__(DF_BLOCK) arg_columns(job j) {
  DF_SHARED_ARRAY(candidate<T>, shared, [DF_BLOCK]);
  const chooser<T, largest> choose{j.last != 0};
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t outer = blockIdx.x / j.chunks;
  const int64_t column = blockIdx.x % j.chunks * j.group + thread % j.group;
  const bool live = column < j.inner;
  const T *x = j.along<T>(outer * j.inner + (live ? column : 0));
  shared[thread] = search(x, int64_t{thread / j.group}, live ? j.size : 0,
                          int64_t{DF_BLOCK / j.group}, j.apart, choose);
  __syncthreads();
  for (int half = DF_BLOCK / 2; half >= j.group; half /= 2) {
    if (thread < half)
      shared[thread] = choose(shared[thread], shared[thread + half]);
    __syncthreads();
  }
  if (thread < j.group && live)
    j.y[outer * j.inner + column] = shared[thread].index;
}

/* Without elements |outer| is 0. The split depends on the shape alone. */
template <typename O> static job job_of(const O *x, int64_t axis) {
  int64_t shape[DF_WALK_RANK], strides[DF_WALK_RANK];
  int32_t rank = 0;
  job j{};
  axis = axis < 0 ? axis + x->rank : axis;
  j.size = x->rank ? x->shape[axis] : 1;
  j.apart = x->rank ? x->strides[axis] : 1;
  for (int32_t i = 0; i < x->rank; i++)
    if (i != axis) {
      shape[rank] = x->shape[i];
      strides[rank++] = x->strides[i];
    }
  j.outer = df_product(shape, 0, rank);
  j.splits = 1;
  j.length = df_max(1, j.size);
  if (j.outer == 0)
    return j;
  df_tensor one{};
  one.shape = shape;
  one.strides = strides;
  one.rank = rank;
  const df_tensor *const operands[1] = {&one};
  df_walk_plan(&j.others, shape, rank, operands);
  const int32_t last = j.others.rank - 1;
  if (j.apart != 1 && last >= 0 && j.others.strides[0][last] == 1) {
    j.inner = j.others.shape[last];
    j.outer /= j.inner;
    const df_columns columns = df_columns_plan(j.outer, j.size, j.inner);
    j.group = columns.across;
    j.chunks = columns.chunks;
    return j;
  }
  const bool few = j.outer < 4096;
  j.group =
      j.size > 1024 && few ? int{DF_BLOCK} : df_power_of_two(df_divide_up(j.size, 4), DF_WARP);
  if (few && j.outer > 0 && j.size >= 2 * LEAST_SPLIT) {
    const int64_t splits =
        df_max(1, df_min(df_min(MOST_SPLITS, j.size / LEAST_SPLIT), 1024 / j.outer));
    j.length = df_divide_up(df_divide_up(j.size, splits), 32) * 32;
    j.splits = static_cast<int32_t>(df_divide_up(j.size, j.length));
  }
  return j;
}

template <typename T, bool largest> static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  job j = job_of(x, df_attr_int(call, DF_ARGMAX_AXIS));
  j.x = x->data;
  j.y = df_out<int64_t>(call, 0);
  j.last = df_attr_int(call, DF_ARGMAX_SELECT_LAST_INDEX) != 0;
  if (j.outer == 0)
    return DF_OK;
  if (j.size == 0)
    return df_fail(call, DF_INVALID, "argmax, argmin: the axis has no elements");
  if (j.chunks)
    return DF_LAUNCH(call, (arg_columns<T, largest>), df_blocks(j.outer * j.chunks, 1), DF_BLOCK, 0,
                     j);
  const dim3 grid(df_blocks(j.outer, DF_BLOCK / j.group), static_cast<unsigned>(j.splits));
  candidate<T> *states = j.splits > 1 ? static_cast<candidate<T> *>(call->workspace) : nullptr;
  const df_status status = DF_LAUNCH(call, (arg_rows<T, largest>), grid, DF_BLOCK, 0, j, states);
  if (status || !states)
    return status;
  return DF_LAUNCH(call, (arg_join<T, largest>), df_blocks(j.outer, DF_BLOCK), DF_BLOCK, 0, j,
                   static_cast<const candidate<T> *>(states));
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const job j = job_of(node->inputs[0], df_attr_int(node, DF_ARGMAX_AXIS));
  if (j.splits > 1)
    out->workspace = j.outer * j.splits * static_cast<int64_t>(sizeof(candidate<double>));
  return DF_OK;
}

#define RECORD(name, type, T, largest)                                                             \
  DF_CUDA_KERNEL(name, #type, "~" #type "->i64", nullptr, .accepts = df_accepts_rank,              \
                 .prepare = prepare, .run = run<T, largest>, .capturable = 1)

static const df_kernel records[] = {
    RECORD("argmax", f32, float, true),   RECORD("argmin", f32, float, false),
    RECORD("argmax", f64, double, true),  RECORD("argmin", f64, double, false),
    RECORD("argmax", i32, int32_t, true), RECORD("argmin", i32, int32_t, false),
    RECORD("argmax", i64, int64_t, true), RECORD("argmin", i64, int64_t, false)};
DF_CUDA_FAMILY(arg_reduce, records);
