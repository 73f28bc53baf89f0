/* queue.h: what one session has on one card: a stream, pinned memory through which copies go, and
 * the faults of the segments that ran. */
#ifndef DF_CUDA_QUEUE_H
#define DF_CUDA_QUEUE_H
#include "card.h"
#include "dataflow_cuda.h"

#include <functional>
#include <mutex>
#include <vector>

struct df_prepared_segment;

/* A copy to the host that has arrived in pinned memory when the stream is done. */
struct df_arrival {
  void *to;
  const void *from;
  size_t bytes;
};

/* Copies of few bytes to pinned memory, which wait for each other. */
enum { DF_SMALL_COPIES = 32, DF_SMALL_BYTES = 256 };

struct df_small_copy {
  void *to;
  const void *from;
  size_t bytes;
};

struct df_small_copies {
  df_small_copy copies[DF_SMALL_COPIES];
  int32_t count;
};

/* A handle of a vendor's library that belongs to a queue. */
struct df_library_handle {
  const void *key; /* of the library */
  void *handle;
  std::function<void()> destroy;
};

/* Bytes of the two halves of the pinned memory: one is filled while the other one is copied. */
enum { DF_STAGING = 4 << 20 };

struct df_queue {
  const df_card *card;
  std::recursive_mutex lock;
  uint64_t reached; /* cards, as bits, whose memory copies read without the host where they can */
  cudaStream_t stream;
  bool capture;  /* segments as CUDA graphs */
  bool branches; /* in which kernels wait for no more than they must */
  char *staging[2];
  cudaEvent_t staged[2]; /* the copy from this half is done */
  bool busy[2];
  int half;        /* that is filled now */
  size_t filled;   /* of it */
  char *returning; /* what comes down; DF_STAGING bytes */
  size_t returned;
  std::vector<df_arrival> arrivals;
  std::vector<df_buffer> lent; /* page-locked memory of the host that others fill */
  df_small_copies small;       /* into |returning| and to where faults come down */
  std::vector<df_library_handle> handles;
  std::vector<df_prepared_segment *> ran; /* since the last sync */
  df_prepared_segment *failed;
  cudaError_t broken; /* the card failed: nothing works on this queue any more */
};

/* Fills |error| with "cuda:0 (H200): what: reason" and returns the status that fits. */
df_status df_cuda_fail(df_queue *queue, cudaError_t status, const char *what, df_error *error);

/* Refuses work on a card that failed, with the reason it failed for, or that can't be chosen. */
df_status df_queue_ready(df_queue *queue, const df_on_card &card, df_error *error);

df_status df_queue_open(const df_card *card, bool capture, bool branches, df_queue **out,
                        df_error *error);
void df_queue_close(df_queue *queue);
/* Memory of the host whose copies to the card need none on the host. */
df_status df_queue_lend(df_queue *queue, int64_t bytes, df_buffer *out, df_error *error);
void df_queue_take_back(df_queue *queue, df_buffer *buffer);
df_status df_queue_copy(df_queue *queue, const df_copy *copy, df_error *error);
/* Waits for the stream, hands copies to the host over, and tells the first fault. */
df_status df_queue_sync(df_queue *queue, df_error *error);

/* ---- Small copies: small_copies.cu ---------------------------------------------------------- */

/* A copy of at most DF_SMALL_BYTES that is made with the next flush. */
cudaError_t df_small_add(df_queue *queue, void *to, const void *from, size_t bytes);
/* Puts the copies that wait into the stream: before anything that may write to their sources. */
cudaError_t df_small_flush(df_queue *queue);

/* ---- Segments: segment.cu ------------------------------------------------------------------- */

df_status df_segment_open(df_queue *queue, const df_segment *segment, df_prepared_segment **out,
                          df_error *error);
df_status df_segment_launch(df_queue *queue, df_prepared_segment *prepared, const df_run *run,
                            df_error *error);
void df_segment_close(df_queue *queue, df_prepared_segment *prepared);
/* How long the kernels of the last run took by the card's clock, when it is done; 0 for a run from
 * before the first call, from which on runs are timed. */
df_status df_segment_elapsed(df_queue *queue, df_prepared_segment *prepared, int64_t *nanoseconds,
                             df_error *error);
/* Lets the fault record of the segment come down. */
cudaError_t df_segment_fetch_fault(df_queue *queue, df_prepared_segment *prepared);
/* The first fault of the segment's runs since the last call, when they are done, and the name of
 * the kernel; its code is 0 when there was none. */
df_fault df_segment_take_fault(df_queue *queue, df_prepared_segment *prepared, const char **kernel);

/* The host's table, from df_plugin_entry. */
extern const df_host *df_cuda_host;

#endif
