/* branches.h: which kernels of a graph wait for which others. A stream would run a segment's steps
 * one after the other; in a graph a step waits for those alone that its memory says it must. */
#ifndef DF_CUDA_BRANCHES_H
#define DF_CUDA_BRANCHES_H
#include "dataflow_cuda.h"

#include <vector>

#if defined(DF_STANDIN) || CUDART_VERSION >= 13000
#define DF_BRANCHES 1
#else
#define DF_BRANCHES 0
#endif

/* What of the graph that is being made in a stream comes before what is added next. */
struct df_graph_end {
  cudaGraph_t graph;
  const cudaGraphNode_t *nodes;
  const cudaGraphEdgeData *edges;
  size_t count;
};

cudaError_t df_find_end(cudaStream_t stream, df_graph_end *out);

/* While the steps of a segment are captured in their order: |note| as df_run's |before|. Among
 * GROUP calls in a row each waits for those before it that write what it reads or writes, or read
 * what it writes; the first ones of a group wait for all of the group before. */
class df_branches {
public:
  df_branches(const df_segment &segment, const df_run &run, cudaStream_t stream)
      : segment(segment), run(run), stream(stream) {}

  static void note(void *self, int32_t first, int32_t count) {
    static_cast<df_branches *>(self)->begin(first, count);
  }
  /* What is captured next waits for all. */
  cudaError_t end();

private:
  enum { GROUP = 64 };
  struct touch {
    const char *begin, *end;
    bool writes;
  };
  struct call {
    std::vector<touch> touches;
    uint64_t waits; /* those before it in the group that are done when it begins, as bits */
    bool alone;     /* a loop, whose operands move */
    std::vector<cudaGraphNode_t> ends;
  };

  const df_segment &segment;
  const df_run &run;
  cudaStream_t stream;
  cudaError_t status = cudaSuccess;
  bool began = false;
  std::vector<cudaGraphNode_t> base; /* what the first calls wait for */
  std::vector<call> calls;
  uint64_t last = 0; /* calls for which no other one waits, as bits */

  void begin(int32_t first, int32_t count);
  void take_end(std::vector<cudaGraphNode_t> *out);
  void wait_for(uint64_t chosen);
  std::vector<touch> touches_of(const df_step *step) const;
};

#endif
