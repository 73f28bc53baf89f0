/* shape/dynamic_shape.cu: nonzero(x; count) -> y (rank, count): the positions of the elements that
 * are not zero, in row-major order. Both zeros of a float are zero.
 *
 * Elements are split, a block for each split. A first launch counts the hits of the splits; in
 * the second each block knows how many come before it and writes its own in order. Another number
 * of hits than |count| is a fault, whose value is that number and whose limit is |count|. Elements
 * are read twice.
 */
#include "kernels.h"

enum { MOST_AXES = 16, MOST_SPLITS = 1024, LEAST_SPLIT = 4096 };

struct job {
  const void *x;
  int64_t *y;
  int64_t *hits; /* of each split */
  int64_t total, count, length;
  int64_t shape[MOST_AXES];
  uint64_t mask; /* the bits of an element that make it differ from zero */
  df_fault *fault;
  int32_t rank, splits, step;
};

template <typename T> static __device__ __forceinline__ bool is_hit(const job &j, int64_t i) {
  return (static_cast<const T *>(j.x)[i] & static_cast<T>(j.mask)) != 0;
}

template <typename T> __global__ void __launch_bounds__(DF_BLOCK) count_hits(job j) {
  DF_SHARED_ARRAY(int64_t, scratch, [DF_WARP]);
  const int64_t begin = blockIdx.x * j.length, end = df_min(j.total, begin + j.length);
  int64_t found = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += DF_BLOCK)
    found += is_hit<T>(j, i);
  found = df_block_join(found, int64_t{0}, scratch, df_add{});
  if (threadIdx.x == 0)
    j.hits[blockIdx.x] = found;
}

/* Writes the position of element |i| as column |at|. */
static __device__ __forceinline__ void put(const job &j, int64_t at, int64_t i) {
  const bool narrow = j.total <= UINT32_MAX;
  for (int axis = j.rank - 1; axis >= 0; axis--) {
    const int64_t size = j.shape[axis];
    const int64_t rest = narrow ? static_cast<uint32_t>(i) / static_cast<uint32_t>(size) : i / size;
    j.y[axis * j.count + at] = i - rest * size;
    i = rest;
  }
}

template <typename T> __global__ void __launch_bounds__(DF_BLOCK) put_hits(job j) {
  DF_SHARED_ARRAY(int64_t, scratch, [DF_WARP]);
  DF_SHARED_ARRAY(int, in_warp, [DF_WARP]);
  const int lane = static_cast<int>(threadIdx.x) % DF_WARP;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP;
  int64_t before = 0;
  for (unsigned split = threadIdx.x; split < blockIdx.x; split += DF_BLOCK)
    before += j.hits[split];
  before = df_block_join(before, int64_t{0}, scratch, df_add{});
  const int64_t begin = blockIdx.x * j.length, end = df_min(j.total, begin + j.length);
  for (int64_t base = begin; base < end; base += DF_BLOCK) {
    const int64_t i = base + threadIdx.x;
    const bool hit = i < end && is_hit<T>(j, i);
    const unsigned votes = __ballot_sync(0xffffffffu, hit);
    if (lane == 0)
      in_warp[warp] = __popc(votes);
    __syncthreads();
    int64_t at = before + __popc(votes & ((1u << lane) - 1u));
    for (int other = 0; other < DF_BLOCK / DF_WARP; other++) {
      at += other < warp ? in_warp[other] : 0;
      before += in_warp[other];
    }
    if (hit && at < j.count)
      put(j, at, i);
    __syncthreads();
  }
  if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1 && before != j.count)
    df_fault_note(j.fault, j.step, before, j.count);
}

/* The split depends on the shape alone. */
static void choose_splits(job *j) {
  const int64_t splits = df_max(1, df_min(MOST_SPLITS, j->total / LEAST_SPLIT));
  j->length = df_max(1, df_divide_up(j->total, splits));
  j->splits = static_cast<int32_t>(df_max(1, df_divide_up(j->total, j->length)));
}

template <typename T> static df_status launch(const df_call *call, const job &j) {
  const unsigned blocks = static_cast<unsigned>(j.splits);
  const df_status status = DF_LAUNCH(call, (count_hits<T>), blocks, DF_BLOCK, 0, j);
  if (status)
    return status;
  return DF_LAUNCH(call, (put_hits<T>), blocks, DF_BLOCK, 0, j);
}

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  job j{};
  j.x = x->data;
  j.y = df_out<int64_t>(call, 0);
  j.hits = static_cast<int64_t *>(call->workspace);
  j.total = df_elements(x);
  j.count = call->outputs[0]->shape[1];
  j.rank = x->rank;
  for (int32_t axis = 0; axis < x->rank; axis++)
    j.shape[axis] = x->shape[axis];
  j.fault = call->fault;
  j.step = call->step;
  choose_splits(&j);
  switch (x->dtype) {
  case DF_FLOAT32:
    j.mask = INT32_MAX;
    return launch<uint32_t>(call, j);
  case DF_INT32:
    j.mask = UINT32_MAX;
    return launch<uint32_t>(call, j);
  case DF_FLOAT64:
    j.mask = INT64_MAX;
    return launch<uint64_t>(call, j);
  case DF_INT64:
    j.mask = UINT64_MAX;
    return launch<uint64_t>(call, j);
  default:
    j.mask = UINT8_MAX;
    return launch<uint8_t>(call, j);
  }
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  job j{};
  j.total = df_operand_elements(node->inputs[0]);
  choose_splits(&j);
  out->workspace = j.splits * static_cast<int64_t>(sizeof(int64_t));
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  return node->inputs[0]->rank > MOST_AXES ? "the operand has too many axes" : nullptr;
}

static const df_kernel records[] = {DF_CUDA_KERNEL("nonzero", "any", "f32|f64|i32|i64|bool|u8->i64",
                                                   nullptr, .accepts = accepts, .prepare = prepare,
                                                   .run = run, .capturable = 1)};
DF_CUDA_FAMILY(dynamic_shape, records);
