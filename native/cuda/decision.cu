/* decision.cu: the kernel that decides about a body, and the conditional node of a graph. */
#include "branches.h"
#include "decision.h"

static __device__ bool goes_on(const df_decision &d) {
  if (d.kind == DF_WHEN)
    return (*d.condition != 0) == (d.when != 0);
  const int64_t iteration = d.begins ? 0 : *d.made + 1;
  bool on = iteration < *d.wanted && *d.condition;
  if (on && iteration >= d.most) {
    df_fault_note(d.fault, 0, d.most, DF_LOOP_LIMIT);
    on = false;
  }
  *d.made = iteration;
  if (on && d.number)
    *d.number = iteration;
  if (!on && d.total)
    *d.total = iteration;
  return on;
}

__global__ void decide(const __grid_constant__ df_decision d) {
  const bool on = goes_on(d);
  if (d.goes)
    *d.goes = on;
#if DF_CONDITIONAL_NODES
  else
    cudaGraphSetConditional(d.handle, on);
#endif
}

cudaError_t df_decide(const df_decision &d, cudaStream_t stream) {
#ifdef __CUDACC__
  decide<<<1, 1, 0, stream>>>(d);
#else
  standin_launch("decide", 1, 1, 0, stream, decide, d);
#endif
  return cudaGetLastError();
}

#if DF_CONDITIONAL_NODES
cudaError_t df_add_conditional(df_decision &d, cudaStream_t stream, cudaStream_t side,
                               cudaGraph_t *body) {
  df_graph_end end{};
  cudaError_t status = df_find_end(stream, &end);
  if (!status)
    status = cudaGraphConditionalHandleCreate(&d.handle, end.graph, 0, cudaGraphCondAssignDefault);
  if (!status)
    status = df_decide(d, stream);
  if (!status)
    status = df_find_end(stream, &end);
  if (status)
    return status;
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = d.handle;
  params.conditional.type = d.kind == DF_WHEN ? cudaGraphCondTypeIf : cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  status = cudaGraphAddNode(&node, end.graph, end.nodes, end.edges, end.count, &params);
  if (status)
    return status;
  *body = params.conditional.phGraph_out[0];
  status = cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1,
                                               cudaStreamSetCaptureDependencies);
  return status ? status
                : cudaStreamBeginCaptureToGraph(side, *body, nullptr, nullptr, 0,
                                                cudaStreamCaptureModeThreadLocal);
}
#else
/* Segments with bodies aren't captured. */
cudaError_t df_add_conditional(df_decision &, cudaStream_t, cudaStream_t, cudaGraph_t *) {
  return cudaErrorInvalidValue;
}
#endif
