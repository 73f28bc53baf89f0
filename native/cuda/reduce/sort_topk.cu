/* reduce/sort_topk.cu: topk(x; k, axis, largest, sorted) -> values, indices: the k largest (or
 * smallest) elements of each line in order. NaN counts as the largest, equal ones keep their order.
 * x is seen as (outer, size, inner); a line is the elements along the axis.
 *
 * An element and its index are one 64-bit key, so that no two are equal and the order in which keys
 * are looked at does not matter. Up to MOST_HELD of them are wanted: a block goes along a line,
 * puts what beats the k-th best so far into a buffer in shared memory, and sorts that when it is
 * full; an element is read once. More are wanted: the keys of a line are sorted completely in the
 * workspace.
 */
#include "reduce/sort.h"

enum { MOST_HELD = 2048 };

struct job {
  float *values;
  int64_t *indices;
  const float *x;
  uint64_t *keys; /* [line][padded], when lines are sorted completely */
  int64_t lines, size, inner, k;
  int64_t padded; /* power of two */
  int32_t largest;

  __device__ int64_t origin(int64_t line) const {
    return line / inner * size * inner + line % inner;
  }
};

/* Larger keys come first; 0 is behind all. The upper half is the value's bits in an order that
 * rises with the value, NaN on top, then inverted when the smallest are wanted. */
static __device__ __forceinline__ uint64_t key_of(float x, int64_t index, bool largest) {
  uint32_t bits = __float_as_uint(x == 0.0f ? 0.0f : x);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (x != x)
    bits = UINT32_MAX;
  if (!largest)
    bits = ~bits;
  return static_cast<uint64_t>(bits) << 32 | (UINT32_MAX - static_cast<uint32_t>(index));
}

static __device__ __forceinline__ int64_t index_of(uint64_t key) {
  return UINT32_MAX - static_cast<uint32_t>(key);
}

static __device__ __forceinline__ void deliver(const job &j, int64_t line, int64_t rank,
                                               uint64_t key) {
  const int64_t index = index_of(key);
  const int64_t to = line / j.inner * j.k * j.inner + rank * j.inner + line % j.inner;
  j.values[to] = j.x[j.origin(line) + index * j.inner];
  j.indices[to] = index;
}

/* ---- k is small: a block per line ----------------------------------------------------------- */

/* |capacity| keys of shared memory, a power of two of at least k + DF_SORT_BLOCK, or of |size|. */
__global__ void __launch_bounds__(DF_SORT_BLOCK) select_keys(job j, int capacity) {
  DF_SHARED(uint64_t, keys);
  DF_SHARED_ARRAY(int, filled, [1]);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int64_t line = blockIdx.x, origin = j.origin(line);
  const int k = static_cast<int>(j.k);
  for (int i = thread; i < capacity; i += threads)
    keys[i] = 0;
  if (thread == 0)
    filled[0] = 0;
  uint64_t worst = 0; /* of the best k so far; 0 while there are less */
  __syncthreads();
  for (int64_t base = 0; base < j.size; base += threads) {
    const int64_t i = base + thread;
    if (i < j.size) {
      const uint64_t key = key_of(j.x[origin + i * j.inner], i, j.largest != 0);
      if (key > worst)
        keys[atomicAdd(filled, 1)] = key;
    }
    __syncthreads();
    const int some = filled[0];
    __syncthreads();
    if (some + threads <= capacity || base + threads >= j.size)
      continue;
    df_sort_shared(keys, 0, capacity);
    for (int at = k + thread; at < capacity; at += threads)
      keys[at] = 0;
    worst = keys[k - 1];
    if (thread == 0)
      filled[0] = k;
    __syncthreads();
  }
  df_sort_shared(keys, 0, capacity);
  for (int rank = thread; rank < k; rank += threads)
    deliver(j, line, rank, keys[rank]);
}

/* ---- k is large: all keys of a line are sorted ---------------------------------------------- */

struct sorted_lines : job {
  __device__ uint64_t key(int64_t line, int64_t i) const {
    return i < size ? key_of(x[origin(line) + i * inner], i, largest != 0) : 0;
  }
  __device__ void put(int64_t line, int64_t i, uint64_t key) const {
    if (i < k)
      deliver(*this, line, i, key);
  }
};

/* ---- Running -------------------------------------------------------------------------------- */

/* Whether lines are sorted completely. */
static bool sorts(int64_t size, int64_t k) { return size > DF_SORT_KEYS && k > MOST_HELD; }

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (df_elements(y) == 0)
    return DF_OK;
  const int64_t axis = df_axis(call, DF_TOPK_AXIS, x->rank);
  job j{};
  j.values = df_out<float>(call, 0);
  j.indices = df_out<int64_t>(call, 1);
  j.x = df_in<const float>(call, 0);
  j.size = x->shape[axis];
  j.inner = df_product(x->shape, axis + 1, x->rank);
  j.lines = df_product(x->shape, 0, axis) * j.inner;
  j.k = y->shape[axis];
  j.largest = df_attr_int(call, DF_TOPK_LARGEST) != 0;
  if (sorts(j.size, j.k)) {
    j.padded = df_sort_padded(j.size);
    j.keys = static_cast<uint64_t *>(call->workspace);
    return df_sort_lines(call, sorted_lines{j});
  }
  const int64_t all = df_max(DF_WARP, df_sort_padded(j.size));
  const unsigned threads = static_cast<unsigned>(df_min(all, DF_SORT_BLOCK));
  const int64_t wanted = df_sort_padded(2 * df_max(j.k, threads));
  const int capacity = static_cast<int>(df_min(df_min(wanted, DF_SORT_KEYS), df_max(all, threads)));
  return DF_LAUNCH(call, select_keys, df_blocks(j.lines, 1), threads,
                   static_cast<size_t>(capacity) * sizeof(uint64_t), j, capacity);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = node->inputs[0], *y = node->outputs[0];
  const int64_t at = df_axis(node, DF_TOPK_AXIS, x->rank);
  if (df_operand_elements(y) > 0 && sorts(x->shape[at], y->shape[at]))
    out->workspace = df_operand_elements(x) / x->shape[at] * df_sort_padded(x->shape[at]) *
                     static_cast<int64_t>(sizeof(uint64_t));
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  const df_operand *x = node->inputs[0];
  for (int32_t axis = 0; axis < x->rank; axis++)
    if (x->shape[axis] > UINT32_MAX)
      return "a line has more elements than 32 bits can count";
  const int64_t size = x->rank ? x->shape[df_axis(node, DF_TOPK_AXIS, x->rank)] : 1;
  if (size > 0 && df_operand_elements(x) / size > DF_MOST_BLOCKS)
    return "there are more lines than blocks of a grid";
  return nullptr;
}

static const df_kernel records[] = {DF_CUDA_KERNEL("topk", "f32", "f32->f32,i64", nullptr,
                                                   .accepts = accepts, .prepare = prepare,
                                                   .run = run, .capturable = 1)};
DF_CUDA_FAMILY(sort_topk, records);
