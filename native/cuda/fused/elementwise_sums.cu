/* fused/elementwise_sums.cu: fused_elementwise_sums, a program of elementwise ops whose result is
 * written and, while it is in registers, also summed over all axes but one.
 *
 * The result is rows of |inner| elements, one behind the other: |kept| rows, |outer| times. A warp
 * computes tiles of the result, of a vector or an element per lane. Where rows end within a tile
 * it has parts of several rows, and each part has a partial sum: that of row r in tile c is number
 * r + c, which no other part has, since of two neighbours at least one differs by one. A second
 * launch adds those of a channel in their order, in double. */
#include "fused/chunks.h"

#include <new>

enum { LEAST_INNER = DF_WARP }; /* of shorter rows there would be too many partial sums */

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
  df_fused_chunks(n, f, [&](const df_fused_span &span, const float (&v)[DF_FUSED_ELEMENTS]) {
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

static df_status run(const df_call *call) {
  df_fused f;
  const df_tensor *to = call->outputs[0];
  float *out = df_out<float>(call, 0), *partials = static_cast<float *>(call->workspace);
  const rows r = rows_of(call, to->shape, to->rank);
  const int64_t n = df_elements(to);
  if (r.kept == 0)
    return DF_OK;
  int32_t shift = 5; /* a vector or an element per lane of a tile */
  if (n > 0) {
    df_status status = df_fused_bind(&f, call, *static_cast<const df_fused_program *>(call->state),
                                     to->shape, to->rank, df_is_aligned<DF_FUSED_VECTOR>(out));
    if (status)
      return status;
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
  if (rows_of(node, y->shape, y->rank).inner < LEAST_INNER)
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
  out->workspace = (r.outer * r.kept + df_divide_up(r.outer * r.kept * r.inner, DF_WARP)) *
                   static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

static void release(void *state) { delete static_cast<df_fused_program *>(state); }

static const df_kernel records[] = {DF_CUDA_KERNEL(
    "fused_elementwise_sums", "f32", "~f32*->f32,f32", "0<0,0<1,0<2,0<3,0<4,0<5",
    .accepts = accepts, .prepare = prepare, .run = run, .release = release, .capturable = 1)};
DF_CUDA_FAMILY(fused_elementwise_sums, records);
