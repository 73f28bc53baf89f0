/* segment.cu: segments on a stream. The host's executor launches the kernels. The first run is
 * plain, so that the driver loads what it needs; the second one is captured, and from then on one
 * call replays the graph. Where a capture fails the session goes on without graphs. */
#include "bodies.h"
#include "decision.h"

#include <algorithm>
#include <new>
#include <vector>

struct df_prepared_segment {
  df_stretches stretches;
  cudaGraphExec_t graph;
  int64_t calls; /* of kernels in one run; of a body in a graph as if it ran once */
  int32_t runs;
  bool capturable;
  cudaEvent_t began, ended;   /* around its kernels, once somebody asked for times */
  bool timed;                 /* they were recorded */
  std::vector<int32_t> slots; /* that its operands lie in */
  std::vector<void *> seen;   /* their addresses in the last run; what a graph was made for */
};

cudaError_t df_segment_fetch_fault(df_queue *, df_prepared_segment *p) {
  return df_stretches_fetch(&p->stretches);
}

/* A loop of fixed length is as many nodes of a graph as it makes calls: more than so many would
 * take longer to make, and more memory, than they spare. */
enum { MOST_NODES = 1 << 14 };

/* Calls of a segment in a graph; more than MOST_NODES where it can't be one. */
static int64_t count_nodes(const df_segment *segment) {
  int64_t count = 0;
  for (int32_t i = 0; i < segment->n_steps && count <= MOST_NODES; i++) {
    const df_step *step = segment->steps[i];
    if (!step->body)
      count += step->kernel->capturable ? 1 : MOST_NODES + 1;
    else if (step->body->kind != DF_REPEAT)
      count += DF_CONDITIONAL_NODES ? count_nodes(step->body->segment) : MOST_NODES + 1;
    else
      count += std::min(step->body->iterations, int64_t{MOST_NODES + 1}) *
               count_nodes(step->body->segment);
  }
  return count;
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
  p->capturable = count_nodes(segment) <= MOST_NODES;
  gather_slots(segment, &p->slots);
  df_on_card card(queue->card);
  df_status code = df_cuda_fail(queue, card.status, "preparing a segment", error);
  if (!code)
    code = df_stretches_open(queue, segment, &p->stretches, error);
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
  df_stretches_close(&p->stretches);
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
  own.calls = &p->calls;
  p->calls = 0;
  df_status status =
      df_cuda_fail(queue, mark(queue, p->began, recording), "beginning a segment", error);
  if (!status)
    status = df_stretches_put(&p->stretches, &own, recording, error);
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

/* Makes a graph of the segment, or says why it, or this session, goes on without: nothing ran, so
 * the kernels can still be launched one by one. A card that failed will say so again. */
static void try_record(df_queue *queue, df_prepared_segment *p, const df_run *run) {
  df_error reason{};
  if (!record(queue, p, run, &reason))
    return;
  cudaGetLastError(); /* the capture's, after that of the call that failed in it */
  const bool decides = p->stretches.side != nullptr;
  (decides ? p->capturable : queue->capture) = false; /* others may well have no bodies */
  queue->broken = cudaSuccess;
  char text[sizeof reason.text + 120];
  snprintf(text, sizeof text,
           "a CUDA graph can't be made%s, so kernels are launched one by one: %s",
           decides ? " of branches and loops" : "", reason.text);
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
    df_stretches_clear(&p->stretches); /* what the part of it that ran noted */
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

df_fault df_segment_take_fault(df_queue *, df_prepared_segment *p, const char **kernel) {
  const df_fault found = df_stretches_fault(&p->stretches, kernel);
  if (found.code)
    df_stretches_clear(&p->stretches);
  return found;
}
