/* calls.cu: shared memory, captures and cards as a card would not bear them. */
#include "violations.h"

#include <cuda_pipeline_primitives.h>

/* ---- Shared memory -------------------------------------------------------------------------- */

__global__ static void write_behind(int at) {
  DF_SHARED_ARRAY(int, first, [32]);
  DF_SHARED_ARRAY(int, second, [32]);
  second[threadIdx.x] = 0;
  if (threadIdx.x == 0)
    first[at] = 1;
}

extern "C" void writes_behind_its_array() {
  cudaStream_t stream = stream_of(0);
  launch(stream, 1, 0, write_behind, 32);
  cudaStreamSynchronize(stream);
}

extern "C" void writes_before_its_array() {
  cudaStream_t stream = stream_of(0);
  launch(stream, 1, 0, write_behind, -1);
  cudaStreamSynchronize(stream);
}

__global__ static void write_dynamic(int at) {
  DF_SHARED(int, words);
  if (threadIdx.x == 0)
    words[at] = 1;
}

extern "C" void writes_behind_its_dynamic_memory() {
  cudaStream_t stream = stream_of(0);
  launch(stream, 1, 128, write_dynamic, 32);
  cudaStreamSynchronize(stream);
}

/* The first block writes what the second one reads, which has not written it. */
__global__ static void remember(unsigned *found) {
  DF_SHARED_ARRAY(unsigned, kept, [1]);
  if (blockIdx.x == 0)
    kept[0] = 0;
  if (threadIdx.x == 0)
    found[blockIdx.x] = kept[0];
}

extern "C" void reads_what_another_block_left() {
  cudaStream_t stream = stream_of(0);
  unsigned *found = memory_of<unsigned>(0, 2), down[2];
  launch(stream, 2, 0, remember, found);
  cudaMemcpyAsync(down, found, sizeof down, cudaMemcpyDeviceToHost, stream);
  printf("%x %x\n", down[0], down[1]);
}

__global__ static void use_dynamic() {
  DF_SHARED(int, words);
  words[threadIdx.x] = 0;
}

__global__ static void use_both() {
  DF_SHARED(int, words);
  DF_SHARED_ARRAY(int, many, [10240]);
  words[threadIdx.x] = many[threadIdx.x] = 0;
}

extern "C" void has_too_much_shared_memory() {
  cudaStream_t first = stream_of(0);
  launch(first, 1, 48 << 10, use_dynamic);
  launch(first, 1, (48 << 10) + 4, use_dynamic);
  cudaFuncSetAttribute(use_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10);
  launch(first, 1, 64 << 10, use_dynamic);
  launch(first, 1, 65 << 10, use_dynamic);
  launch(stream_of(1), 1, 64 << 10, use_dynamic); /* allowed on the first card alone */
}

extern "C" void has_too_much_shared_memory_in_all() {
  cudaStream_t stream = stream_of(0);
  launch(stream, 1, 20 << 10, use_both);
  cudaStreamSynchronize(stream);
}

/* ---- Copies to shared memory, and tensor cores ----------------------------------------------- */

/* Four words, of which the first is read before the copy is waited for, and behind it. */
__global__ static void copy_and_read(unsigned *found, const unsigned *from) {
  DF_SHARED_ARRAY(unsigned, words, [4]);
  if (threadIdx.x)
    return;
  __pipeline_memcpy_async(words, from, 16);
  found[0] = words[0];
  __pipeline_commit();
  __pipeline_wait_prior(0);
  found[1] = words[0];
}

extern "C" void reads_a_copy_before_it_waits() {
  cudaStream_t stream = stream_of(0);
  unsigned *memory = memory_of<unsigned>(0, 8), down[2];
  cudaMemsetAsync(memory, 1, 32, stream);
  launch(stream, 1, 0, copy_and_read, memory + 4, memory);
  cudaMemcpyAsync(down, memory + 4, sizeof down, cudaMemcpyDeviceToHost, stream);
  printf("%x %x\n", down[0], down[1]);
}

extern "C" void copies_from_where_16_bytes_may_not_begin() {
  cudaStream_t stream = stream_of(0);
  unsigned *memory = memory_of<unsigned>(0, 8);
  launch(stream, 1, 0, copy_and_read, memory, memory + 1);
  cudaStreamSynchronize(stream);
}

__global__ static void read_matrices(int begin) {
  DF_SHARED_ARRAY(unsigned, words, [256]);
  unsigned to[4];
  standin_ldmatrix(to, words + begin + threadIdx.x * 4, false);
}

extern "C" void reads_matrices_from_where_no_row_may_begin() {
  cudaStream_t stream = stream_of(0);
  launch(stream, 1, 0, read_matrices, 2);
  cudaStreamSynchronize(stream);
}

/* ---- Captures ------------------------------------------------------------------------------- */

__global__ static void nothing() {}

extern "C" void wants_more_blocks_than_a_grid_has() {
  launch(stream_of(0), df_blocks((int64_t{DF_MOST_BLOCKS} + 1) * 32, 32), 0, nothing);
}

static cudaStream_t capturing() {
  cudaStream_t stream = stream_of(0);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  return stream;
}

extern "C" void allocates_in_a_capture() {
  capturing();
  memory_of<int>(0, 1);
}

extern "C" void frees_in_a_capture() {
  int *memory = memory_of<int>(0, 1);
  capturing();
  cudaFree(memory);
}

extern "C" void waits_in_a_capture() { cudaStreamSynchronize(capturing()); }

extern "C" void waits_for_an_event_in_a_capture() {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  capturing();
  cudaEventSynchronize(event);
}

extern "C" void copies_pageable_memory_in_a_capture() {
  int *memory = memory_of<int>(0, 1), pageable = 0;
  cudaMemcpyAsync(memory, &pageable, sizeof pageable, cudaMemcpyHostToDevice, capturing());
}

extern "C" void uses_another_stream_in_a_capture() {
  cudaStream_t other = stream_of(0);
  capturing();
  launch(other, 1, 0, nothing);
}

/* ---- Conditional nodes ---------------------------------------------------------------------- */

__global__ static void set_condition(cudaGraphConditionalHandle handle) {
  if (threadIdx.x == 0)
    cudaGraphSetConditional(handle, 1);
}

struct capture_end {
  cudaGraph_t graph;
  const cudaGraphNode_t *nodes;
  const cudaGraphEdgeData *edges;
  size_t count;
};

static capture_end end_of(cudaStream_t stream) {
  capture_end end{};
  cudaStreamCaptureStatus status;
  unsigned long long id;
  cudaStreamGetCaptureInfo(stream, &status, &id, &end.graph, &end.nodes, &end.edges, &end.count);
  return end;
}

static cudaGraphConditionalHandle handle_of(cudaStream_t stream) {
  cudaGraphConditionalHandle handle = 0;
  cudaGraphConditionalHandleCreate(&handle, end_of(stream).graph, 0, cudaGraphCondAssignDefault);
  return handle;
}

/* An If behind the first |count| of |end|. */
static cudaGraphNode_t add_if(capture_end end, cudaGraphConditionalHandle handle, size_t count,
                              cudaGraph_t *body) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional = {handle, cudaGraphCondTypeIf, 1, nullptr};
  cudaGraphNode_t node = nullptr;
  print("node", cudaGraphAddNode(&node, end.graph, end.nodes, end.edges, count, &params));
  *body = params.conditional.phGraph_out ? params.conditional.phGraph_out[0] : nullptr;
  return node;
}

extern "C" void adds_a_node_that_waits_for_nothing() {
  cudaStream_t stream = capturing();
  cudaGraph_t body;
  launch(stream, 1, 0, nothing);
  add_if(end_of(stream), handle_of(stream), 0, &body);
}

extern "C" void goes_on_beside_a_node() {
  cudaStream_t stream = capturing();
  cudaGraph_t body;
  add_if(end_of(stream), handle_of(stream), 0, &body);
  launch(stream, 1, 0, nothing);
}

extern "C" void sets_a_condition_outside_of_its_graph() {
  cudaStream_t stream = capturing(), other = stream_of(0);
  const cudaGraphConditionalHandle handle = handle_of(stream);
  cudaGraph_t graph;
  cudaStreamEndCapture(stream, &graph);
  launch(other, 1, 0, set_condition, handle);
  cudaStreamSynchronize(other);
}

extern "C" void times_a_body() {
  cudaStream_t stream = capturing(), side = stream_of(0);
  cudaGraph_t body;
  cudaEvent_t event;
  add_if(end_of(stream), handle_of(stream), 0, &body);
  cudaEventCreateWithFlags(&event, cudaEventDefault);
  cudaStreamBeginCaptureToGraph(side, body, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal);
  cudaEventRecordWithFlags(event, side, cudaEventRecordExternal);
}

extern "C" void has_conditions_without_nodes_and_nodes_without_conditions() {
  cudaStream_t stream = capturing();
  cudaGraph_t graph, body;
  cudaGraphExec_t made;
  const cudaGraphConditionalHandle handle = handle_of(stream);
  cudaGraphNode_t node = add_if(end_of(stream), handle, 0, &body);
  cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies);
  add_if(end_of(stream), handle, 1, &body); /* again */
  handle_of(stream);
  print("end", cudaStreamEndCapture(stream, &graph));
  print("instantiate", cudaGraphInstantiate(&made, graph, 0));
}

/* ---- Cards ---------------------------------------------------------------------------------- */

extern "C" void uses_what_belongs_to_another_card() {
  cudaStream_t second = stream_of(1), first = stream_of(0);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  launch(first, 1, 0, nothing);
  launch(second, 1, 0, nothing);
  print("event", cudaEventRecord(event, second));
  print("memset", cudaMemsetAsync(memory_of<int>(0, 1), 0, 4, second));
}

__global__ static void increase(int *at) { *at += 1; }

extern "C" void writes_memory_of_another_card() {
  int *memory = memory_of<int>(0, 1);
  cudaStream_t second = stream_of(1);
  launch(second, 1, 0, increase, memory);
  cudaStreamSynchronize(second);
}

extern "C" void writes_memory_of_a_peer() {
  int *memory = memory_of<int>(0, 1);
  cudaStream_t second = stream_of(1);
  cudaDeviceEnablePeerAccess(0, 0);
  launch(second, 1, 0, increase, memory);
  print("wait", cudaStreamSynchronize(second));
}

extern "C" void reads_device_memory_on_the_host() { printf("%d\n", *memory_of<int>(0, 1)); }
