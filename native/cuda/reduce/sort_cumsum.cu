/* reduce/sort_cumsum.cu: y[i] = x[0] + ... + x[i] along an axis, without x[i] when exclusive, from
 * the end when reverse. x is seen as (outer, size, inner); sums are made in double.
 *
 * Many lines side by side have a thread each. Otherwise a warp or a block goes along a line, and
 * few long lines are split: a first launch sums the splits up. y may overwrite x: what a
 * thread writes it has read, and no other thread of the launch reads it.
 */
#include "kernels.h"

enum {
  HELD = 4,            /* neighbouring elements of a thread */
  SIDE_BY_SIDE = 8192, /* lines that are enough for a thread each */
  FEW_LINES = 128,
  LEAST_SPLIT = 8192,
  MOST_SPLITS = 256
};

struct job {
  float *y;
  const float *x;
  double *sums; /* [line][split] */
  int64_t lines, size, inner;
  int64_t length; /* elements of a split */
  int32_t splits;
  int32_t group; /* threads of a line */
  int32_t exclusive, reverse;

  /* Where line |line| begins, and how far element |i| of a line is from there. */
  __device__ int64_t origin(int64_t line) const {
    return line / inner * size * inner + line % inner;
  }
  __device__ int64_t offset(int64_t i) const { return (reverse ? size - 1 - i : i) * inner; }
};

/* ---- A thread per line ---------------------------------------------------------------------- */

__global__ void __launch_bounds__(DF_BLOCK) sum_lines(job j) {
  const int64_t line = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (line >= j.lines)
    return;
  const int64_t origin = j.origin(line);
  double sum = 0.0;
  for (int64_t i = 0; i < j.size; i += HELD) {
    float x[HELD];
#pragma unroll
    for (int k = 0; k < HELD; k++)
      x[k] = i + k < j.size ? j.x[origin + j.offset(i + k)] : 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const double before = sum;
      sum += static_cast<double>(x[k]);
      if (i + k < j.size)
        j.y[origin + j.offset(i + k)] = static_cast<float>(j.exclusive ? before : sum);
    }
  }
}

/* ---- A group of threads per line ------------------------------------------------------------ */

/* A thread's line and split; none: nothing to do, but it takes part. */
struct position {
  int64_t line, begin, end;
  int lane;
};

static __device__ __forceinline__ position position_of(const job &j) {
  const int thread = static_cast<int>(threadIdx.x);
  position at;
  at.lane = thread % j.group;
  at.line = static_cast<int64_t>(blockIdx.x) * (DF_BLOCK / j.group) + thread / j.group;
  at.begin = blockIdx.y * j.length;
  at.end = at.line < j.lines ? df_min(j.size, at.begin + j.length) : at.begin;
  return at;
}

/* The sum of |value| of the threads before this one in its group; |*total|: of all of them.
 * |scratch| has an element per warp. */
static __device__ __forceinline__ double sum_before(double value, double *total, double *scratch,
                                                    int group) {
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP;
  double sum = value;
  for (int apart = 1; apart < DF_WARP; apart *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, sum, apart);
    sum += lane >= apart ? other : 0.0;
  }
  *total = __shfl_sync(0xffffffffu, sum, DF_WARP - 1);
  double before = __shfl_up_sync(0xffffffffu, sum, 1);
  before = lane == 0 ? 0.0 : before;
  if (group == DF_WARP)
    return before;
  if (lane == 0)
    scratch[warp] = *total;
  __syncthreads();
  *total = 0.0;
  for (int other = 0; other < DF_BLOCK / DF_WARP; other++) {
    before += other < warp ? scratch[other] : 0.0;
    *total += scratch[other];
  }
  __syncthreads();
  return before;
}

static __device__ __forceinline__ double load(const job &j, const position &at, int64_t origin,
                                              int64_t first, float (&x)[HELD]) {
  double own = 0.0;
#pragma unroll
  for (int k = 0; k < HELD; k++) {
    x[k] = first + k < at.end ? j.x[origin + j.offset(first + k)] : 0.0f;
    own += static_cast<double>(x[k]);
  }
  return own;
}

__global__ void __launch_bounds__(DF_BLOCK) sum_splits(job j) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  const position at = position_of(j);
  const int64_t origin = at.line < j.lines ? j.origin(at.line) : 0;
  double sum = 0.0;
  for (int64_t base = at.begin; base < at.end; base += j.group * HELD) {
    float x[HELD];
    sum += load(j, at, origin, base + at.lane * HELD, x);
  }
  sum = df_block_join(sum, 0.0, scratch, df_add{});
  if (threadIdx.x == 0)
    j.sums[at.line * j.splits + blockIdx.y] = sum;
}

__global__ void __launch_bounds__(DF_BLOCK) sum_along(job j) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  const position at = position_of(j);
  const int64_t origin = at.line < j.lines ? j.origin(at.line) : 0;
  double carried = 0.0;
  if (j.splits > 1) {
    const unsigned split = threadIdx.x;
    carried = df_block_join(split < blockIdx.y ? j.sums[at.line * j.splits + split] : 0.0, 0.0,
                            scratch, df_add{});
  }
  const int64_t end = df_min(j.size, at.begin + j.length); /* the same for all of the block */
  for (int64_t base = at.begin; base < end; base += j.group * HELD) {
    const int64_t first = base + at.lane * HELD;
    float x[HELD];
    double total, own = load(j, at, origin, first, x);
    double sum = carried + sum_before(own, &total, scratch, j.group);
    carried += total;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const double before = sum;
      sum += static_cast<double>(x[k]);
      if (first + k < at.end)
        j.y[origin + j.offset(first + k)] = static_cast<float>(j.exclusive ? before : sum);
    }
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

/* The split depends on the shape alone. */
static job job_of(const int64_t *shape, int32_t rank, int64_t axis) {
  job j{};
  axis = axis < 0 ? axis + rank : axis;
  j.size = shape[axis];
  j.inner = df_product(shape, axis + 1, rank);
  j.lines = df_product(shape, 0, axis) * j.inner;
  j.length = j.size;
  j.splits = 1;
  if (j.inner >= DF_WARP && j.lines >= SIDE_BY_SIDE) {
    j.group = 1;
    return j;
  }
  j.group =
      j.size > int64_t{DF_WARP} * HELD && j.lines < SIDE_BY_SIDE ? int{DF_BLOCK} : int{DF_WARP};
  if (j.lines > 0 && j.lines < FEW_LINES && j.size >= 2 * LEAST_SPLIT) {
    const int64_t splits = df_min(df_min(MOST_SPLITS, j.size / LEAST_SPLIT), 1024 / j.lines);
    j.length = df_divide_up(df_divide_up(j.size, df_max(1, splits)), 32) * 32;
    j.splits = static_cast<int32_t>(df_divide_up(j.size, j.length));
  }
  return j;
}

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  if (df_elements(x) == 0)
    return DF_OK;
  job j = job_of(x->shape, x->rank, df_attr_int(call, DF_CUMSUM_AXIS));
  j.y = df_out<float>(call, 0);
  j.x = df_in<const float>(call, 0);
  j.sums = static_cast<double *>(call->workspace);
  j.exclusive = df_attr_int(call, DF_CUMSUM_EXCLUSIVE) != 0;
  j.reverse = df_attr_int(call, DF_CUMSUM_REVERSE) != 0;
  if (j.group == 1)
    return DF_LAUNCH(call, sum_lines, df_blocks(j.lines, DF_BLOCK), DF_BLOCK, 0, j);
  const dim3 grid(df_blocks(j.lines, DF_BLOCK / j.group), static_cast<unsigned>(j.splits));
  if (j.splits > 1) {
    const df_status status = DF_LAUNCH(call, sum_splits, grid, DF_BLOCK, 0, j);
    if (status)
      return status;
  }
  return DF_LAUNCH(call, sum_along, grid, DF_BLOCK, 0, j);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = node->inputs[0];
  if (df_operand_elements(x) == 0)
    return DF_OK;
  const job j = job_of(x->shape, x->rank, df_attr_int(node, DF_CUMSUM_AXIS));
  if (j.splits > 1)
    out->workspace = j.lines * j.splits * static_cast<int64_t>(sizeof(double));
  return DF_OK;
}

static const df_kernel records[] = {DF_CUDA_KERNEL(
    "cumsum", "f32", "f32->f32", "0<0", .prepare = prepare, .run = run, .capturable = 1)};
DF_CUDA_FAMILY(sort_cumsum, records);
