/* queue.cu: copies and waiting. Data from the host goes through pinned memory, in two halves, so
 * that the caller can go on while the card still copies; data to the host is handed over when the
 * queue is waited for. */
#include "decision.h"
#include "queue.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <stdlib.h>
#include <string.h>
#include <thread>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

df_status df_cuda_fail(df_queue *queue, cudaError_t status, const char *what, df_error *error) {
  if (status == cudaSuccess)
    return DF_OK;
  cudaGetLastError(); /* it is reported here, and not to be taken for one of the next launch */
  const df_status code =
      status == cudaErrorMemoryAllocation ? df_status(DF_OUT_OF_MEMORY) : df_status(DF_DEVICE);
  if (code == DF_DEVICE && queue->broken == cudaSuccess)
    queue->broken = status;
  if (error) {
    error->code = code;
    error->step = -1;
    snprintf(error->text, sizeof error->text, "cuda:%d (%s): %s: %s", queue->card->ordinal,
             queue->card->name, what, cudaGetErrorString(status));
  }
  return code;
}

df_status df_queue_ready(df_queue *queue, const df_on_card &card, df_error *error) {
  if (queue->broken != cudaSuccess)
    return df_cuda_fail(queue, queue->broken, "the card failed before; make a new session", error);
  return df_cuda_fail(queue, card.status, "choosing the card", error);
}

df_status df_queue_open(const df_card *card, bool capture, bool branches, df_queue **out,
                        df_error *error) {
  df_queue *queue = new (std::nothrow) df_queue{};
  if (!queue)
    return DF_OUT_OF_MEMORY;
  queue->card = card;
  queue->capture = capture;
  queue->branches = branches;
  df_on_card own(card);
  cudaError_t status = own.status;
  if (!status)
    status = cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking);
  for (int i = 0; i < 2 && !status; i++) {
    status = cudaMallocHost(reinterpret_cast<void **>(&queue->staging[i]), DF_STAGING);
    if (!status)
      status = cudaEventCreateWithFlags(&queue->staged[i], cudaEventDisableTiming);
  }
  if (!status)
    status = cudaMallocHost(reinterpret_cast<void **>(&queue->returning), DF_STAGING);
  if (status) {
    df_status code = df_cuda_fail(queue, status, "opening a queue", error);
    df_queue_close(queue);
    return code;
  }
  *out = queue;
  return DF_OK;
}

/* Other memory where there is no more of it that is page-locked. */
df_status df_queue_lend(df_queue *queue, int64_t bytes, df_buffer *out, df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  const size_t size = static_cast<size_t>(std::max(bytes, int64_t{1}));
  if (!card.status && !cudaMallocHost(&out->base, size)) {
    out->owner = out->base;
    queue->lent.push_back(*out);
    return DF_OK;
  }
  cudaGetLastError(); /* not to be taken for one of the next launch */
  out->owner = nullptr;
  out->base = aligned_alloc(64, (size + 63) / 64 * 64);
  return out->base ? df_status(DF_OK)
                   : df_cuda_fail(queue, cudaErrorMemoryAllocation, "lending memory", error);
}

void df_queue_take_back(df_queue *queue, df_buffer *buffer) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  std::erase_if(queue->lent, [=](const df_buffer &lent) { return lent.base == buffer->base; });
  if (buffer->owner)
    cudaFreeHost(buffer->owner); /* waits for what the card still reads */
  else
    free(buffer->base);
}

void df_queue_close(df_queue *queue) {
  df_on_card card(queue->card);
  if (queue->stream) {
    cudaStreamSynchronize(queue->stream);
    for (const df_library_handle &handle : queue->handles)
      handle.destroy();
    cudaStreamDestroy(queue->stream);
  }
  for (int i = 0; i < 2; i++) {
    if (queue->staged[i])
      cudaEventDestroy(queue->staged[i]);
    cudaFreeHost(queue->staging[i]);
  }
  cudaFreeHost(queue->returning);
  delete queue;
}

/* Goes on to the other half of the pinned memory, once the card has copied what is in there. */
static cudaError_t swap_halves(df_queue *queue) {
  cudaError_t status = cudaEventRecord(queue->staged[queue->half], queue->stream);
  queue->busy[queue->half] = true;
  queue->half ^= 1;
  queue->filled = 0;
  if (!status && queue->busy[queue->half]) {
    status = cudaEventSynchronize(queue->staged[queue->half]);
    queue->busy[queue->half] = false;
  }
  return status;
}

/* Memory is copied by several threads where there is enough of it: one thread reaches a fifth of
 * what the bus to the card takes (10 of 47 GB/s beside an H100). A batch goes up in three copies or
 * more, so that the card makes one while the host fills the next. */
constexpr size_t CHUNK = 64 << 10, LEAST_SENT = 512 << 10, MOST_SENT = 2 << 20;
constexpr int32_t COPY_THREADS = 8;
static_assert(DF_STAGING / CHUNK <= 64, "chunks done are the bits of one word");

/* memcpy() past the caches: the card reads lines that a core has changed at half the speed. |to| is
 * aligned to 16 bytes. */
static void copy_past_caches(char *to, const char *from, size_t bytes) {
  size_t i = 0;
#ifdef __SSE2__
  for (; i + 16 <= bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i *>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
  _mm_sfence();
#endif
  memcpy(to + i, from + i, bytes - i);
}

struct host_copy {
  char *to;
  const char *from;
  size_t bytes;
  bool up;                    /* for the card, which reads it next */
  std::atomic<uint64_t> done; /* bit i: chunk i */

  void chunk(int64_t i) {
    const size_t begin = static_cast<size_t>(i) * CHUNK, left = bytes - begin;
    const size_t own = left < CHUNK ? left : CHUNK;
    if (up)
      copy_past_caches(to + begin, from + begin, own);
    else
      memcpy(to + begin, from + begin, own);
    done.fetch_or(uint64_t{1} << i, std::memory_order_relaxed);
  }
};

static void copy_chunk(void *context, int64_t i, int64_t, int32_t) {
  static_cast<host_copy *>(context)->chunk(i);
}

/* memcpy() of at most DF_STAGING bytes. */
static void copy_in_host(char *to, const char *from, size_t bytes, bool up) {
  static const int32_t threads =
      std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, COPY_THREADS);
  host_copy copy{to, from, bytes, up, {0}};
  const int64_t chunks = static_cast<int64_t>((bytes + CHUNK - 1) / CHUNK);
  if (chunks > 1)
    df_cuda_host->parallel_for(copy_chunk, &copy, chunks, threads);
  for (int64_t i = 0; i < chunks; i++) /* a run that is being cancelled leaves some out */
    if (!(copy.done.load(std::memory_order_relaxed) >> i & 1))
      copy.chunk(i);
}

/* Whether it lies in page-locked memory that was asked for: the card reads or writes it where it
 * lies, and it stays as it is until the queue is waited for. */
static bool is_lent(const df_queue *queue, const char *memory) {
  for (const df_buffer &lent : queue->lent) {
    const char *base = static_cast<const char *>(lent.base);
    if (!std::less<const char *>()(memory, base) &&
        std::less<const char *>()(memory, base + lent.bytes))
      return true;
  }
  return false;
}

static cudaError_t copy_up(df_queue *queue, char *to, const char *from, size_t bytes) {
  cudaError_t status = df_small_flush(queue);
  const size_t sent = std::clamp((bytes / 3 + 63) / 64 * 64, LEAST_SENT, MOST_SENT);
  while (bytes && !status) {
    if (queue->filled == DF_STAGING)
      status = swap_halves(queue);
    const size_t free_bytes = DF_STAGING - queue->filled,
                 chunk = std::min({bytes, free_bytes, sent});
    char *slot = queue->staging[queue->half] + queue->filled;
    copy_in_host(slot, from, chunk, true);
    if (!status)
      status = cudaMemcpyAsync(to, slot, chunk, cudaMemcpyHostToDevice, queue->stream);
    queue->filled += (chunk + 63) / 64 * 64 < free_bytes ? (chunk + 63) / 64 * 64 : free_bytes;
    to += chunk;
    from += chunk;
    bytes -= chunk;
  }
  return status;
}

/* Waits for the stream and hands over what has come down. */
static cudaError_t arrive(df_queue *queue) {
  cudaError_t status = df_small_flush(queue);
  if (!status)
    status = cudaStreamSynchronize(queue->stream);
  for (const df_arrival &arrival : queue->arrivals)
    if (!status)
      copy_in_host(static_cast<char *>(arrival.to), static_cast<const char *>(arrival.from),
                   arrival.bytes, false);
  queue->arrivals.clear();
  queue->returned = 0;
  return status;
}

static cudaError_t copy_down(df_queue *queue, char *to, const char *from, size_t bytes) {
  cudaError_t status = cudaSuccess;
  while (bytes && !status) {
    if (queue->returned == DF_STAGING)
      status = arrive(queue);
    const size_t free_bytes = DF_STAGING - queue->returned,
                 chunk = bytes < free_bytes ? bytes : free_bytes;
    char *slot = queue->returning + queue->returned;
    if (!status && chunk <= DF_SMALL_BYTES)
      status = df_small_add(queue, slot, from, chunk);
    else if (!status)
      status = cudaMemcpyAsync(slot, from, chunk, cudaMemcpyDeviceToHost, queue->stream);
    queue->arrivals.push_back({to, slot, chunk});
    queue->returned += (chunk + 63) / 64 * 64 < free_bytes ? (chunk + 63) / 64 * 64 : free_bytes;
    to += chunk;
    from += chunk;
    bytes -= chunk;
  }
  return status;
}

/* Lets the queue's card read the memory of the one that has |from| without the host, where their
 * topology allows it; a copy works without it too. At the first copy, since it makes a context. */
static void reach(df_queue *queue, const void *from) {
  cudaPointerAttributes found{};
  const int own = queue->card->ordinal;
  if (cudaPointerGetAttributes(&found, from) || found.type != cudaMemoryTypeDevice ||
      found.device == own || found.device < 0 || found.device >= 64 ||
      queue->reached >> found.device & 1)
    return;
  queue->reached |= uint64_t{1} << found.device;
  int can = 0;
  if (!cudaDeviceCanAccessPeer(&can, own, found.device) && can)
    cudaDeviceEnablePeerAccess(found.device, 0);
  cudaGetLastError(); /* it was enabled before */
}

df_status df_queue_copy(df_queue *queue, const df_copy *copy, df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  df_status ready = df_queue_ready(queue, card, error);
  if (ready)
    return ready;
  if (copy->bytes < 0 || copy->to_offset < 0 || copy->from_offset < 0)
    return df_cuda_fail(queue, cudaErrorInvalidValue, "a copy of negative size or offset", error);
  char *to = static_cast<char *>(copy->to) + copy->to_offset;
  const char *from = static_cast<const char *>(copy->from) + copy->from_offset;
  const size_t bytes = static_cast<size_t>(copy->bytes);
  const bool up = copy->direction == DF_COPY_TO_DEVICE;
  const bool down = copy->direction == DF_COPY_TO_HOST;
  cudaError_t status;
  if (up && !is_lent(queue, from))
    status = copy_up(queue, to, from, bytes);
  else if (down && (bytes <= DF_SMALL_BYTES || !is_lent(queue, to)))
    status = copy_down(queue, to, from, bytes);
  else {
    if (!up && !down)
      reach(queue, from);
    status = df_small_flush(queue);
    if (!status)
      status = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue->stream);
  }
  return df_cuda_fail(queue, status, "copying", error);
}

/* What a kernel noted, in words. */
static df_status tell_fault(df_queue *queue, df_prepared_segment *segment, const df_fault &fault,
                            const char *kernel, df_error *error) {
  queue->failed = segment;
  if (error) {
    error->code = fault.code;
    error->step = fault.step;
    if (fault.limit == DF_LOOP_LIMIT)
      snprintf(error->text, sizeof error->text,
               "the loop makes more than %lld iterations; raise max_iterations, or correct its "
               "condition",
               static_cast<long long>(fault.value));
    else
      snprintf(error->text, sizeof error->text, "kernel '%s': %lld is out of range for size %lld",
               kernel, static_cast<long long>(fault.value), static_cast<long long>(fault.limit));
  }
  return fault.code;
}

df_status df_queue_sync(df_queue *queue, df_error *error) {
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  queue->failed = nullptr;
  df_status status = df_queue_ready(queue, card, error);
  cudaError_t fetched = cudaSuccess;
  for (auto at = queue->ran.begin(); at != queue->ran.end() && !status && !fetched; ++at)
    if (std::find(queue->ran.begin(), at, *at) == at)
      fetched = df_segment_fetch_fault(queue, *at);
  if (!status)
    status = df_cuda_fail(queue, fetched, "copying", error);
  if (!status)
    status = df_cuda_fail(queue, arrive(queue), "waiting for the card", error);
  const df_status waited = status;
  for (df_prepared_segment *segment : queue->ran) {
    if (waited)
      break;
    const char *kernel = nullptr;
    const df_fault fault = df_segment_take_fault(queue, segment, &kernel);
    if (fault.code && !status)
      status = tell_fault(queue, segment, fault, kernel, error);
  }
  queue->ran.clear();
  return status;
}
