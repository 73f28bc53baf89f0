/* map/cast.cu: y[i] = (type) x[i] between every float type of 16 bits and more, integers and bool.
 *
 * Integers wrap, floats round to nearest and are truncated towards zero when converted to an
 * integer; a float outside of an integer's range gives the nearest end of the range (NaN the
 * lower). The pairs that models use most have kernels that move 16 bytes at a time.
 */
#include "map/map.h"
#include "map/number.h"

__global__ void __launch_bounds__(DF_BLOCK)
    cast_any(void *out, const void *in, int64_t n, int32_t target, int32_t source,
             df_walk<1> walk) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t offset[1];
  walk.offsets(i, offset);
  df_write_number(out, i, target, df_read_number(in, offset[0], source));
}

#define PAIRS(X)                                                                                   \
  X(DF_FLOAT32, float, DF_FLOAT16, uint16_t, df_to_half(x))                                        \
  X(DF_FLOAT16, uint16_t, DF_FLOAT32, float, df_from_half(x))                                      \
  X(DF_FLOAT32, float, DF_BFLOAT16, uint16_t, df_to_bfloat(x))                                     \
  X(DF_BFLOAT16, uint16_t, DF_FLOAT32, float, df_from_bfloat(x))                                   \
  X(DF_BOOL, uint8_t, DF_FLOAT32, float, x)                                                        \
  X(DF_UINT8, uint8_t, DF_FLOAT32, float, x)                                                       \
  X(DF_INT32, int32_t, DF_FLOAT32, float, x)                                                       \
  X(DF_INT64, int64_t, DF_FLOAT32, float, x)                                                       \
  X(DF_FLOAT32, float, DF_BOOL, uint8_t, x != 0.0f)                                                \
  X(DF_INT32, int32_t, DF_INT64, int64_t, x)                                                       \
  X(DF_INT64, int64_t, DF_INT32, int32_t, x)

#define DEFINE(source, S, target, T, expression)                                                   \
  struct source##_to_##target {                                                                    \
    __device__ T operator()(S x) const { return static_cast<T>(expression); }                      \
  };
PAIRS(DEFINE)

static df_status cast_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
#define TRY(source, S, target, T, expression)                                                      \
  if (x->dtype == source && y->dtype == target)                                                    \
    return df_map<T, S>(call, source##_to_##target{});
  PAIRS(TRY)
  const int64_t n = df_elements(y);
  if (n == 0)
    return DF_OK;
  df_walk<1> walk;
  const df_tensor *const operands[1] = {x};
  if (!df_walk_plan(&walk, y->shape, y->rank, operands))
    return df_fail(call, DF_UNSUPPORTED, "more than %d axes", DF_WALK_RANK);
  return DF_LAUNCH(call, cast_any, df_blocks(n, DF_BLOCK), DF_BLOCK, 0, y->data, x->data, n,
                   y->dtype, x->dtype, walk);
}

static const df_kernel records[] = {DF_CUDA_KERNEL("cast", "any", "~" DF_NUMBERS "->" DF_NUMBERS,
                                                   nullptr, .accepts = df_accepts_rank,
                                                   .run = cast_run, .capturable = 1)};
DF_CUDA_FAMILY(cast, records);
