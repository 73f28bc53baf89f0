/* fused/chunks.h: the loop of a kernel over what a program gives for each element of a result. */
#ifndef DF_CUDA_FUSED_CHUNKS_H
#define DF_CUDA_FUSED_CHUNKS_H
#include "fused/program.h"

/* Elements [.., n) of a result. */
template <int ELEMENTS>
static __device__ __forceinline__ void df_fused_store(float *out, int64_t n, const df_fused &f,
                                                      const df_fused_span &span,
                                                      const float (&v)[ELEMENTS]) {
#pragma unroll
  for (int e = 0; e < ELEMENTS; e += DF_FUSED_VECTOR) {
    if (f.vector && span.index(e) + DF_FUSED_VECTOR <= n) {
      *reinterpret_cast<float4 *>(out + span.index(e)) = float4{v[e], v[e + 1], v[e + 2], v[e + 3]};
      continue;
    }
#pragma unroll
    for (int k = e; k < e + DF_FUSED_VECTOR; k++)
      if (span.index(k) < n)
        out[span.index(k)] = v[k];
  }
}

/* take(span, v) for each ELEMENTS of the |n| elements that this thread computes; all threads of a
 * block call it equally often. */
template <int ELEMENTS, typename F>
static __device__ __forceinline__ void df_fused_chunks(int64_t n, const df_fused &f, F take) {
  DF_SHARED(float, shared);
  const int64_t threads = blockDim.x;
  const int64_t chunk = threads * ELEMENTS; /* elements of the block at a time */
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * f.chunks * chunk,
                end = df_min(n, begin + f.chunks * chunk);
  df_fused_span span = f.vector ? df_fused_span{begin + threadIdx.x * DF_FUSED_VECTOR,
                                                threads * DF_FUSED_VECTOR, n, DF_FUSED_VECTOR}
                                : df_fused_span{begin + threadIdx.x, threads, n, 1};
  float *own = shared + threadIdx.x * DF_FUSED_VECTOR,
        *numbers = df_fused_numbers<ELEMENTS>(f, shared);
  /* A thread without elements fetches none: where the result is one number, another thread may
   * write it over an operand. */
  if (span.index(0) < n)
    df_fused_fetch_numbers(f, numbers);
  int shift = f.slots;
  span.at -= chunk;
  /* In the first iteration there is nothing to compute yet. */
#pragma unroll 1
  for (int64_t i = begin - chunk; i < end; i += chunk) {
    df_fused_span next = span;
    next.at += chunk;
    if (i + chunk < end)
      df_fused_fetch<ELEMENTS>(f, next, f.slots - shift, own);
    __pipeline_commit();
    if (i >= begin) {
      __pipeline_wait_prior(1);
      float v[ELEMENTS] = {};
      df_fused_run(f, shift, own, numbers, v);
      take(span, v);
    }
    span = next;
    shift = f.slots - shift;
  }
}

/* ---- Launching ------------------------------------------------------------------------------ */

/* The most threads whose slots fit into the shared memory that every card gives. */
static inline unsigned df_fused_threads(const df_fused &f, int32_t elements = DF_FUSED_ELEMENTS) {
  unsigned threads = DF_BLOCK;
  while (df_fused_bytes(f, threads, elements) > DF_FUSED_SHARED)
    threads /= 2;
  return threads;
}

/* Chooses how many chunks of |n| elements a thread does; returns the blocks that do all. */
static inline unsigned df_fused_blocks(df_fused *f, int64_t n, unsigned threads,
                                       int32_t elements = DF_FUSED_ELEMENTS) {
  const int64_t chunk = int64_t{threads} * elements;
  f->chunks = static_cast<int32_t>(
      df_min(df_max(df_divide_up(n, chunk * DF_FUSED_BLOCKS), 1), DF_FUSED_CHUNKS));
  return df_blocks(n, chunk * f->chunks);
}

#endif
