/* segment.cu: segments on a stream. The host's executor launches the kernels. The first run is
 * plain, so that the driver loads what it needs; the second one is captured, and from then on one
 * call replays the graph. Where a capture fails the session goes on without graphs. */
#include "queue.h"

#include <new>

struct df_prepared_segment {
  void *host; /* the executor's */
  const df_segment *segment;
  cudaGraphExec_t graph;
  df_fault *fault; /* on the card */
  df_fault *down;  /* pinned: the fault of the last run */
  int64_t calls;   /* of kernels in one run */
  int32_t runs;
  bool capturable;
};

/* Says in |down| that there is no fault, as the card does at the begin of each run. */
static cudaError_t begin_run(df_queue *queue, df_prepared_segment *p) {
  return cudaMemsetAsync(p->fault, 0, sizeof *p->fault, queue->stream);
}

static cudaError_t end_run(df_queue *queue, df_prepared_segment *p) {
  return cudaMemcpyAsync(p->down, p->fault, sizeof *p->fault, cudaMemcpyDeviceToHost,
                         queue->stream);
}

static bool is_capturable(const df_segment *segment) {
  for (int32_t i = 0; i < segment->n_steps; i++) {
    const df_step *step = &segment->steps[i];
    if (step->body ? !is_capturable(&step->body->segment) : !step->kernel->capturable)
      return false;
  }
  return true;
}

df_status df_segment_open(df_queue *queue, const df_segment *segment, df_prepared_segment **out,
                          df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_prepared_segment *p = new (std::nothrow) df_prepared_segment{};
  if (!p)
    return df_cuda_fail(queue, cudaErrorMemoryAllocation, "preparing a segment", error);
  p->segment = segment;
  p->capturable = is_capturable(segment);
  cudaError_t status = cudaSetDevice(queue->card->ordinal);
  if (!status)
    status = cudaMalloc(reinterpret_cast<void **>(&p->fault), sizeof *p->fault);
  if (!status)
    status = cudaMallocHost(reinterpret_cast<void **>(&p->down), sizeof *p->down);
  df_status code = df_cuda_fail(queue, status, "preparing a segment", error);
  if (!code) {
    *p->down = df_fault{};
    code = df_cuda_host->segment_prepare(queue, segment, &p->host, error);
  }
  if (code) {
    df_segment_close(queue, p);
    return code;
  }
  *out = p;
  return DF_OK;
}

void df_segment_close(df_queue *queue, df_prepared_segment *p) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  cudaSetDevice(queue->card->ordinal);
  cudaStreamSynchronize(queue->stream); /* it may still be running */
  for (size_t i = 0; i < queue->ran.size(); i++)
    if (queue->ran[i] == p)
      queue->ran.erase(queue->ran.begin() + static_cast<long>(i--));
  if (p->graph)
    cudaGraphExecDestroy(p->graph);
  if (p->host)
    df_cuda_host->segment_release(queue, p->host);
  cudaFree(p->fault);
  cudaFreeHost(p->down);
  delete p;
}

/* Puts every kernel into the stream; the stream may be recording. */
static df_status put(df_queue *queue, df_prepared_segment *p, const df_run *run, df_error *error) {
  df_run own = *run;
  own.struct_size = sizeof own;
  own.stream = queue->stream;
  own.fault = p->fault;
  own.calls = &p->calls;
  p->calls = 0;
  df_status status = df_cuda_fail(queue, begin_run(queue, p), "beginning a segment", error);
  if (!status)
    status = df_cuda_host->segment_run(queue, p->host, &own, error);
  if (!status)
    status = df_cuda_fail(queue, end_run(queue, p), "ending a segment", error);
  return status;
}

/* Makes a graph of the segment. */
static df_status record(df_queue *queue, df_prepared_segment *p, const df_run *run,
                        df_error *error) {
  cudaGraph_t graph = nullptr;
  cudaError_t began = cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeThreadLocal);
  if (began)
    return df_cuda_fail(queue, began, "beginning to capture", error);
  df_run uncancellable = *run;
  uncancellable.cancel = nullptr; /* half a graph is of no use */
  df_status status = put(queue, p, &uncancellable, error);
  cudaError_t ended = cudaStreamEndCapture(queue->stream, &graph);
  if (!status)
    status = df_cuda_fail(queue, ended, "ending to capture", error);
  if (!status)
    status =
        df_cuda_fail(queue, cudaGraphInstantiate(&p->graph, graph, 0), "making a graph", error);
  if (graph)
    cudaGraphDestroy(graph);
  return status;
}

/* Makes a graph of the segment, or says why this session goes on without graphs: nothing ran, so
 * the kernels can still be launched one by one. A card that failed will say so again. */
static void try_record(df_queue *queue, df_prepared_segment *p, const df_run *run) {
  df_error reason{};
  if (!record(queue, p, run, &reason))
    return;
  queue->capture = false;
  queue->broken = cudaSuccess;
  char text[sizeof reason.text + 80];
  snprintf(text, sizeof text, "a CUDA graph can't be made, so kernels are launched one by one: %s",
           reason.text);
  df_cuda_host->log(30, text);
}

df_status df_segment_launch(df_queue *queue, df_prepared_segment *p, const df_run *run,
                            df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  if (queue->broken != cudaSuccess)
    return df_cuda_fail(queue, queue->broken, "the card failed before; make a new session", error);
  df_status status =
      df_cuda_fail(queue, cudaSetDevice(queue->card->ordinal), "choosing the card", error);
  if (!status && p->capturable && queue->capture && p->runs > 0 && !p->graph)
    try_record(queue, p, run);
  if (!status && p->graph)
    status =
        df_cuda_fail(queue, cudaGraphLaunch(p->graph, queue->stream), "replaying a segment", error);
  else if (!status)
    status = put(queue, p, run, error);
  if (status)
    return status;
  p->runs += p->runs < 2;
  if (run->calls)
    *run->calls += p->calls;
  queue->ran.push_back(p);
  return DF_OK;
}

const df_fault *df_segment_fault(const df_prepared_segment *p) { return p->down; }

const char *df_segment_kernel(const df_prepared_segment *p, int32_t step) {
  if (step < 0 || step >= p->segment->n_steps || !p->segment->steps[step].kernel)
    return "?";
  return p->segment->steps[step].kernel->name;
}
