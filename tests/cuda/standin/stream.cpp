/* stream.cpp: streams, events, launches and copies.
 *
 * What is put into a stream waits there until somebody synchronizes, as late as a card might begin:
 * a host that forgets to wait reads old data. Streams and events belong to a card; what a real
 * runtime refuses since the card is another one, or only says in its documentation, is refused. */
#include "stream.h"

#include <chrono>
#include <cstring>

struct standin_event {
  cudaStream_t stream = nullptr;
  int card = 0;
  bool pending = false;
  bool timed = true;     /* made with timing */
  bool recorded = false; /* outside of a graph, or by a node of one */
  std::chrono::steady_clock::time_point at{};
};

namespace {

/* Works off the stream while |more| says so. */
template <typename F> void work_off(cudaStream_t stream, F more) {
  opened memory(stream->card);
  while (!stream->queue.empty() && more()) {
    work next = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (!sticky)
      next();
  }
}

/* Notes why a call for |stream| fails; a capture of it is of no use then. */
cudaError_t fail_in(cudaStream_t stream, cudaError_t error) {
  if (stream && stream->capturing)
    stream->capturing->invalid = true;
  return fail(error);
}

bool is_launchable(dim3 grid, dim3 block, size_t shared) {
  const unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
  return threads > 0 && threads <= 1024 && block.z <= 64 && grid.x > 0 && grid.y > 0 &&
         grid.z > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
         shared <= MOST_SHARED;
}

} // namespace

void put(cudaStream_t stream, work what) {
  if (!stream)
    die("the default stream is not for plugins", "give a stream");
  if (captures && !stream->capturing)
    die("not allowed in a thread that captures", "work for another stream");
  if (stream->capturing)
    add_to_graph(stream->capturing, std::move(what));
  else
    stream->queue.push_back(std::move(what));
}

bool is_of_card(cudaStream_t stream) { return !stream || stream->card == current_card(); }

void forbid_in_capture(const char *what) {
  if (captures)
    die("not allowed in a thread that captures", what);
}

/* ---- Launches ------------------------------------------------------------------------------- */

void standin_enqueue(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     std::function<void()> thread, const void *kernel) {
  guard g(standin_lock);
  if (!is_launchable(grid, block, shared) || fails_now(FAIL_LAUNCH, name)) {
    fail_in(stream, cudaErrorInvalidConfiguration);
    return;
  }
  if (!is_of_card(stream)) {
    fail(cudaErrorInvalidResourceHandle);
    return;
  }
  card &own = all_cards()[(size_t)current_card()];
  const bool allowed = own.allowed.count(kernel) && (size_t)own.allowed[kernel] >= shared;
  if (shared > USUAL_SHARED && !allowed) {
    fail(cudaErrorInvalidValue);
    return;
  }
  if (!own.loaded.count(name)) { /* code comes to the card when it is first launched */
    if (!take_memory(current_card(), MODULE)) {
      fail(cudaErrorMemoryAllocation);
      return;
    }
    own.loaded.insert(name);
  }
  note_launch(name);
  std::string held(name);
  const size_t most = allowed ? MOST_SHARED : USUAL_SHARED;
  put(stream, [held, grid, block, shared, most, thread = std::move(thread)] {
    if (fails_now(FAIL_KERNEL, held.c_str()))
      sticky = cudaErrorIllegalAddress;
    else
      run_grid(held.c_str(), grid, block, shared, most, thread);
  });
}

/* ---- Copies --------------------------------------------------------------------------------- */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  guard g(standin_lock);
  if (sticky)
    return fail(sticky);
  const int source = card_of(from), target = card_of(to);
  const bool pageable = (source < 0 && !is_pinned(from)) || (target < 0 && !is_pinned(to));
  if (pageable)
    forbid_in_capture("a copy of memory that isn't pinned");
  if (source < 0 && target >= 0)
    note_copy(from);
  if (source >= 0 && target < 0)
    note_copy(to);
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
    auto staged =
        std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    put(stream, [=] { memcpy(to, staged->data(), bytes); });
    return cudaSuccess;
  }
  put(stream, [=] {
    opened one(source), other(target); /* a copy needs no access from card to card */
    copy_bytes(to, from, bytes);
  });
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to))
    return cudaStreamSynchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  guard g(standin_lock);
  if (sticky)
    return fail(sticky);
  if (!is_of_card(stream))
    return fail(cudaErrorInvalidResourceHandle);
  put(stream, [=] { set_bytes(to, value, bytes); });
  return cudaSuccess;
}

/* ---- Streams -------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
  guard g(standin_lock);
  *out = new standin_stream{{}, nullptr, current_card()};
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  guard g(standin_lock);
  work_off(stream, [] { return true; });
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  guard g(standin_lock);
  forbid_in_capture("waiting for a stream");
  if (stream->capturing)
    return fail(cudaErrorStreamCaptureUnsupported);
  work_off(stream, [] { return true; });
  return sticky;
}

/* ---- Events --------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  guard g(standin_lock);
  *out = new standin_event();
  (*out)->card = current_card();
  (*out)->timed = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  guard g(standin_lock);
  if (event->pending)
    cudaEventSynchronize(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* In a capture an event is one of the graph's edges, of which nobody learns a time, unless it is
 * external: then each launch records it. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  guard g(standin_lock);
  const bool external = flags & cudaEventRecordExternal;
  if (event->card != stream->card)
    return fail(cudaErrorInvalidResourceHandle);
  if (external && !stream->capturing)
    return fail_in(stream, cudaErrorInvalidValue);
  if (external && stream->capturing->is_body)
    die("not allowed in the body of a conditional node", "an event");
  if (stream->capturing && !external)
    return cudaSuccess;
  event->stream = stream;
  event->pending = !external;
  put(stream, [event] {
    event->pending = false;
    event->recorded = true;
    event->at = std::chrono::steady_clock::now();
  });
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  guard g(standin_lock);
  if (!begin->timed || !end->timed || !begin->recorded || !end->recorded)
    return fail(cudaErrorInvalidResourceHandle);
  if (begin->pending || end->pending)
    return fail(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  guard g(standin_lock);
  forbid_in_capture("waiting for an event");
  if (event->pending)
    work_off(event->stream, [event] { return event->pending && !sticky; });
  return sticky;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  guard g(standin_lock);
  if (event->pending)
    put(stream,
        [event] { work_off(event->stream, [event] { return event->pending && !sticky; }); });
  return cudaSuccess;
}
