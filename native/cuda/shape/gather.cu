/* shape/gather.cu: ops that take or give positions: gather, index_add, one_hot; and tensors made
 * from numbers alone: full, range. */
#include "map/number.h"
#include "map/stored.h"
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
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_GATHER_AXIS, x->rank);
  indexing g = indexing_of(call, call->inputs[1], x, axis);
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

/* ---- index_add(indices, updates, addend?; size, axis) -> y -------------------------------------
 * y[o, k, :] = addend[o, k, :] + the sum of updates[o, i, :] over all i with indices[i] = k, in the
 * order of i: the bits do not depend on timing. The first entry that names a row is found for each
 * row; the block of that entry looks at the entries behind it, as many at a time as it has threads,
 * and adds the rows of those that name the same. The other blocks end at once; rows that nobody
 * names are 0. */

enum { ADD_ITEMS = 4 }; /* elements of a row in a thread's registers */

/* The row that entry |i| names, or -1. */
static __device__ __forceinline__ int64_t row_of(const indexing &g, int64_t i) {
  const int64_t index = index_at(g.indices, g.dtype, i);
  return index >= -g.size && index < g.size ? (index < 0 ? index + g.size : index) : -1;
}

__global__ void __launch_bounds__(DF_BLOCK) index_add_find(unsigned long long *first, indexing g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= g.count)
    return;
  const int64_t row = row_of(g, i);
  if (row < 0)
    df_fault_note(g.fault, g.step, index_at(g.indices, g.dtype, i), g.size);
  else
    atomicMin(&first[row], static_cast<unsigned long long>(i));
}

template <typename U>
__global__ void __launch_bounds__(DF_BLOCK)
    index_add_rows(float *y, const U *updates, const unsigned long long *first, indexing g,
                   int64_t chunks, int onto) {
  DF_SHARED_ARRAY(int, found, [DF_BLOCK]);
  DF_SHARED_ARRAY(int, counts, [DF_BLOCK / DF_WARP]);
  const int64_t chunk = blockIdx.x % chunks, entry = blockIdx.x / chunks % g.count;
  const int64_t outer = blockIdx.x / chunks / g.count, k = row_of(g, entry);
  if (k < 0 || first[k] != static_cast<unsigned long long>(entry))
    return;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % DF_WARP, warp = thread / DF_WARP;
  const int64_t column = chunk * threads * ADD_ITEMS + thread;
  float sum[ADD_ITEMS] = {};
  for (int64_t begin = entry; begin < g.count; begin += threads) {
    const bool hit = begin + thread < g.count && row_of(g, begin + thread) == k;
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
#pragma unroll 4 /* rows that are added in order are loaded together */
    for (int f = 0; f < total; f++) {
      const U *from = updates + (outer * g.count + begin + found[f]) * g.inner;
#pragma unroll
      for (int j = 0; j < ADD_ITEMS; j++)
        if (column + j * threads < g.inner)
          sum[j] += df_fetch(from + column + j * threads);
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < ADD_ITEMS; j++)
    if (column + j * threads < g.inner) {
      float *to = &y[(outer * g.size + k) * g.inner + column + j * threads];
      *to = onto ? *to + sum[j] : sum[j];
    }
}

/* A number per row of y. */
static df_status index_add_prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *y = node->outputs[0];
  out->workspace = y->shape[df_axis(node, DF_INDEX_ADD_AXIS, y->rank)] *
                   static_cast<int64_t>(sizeof(unsigned long long));
  return DF_OK;
}

static df_status index_add_run(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  const indexing g =
      indexing_of(call, call->inputs[0], y, df_axis(call, DF_INDEX_ADD_AXIS, y->rank));
  if (df_elements(y) == 0)
    return g.size || !g.count
               ? df_status(DF_OK)
               : df_fail(call, DF_INVALID, "index_add: y has no elements for updates");
  const cudaStream_t stream = static_cast<cudaStream_t>(call->stream);
  auto *first = static_cast<unsigned long long *>(call->workspace);
  const float *addend = df_in<const float>(call, 2);
  const size_t bytes = static_cast<size_t>(df_elements(y)) * sizeof(float);
  cudaError_t cleared = !addend             ? cudaMemsetAsync(y->data, 0, bytes, stream)
                        : addend == y->data ? cudaSuccess
                                            : cudaMemcpyAsync(y->data, addend, bytes,
                                                              cudaMemcpyDeviceToDevice, stream);
  if (!cleared)
    cleared = cudaMemsetAsync(first, 0xff, static_cast<size_t>(g.size) * sizeof *first, stream);
  if (cleared)
    return df_fail(call, DF_DEVICE, "preparing sums: %s", cudaGetErrorString(cleared));
  if (g.count == 0)
    return DF_OK;
  const df_status status =
      DF_LAUNCH(call, index_add_find, df_blocks(g.count, DF_BLOCK), DF_BLOCK, 0, first, g);
  const int64_t wanted = df_divide_up(df_divide_up(g.inner, ADD_ITEMS), DF_WARP) * DF_WARP;
  /* Short rows still look at 128 indices at a time. */
  const int64_t threads = df_min(df_max(wanted, 4 * DF_WARP), DF_BLOCK);
  const int64_t chunks = df_divide_up(g.inner, threads * ADD_ITEMS);
  auto add = [&]<typename U>(const U *updates) {
    return DF_LAUNCH(call, (index_add_rows<U>), df_blocks(g.outer * g.count * chunks, 1),
                     static_cast<unsigned>(threads), 0, df_out<float>(call, 0), updates, first, g,
                     chunks, int{addend != nullptr});
  };
  return status                                  ? status
         : call->inputs[1]->dtype == DF_BFLOAT16 ? add(df_in<const uint16_t>(call, 1))
                                                 : add(df_in<const float>(call, 1));
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
  const df_attribute *a = call->attributes[index];
  if (a->kind == DF_ATTR_INT)
    return {static_cast<double>(a->i), a->i, true, false, false};
  return {a->f, 0, false, false, false};
}

static df_status fill(const df_call *call, df_number start, df_number delta) {
  const int64_t n = df_elements(call->outputs[0]);
  if (n == 0)
    return DF_OK;
  return DF_LAUNCH(call, range_elements, df_blocks(n, DF_BLOCK), DF_BLOCK, 0, df_out<void>(call, 0),
                   call->outputs[0]->dtype, n, start, delta);
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
  const df_tensor *y = call->outputs[0];
  const int64_t n = df_elements(y);
  if (n == 0)
    return DF_OK;
  const indexing g = indexing_of(call, call->inputs[0], y, df_axis(call, DF_ONE_HOT_AXIS, y->rank));
  return DF_LAUNCH(call, one_hot_elements, df_blocks(n, DF_BLOCK), DF_BLOCK, 0,
                   df_out<void>(call, 0), y->dtype, n, g);
}

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(op, key, operands, accept, function)                                                \
  DF_CUDA_KERNEL(op, key, operands, nullptr, .accepts = accept, .run = function, .capturable = 1)
static const df_kernel records[] = {
    RECORD("gather", "any", "any,i32|i64->any", nullptr, gather_run),
    DF_CUDA_KERNEL("index_add", "f32", "i32|i64,f32|bf16,f32?->f32", "0<2",
                   .prepare = index_add_prepare, .run = index_add_run, .capturable = 1),
    RECORD("one_hot", "any", "i32|i64->" DF_NUMBERS, nullptr, one_hot_run),
    RECORD("full", "any", "->" DF_NUMBERS, nullptr, full_run),
    RECORD("range_", "any", "->" DF_NUMBERS, nullptr, range_run)};
DF_CUDA_FAMILY(gather, records);
