/* dataflow_cuda.h: for authors of CUDA kernels: launching, faults, records. C++20.
 *
 * A kernel of a CUDA device keeps to dataflow.h: |data| and |workspace| are addresses on the card,
 * which the host must not read; |stream| is the cudaStream_t to launch into. It neither allocates
 * nor synchronizes, so that a segment can be captured as a CUDA graph.
 *
 * Sources that launch through DF_LAUNCH and get shared memory from DF_SHARED and DF_SHARED_ARRAY
 * also compile as plain C++ over a stand-in for the CUDA runtime, which runs them on a CPU.
 */
#ifndef DATAFLOW_CUDA_H
#define DATAFLOW_CUDA_H

#include "dataflow_inline.h"

#include <cuda_runtime.h>

enum { DF_MOST_BLOCKS = 0x7fffffff }; /* of a grid */

/* DF_OK, or why the launch before this was refused. */
static inline df_status df_launched(const df_call *call, const char *kernel) {
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess)
    return DF_OK;
  return df_fail(call, DF_DEVICE, "launching %s: %s", kernel, cudaGetErrorString(status));
}

#ifdef __CUDACC__
/* Launches |kernel|, in parentheses when its name has commas, with |shared| bytes of dynamic shared
 * memory: return DF_LAUNCH(call, (scale<float, 4>), blocks, 256, 0, y, x, n); */
#define DF_LAUNCH(call, kernel, grid, block, shared, ...)                                          \
  (kernel<<<(grid), (block), (shared), static_cast<cudaStream_t>((call)->stream)>>>(__VA_ARGS__),  \
   df_launched((call), #kernel))

/* Names the block's dynamic shared memory |name|, an array of T; aligned to 16 bytes. */
#define DF_SHARED(T, name)                                                                         \
  extern __shared__ __align__(16) unsigned char df_shared_bytes[];                                 \
  T *name = reinterpret_cast<T *>(df_shared_bytes)

/* An array |name| of |type| in the block's shared memory, aligned to 16 bytes; |sizes| in brackets:
 * DF_SHARED_ARRAY(float, tile, [32][33]). */
#define DF_SHARED_ARRAY(type, name, sizes) [[maybe_unused]] __shared__ __align__(16) type name sizes
#else
#define DF_LAUNCH(call, kernel, grid, block, shared, ...)                                          \
  (standin_launch(#kernel, (grid), (block), (shared), static_cast<cudaStream_t>((call)->stream),   \
                  kernel, __VA_ARGS__),                                                            \
   df_launched((call), #kernel))
#define DF_SHARED(T, name) T *name = static_cast<T *>(standin_shared())
#define DF_SHARED_ARRAY(type, name, sizes)                                                         \
  static char name##_key;                                                                          \
  [[maybe_unused]] auto &name =                                                                    \
      *static_cast<type(*) sizes>(standin_shared_array(&name##_key, #name, sizeof(type sizes)))
#endif

/* Blocks of |per_block| that cover |count|; at least one. More than a grid has are so many that the
 * launch is refused: a part of them would leave the rest of the result as it was. */
static inline unsigned df_blocks(int64_t count, int64_t per_block) {
  int64_t blocks = (count + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > DF_MOST_BLOCKS ? UINT32_MAX : blocks);
}

/* Notes that |value| is not in [-limit, limit), or is not wanted for another reason that the kernel
 * documents; the first fault of a segment surfaces when the device is next waited for. */
static __device__ __forceinline__ void df_fault_note(df_fault *fault, int32_t step, int64_t value,
                                                     int64_t limit) {
  if (fault && atomicCAS(&fault->code, 0, static_cast<int32_t>(DF_INVALID)) == 0) {
    fault->step = step;
    fault->value = value;
    fault->limit = limit;
  }
}

/* |index| counted from the front; when it is not in [-limit, limit), 0, and the fault is noted.
 * |limit| must not be 0. */
static __device__ __forceinline__ int64_t df_checked_index(int64_t index, int64_t limit,
                                                           df_fault *fault, int32_t step) {
  if (index >= -limit && index < limit)
    return index < 0 ? index + limit : index;
  df_fault_note(fault, step, index, limit);
  return 0;
}

/* Records name the members that they set; the others are null. */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif

/* A record: DF_CUDA_KERNEL("add", "f32", "~f32,~f32->f32", "0<0,0<1", .run = add_run). */
#define DF_CUDA_KERNEL(op_, key_, operands_, inplace_, ...)                                        \
  df_kernel {                                                                                      \
    .struct_size = sizeof(df_kernel), .priority = 0, .op = op_, .name = op_ " " key_ " cuda",      \
    .operands = operands_, .inplace = inplace_, __VA_ARGS__                                        \
  }

#endif
