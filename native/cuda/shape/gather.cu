/* shape/gather.cu: ops that take or give positions: gather, index_add, one_hot; and tensors made
 * from numbers alone: full, range. */
#include "map/number.h"
#include "shape/copy.h"

static __device__ __forceinline__ int64_t index_at(const void *indices, int32_t dtype, int64_t i) {
  return dtype == DF_INT32 ? static_cast<const int32_t *>(indices)[i]
                           : static_cast<const int64_t *>(indices)[i];
}

/* What an op along one axis works on; every tensor is (outer, its own size, inner). */
struct indexing {
  const void *indices;
  int32_t dtype;
  int32_t step;
  df_fault *fault;
  int64_t count; /* of indices */
  int64_t outer;
  int64_t size; /* of the axis that is indexed */
  int64_t inner;
};

static indexing indexing_of(const df_call *call, const df_tensor *indices, const df_tensor *along,
                            int64_t axis) {
  return {indices->data,        indices->dtype,
          call->step,           call->fault,
          df_elements(indices), df_product(along->shape, 0, axis),
          along->shape[axis],   df_product(along->shape, axis + 1, along->rank)};
}

/* ---- gather(x, indices; axis) -> y: y[o, i, :] = x[o, indices[i], :] ------------------------ */

template <typename T>
__global__ void __launch_bounds__(DF_BLOCK) gather_rows(T *y, const T *x, indexing g, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  const int64_t row = i / g.inner, outer = row / g.count;
  const int64_t index = index_at(g.indices, g.dtype, row - outer * g.count);
  const int64_t at = df_checked_index(index, g.size, g.fault, g.step);
  y[i] = x[(outer * g.size + at) * g.inner + (i - row * g.inner)];
}

static df_status gather_run(const df_call *call) {
  const df_tensor *x = &call->inputs[0], *y = &call->outputs[0];
  const int64_t axis = df_axis(call, DF_GATHER_AXIS, x->rank);
  indexing g = indexing_of(call, &call->inputs[1], x, axis);
  int64_t n = df_elements(y), item = df_item_bytes(x->dtype);
  if (n == 0)
    return DF_OK;
  if (g.size == 0)
    return df_fail(call, DF_INVALID, "gather: axis %lld of x has no elements to choose from",
                   static_cast<long long>(axis));
  while (item < 16 && g.inner % 2 == 0 &&
         (reinterpret_cast<uintptr_t>(x->data) | reinterpret_cast<uintptr_t>(y->data)) %
                 static_cast<uintptr_t>(2 * item) ==
             0) {
    item *= 2;
    g.inner /= 2;
    n /= 2;
  }
  return df_by_item(item, [&]<typename T>() {
    return DF_LAUNCH(call, (gather_rows<T>), df_blocks(n, DF_BLOCK), DF_BLOCK, 0,
                     df_out<T>(call, 0), df_in<const T>(call, 0), g, n);
  });
}

/* ---- index_add(indices, updates; size, axis) -> y ----------------------------------------------
 * y[o, k, :] = sum of updates[o, i, :] over all i with indices[i] = k, in the order of i: the bits
 * do not depend on timing. A block makes one row of y: its threads look at as many indices at a
 * time as they are, and add the rows that are found one after another. It reads all indices once
 * per row of y, from the cache, and every update once. */

enum { ADD_ITEMS = 4 }; /* elements of a row in a thread's registers */

__global__ void __launch_bounds__(DF_BLOCK)
    index_add_rows(float *y, const float *updates, indexing g, int64_t chunks) {
  __shared__ int found[DF_BLOCK];
  __shared__ int counts[DF_BLOCK / DF_WARP];
  const int64_t row = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const int64_t outer = row / g.size, k = row % g.size;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % DF_WARP, warp = thread / DF_WARP;
  const int64_t first = chunk * threads * ADD_ITEMS + thread;
  float sum[ADD_ITEMS] = {};
  for (int64_t begin = 0; begin < g.count; begin += threads) {
    bool hit = false;
    if (begin + thread < g.count) {
      const int64_t index = index_at(g.indices, g.dtype, begin + thread);
      const bool inside = index >= -g.size && index < g.size;
      if (!inside && blockIdx.x == 0)
        df_fault_note(g.fault, g.step, index, g.size);
      hit = inside && (index < 0 ? index + g.size : index) == k;
    }
    const unsigned votes = __ballot_sync(0xffffffffu, hit);
    if (lane == 0)
      counts[warp] = __popc(votes);
    __syncthreads();
    int before = 0, total = 0;
    for (int w = 0; w < threads / DF_WARP; w++) {
      before += w < warp ? counts[w] : 0;
      total += counts[w];
    }
    if (hit)
      found[before + __popc(votes & ((1u << lane) - 1))] = thread;
    __syncthreads();
    for (int f = 0; f < total; f++) {
      const float *from = updates + (outer * g.count + begin + found[f]) * g.inner;
#pragma unroll
      for (int j = 0; j < ADD_ITEMS; j++)
        if (first + j * threads < g.inner)
          sum[j] += from[first + j * threads];
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < ADD_ITEMS; j++)
    if (first + j * threads < g.inner)
      y[row * g.inner + first + j * threads] = sum[j];
}

static df_status index_add_run(const df_call *call) {
  const df_tensor *y = &call->outputs[0];
  const indexing g =
      indexing_of(call, &call->inputs[0], y, df_axis(call, DF_INDEX_ADD_AXIS, y->rank));
  if (df_elements(y) == 0)
    return g.size || !g.count
               ? df_status(DF_OK)
               : df_fail(call, DF_INVALID, "index_add: y has no elements for updates");
  const int64_t wanted = df_divide_up(df_divide_up(g.inner, ADD_ITEMS), DF_WARP) * DF_WARP;
  /* Short rows still look at 128 indices at a time. */
  const int64_t threads = df_min(df_max(wanted, 4 * DF_WARP), DF_BLOCK);
  const int64_t chunks = df_divide_up(g.inner, threads * ADD_ITEMS);
  return DF_LAUNCH(call, index_add_rows, df_blocks(g.outer * g.size * chunks, 1),
                   static_cast<unsigned>(threads), 0, df_out<float>(call, 0),
                   df_in<const float>(call, 1), g, chunks);
}

/* ---- Numbers as elements -------------------------------------------------------------------- */

/* y[i] = start + i delta; integers stay exact. */
__global__ void __launch_bounds__(DF_BLOCK)
    range_elements(void *y, int32_t dtype, int64_t n, df_number start, df_number delta) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  df_number x = start;
  x.i += i * delta.i;
  x.d += static_cast<double>(i) * delta.d;
  df_write_number(y, i, dtype, x);
}

/* Attribute |index| as a number, an integer or not. */
static df_number number_of(const df_call *call, int32_t index) {
  const df_attribute *a = &call->attributes[index];
  if (a->kind == DF_ATTR_INT)
    return {static_cast<double>(a->i), a->i, true, false, false};
  return {a->f, 0, false, false, false};
}

static df_status fill(const df_call *call, df_number start, df_number delta) {
  const int64_t n = df_elements(&call->outputs[0]);
  if (n == 0)
    return DF_OK;
  return DF_LAUNCH(call, range_elements, df_blocks(n, DF_BLOCK), DF_BLOCK, 0, df_out<void>(call, 0),
                   call->outputs[0].dtype, n, start, delta);
}

static df_status full_run(const df_call *call) {
  return fill(call, number_of(call, DF_FULL_VALUE), {0.0, 0, true, false, false});
}

static df_status range_run(const df_call *call) {
  df_number start = number_of(call, DF_RANGE_START);
  const df_number delta = number_of(call, DF_RANGE_DELTA);
  start.integer = start.integer && delta.integer;
  return fill(call, start, delta);
}

/* one_hot(indices; depth, axis, dtype) -> y: 1 where the position along |axis| is the index; an
 * index outside gives zeros. */
__global__ void __launch_bounds__(DF_BLOCK)
    one_hot_elements(void *y, int32_t dtype, int64_t n, indexing g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  const int64_t inner = i % g.inner, position = i / g.inner % g.size, outer = i / g.inner / g.size;
  int64_t index = index_at(g.indices, g.dtype, outer * g.inner + inner);
  index += index < 0 ? g.size : 0;
  df_write_number(y, i, dtype, {0.0, index == position, true, false, false});
}

static df_status one_hot_run(const df_call *call) {
  const df_tensor *y = &call->outputs[0];
  const int64_t n = df_elements(y);
  if (n == 0)
    return DF_OK;
  const indexing g =
      indexing_of(call, &call->inputs[0], y, df_axis(call, DF_ONE_HOT_AXIS, y->rank));
  return DF_LAUNCH(call, one_hot_elements, df_blocks(n, DF_BLOCK), DF_BLOCK, 0,
                   df_out<void>(call, 0), y->dtype, n, g);
}

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(op, key, operands, accept, function)                                                \
  DF_CUDA_KERNEL(op, key, operands, nullptr, .accepts = accept, .run = function, .capturable = 1)
static const df_kernel records[] = {
    RECORD("gather", "any", "any,i32|i64->any", nullptr, gather_run),
    RECORD("index_add", "f32", "i32|i64,f32->f32", nullptr, index_add_run),
    RECORD("one_hot", "any", "i32|i64->" DF_NUMBERS, nullptr, one_hot_run),
    RECORD("full", "any", "->" DF_NUMBERS, nullptr, full_run),
    RECORD("range_", "any", "->" DF_NUMBERS, nullptr, range_run)};
DF_CUDA_FAMILY(gather, records);
