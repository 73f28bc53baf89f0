/* fused/elementwise_sums.cu: fused_elementwise_sums, a program of elementwise ops whose result is
 * written and, while it is in registers, also summed over all axes but one.
 *
 * The result is rows of |inner| elements, one behind the other: |kept| rows, |outer| times. A warp
 * computes tiles of the result, of a vector or an element per lane. Where rows end within a tile
 * it has parts of several rows, and each part has a partial sum: that of row r in tile c is number
 * r + c, which no other part has, since of two neighbours at least one differs by one. A second
 * launch adds those of a channel in their order, in double.
 *
 * Where rows have one element, as with channels last, a thread's elements are of the same channels
 * in each chunk, if as many as a chunk has are a multiple of the channels. So a thread keeps its
 * sums, and a block has one partial sum per channel. */
#include "fused/chunks.h"

#include <new>

enum {
  LEAST_INNER = DF_WARP, /* of shorter rows there would be too many partial sums */
  COLUMN_BLOCKS = 3 * DF_FUSED_BLOCKS / 2, /* that fill a card four times, as three fit at a time */
  COLUMN_SHARE = 512, /* channels per chunk of a block: then partial sums are few beside elements */
  JOINED = 8          /* channels that a block joins */
};

struct rows {
  int64_t outer, kept, inner;
};

/* Sums the parts of the tile of which this lane has |WIDTH| elements from |at| on. */
template <int WIDTH>
static __device__ __forceinline__ void sum_tile(float *partials, int64_t n, int64_t inner,
                                                int64_t at, const float *v) {
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int64_t first = at - lane * WIDTH; /* of the tile, the same in all lanes */
  if (first >= n)
    return;
  const int64_t last = df_min(n, first + DF_WARP * WIDTH), tile = first / (DF_WARP * WIDTH);
  int64_t row =
      n <= UINT32_MAX
          ? static_cast<int64_t>(static_cast<uint32_t>(first) / static_cast<uint32_t>(inner))
          : first / inner;
  for (int64_t begin = first; begin < last; row++) {
    const int64_t end = df_min(last, (row + 1) * inner);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
      sum += at + k >= begin && at + k < end ? v[k] : 0.0f;
    sum = df_warp_join(sum, df_add{});
    if (lane == 0)
      partials[row + tile] = sum;
    begin = end;
  }
}

__global__ void __launch_bounds__(DF_BLOCK, 3)
    compute_and_sum(float *out, float *partials, int64_t n, int64_t inner,
                    const __grid_constant__ df_fused f) {
  df_fused_chunks<DF_FUSED_ELEMENTS>(
      n, f, [&](const df_fused_span &span, const float (&v)[DF_FUSED_ELEMENTS]) {
        df_fused_store(out, n, f, span, v);
        if (f.vector) {
#pragma unroll
          for (int e = 0; e < DF_FUSED_ELEMENTS; e += DF_FUSED_VECTOR)
            sum_tile<DF_FUSED_VECTOR>(partials, n, inner, span.index(e), v + e);
        } else {
#pragma unroll
          for (int e = 0; e < DF_FUSED_ELEMENTS; e++)
            sum_tile<1>(partials, n, inner, span.index(e), v + e);
        }
      });
}

__global__ void __launch_bounds__(DF_BLOCK, 3)
    compute_and_sum_columns(float *out, float *partials, int64_t n, int32_t channels,
                            const __grid_constant__ df_fused f) {
  DF_SHARED(float, shared);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float sums[DF_FUSED_ELEMENTS] = {};
  df_fused_chunks<DF_FUSED_ELEMENTS>(
      n, f, [&](const df_fused_span &span, const float (&v)[DF_FUSED_ELEMENTS]) {
        df_fused_store(out, n, f, span, v);
#pragma unroll
        for (int e = 0; e < DF_FUSED_ELEMENTS; e++)
          sums[e] += span.index(e) < n ? v[e] : 0.0f;
      });
  __syncthreads(); /* the operands have been read */
  const df_fused_span own = f.vector ? df_fused_span{thread * DF_FUSED_VECTOR,
                                                     threads * DF_FUSED_VECTOR, n, DF_FUSED_VECTOR}
                                     : df_fused_span{thread, threads, n, 1};
#pragma unroll
  for (int e = 0; e < DF_FUSED_ELEMENTS; e++)
    shared[own.index(e)] = sums[e];
  __syncthreads();
  int left = threads * DF_FUSED_ELEMENTS; /* sums, halved by all threads while they can be */
  while (left % (2 * channels) == 0) {
    left /= 2;
    for (int at = thread; at < left; at += threads)
      shared[at] += shared[at + left];
    __syncthreads();
  }
  for (int channel = thread; channel < channels; channel += threads) {
    float sum = 0.0f;
    for (int at = channel; at < left; at += channels)
      sum += shared[at];
    partials[static_cast<int64_t>(blockIdx.x) * channels + channel] = sum;
  }
}

/* A block per JOINED channels: each of its rows of threads takes some of the partial sums. */
__global__ void __launch_bounds__(DF_BLOCK)
    join_columns(float *sums, const float *partials, int32_t channels, int32_t blocks) {
  DF_SHARED_ARRAY(double, scratch, [DF_BLOCK]);
  const int thread = static_cast<int>(threadIdx.x);
  const int channel = static_cast<int>(blockIdx.x) * JOINED + thread % JOINED;
  double total = 0.0;
  if (channel < channels)
#pragma unroll 8
    for (int block = thread / JOINED; block < blocks; block += int{DF_BLOCK} / JOINED)
      total += static_cast<double>(partials[static_cast<int64_t>(block) * channels + channel]);
  scratch[thread] = total;
  __syncthreads();
  if (thread >= JOINED || channel >= channels)
    return;
  for (int row = 1; row < int{DF_BLOCK} / JOINED; row++)
    total += scratch[row * JOINED + thread];
  sums[channel] = static_cast<float>(total);
}

enum { JOIN_BLOCK = 512 };

/* A block per channel; a thread takes some parts of its rows, each of which has at most |most|.
 * Tiles have 1 << |shift| elements. */
__global__ void __launch_bounds__(JOIN_BLOCK)
    join_sums(float *sums, const float *partials, rows r, int32_t shift, df_divisor most) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  double total = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < r.outer * most.d; i += JOIN_BLOCK) {
    const int64_t outer = df_divide(static_cast<uint32_t>(i), most);
    const int64_t row = outer * r.kept + blockIdx.x;
    const int64_t c = (row * r.inner >> shift) + (i - outer * most.d);
    if (c <= ((row + 1) * r.inner - 1) >> shift)
      total += static_cast<double>(partials[row + c]);
  }
  total = df_block_join(total, 0.0, scratch, df_add{});
  if (threadIdx.x == 0)
    sums[blockIdx.x] = static_cast<float>(total);
}

/* ---- Running -------------------------------------------------------------------------------- */

/* The rows of a result of |shape|. */
template <typename N> static rows rows_of(const N *of, const int64_t *shape, int32_t rank) {
  const int64_t axis = df_attr_int(of, DF_FUSED_ELEMENTWISE_SUMS_KEPT);
  return {df_product(shape, 0, axis), shape[axis], df_product(shape, axis + 1, rank)};
}

/* How many blocks sum up columns, of what size, and the chunks of each. */
struct columns {
  unsigned threads;
  int32_t blocks, chunks;
};

static columns columns_of(const df_fused_program &p, const rows &r) {
  columns c;
  c.threads = df_fused_threads(df_fused_of(p.program, p.single, 0));
  const int64_t chunk = int64_t{c.threads} * DF_FUSED_ELEMENTS, n = r.outer * r.kept;
  c.chunks = static_cast<int32_t>(
      df_max(df_divide_up(n, chunk * COLUMN_BLOCKS), df_max(r.kept / COLUMN_SHARE, 1)));
  c.blocks = static_cast<int32_t>(df_divide_up(n, chunk * c.chunks));
  return c;
}

/* Whether rows have one element, and chunks some of each channel. */
static bool sums_columns(const df_fused_program &p, const rows &r) {
  const int64_t chunk = int64_t{columns_of(p, r).threads} * DF_FUSED_ELEMENTS;
  return r.inner == 1 && r.kept > 0 && chunk % r.kept == 0;
}

static df_status run_columns(const df_call *call, df_fused *f, const rows &r, float *out,
                             float *partials) {
  const columns c = columns_of(*static_cast<const df_fused_program *>(call->state), r);
  const int64_t n = r.outer * r.kept;
  const int32_t channels = static_cast<int32_t>(r.kept);
  const int64_t sums = int64_t{c.threads} * DF_FUSED_ELEMENTS * static_cast<int64_t>(sizeof(float));
  f->chunks = c.chunks;
  if (n > 0) {
    const df_status status =
        DF_LAUNCH(call, compute_and_sum_columns, df_blocks(c.blocks, 1), c.threads,
                  static_cast<size_t>(df_max(df_fused_bytes(*f, c.threads), sums)), out, partials,
                  n, channels, *f);
    if (status)
      return status;
  }
  return DF_LAUNCH(call, join_columns, df_blocks(channels, JOINED), DF_BLOCK, 0,
                   df_out<float>(call, 1), static_cast<const float *>(partials), channels,
                   n > 0 ? c.blocks : 0);
}

static df_status run(const df_call *call) {
  df_fused f{};
  const df_tensor *to = call->outputs[0];
  float *out = df_out<float>(call, 0), *partials = static_cast<float *>(call->workspace);
  const rows r = rows_of(call, to->shape, to->rank);
  const int64_t n = df_elements(to);
  if (r.kept == 0)
    return DF_OK;
  int32_t shift = 5; /* a vector or an element per lane of a tile */
  if (n == 0 && r.inner == 1)
    return run_columns(call, &f, r, out, partials);
  if (n > 0) {
    df_status status = df_fused_bind(&f, call, *static_cast<const df_fused_program *>(call->state),
                                     to->shape, to->rank, df_is_aligned<DF_FUSED_VECTOR>(out));
    if (status)
      return status;
    if (r.inner == 1)
      return run_columns(call, &f, r, out, partials);
    shift += f.vector ? 2 : 0;
    const unsigned threads = df_fused_threads(f), blocks = df_fused_blocks(&f, n, threads);
    status =
        DF_LAUNCH(call, compute_and_sum, blocks, threads,
                  static_cast<size_t>(df_fused_bytes(f, threads)), out, partials, n, r.inner, f);
    if (status)
      return status;
  }
  return DF_LAUNCH(call, join_sums, df_blocks(r.kept, 1), JOIN_BLOCK, 0, df_out<float>(call, 1),
                   static_cast<const float *>(partials), r, shift,
                   df_divisor_of((r.inner >> shift) + 2));
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts(const df_node *node) {
  df_fused_program program{};
  const char *reason = df_fused_read(node, &program);
  if (reason)
    return reason;
  const df_operand *y = node->outputs[0];
  const rows r = rows_of(node, y->shape, y->rank);
  if (r.inner < LEAST_INNER && !sums_columns(program, r))
    return "sums of fewer than 32 neighbours are not supported";
  return df_fused_bytes(df_fused_of(program.program, program.single, 0), DF_WARP) > DF_FUSED_SHARED
             ? "too many values are read by later steps"
             : nullptr;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  df_fused_program *state = new (std::nothrow) df_fused_program{};
  if (!state)
    return DF_OUT_OF_MEMORY;
  df_fused_read(node, state); /* accepts has done it before */
  out->state = state;
  const df_operand *y = node->outputs[0];
  const rows r = rows_of(node, y->shape, y->rank);
  const int64_t sums = r.inner == 1
                           ? columns_of(*state, r).blocks * r.kept
                           : r.outer * r.kept + df_divide_up(r.outer * r.kept * r.inner, DF_WARP);
  out->workspace = sums * static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

static void release(void *state) { delete static_cast<df_fused_program *>(state); }

static const df_kernel records[] = {DF_CUDA_KERNEL(
    "fused_elementwise_sums", "f32", "~f32*->f32,f32", "0<0,0<1,0<2,0<3,0<4,0<5",
    .accepts = accepts, .prepare = prepare, .run = run, .release = release, .capturable = 1)};
DF_CUDA_FAMILY(fused_elementwise_sums, records);
