/* small_copies.cu: what comes down in few bytes. A copy takes the card 3 us however small it is, so
 * several wait for each other and become one kernel, which writes to pinned memory. */
#include "queue.h"

enum { FEW = 3, THREADS = 32 }; /* copies from which on the kernel is faster */

__global__ void __launch_bounds__(THREADS)
    copy_small(const __grid_constant__ df_small_copies table) {
  const df_small_copy &copy = table.copies[blockIdx.x];
  for (unsigned i = threadIdx.x; i < copy.bytes; i += THREADS)
    static_cast<char *>(copy.to)[i] = static_cast<const char *>(copy.from)[i];
}

static cudaError_t launch(df_queue *queue) {
  const unsigned blocks = static_cast<unsigned>(queue->small.count);
#ifdef __CUDACC__
  copy_small<<<blocks, THREADS, 0, queue->stream>>>(queue->small);
#else
  standin_launch("copy_small", blocks, THREADS, 0, queue->stream, copy_small, queue->small);
#endif
  return cudaGetLastError();
}

cudaError_t df_small_flush(df_queue *queue) {
  df_small_copies &small = queue->small;
  cudaError_t status = small.count < FEW ? cudaSuccess : launch(queue);
  for (int32_t i = 0; i < small.count && small.count < FEW && !status; i++)
    status = cudaMemcpyAsync(small.copies[i].to, small.copies[i].from, small.copies[i].bytes,
                             cudaMemcpyDeviceToHost, queue->stream);
  small.count = 0;
  return status;
}

cudaError_t df_small_add(df_queue *queue, void *to, const void *from, size_t bytes) {
  const cudaError_t status =
      queue->small.count < DF_SMALL_COPIES ? cudaSuccess : df_small_flush(queue);
  queue->small.copies[queue->small.count++] = {to, from, bytes};
  return status;
}
