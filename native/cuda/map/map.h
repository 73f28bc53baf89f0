/* map/map.h: y[i] = f(a[i], b[i], ...) over a contiguous output, inputs broadcast and of any
 * strides.
 *
 * |F| is a struct with a __device__ operator(), its members are the op's parameters. When every
 * input is contiguous or a single element, a thread does 16 bytes; also when rows are dense or
 * repeat one element, as with a bias, where it finds the offsets of its vector in a row first;
 * otherwise it does one element.
 */
#ifndef DF_CUDA_MAP_MAP_H
#define DF_CUDA_MAP_MAP_H
#include "kernels.h"

#include <algorithm>
#include <utility>

enum { DF_WALK_RANK = 12 }; /* axes left after those of size 1 are dropped and neighbours merged */

/* n / d and n % d for 0 <= n < 2^31 without a division: q = (n m / 2^32 + n) / 2^shift
 * (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994). */
struct df_divisor {
  uint32_t d, m, shift;
};

static inline df_divisor df_divisor_of(int64_t d) {
  df_divisor out{static_cast<uint32_t>(d), 0, 0};
  while ((int64_t(1) << out.shift) < d)
    out.shift++;
  out.m = static_cast<uint32_t>(
      ((uint64_t(1) << 32) * ((uint64_t(1) << out.shift) - uint64_t(d))) / uint64_t(d) + 1);
  return out;
}

static __device__ __forceinline__ uint32_t df_divide(uint32_t n, df_divisor by) {
  return static_cast<uint32_t>((static_cast<uint64_t>(__umulhi(n, by.m)) + n) >> by.shift);
}

/* Axes of the output after dropping and merging, and the strides of N operands along them. */
template <int N> struct df_walk {
  int32_t rank;
  int32_t index64; /* 2^31 elements or more */
  int64_t shape[DF_WALK_RANK];
  df_divisor divisor[DF_WALK_RANK];
  int64_t strides[N][DF_WALK_RANK];

  /* Offsets in elements, of the element |index| of the output. */
  __device__ void offsets(int64_t index, int64_t (&offset)[N]) const {
    for (int k = 0; k < N; k++)
      offset[k] = 0;
    for (int axis = rank - 1; axis >= 0; axis--) {
      int64_t rest =
          index64 ? index / shape[axis]
                  : static_cast<int64_t>(df_divide(static_cast<uint32_t>(index), divisor[axis]));
      const int64_t at = index - rest * shape[axis];
      index = rest;
      for (int k = 0; k < N; k++)
        offset[k] += at * strides[k][axis];
    }
  }

  /* The same where the output has less than 2^31 elements, in as little code as it can be: for
   * kernels that ask once, and whose code is long for the cache of instructions. */
  __device__ __forceinline__ void offsets_in_short(uint32_t index, int64_t (&offset)[N]) const {
#pragma unroll
    for (int k = 0; k < N; k++)
      offset[k] = 0;
#pragma unroll 1
    for (int axis = rank - 1; axis >= 0; axis--) {
      const uint32_t rest = df_divide(index, divisor[axis]);
      const uint32_t at = index - rest * static_cast<uint32_t>(shape[axis]);
      index = rest;
#pragma unroll
      for (int k = 0; k < N; k++)
        offset[k] += at * strides[k][axis];
    }
  }
};

/* Plans the walk over |shape|; |operands| broadcast to it as in NumPy. False: more axes are left
 * than fit. */
template <int N>
static inline bool df_walk_plan(df_walk<N> *walk, const int64_t *shape, int32_t rank,
                                const df_tensor *const (&operands)[N]) {
  *walk = {};
  int64_t count = 1;
  for (int32_t axis = 0; axis < rank; axis++) {
    count *= shape[axis];
    if (shape[axis] == 1)
      continue;
    int64_t own[N];
    const int32_t last = walk->rank - 1;
    bool merge = last >= 0;
    for (int k = 0; k < N; k++) {
      const df_tensor *operand = operands[k];
      const int32_t at = axis - (rank - operand->rank);
      own[k] = at < 0 || operand->shape[at] == 1 ? 0 : operand->strides[at];
      merge = merge && walk->strides[k][last] == own[k] * shape[axis];
    }
    if (!merge && walk->rank == DF_WALK_RANK)
      return false;
    const int32_t to = merge ? last : walk->rank++;
    walk->shape[to] = merge ? walk->shape[to] * shape[axis] : shape[axis];
    for (int k = 0; k < N; k++)
      walk->strides[k][to] = own[k];
  }
  walk->index64 = count > INT32_MAX;
  for (int32_t axis = 0; axis < walk->rank && !walk->index64; axis++)
    walk->divisor[axis] = df_divisor_of(walk->shape[axis]);
  return true;
}

/* accepts: axes that can't be walked over are refused before they could fail. */
static inline const char *df_accepts_rank(const df_node *node) {
  for (int32_t i = 0; i < node->n_outputs; i++)
    if (node->outputs[i]->rank > DF_WALK_RANK)
      return "more than 12 axes are not supported";
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]->rank > DF_WALK_RANK)
      return "more than 12 axes are not supported";
  return nullptr;
}

/* ---- The kernels ---------------------------------------------------------------------------- */

template <typename T, int V> struct alignas(sizeof(T) * V) df_vector {
  T v[V];
};

/* V elements from |i| on, or the one element V times. */
template <int V, typename T>
static __device__ __forceinline__ df_vector<T, V> df_load(const T *from, int64_t i, bool single) {
  if (!single)
    return *reinterpret_cast<const df_vector<T, V> *>(from + i);
  df_vector<T, V> out;
#pragma unroll
  for (int k = 0; k < V; k++)
    out.v[k] = *from;
  return out;
}

template <int V, typename F, typename TO, typename... TI>
static __device__ __forceinline__ void df_apply(const F &f, TO *out,
                                                const df_vector<TI, V> &...in) {
  df_vector<TO, V> result;
#pragma unroll
  for (int k = 0; k < V; k++)
    result.v[k] = f(in.v[k]...);
  *reinterpret_cast<df_vector<TO, V> *>(out) = result;
}

template <int V, typename F, typename TO, size_t... I, typename... TI>
static __device__ __forceinline__ void df_map_vector(const F &f, TO *out, int64_t n,
                                                     unsigned single, std::index_sequence<I...>,
                                                     const TI *...in) {
  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i + V <= n) {
    df_apply<V>(f, out + i, df_load<V>(in, i, single >> I & 1)...);
    return;
  }
  for (; i < n; i++)
    out[i] = f(in[single >> I & 1 ? 0 : i]...);
}

/* Bit i of |single|: input i is one element. */
template <int V, typename F, typename TO, typename... TI>
__global__ void __launch_bounds__(DF_BLOCK)
    df_map_flat(F f, TO *out, int64_t n, unsigned single, const TI *...in) {
  df_map_vector<V>(f, out, n, single, std::index_sequence_for<TI...>{}, in...);
}

/* |walk| counts vectors of V elements along the last axis; bit i of |single|: input i does not
 * change along it. */
template <int V, typename F, typename TO, int N, size_t... I, typename... TI>
static __device__ __forceinline__ void
df_map_row_vector(const F &f, TO *out, int64_t vectors, unsigned single, const df_walk<N> &walk,
                  std::index_sequence<I...>, const TI *...in) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors)
    return;
  int64_t offset[N];
  walk.offsets(i, offset);
  df_apply<V>(f, out + i * V, df_load<V>(in + offset[I], 0, single >> I & 1)...);
}

template <int V, typename F, typename TO, int N, typename... TI>
__global__ void __launch_bounds__(DF_BLOCK)
    df_map_rows(F f, TO *out, int64_t vectors, unsigned single, df_walk<N> walk, const TI *...in) {
  df_map_row_vector<V>(f, out, vectors, single, walk, std::index_sequence_for<TI...>{}, in...);
}

template <typename F, typename TO, int N, size_t... I, typename... TI>
static __device__ __forceinline__ void df_map_element(const F &f, TO *out, int64_t n,
                                                      const df_walk<N> &walk,
                                                      std::index_sequence<I...>, const TI *...in) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t offset[N];
  walk.offsets(i, offset);
  out[i] = f(in[offset[I]]...);
}

template <typename F, typename TO, int N, typename... TI>
__global__ void __launch_bounds__(DF_BLOCK)
    df_map_strided(F f, TO *out, int64_t n, df_walk<N> walk, const TI *...in) {
  df_map_element(f, out, n, walk, std::index_sequence_for<TI...>{}, in...);
}

/* ---- Launching ------------------------------------------------------------------------------ */

template <int V, typename T> static inline bool df_is_aligned(const T *at) {
  return reinterpret_cast<uintptr_t>(at) % (sizeof(T) * V) == 0;
}

/* Changes |walk| into one of vectors of V elements, if rows allow it; gives the operands that don't
 * change along a row in |single|. |aligned|: bit k for operand k aligned to a vector. */
template <int V, int N>
static inline bool df_walk_vectors(df_walk<N> *walk, unsigned aligned, unsigned *single) {
  const int32_t last = walk->rank - 1;
  if (last < 0 || walk->shape[last] % V)
    return false;
  *single = 0;
  for (int k = 0; k < N; k++) {
    if (walk->strides[k][last] == 0) {
      *single |= 1u << k;
      continue;
    }
    if (walk->strides[k][last] != 1 || !(aligned >> k & 1))
      return false;
    for (int32_t axis = 0; axis < last; axis++)
      if (walk->strides[k][axis] % V)
        return false;
  }
  walk->shape[last] /= V;
  walk->divisor[last] = df_divisor_of(walk->shape[last]);
  for (int k = 0; k < N; k++)
    walk->strides[k][last] *= V;
  return true;
}

template <size_t... I, typename F, typename TO, typename... TI>
static df_status df_map_launch(const df_call *call, F f, TO *out, std::index_sequence<I...>,
                               const TI *...in) {
  constexpr int N = sizeof...(TI);
  constexpr int V = static_cast<int>(16 / std::max({sizeof(TO), sizeof(TI)...}));
  const df_tensor *to = call->outputs[0];
  const int64_t n = df_elements(to);
  if (n == 0)
    return DF_OK;
  unsigned single = 0;
  bool flat = df_is_aligned<V>(out);
  for (int k = 0; k < N; k++) {
    const bool one = df_elements(call->inputs[k]) == 1;
    single |= one ? 1u << k : 0u;
    flat = flat && (one || (df_elements(call->inputs[k]) == n && df_contiguous(call->inputs[k])));
  }
  flat = flat && ((single >> I & 1 || df_is_aligned<V>(in)) && ...);
  if (flat)
    return DF_LAUNCH(call, (df_map_flat<V, F, TO, TI...>), df_blocks(n, DF_BLOCK * V), DF_BLOCK, 0,
                     f, out, n, single, in...);
  df_walk<N> walk;
  const df_tensor *const operands[N] = {call->inputs[I]...};
  if (!df_walk_plan(&walk, to->shape, to->rank, operands))
    return df_fail(call, DF_UNSUPPORTED, "more than %d axes", DF_WALK_RANK);
  /* For the types that models broadcast: each kernel more is compiled for every op. */
  if constexpr (sizeof(TO) == 4 && ((sizeof(TI) == 4) && ...)) {
    const unsigned aligned = ((df_is_aligned<V>(in) ? 1u << I : 0u) | ...);
    if (df_is_aligned<V>(out) && df_walk_vectors<V>(&walk, aligned, &single))
      return DF_LAUNCH(call, (df_map_rows<V, F, TO, N, TI...>), df_blocks(n / V, DF_BLOCK),
                       DF_BLOCK, 0, f, out, n / V, single, walk, in...);
  }
  return DF_LAUNCH(call, (df_map_strided<F, TO, N, TI...>), df_blocks(n, DF_BLOCK), DF_BLOCK, 0, f,
                   out, n, walk, in...);
}

/* outputs[0][i] = f(inputs[0][i], ...) for inputs of the types TI. */
template <typename TO, typename... TI, typename F>
static inline df_status df_map(const df_call *call, F f) {
  return [&]<size_t... I>(std::index_sequence<I...> all) {
    return df_map_launch(call, f, df_out<TO>(call, 0), all, df_in<const TI>(call, I)...);
  }(std::index_sequence_for<TI...>{});
}

#endif
