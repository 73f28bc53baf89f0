/* fused/activation_sums.cu: gelu_grad_sums, the gradient of GELU with the sum of it per column: the
 * gradient of the bias that a product before GELU adds.
 *
 * A block has a band of rows of some neighbouring columns: a lane per column or vector of columns,
 * a warp per row at a time. Each thread adds up what it writes; the warps' sums meet in shared
 * memory, those of the bands in the workspace, where a second launch adds them in their order, in
 * double. Each operand is read once. */
#include "reduce/partials.h"

#include "map/stored.h"
#include "map/vmath.h"

#include "kernels/unary.h" /* by the functions of map/vmath.h */

enum {
  WARPS = DF_BLOCK / DF_WARP,
  VECTOR = 4,       /* columns of 16 bytes */
  BAND_ROWS = 64,   /* at least, of more than one band */
  MOST_BANDS = 1024 /* of a column */
};

struct columns {
  int64_t rows, count;
  int64_t band; /* rows of each but the last */
};

static inline int64_t bands_of(const columns &c) { return df_divide_up(c.rows, c.band); }

template <int V, bool TANH, typename S, typename T, typename G>
static __device__ __forceinline__ void grad_band(T *dx, float *partials, const G *dy, const S *x,
                                                 const columns &c,
                                                 float (&shared)[VECTOR][DF_BLOCK]) {
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * DF_WARP + lane) * V;
  const int64_t begin = blockIdx.y * c.band, end = df_min(c.rows, begin + c.band);
  float sum[V] = {};
  if (column < c.count)
#pragma unroll 2
    for (int64_t row = begin + warp; row < end; row += WARPS) {
      const int64_t at = row * c.count + column;
      float slope[V], by[V];
      if constexpr (V == VECTOR) {
        const float4 four = df_fetch_four(x + at);
        const float4 other = df_fetch_four(dy + at);
        slope[0] = four.x, slope[1] = four.y, slope[2] = four.z, slope[3] = four.w;
        by[0] = other.x, by[1] = other.y, by[2] = other.z, by[3] = other.w;
      } else {
        slope[0] = df_fetch(x + at);
        by[0] = df_fetch(dy + at);
      }
#pragma unroll
      for (int k = 0; k < V; k++) {
        slope[k] = by[k] * (TANH ? df_gelu_tanh_slope(slope[k]) : df_gelu_slope(slope[k]));
        sum[k] += slope[k];
      }
      if constexpr (V == VECTOR)
        df_store_together(dx + at, slope);
      else
        df_store(dx + at, slope[0]);
    }
#pragma unroll
  for (int k = 0; k < V; k++)
    shared[k][threadIdx.x] = sum[k];
  __syncthreads();
  if (warp > 0 || column >= c.count)
    return;
#pragma unroll
  for (int k = 0; k < V; k++) {
    float total = 0.0f;
    for (int w = 0; w < WARPS; w++)
      total += shared[k][w * DF_WARP + lane];
    partials[blockIdx.y * c.count + column + k] = total;
  }
}

template <bool TANH, typename S, typename T, typename G>
__global__ void __launch_bounds__(DF_BLOCK)
    grad_and_sum(T *dx, float *partials, const G *dy, const S *x, columns c, int vector) {
  DF_SHARED_ARRAY(float, shared, [VECTOR][DF_BLOCK]);
  if (vector)
    grad_band<VECTOR, TANH>(dx, partials, dy, x, c, shared);
  else
    grad_band<1, TANH>(dx, partials, dy, x, c, shared);
}

/* ---- Running -------------------------------------------------------------------------------- */

/* The rows and columns of |shape|; bands follow from it alone. */
static columns columns_of(const int64_t *shape, int32_t rank) {
  columns c{df_product(shape, 0, rank - 1), shape[rank - 1], 0};
  const int64_t bands = df_max(1, df_min(MOST_BANDS, c.rows / BAND_ROWS));
  c.band = df_max(1, df_divide_up(c.rows, bands));
  return c;
}

template <typename S, typename T, typename G> static df_status run_from(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  const columns c = columns_of(x->shape, x->rank);
  T *dx = df_out<T>(call, 0);
  float *partials = static_cast<float *>(call->workspace);
  const G *dy = df_in<const G>(call, 0);
  const S *from = df_in<const S>(call, 1);
  if (c.count == 0)
    return DF_OK;
  const bool even =
      c.count % VECTOR == 0 && (reinterpret_cast<uintptr_t>(dx) | reinterpret_cast<uintptr_t>(dy) |
                                reinterpret_cast<uintptr_t>(from)) %
                                       16 ==
                                   0;
  const dim3 grid(df_blocks(c.count, DF_WARP * (even ? int{VECTOR} : 1)),
                  static_cast<unsigned>(bands_of(c)));
  if (c.rows > 0) {
    const df_status status = df_attr_is(call, DF_GELU_APPROXIMATE, "tanh")
                                 ? DF_LAUNCH(call, (grad_and_sum<true, S, T, G>), grid, DF_BLOCK, 0,
                                             dx, partials, dy, from, c, int{even})
                                 : DF_LAUNCH(call, (grad_and_sum<false, S, T, G>), grid, DF_BLOCK,
                                             0, dx, partials, dy, from, c, int{even});
    if (status)
      return status;
  }
  return df_join_partials(call, {{df_out<float>(call, 1)}}, partials, c.count, 1, bands_of(c));
}

template <typename S, typename T> static df_status run_to(const df_call *call) {
  return call->inputs[0]->dtype == DF_BFLOAT16 ? run_from<S, T, uint16_t>(call)
                                               : run_from<S, T, float>(call);
}

template <typename S> static df_status run_of(const df_call *call) {
  return call->outputs[0]->dtype == DF_BFLOAT16 ? run_to<S, uint16_t>(call)
                                                : run_to<S, float>(call);
}

static df_status run(const df_call *call) {
  return call->inputs[1]->dtype == DF_BFLOAT16 ? run_of<uint16_t>(call) : run_of<float>(call);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const columns c = columns_of(node->inputs[1]->shape, node->inputs[1]->rank);
  out->workspace = bands_of(c) * c.count * static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("gelu_grad_sums", "f32", "f32|bf16,f32|bf16->f32|bf16,f32", "0<0,0<1",
                   .prepare = prepare, .run = run, .capturable = 1)};
DF_CUDA_FAMILY(activation_sums, records);
