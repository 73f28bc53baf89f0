/* bodies.h: a segment as stretches that are put into a stream one after the other: steps that the
 * host's executor launches, and branches and loops about whose condition the card decides.
 *
 * In a graph such a body is a conditional node, and the host has no say. Where kernels are launched
 * one by one the host waits for each decision. Both ask the same kernel. */
#ifndef DF_CUDA_BODIES_H
#define DF_CUDA_BODIES_H
#include "queue.h"

struct df_stretch {
  df_segment segment;            /* its steps: some of the segment's in a row, or those of a body */
  void *host;                    /* the executor's, of these; null where there is a body */
  const df_body *body;           /* with a condition, or null */
  const df_operand *going[4];    /* inputs and outputs of the body's step */
  std::vector<df_stretch> inner; /* one, what the body has */
  int32_t step;   /* the first one's number in the segment; within a body the body's */
  int32_t number; /* of its fault */
  bool within;    /* a body */
};

struct df_stretches {
  df_queue *queue;
  std::vector<df_stretch> list;
  cudaStream_t side; /* into which bodies are captured; null where there is none */
  int32_t count;     /* those of bodies too */
  df_fault *fault;   /* on the card: of each the first one since one was last reported */
  df_fault *down;    /* pinned: what of these has come down */
  int64_t *made;     /* on the card: iterations that a loop has made */
  int32_t *goes;     /* pinned: what the card decided, where the host asks */
};

df_status df_stretches_open(df_queue *queue, const df_segment *segment, df_stretches *out,
                            df_error *error);
void df_stretches_close(df_stretches *stretches);
/* Puts every kernel into the queue's stream, or into the graph that is |recorded| of it; adds to
 * run->calls. */
df_status df_stretches_put(df_stretches *stretches, const df_run *run, bool recorded,
                           df_error *error);
/* Lets the faults come down; zeroes them; and says of a fault that came down which step of the
 * segment it is of, and by what. */
cudaError_t df_stretches_fetch(df_stretches *stretches);
cudaError_t df_stretches_clear(df_stretches *stretches);
df_fault df_stretches_fault(const df_stretches *stretches, const char **kernel);

#endif
