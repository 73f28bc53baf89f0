/* reduce/sort.h: sorts lines of 64-bit keys completely, the largest first, by a bitonic network: in
 * tiles in shared memory, and through the workspace where a line is longer than a tile. No two keys
 * of a line are equal but 0, which is behind all, so the result doesn't depend on timing.
 *
 * J has what is sorted:
 *   uint64_t *keys                  [lines][padded], the workspace
 *   int64_t lines, padded           keys of a line: a power of two
 *   key(line, i)                    key i of a line as it is before; 0 beyond the last one
 *   put(line, i, key)               takes the key that comes to stand there
 */
#ifndef DF_CUDA_REDUCE_SORT_H
#define DF_CUDA_REDUCE_SORT_H
#include "kernels.h"

enum {
  DF_SORT_KEYS = 4096, /* of a tile */
  DF_SORT_BLOCK = 512  /* threads */
};

/* One step of a bitonic sort, largest first, of |count| keys of which the first is key |base| of
 * its line; pairs are |apart| from one another in runs of |run|. */
static __device__ __forceinline__ void df_sort_step(uint64_t *keys, int64_t base, int count,
                                                    int64_t run, int apart) {
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
static __device__ __forceinline__ void df_sort_shared(uint64_t *keys, int64_t base, int count) {
  __syncthreads();
  for (int run = 2; run <= count; run *= 2)
    for (int apart = run / 2; apart > 0; apart /= 2) {
      df_sort_step(keys, base, count, run, apart);
      __syncthreads();
    }
}

/* Hands over the keys of a tile that is done, or keeps them for the next |run|. */
template <typename J>
static __device__ __forceinline__ void df_sort_put(const J &j, const uint64_t *keys, int64_t line,
                                                   int64_t base, int tile, int64_t run) {
  for (int i = static_cast<int>(threadIdx.x); i < tile; i += static_cast<int>(blockDim.x))
    if (run < j.padded)
      j.keys[line * j.padded + base + i] = keys[i];
    else
      j.put(line, base + i, keys[i]);
}

/* Tiles of keys, sorted: falling and rising alternately. */
template <typename J>
__global__ void __launch_bounds__(DF_SORT_BLOCK) make_keys(const __grid_constant__ J j, int tile) {
  DF_SHARED_ARRAY(uint64_t, keys, [DF_SORT_KEYS]);
  const int64_t tiles = j.padded / tile, line = blockIdx.x / tiles,
                base = blockIdx.x % tiles * tile;
  for (int i = static_cast<int>(threadIdx.x); i < tile; i += static_cast<int>(blockDim.x))
    keys[i] = j.key(line, base + i);
  df_sort_shared(keys, base, tile);
  df_sort_put(j, keys, line, base, tile, tile);
}

/* A step whose pairs lie in different tiles. */
template <typename J>
__global__ void __launch_bounds__(DF_BLOCK)
    compare_far(const __grid_constant__ J j, int64_t run, int64_t apart) {
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

/* The last steps of a run, within a tile. */
template <typename J>
__global__ void __launch_bounds__(DF_SORT_BLOCK)
    compare_near(const __grid_constant__ J j, int64_t run) {
  DF_SHARED_ARRAY(uint64_t, keys, [DF_SORT_KEYS]);
  const int64_t tiles = j.padded / DF_SORT_KEYS, line = blockIdx.x / tiles;
  const int64_t base = blockIdx.x % tiles * DF_SORT_KEYS;
  const uint64_t *from = j.keys + line * j.padded + base;
  for (int i = static_cast<int>(threadIdx.x); i < DF_SORT_KEYS; i += DF_SORT_BLOCK)
    keys[i] = from[i];
  __syncthreads();
  for (int apart = DF_SORT_KEYS / 2; apart > 0; apart /= 2) {
    df_sort_step(keys, base, DF_SORT_KEYS, run, apart);
    __syncthreads();
  }
  df_sort_put(j, keys, line, base, DF_SORT_KEYS, run);
}

/* Keys of a line of |count| in the workspace. */
static inline int64_t df_sort_padded(int64_t count) {
  int64_t padded = 1;
  while (padded < count)
    padded *= 2;
  return padded;
}

template <typename J> static df_status df_sort_lines(const df_call *call, const J &j) {
  const int64_t tile = df_min(j.padded, DF_SORT_KEYS);
  const unsigned tiles = df_blocks(j.lines * j.padded, tile);
  const unsigned pairs = df_blocks(j.lines * j.padded / 2, DF_BLOCK);
  const unsigned threads =
      static_cast<unsigned>(df_min(df_max(j.padded / 2, DF_WARP), DF_SORT_BLOCK));
  df_status status = DF_LAUNCH(call, make_keys<J>, tiles, threads, 0, j, static_cast<int>(tile));
  for (int64_t run = 2 * DF_SORT_KEYS; run <= j.padded && !status; run *= 2) {
    for (int64_t apart = run / 2; apart >= DF_SORT_KEYS && !status; apart /= 2)
      status = DF_LAUNCH(call, compare_far<J>, pairs, DF_BLOCK, 0, j, run, apart);
    if (!status)
      status = DF_LAUNCH(call, compare_near<J>, tiles, DF_SORT_BLOCK, 0, j, run);
  }
  return status;
}

#endif
