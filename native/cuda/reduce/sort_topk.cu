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
#include "kernels.h"

enum {
  KEYS = 4096, /* of the buffer in shared memory */
  MOST_HELD = 2048,
  SORT_BLOCK = 512 /* threads */
};

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

/* One step of a bitonic sort, largest first, of |count| keys of which the first is key |base| of
 * its line; pairs are |apart| from one another in runs of |run|. */
static __device__ __forceinline__ void compare(uint64_t *keys, int64_t base, int count, int64_t run,
                                               int apart) {
  for (int i = static_cast<int>(threadIdx.x); i < count / 2; i += static_cast<int>(blockDim.x)) {
    const int at = 2 * i - (i & (apart - 1));
    const bool falls = ((base + at) & run) == 0;
    const uint64_t a = keys[at], b = keys[at + apart];
    if ((a < b) == falls) {
      keys[at] = b;
      keys[at + apart] = a;
    }
  }
}

/* Sorts |count| keys, a power of two, in shared memory; begins and ends with a barrier. */
static __device__ __forceinline__ void sort_shared(uint64_t *keys, int64_t base, int count) {
  __syncthreads();
  for (int run = 2; run <= count; run *= 2)
    for (int apart = run / 2; apart > 0; apart /= 2) {
      compare(keys, base, count, run, apart);
      __syncthreads();
    }
}

static __device__ __forceinline__ void deliver(const job &j, int64_t line, int64_t rank,
                                               uint64_t key) {
  const int64_t index = index_of(key);
  const int64_t to = line / j.inner * j.k * j.inner + rank * j.inner + line % j.inner;
  j.values[to] = j.x[j.origin(line) + index * j.inner];
  j.indices[to] = index;
}

/* ---- k is small: a block per line ----------------------------------------------------------- */

/* |capacity| keys of shared memory, a power of two of at least k + SORT_BLOCK, or of |size|. */
__global__ void __launch_bounds__(SORT_BLOCK) select_keys(job j, int capacity) {
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
    sort_shared(keys, 0, capacity);
    for (int at = k + thread; at < capacity; at += threads)
      keys[at] = 0;
    worst = keys[k - 1];
    if (thread == 0)
      filled[0] = k;
    __syncthreads();
  }
  sort_shared(keys, 0, capacity);
  for (int rank = thread; rank < k; rank += threads)
    deliver(j, line, rank, keys[rank]);
}

/* ---- k is large: all keys of a line are sorted ---------------------------------------------- */

/* The keys of KEYS elements, sorted: falling and rising alternately. */
__global__ void __launch_bounds__(SORT_BLOCK) make_keys(job j) {
  DF_SHARED_ARRAY(uint64_t, keys, [KEYS]);
  const int64_t tiles = j.padded / KEYS, line = blockIdx.x / tiles;
  const int64_t base = blockIdx.x % tiles * KEYS, origin = j.origin(line);
  for (int i = static_cast<int>(threadIdx.x); i < KEYS; i += SORT_BLOCK) {
    const int64_t at = base + i;
    keys[i] = at < j.size ? key_of(j.x[origin + at * j.inner], at, j.largest != 0) : 0;
  }
  sort_shared(keys, base, KEYS);
  for (int i = static_cast<int>(threadIdx.x); i < KEYS; i += SORT_BLOCK)
    j.keys[line * j.padded + base + i] = keys[i];
}

/* A step whose pairs lie in different tiles. */
__global__ void __launch_bounds__(DF_BLOCK) compare_far(job j, int64_t run, int64_t apart) {
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (pair >= j.lines * j.padded / 2)
    return;
  const int64_t at = 2 * pair - (pair & (apart - 1)); /* |apart| is a power of two */
  const bool falls = ((at & (j.padded - 1)) & run) == 0;
  const uint64_t a = j.keys[at], b = j.keys[at + apart];
  if ((a < b) == falls) {
    j.keys[at] = b;
    j.keys[at + apart] = a;
  }
}

/* The last steps of a run, within a tile; behind the last run of all the results. */
__global__ void __launch_bounds__(SORT_BLOCK) compare_near(job j, int64_t run) {
  DF_SHARED_ARRAY(uint64_t, keys, [KEYS]);
  const int64_t tiles = j.padded / KEYS, line = blockIdx.x / tiles;
  const int64_t base = blockIdx.x % tiles * KEYS;
  uint64_t *from = j.keys + line * j.padded + base;
  for (int i = static_cast<int>(threadIdx.x); i < KEYS; i += SORT_BLOCK)
    keys[i] = from[i];
  __syncthreads();
  for (int apart = KEYS / 2; apart > 0; apart /= 2) {
    compare(keys, base, KEYS, run, apart);
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < KEYS; i += SORT_BLOCK) {
    if (run < j.padded)
      from[i] = keys[i];
    else if (base + i < j.k)
      deliver(j, line, base + i, keys[i]);
  }
}

static df_status sort_lines(const df_call *call, const job &j) {
  const unsigned tiles = df_blocks(j.lines * j.padded, KEYS);
  const unsigned pairs = df_blocks(j.lines * j.padded / 2, DF_BLOCK);
  df_status status = DF_LAUNCH(call, make_keys, tiles, SORT_BLOCK, 0, j);
  for (int64_t run = 2 * KEYS; run <= j.padded && !status; run *= 2) {
    for (int64_t apart = run / 2; apart >= KEYS && !status; apart /= 2)
      status = DF_LAUNCH(call, compare_far, pairs, DF_BLOCK, 0, j, run, apart);
    if (!status)
      status = DF_LAUNCH(call, compare_near, tiles, SORT_BLOCK, 0, j, run);
  }
  return status;
}

/* ---- Running -------------------------------------------------------------------------------- */

static int64_t power_of_two(int64_t at_least) {
  int64_t found = 1;
  while (found < at_least)
    found *= 2;
  return found;
}

/* Whether lines are sorted completely. */
static bool sorts(int64_t size, int64_t k) { return size > KEYS && k > MOST_HELD; }

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
    j.padded = power_of_two(j.size);
    j.keys = static_cast<uint64_t *>(call->workspace);
    return sort_lines(call, j);
  }
  const int64_t all = df_max(DF_WARP, power_of_two(j.size));
  const unsigned threads = static_cast<unsigned>(df_min(all, SORT_BLOCK));
  const int64_t wanted = power_of_two(2 * df_max(j.k, threads));
  const int capacity = static_cast<int>(df_min(df_min(wanted, KEYS), df_max(all, threads)));
  return DF_LAUNCH(call, select_keys, df_blocks(j.lines, 1), threads,
                   static_cast<size_t>(capacity) * sizeof(uint64_t), j, capacity);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = node->inputs[0], *y = node->outputs[0];
  const int64_t at = df_axis(node, DF_TOPK_AXIS, x->rank);
  if (df_operand_elements(y) > 0 && sorts(x->shape[at], y->shape[at]))
    out->workspace = df_operand_elements(x) / x->shape[at] * power_of_two(x->shape[at]) *
                     static_cast<int64_t>(sizeof(uint64_t));
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  const df_operand *x = node->inputs[0];
  for (int32_t axis = 0; axis < x->rank; axis++)
    if (x->shape[axis] > UINT32_MAX)
      return "a line has more elements than 32 bits can count";
  return nullptr;
}

static const df_kernel records[] = {DF_CUDA_KERNEL("topk", "f32", "f32->f32,i64", nullptr,
                                                   .accepts = accepts, .prepare = prepare,
                                                   .run = run, .capturable = 1)};
DF_CUDA_FAMILY(sort_topk, records);
