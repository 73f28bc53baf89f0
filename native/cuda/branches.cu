/* branches.cu: the dependencies of what each call of the executor captures. */
#include "branches.h"

#include <algorithm>

#if DF_BRANCHES
cudaError_t df_find_end(cudaStream_t stream, df_graph_end *out) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  const cudaError_t status = cudaStreamGetCaptureInfo(stream, &capturing, &id, &out->graph,
                                                      &out->nodes, &out->edges, &out->count);
  if (status)
    return status;
  return capturing == cudaStreamCaptureStatusActive ? cudaSuccess : cudaErrorInvalidValue;
}

/* What a step reads and writes. */
std::vector<df_branches::touch> df_branches::touches_of(const df_step *step) const {
  std::vector<touch> out;
  const int32_t count = step->n_inputs + step->n_outputs + 1 + step->n_prepacks;
  for (int32_t i = 0; i < count; i++) {
    const df_operand *operand = segment.operands[step->first_operand + i];
    if (operand->arena < 0 || operand->bytes <= 0)
      continue;
    const df_arena *arena = segment.arenas[operand->arena];
    const char *base =
        static_cast<const char *>(arena->slot < 0 ? arena->base : run.slots[arena->slot]);
    /* With negative strides the first element is not the lowest: such an operand may reach as far
     * below its offset as it is long. */
    int64_t below = 0;
    for (int32_t axis = 0; axis < operand->rank && operand->strides; axis++)
      if (operand->strides[axis] < 0)
        below = operand->bytes;
    const bool writes = i >= step->n_inputs && i <= step->n_inputs + step->n_outputs;
    out.push_back(
        {base + operand->offset - below, base + operand->offset + operand->bytes, writes});
  }
  return out;
}

void df_branches::take_end(std::vector<cudaGraphNode_t> *out) {
  df_graph_end end{};
  if (!status)
    status = df_find_end(stream, &end);
  if (!status)
    out->assign(end.nodes, end.nodes + end.count);
}

void df_branches::wait_for(uint64_t chosen) {
  std::vector<cudaGraphNode_t> nodes;
  for (size_t i = 0; i < calls.size(); i++)
    if (chosen >> i & 1)
      for (cudaGraphNode_t node : calls[i].ends)
        if (std::find(nodes.begin(), nodes.end(), node) == nodes.end())
          nodes.push_back(node);
  if (nodes.empty())
    nodes = base;
  if (!status)
    status = cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nullptr, nodes.size(),
                                                 cudaStreamSetCaptureDependencies);
}

void df_branches::begin(int32_t first, int32_t count) {
  if (!began)
    take_end(&base);
  else
    take_end(&calls.back().ends);
  began = true;
  if (calls.size() == GROUP) {
    wait_for(last);
    take_end(&base);
    calls.clear();
    last = 0;
  }
  call own{};
  for (int32_t i = first; i < first + count; i++) {
    own.alone = own.alone || segment.steps[i]->body;
    for (const touch &t : touches_of(segment.steps[i]))
      own.touches.push_back(t);
  }
  uint64_t direct = 0;
  for (size_t i = calls.size(); i-- > 0;) {
    if (own.waits >> i & 1)
      continue;
    bool meets = own.alone || calls[i].alone;
    for (const touch &a : calls[i].touches)
      for (const touch &b : own.touches)
        meets = meets || ((a.writes || b.writes) && a.begin < b.end && b.begin < a.end);
    if (meets) {
      direct |= uint64_t{1} << i;
      own.waits |= uint64_t{1} << i | calls[i].waits;
    }
  }
  last = (last & ~direct) | uint64_t{1} << calls.size();
  wait_for(direct);
  calls.push_back(std::move(own));
}

cudaError_t df_branches::end() {
  if (!began)
    return cudaSuccess;
  take_end(&calls.back().ends);
  wait_for(last);
  return status;
}
#else
/* Each waits for the one before. */
cudaError_t df_find_end(cudaStream_t, df_graph_end *) { return cudaErrorInvalidValue; }
void df_branches::begin(int32_t, int32_t) {}
cudaError_t df_branches::end() { return cudaSuccess; }
#endif
