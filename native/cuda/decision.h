/* decision.h: whether a body runs, and whether it runs again, which the card decides. */
#ifndef DF_CUDA_DECISION_H
#define DF_CUDA_DECISION_H
#include "dataflow_cuda.h"

/* Headers of 13.0 have the calls for conditional nodes with the arguments that are used here. */
#if defined(DF_STANDIN) || CUDART_VERSION >= 13000
#define DF_CONDITIONAL_NODES 1
#else
#define DF_CONDITIONAL_NODES 0
typedef unsigned long long cudaGraphConditionalHandle;
#endif

/* The |limit| of a fault that a loop notes which would make more than |value| iterations. */
enum { DF_LOOP_LIMIT = -1 };

/* What it depends on, and who is to know; see df_body. */
struct df_decision {
  int32_t kind, when;
  const int64_t *wanted;
  const uint8_t *condition;
  int64_t *number, *total; /* of iterations; may be null */
  int64_t most;
  int64_t *made;
  df_fault *fault;
  int32_t begins; /* this is the one before the first iteration */
  int32_t *goes;  /* the host's, or null in a graph, which has |handle| */
  cudaGraphConditionalHandle handle;
};

/* Puts the decision into the stream. */
cudaError_t df_decide(const df_decision &d, cudaStream_t stream);
/* Puts it into the graph that is being made in |stream|, and then a node that runs |body| as it
 * says, which is made of what is put into |side| until its capture ends. */
cudaError_t df_add_conditional(df_decision &d, cudaStream_t stream, cudaStream_t side,
                               cudaGraph_t *body);

#endif
