/* map/optimizer_squares.cu: the sum of the squares of one tensor or of many, that the norm of
 * gradients is made of: two launches, however many tensors there are.
 *
 * A table of their addresses and sizes is the first kernel's parameter. Blocks of SQUARED elements
 * are numbered through, and a block finds its tensor in the table. Each gives one partial sum in
 * double, and the second kernel adds them in an order that depends on sizes alone. All tensors are
 * contiguous and read once.
 */
#include "kernels.h"

/* Tensors of a table of 4 KB, and of one of 32 KB, the most that CUDA 12.1 and later give a kernel;
 * tests have fewer, for several launches. */
#ifndef DF_SQUARED_FEW
#define DF_SQUARED_FEW 160
#define DF_SQUARED_MANY 1360
#endif

enum {
  SQUARED = DF_BLOCK * 32, /* elements of a block: 32 squares are added in float */
  FEW = DF_SQUARED_FEW,
  MANY = DF_SQUARED_MANY
};

struct squared {
  const float *x;
  int64_t count;
  int64_t end; /* blocks up to the end of this one */
};

template <int MOST> struct table {
  int32_t count;
  int32_t reserved;
  squared of[MOST];
};
static_assert(sizeof(table<FEW>) <= 4096, "a kernel's parameters have 4 KB");
static_assert(sizeof(table<MANY>) <= 32764 - 3 * sizeof(void *), "and 32 KB");

/* The squares of [begin, end), whose begin is a multiple of 4, of which this thread takes some. */
static __device__ __forceinline__ float squares_of(const float *x, int64_t begin, int64_t end) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool vector = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const int64_t complete = vector ? begin + (end - begin) / 4 * 4 : begin;
  float total = 0.0f;
#pragma unroll 4
  for (int64_t i = begin + thread * 4; i < complete; i += DF_BLOCK * 4) {
    const float4 v = *reinterpret_cast<const float4 *>(x + i);
    total += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  for (int64_t i = complete + thread; i < end; i += DF_BLOCK)
    total += x[i] * x[i];
  return total;
}

/* A partial sum per block. Without |partials| there is one block, which writes the result. */
template <int MOST>
__global__ void __launch_bounds__(DF_BLOCK)
    square_partials(float *out, double *partials, const float *before,
                    const __grid_constant__ table<MOST> t) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  int low = 0, high = t.count - 1; /* the first whose end lies behind this block */
  while (low < high) {
    const int middle = (low + high) / 2;
    if (t.of[middle].end <= blockIdx.x)
      low = middle + 1;
    else
      high = middle;
  }
  const squared &s = t.of[low];
  const int64_t begin = (blockIdx.x - (low > 0 ? t.of[low - 1].end : 0)) * SQUARED;
  const float total = squares_of(s.x, begin, df_min(s.count, begin + SQUARED));
  const double joined = df_block_join(static_cast<double>(total), 0.0, scratch, df_add{});
  if (threadIdx.x == 0 && partials)
    partials[blockIdx.x] = joined;
  else if (threadIdx.x == 0)
    *out = static_cast<float>(joined + (before ? static_cast<double>(*before) : 0.0));
}

/* One block adds the partial sums. */
__global__ void __launch_bounds__(DF_BLOCK)
    square_join(float *out, const double *partials, const float *before, int64_t count) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  double total = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += DF_BLOCK)
    total += partials[i];
  total = df_block_join(total, 0.0, scratch, df_add{});
  if (threadIdx.x == 0)
    *out = static_cast<float>(total + (before ? static_cast<double>(*before) : 0.0));
}

/* ---- Running -------------------------------------------------------------------------------- */

static int64_t blocks_of(int64_t count) { return df_divide_up(count, SQUARED); }

/* The sum of the first |tensors| inputs and of |before|. */
template <int MOST>
static df_status run_by_tables(const df_call *call, int32_t tensors, const float *before,
                               int64_t blocks) {
  float *out = df_out<float>(call, 0);
  double *partials = blocks > 1 ? static_cast<double *>(call->workspace) : nullptr;
  table<MOST> t{};
  int64_t earlier = 0; /* blocks of launches before */
  for (int32_t i = 0; i < tensors; i++) {
    const int64_t count = df_elements(call->inputs[i]);
    const int64_t end = (t.count > 0 ? t.of[t.count - 1].end : 0) + blocks_of(count);
    if (count > 0)
      t.of[t.count++] = {df_in<const float>(call, i), count, end};
    if (t.count < MOST && i + 1 < tensors)
      continue;
    if (t.count == 0)
      break;
    const df_status status = DF_LAUNCH(call, (square_partials<MOST>), df_blocks(end, 1), DF_BLOCK,
                                       0, out, partials ? partials + earlier : nullptr, before, t);
    if (status)
      return status;
    earlier += end;
    t.count = 0;
  }
  if (blocks == 1)
    return DF_OK;
  return DF_LAUNCH(call, square_join, 1u, DF_BLOCK, 0, out, partials, before, blocks);
}

static df_status run(const df_call *call, int32_t tensors, const float *before) {
  int64_t blocks = 0;
  for (int32_t i = 0; i < tensors; i++)
    blocks += blocks_of(df_elements(call->inputs[i]));
  return tensors <= FEW ? run_by_tables<FEW>(call, tensors, before, blocks)
                        : run_by_tables<MANY>(call, tensors, before, blocks);
}

/* square_sum(x, before?) -> before + the sum of x^2 */
static df_status run_one(const df_call *call) { return run(call, 1, df_in<const float>(call, 1)); }

/* square_sums(xs...) -> the sum of the squares of all */
static df_status run_many(const df_call *call) { return run(call, call->n_inputs, nullptr); }

/* Space for a partial sum per block; with room for one of |before|, which is an input too. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  int64_t blocks = 0;
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i])
      blocks += blocks_of(df_operand_elements(node->inputs[i]));
  if (blocks > 1)
    out->workspace = blocks * static_cast<int64_t>(sizeof(double));
  return DF_OK;
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("square_sum", "f32", "f32,f32?->f32", nullptr, .prepare = prepare,
                   .run = run_one, .capturable = 1),
    DF_CUDA_KERNEL("square_sums", "f32", "f32*->f32", nullptr, .prepare = prepare, .run = run_many,
                   .capturable = 1)};
DF_CUDA_FAMILY(optimizer_squares, records);
