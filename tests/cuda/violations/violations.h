/* violations.h: what a card would not bear, or only sometimes, one function each. The stand-in must
 * end the process, or give the error that is printed. */
#ifndef VIOLATIONS_H
#define VIOLATIONS_H
#include "dataflow_cuda.h"

#include <stdio.h>

[[maybe_unused]] static cudaStream_t stream_of(int card) {
  cudaStream_t stream = nullptr;
  cudaSetDevice(card);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

template <typename T> static T *memory_of(int card, size_t count) {
  void *found = nullptr;
  cudaSetDevice(card);
  cudaMalloc(&found, count * sizeof(T));
  return static_cast<T *>(found);
}

[[maybe_unused]] static void print(const char *what, cudaError_t status) {
  printf("%s: %s\n", what, cudaGetErrorString(status));
}

template <typename... P, typename... A>
static void launch(cudaStream_t stream, unsigned blocks, size_t shared, void (*kernel)(P...),
                   A... arguments) {
  standin_launch("kernel", blocks, 32, shared, stream, kernel, arguments...);
  print("launch", cudaGetLastError());
}

/* The same on the first card, to its end. */
template <typename... P, typename... A>
static void finish(unsigned blocks, unsigned threads, void (*kernel)(P...), A... arguments) {
  cudaStream_t stream = stream_of(0);
  standin_launch("kernel", blocks, threads, 0, stream, kernel, arguments...);
  print("launch", cudaGetLastError());
  print("wait", cudaStreamSynchronize(stream));
}

#endif
