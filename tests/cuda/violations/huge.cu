/* huge.cu: indices of 32 bits in memory of more than 2^31 elements (STANDIN_BLOCKS=edges). */
#include "violations.h"

static const int64_t COUNT = (int64_t{1} << 31) + 4096;

template <typename Index> __global__ static void set(char *to, int64_t count) {
  const Index i = static_cast<Index>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count)
    to[i] = 1;
}

/* Each byte is set by a thread; prints those at both ends. */
template <typename Index> static void run() {
  char *memory = memory_of<char>(0, COUNT), ends[2];
  finish(static_cast<unsigned>(COUNT / 256), 256, set<Index>, memory, COUNT);
  cudaStream_t stream = stream_of(0);
  cudaMemcpyAsync(ends, memory, 1, cudaMemcpyDeviceToHost, stream);
  cudaMemcpyAsync(ends + 1, memory + COUNT - 1, 1, cudaMemcpyDeviceToHost, stream);
  printf("%d %d\n", ends[0], ends[1]);
}

extern "C" void indexes_by_32_bits() { run<int32_t>(); }
extern "C" void indexes_by_64_bits() { run<int64_t>(); }
