/* cuda_runtime.h: a stand-in for the CUDA runtime's header, so that CUDA sources compile as plain
 * C++ and run on a CPU. It declares what the project's sources use and nothing else; names,
 * arguments and meaning are those of the real header, the bodies are in the files beside it.
 *
 * Threads of a block are fibers that change at barriers, so that a kernel that waits for its
 * neighbours works as on a card. The host can't touch device memory: it faults as an address of a
 * card would.
 */
#ifndef STANDIN_CUDA_RUNTIME_H
#define STANDIN_CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>

#define DF_STANDIN 1

/* ---- The language --------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

/* Where the fiber that runs now stands. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

typedef std::source_location standin_site; /* threads that wait for each other wait at one */
#define STANDIN_SITE standin_site at = standin_site::current()

void standin_block_barrier(standin_site at);
/* Waits for the lanes of |mask|; memory is |ordered| by __syncwarp alone. */
void standin_warp_barrier(unsigned mask, standin_site at, bool ordered);
/* Puts |bytes| at |value| into the place of this lane and gives the address of lane |lane|'s. */
void standin_exchange(const void *value, void *result, size_t bytes, int lane, unsigned mask,
                      standin_site at);
unsigned standin_ballot(int predicate, unsigned mask, standin_site at);
/* The block's dynamic shared memory, and the array of it that |key| stands for. */
void *standin_shared();
void *standin_shared_array(const void *key, const char *name, size_t bytes);

static inline void __syncthreads(STANDIN_SITE) { standin_block_barrier(at); }
static inline int __syncthreads_or(int predicate, STANDIN_SITE) {
  static int votes;
  __syncthreads(at);
  votes = 0;
  __syncthreads(at);
  votes |= predicate != 0;
  __syncthreads(at);
  return votes;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, STANDIN_SITE) {
  standin_warp_barrier(mask, at, true);
}
static inline void __threadfence() {}
static inline int standin_lane() {
  return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, STANDIN_SITE) {
  T result;
  int base = standin_lane() / width * width;
  standin_exchange(&value, &result, sizeof value, base + lane % width, mask, at);
  return result;
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int = 32, STANDIN_SITE) {
  T result;
  standin_exchange(&value, &result, sizeof value, standin_lane() ^ bits, mask, at);
  return result;
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, int delta, int = 32, STANDIN_SITE) {
  T result;
  int from = standin_lane() + delta;
  standin_exchange(&value, &result, sizeof value, from < 32 ? from : standin_lane(), mask, at);
  return result;
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, int delta, int = 32, STANDIN_SITE) {
  T result;
  int from = standin_lane() - delta;
  standin_exchange(&value, &result, sizeof value, from >= 0 ? from : standin_lane(), mask, at);
  return result;
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, STANDIN_SITE) {
  return standin_ballot(predicate, mask, at);
}
static inline int __any_sync(unsigned mask, int predicate, STANDIN_SITE) {
  return standin_ballot(predicate, mask, at) != 0;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

/* One fiber runs at a time and changes at barriers only, so plain code is atomic. */
#ifdef STANDIN_RACES
void standin_note_atomic(const void *at, size_t bytes, const void *code);
#define STANDIN_ATOMIC(T) template <typename T> __attribute__((noinline, no_sanitize("thread"))) T
#define STANDIN_UPDATE(at) standin_note_atomic(at, sizeof *at, __builtin_return_address(0))
#else
#define STANDIN_ATOMIC(T) template <typename T> static inline T
#define STANDIN_UPDATE(at) static_cast<void>(0)
#endif
STANDIN_ATOMIC(T) atomicAdd(T *at, T value) {
  STANDIN_UPDATE(at);
  T old = *at;
  *at = old + value;
  return old;
}
STANDIN_ATOMIC(T) atomicMax(T *at, T value) {
  STANDIN_UPDATE(at);
  T old = *at;
  *at = old < value ? value : old;
  return old;
}
STANDIN_ATOMIC(T) atomicMin(T *at, T value) {
  STANDIN_UPDATE(at);
  T old = *at;
  *at = value < old ? value : old;
  return old;
}
STANDIN_ATOMIC(T) atomicExch(T *at, T value) {
  STANDIN_UPDATE(at);
  T old = *at;
  *at = value;
  return old;
}
STANDIN_ATOMIC(T) atomicCAS(T *at, T expected, T value) {
  STANDIN_UPDATE(at);
  T old = *at;
  if (old == expected)
    *at = value;
  return old;
}

template <typename T> static inline T __ldg(const T *at) { return *at; }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
#define __expf(x) std::exp(x) /* a name of the C library's */
static inline float __fdividef(float x, float y) { return x / y; }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __float_as_int(float x) {
  int bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline unsigned __float_as_uint(float x) { return (unsigned)__float_as_int(x); }
static inline float __int_as_float(int bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }

/* What kernels have as assembler: c (16, 8) += a (16, 8 per_word) b, with |per_word| numbers in a
 * word, one TF32 or two bfloat16; and what becomes of floats for it. */
void standin_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int per_word);
/* ldmatrix.x4 of 16-bit elements: matrix i has the rows that lanes 8 i to 8 i + 7 point to. */
void standin_ldmatrix(unsigned (&to)[4], const unsigned *row, bool transposed);
static inline unsigned standin_tf32(float x) { /* ties away from zero */
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fffffffu : (bits + 0x1000u) & 0xffffe000u;
}
static inline unsigned standin_bf16(float x) { /* ties to even */
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* ---- The runtime ---------------------------------------------------------------------------- */

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum {
  cudaStreamNonBlocking = 1,
  cudaEventDefault = 0,
  cudaEventDisableTiming = 2,
  cudaEventRecordDefault = 0,
  cudaEventRecordExternal = 1,
  cudaEnableDefault = 0,
  cudaGraphCondAssignDefault = 1,
  cudaStreamSetCaptureDependencies = 1
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};
enum cudaGraphNodeType { cudaGraphNodeTypeConditional = 13 };
enum cudaGraphConditionalNodeType { cudaGraphCondTypeIf = 0, cudaGraphCondTypeWhile = 1 };
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};

typedef struct standin_stream *cudaStream_t;
typedef struct standin_event *cudaEvent_t;
typedef struct standin_graph *cudaGraph_t;
typedef struct standin_program *cudaGraphExec_t;
typedef struct standin_node *cudaGraphNode_t;
typedef unsigned long long cudaGraphConditionalHandle;
struct cudaGraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
struct cudaConditionalNodeParams {
  cudaGraphConditionalHandle handle;
  cudaGraphConditionalNodeType type;
  unsigned size;
  cudaGraph_t *phGraph_out;
};
struct cudaGraphNodeParams {
  cudaGraphNodeType type;
  cudaConditionalNodeParams conditional;
};
struct cudaDeviceProp {
  char name[256];
  int major, minor;
  int multiProcessorCount;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other);
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *address);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *address);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *address);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count);
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                const cudaGraphEdgeData *edges, size_t count,
                                                unsigned flags);
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          cudaStreamCaptureMode mode);
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *out, cudaGraph_t graph,
                                             unsigned initial, unsigned flags);
cudaError_t cudaGraphAddNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                             const cudaGraphEdgeData *edges, size_t count,
                             cudaGraphNodeParams *params);
void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value); /* in kernels */
cudaError_t standin_allow_shared(const void *kernel, int bytes);
template <typename F>
static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute, int bytes) {
  return standin_allow_shared(reinterpret_cast<const void *>(kernel), bytes);
}

/* ---- Launches ------------------------------------------------------------------------------- */

/* Puts a launch into the stream, which runs |thread| once per thread of the grid. |kernel| is what
 * may have been allowed more than 48 KiB of dynamic shared memory. */
void standin_enqueue(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     std::function<void()> thread, const void *kernel = nullptr);

/* Arguments are converted and copied when the launch is made, as on a card. */
template <typename... P, typename... A>
static inline void standin_launch(const char *name, dim3 grid, dim3 block, size_t shared,
                                  cudaStream_t stream, void (*kernel)(P...), A... arguments) {
  static_assert((sizeof(std::decay_t<P>) + ... + 0) <= 32764, "a kernel's parameters have 32 KB");
  standin_enqueue(
      name, grid, block, shared, stream,
      [kernel, ... held = static_cast<std::decay_t<P>>(arguments)] { kernel(held...); },
      reinterpret_cast<const void *>(kernel));
}

#endif
