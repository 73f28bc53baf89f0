/* segment.cu: segments on a stream. The host's executor launches the kernels. The first run is
 * plain, so that the driver loads what it needs; the second one is captured, and from then on one
 * call replays the graph. Where a capture fails the session goes on without graphs. */
#include "queue.h"

#include <new>
#include <vector>

struct df_prepared_segment {
  void *host; /* the executor's */
  const df_segment *segment;
  cudaGraphExec_t graph;
  df_fault *fault; /* on the card: the first one since one was last reported */
  df_fault *down;  /* pinned: what of it has come down */
  int64_t calls;   /* of kernels in one run */
  int32_t runs;
  bool capturable;
  cudaEvent_t began, ended;   /* around its kernels, once somebody asked for times */
  bool timed;                 /* they were recorded */
  std::vector<int32_t> slots; /* that its operands lie in */
  std::vector<void *> seen;   /* their addresses in the last run; what a graph was made for */
};

/* The lowest byte of struct_size is set by a call of its own: memory on the host from which all
 * came would have to stay as it is until the stream gets there. */
static cudaError_t clear_fault(df_queue *queue, df_prepared_segment *p) {
  static_assert(sizeof *p->fault < 256, "the size is one byte");
  *p->down = df_fault{};
  const cudaError_t status = cudaMemsetAsync(p->fault, 0, sizeof *p->fault, queue->stream);
  return status ? status : cudaMemsetAsync(p->fault, sizeof *p->fault, 1, queue->stream);
}

cudaError_t df_segment_fetch_fault(df_queue *queue, df_prepared_segment *p) {
  return df_small_add(queue, p->down, p->fault, sizeof *p->fault);
}

static bool is_capturable(const df_segment *segment) {
  for (int32_t i = 0; i < segment->n_steps; i++) {
    const df_step *step = segment->steps[i];
    if (step->body ? !is_capturable(step->body->segment) : !step->kernel->capturable)
      return false;
  }
  return true;
}

static void gather_slots(const df_segment *segment, std::vector<int32_t> *out) {
  for (int32_t i = 0; i < segment->n_operands; i++) {
    const int32_t arena = segment->operands[i]->arena;
    if (arena >= 0 && arena < segment->n_arenas && segment->arenas[arena]->slot >= 0)
      out->push_back(segment->arenas[arena]->slot);
  }
  for (int32_t i = 0; i < segment->n_steps; i++)
    if (segment->steps[i]->body)
      gather_slots(segment->steps[i]->body->segment, out);
}

df_status df_segment_open(df_queue *queue, const df_segment *segment, df_prepared_segment **out,
                          df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_prepared_segment *p = new (std::nothrow) df_prepared_segment{};
  if (!p)
    return df_cuda_fail(queue, cudaErrorMemoryAllocation, "preparing a segment", error);
  p->segment = segment;
  p->capturable = is_capturable(segment);
  gather_slots(segment, &p->slots);
  df_on_card card(queue->card);
  cudaError_t status = card.status;
  if (!status)
    status = cudaMalloc(reinterpret_cast<void **>(&p->fault), sizeof *p->fault);
  if (!status)
    status = cudaMallocHost(reinterpret_cast<void **>(&p->down), sizeof *p->down);
  if (!status)
    status = clear_fault(queue, p);
  df_status code = df_cuda_fail(queue, status, "preparing a segment", error);
  if (!code)
    code = df_cuda_host->segment_prepare(queue, segment, &p->host, error);
  if (code) {
    df_segment_close(queue, p);
    return code;
  }
  *out = p;
  return DF_OK;
}

void df_segment_close(df_queue *queue, df_prepared_segment *p) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  cudaStreamSynchronize(queue->stream); /* it may still be running */
  for (size_t i = 0; i < queue->ran.size(); i++)
    if (queue->ran[i] == p)
      queue->ran.erase(queue->ran.begin() + static_cast<long>(i--));
  if (p->graph)
    cudaGraphExecDestroy(p->graph);
  if (p->began)
    cudaEventDestroy(p->began);
  if (p->ended)
    cudaEventDestroy(p->ended);
  if (p->host)
    df_cuda_host->segment_release(queue, p->host);
  cudaFree(p->fault);
  cudaFreeHost(p->down);
  delete p;
}

/* Records |event|, if there is one, in the stream or in the graph that is being made of it. */
static cudaError_t mark(df_queue *queue, cudaEvent_t event, bool recording) {
  if (!event)
    return cudaSuccess;
  return cudaEventRecordWithFlags(event, queue->stream,
                                  recording ? cudaEventRecordExternal : cudaEventRecordDefault);
}

/* Puts every kernel into the stream, which may be |recording|. */
static df_status put(df_queue *queue, df_prepared_segment *p, const df_run *run, bool recording,
                     df_error *error) {
  df_run own;
  df_take(&own, sizeof own, run);
  own.stream = queue->stream;
  own.fault = p->fault;
  own.calls = &p->calls;
  p->calls = 0;
  df_status status =
      df_cuda_fail(queue, mark(queue, p->began, recording), "beginning a segment", error);
  if (!status)
    status = df_cuda_host->segment_run(queue, p->host, &own, error);
  if (!status)
    status = df_cuda_fail(queue, mark(queue, p->ended, recording), "ending a segment", error);
  return status;
}

/* Makes a graph of the segment. */
static df_status record(df_queue *queue, df_prepared_segment *p, const df_run *run,
                        df_error *error) {
  cudaGraph_t graph = nullptr;
  cudaError_t began = cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeThreadLocal);
  if (began)
    return df_cuda_fail(queue, began, "beginning to capture", error);
  df_run uncancellable;
  df_take(&uncancellable, sizeof uncancellable, run);
  uncancellable.cancel = nullptr; /* half a graph is of no use */
  df_status status = put(queue, p, &uncancellable, true, error);
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
  cudaGetLastError(); /* the capture's, after that of the call that failed in it */
  queue->capture = false;
  queue->broken = cudaSuccess;
  char text[sizeof reason.text + 80];
  snprintf(text, sizeof text, "a CUDA graph can't be made, so kernels are launched one by one: %s",
           reason.text);
  df_cuda_host->log(30, text);
}

/* Whether the slots have the addresses of the run before; a graph for other ones goes. */
static bool has_same_slots(df_prepared_segment *p, const df_run *run) {
  std::vector<void *> now;
  now.reserve(p->slots.size());
  for (int32_t slot : p->slots)
    now.push_back(slot < run->n_slots ? run->slots[slot] : nullptr);
  if (now == p->seen)
    return true;
  p->seen = now;
  if (p->graph)
    cudaGraphExecDestroy(p->graph); /* the card keeps what it still works with */
  p->graph = nullptr;
  return false;
}

df_status df_segment_launch(df_queue *queue, df_prepared_segment *p, const df_run *run,
                            df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  df_status status = df_queue_ready(queue, card, error);
  if (!status)
    status = df_cuda_fail(queue, df_small_flush(queue), "copying", error);
  const bool captures = p->capturable && queue->capture && p->runs > 0;
  if (!status && has_same_slots(p, run) && captures && !p->graph)
    try_record(queue, p, run);
  if (!status && p->graph)
    status =
        df_cuda_fail(queue, cudaGraphLaunch(p->graph, queue->stream), "replaying a segment", error);
  else if (!status)
    status = put(queue, p, run, false, error);
  if (status) {
    clear_fault(queue, p); /* what the part of it that ran noted */
    return status;
  }
  p->timed = p->began && p->ended;
  p->runs += p->runs < 2;
  if (run->calls)
    *run->calls += p->calls;
  queue->ran.push_back(p);
  return DF_OK;
}

df_status df_segment_elapsed(df_queue *queue, df_prepared_segment *p, int64_t *nanoseconds,
                             df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  df_status status = df_queue_ready(queue, card, error);
  *nanoseconds = 0;
  if (status)
    return status;
  if (p->timed) {
    float milliseconds = 0.0f;
    const cudaError_t asked = cudaEventElapsedTime(&milliseconds, p->began, p->ended);
    *nanoseconds = static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
    return df_cuda_fail(queue, asked, "asking for the time of a segment", error);
  }
  cudaError_t made = cudaSuccess;
  if (!p->began)
    made = cudaEventCreateWithFlags(&p->began, cudaEventDefault);
  if (!made && !p->ended)
    made = cudaEventCreateWithFlags(&p->ended, cudaEventDefault);
  if (p->graph)
    cudaGraphExecDestroy(p->graph); /* the next run makes one with the events in it */
  p->graph = nullptr;
  return df_cuda_fail(queue, made, "making events", error);
}

df_fault df_segment_take_fault(df_queue *queue, df_prepared_segment *p) {
  const df_fault found = *p->down;
  if (found.code)
    clear_fault(queue, p);
  return found;
}

const char *df_segment_kernel(const df_prepared_segment *p, int32_t step) {
  if (step < 0 || step >= p->segment->n_steps || !p->segment->steps[step]->kernel)
    return "?";
  return p->segment->steps[step]->kernel->name;
}
