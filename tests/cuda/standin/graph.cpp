/* graph.cpp: graphs, and conditional nodes in them, by the rules of the runtime's documentation. */
#include "stream.h"

#include <algorithm>
#include <queue>

thread_local int captures;

struct standin_program {
  std::shared_ptr<standin_work> work;
  int card;
};

namespace {

const standin_work *running; /* the graph that the card works on */

unsigned launched; /* graphs so far */

/* A node begins when those that it waits for are done; of several the one that was captured last,
 * so that one which doesn't wait for what it must comes too early, or in every other launch any. */
void run_nodes(const std::vector<std::unique_ptr<standin_node>> &nodes) {
  const unsigned salt = launched % 2 ? launched * 0x9e3779b9u : 0;
  const auto rank = [=](size_t number) {
    return std::pair(salt ? ((unsigned)number ^ salt) * 0x85ebca6bu >> 8 : 0, number);
  };
  std::vector<std::vector<size_t>> followers(nodes.size());
  std::vector<size_t> missing(nodes.size());
  std::vector<bool> done(nodes.size());
  std::priority_queue<std::pair<unsigned, size_t>> ready;
  size_t next = 0; /* the first that isn't done */
  for (const auto &node : nodes) {
    missing[node->number] = node->waits.size();
    if (node->waits.empty())
      ready.push(rank(node->number));
    for (size_t before : node->waits)
      followers[before].push_back(node->number);
  }
  while (!ready.empty() && !sticky) {
    const size_t number = ready.top().second;
    ready.pop();
    done[number] = true;
    while (next < nodes.size() && done[next])
      next++;
    if (number > next)
      note_overtaking();
    nodes[number]->what();
    for (size_t follower : followers[number])
      if (!--missing[follower])
        ready.push(rank(follower));
  }
}

standin_graph *top_of(standin_graph *graph) { return graph->outer ? top_of(graph->outer) : graph; }

bool begin(cudaStream_t stream, standin_graph *graph) {
  if (stream->capturing || fails_now(FAIL_BEGIN, ""))
    return false;
  stream->capturing = graph;
  graph->begun = true;
  captures++;
  return true;
}

/* Whether these nodes are all that the graph ends with. */
bool are_ends(const standin_graph *graph, const cudaGraphNode_t *nodes, size_t count) {
  return std::equal(graph->ends.begin(), graph->ends.end(), nodes, nodes + count);
}

standin_node *add_node(standin_graph *graph, work what) {
  auto &nodes = graph->work->nodes;
  nodes.push_back(std::make_unique<standin_node>());
  standin_node *node = nodes.back().get();
  node->number = nodes.size() - 1;
  node->what = std::move(what);
  for (const standin_node *before : graph->ends)
    node->waits.push_back(before->number);
  return node;
}

} // namespace

void add_to_graph(standin_graph *graph, work what) {
  if (graph->apart)
    die("work doesn't wait for a node that was added", "update the capture's dependencies");
  graph->ends = {add_node(graph, std::move(what))};
}

/* ---- Captures ------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  guard g(standin_lock);
  auto graph = std::make_unique<standin_graph>();
  graph->work = std::make_shared<standin_work>();
  graph->card = stream->card;
  if (!begin(stream, graph.get()))
    return fail(cudaErrorStreamCaptureUnsupported);
  graph.release();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *nodes, const cudaGraphEdgeData *,
                                          size_t count, cudaStreamCaptureMode) {
  guard g(standin_lock);
  if (graph->begun || !are_ends(graph, nodes, count) || stream->card != graph->card)
    return fail(cudaErrorInvalidValue);
  return begin(stream, graph) ? cudaSuccess : fail(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  guard g(standin_lock);
  standin_graph *graph = stream->capturing;
  stream->capturing = nullptr;
  *out = graph;
  if (!graph)
    return fail(cudaErrorInvalidValue);
  captures--;
  for (const auto &body : graph->bodies)
    graph->invalid |= body->invalid;
  if (!graph->invalid && !fails_now(FAIL_END, ""))
    return cudaSuccess;
  graph->invalid = true;
  if (!graph->is_body)
    delete graph;
  *out = nullptr;
  return fail(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  guard g(standin_lock);
  standin_graph *found = stream->capturing;
  *status = !found           ? cudaStreamCaptureStatusNone
            : found->invalid ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
  if (!found)
    return cudaSuccess;
  *id = 1;
  *graph = found;
  *nodes = found->ends.data();
  *edges = nullptr;
  *count = found->ends.size();
  return cudaSuccess;
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                const cudaGraphEdgeData *, size_t count,
                                                unsigned flags) {
  guard g(standin_lock);
  standin_graph *graph = stream->capturing;
  if (!graph || flags != cudaStreamSetCaptureDependencies)
    return fail(cudaErrorInvalidValue);
  std::vector<standin_node *> chosen(nodes, nodes + count);
  for (size_t i = 0; i < count; i++) {
    const auto &known = graph->work->nodes;
    const bool own = nodes[i]->number < known.size() && known[nodes[i]->number].get() == nodes[i];
    if (!own || std::count(chosen.begin(), chosen.end(), nodes[i]) > 1)
      return fail(cudaErrorInvalidValue);
    if (nodes[i] == graph->apart)
      graph->apart = nullptr;
  }
  graph->ends = std::move(chosen);
  return cudaSuccess;
}

/* ---- Conditional nodes ---------------------------------------------------------------------- */

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *out, cudaGraph_t graph,
                                             unsigned initial, unsigned flags) {
  guard g(standin_lock);
  auto made = std::make_shared<standin_condition>();
  *made = {0xc7c7c7c7u, initial, (flags & cudaGraphCondAssignDefault) != 0, false};
  top_of(graph)->work->conditions.push_back(made);
  *out = reinterpret_cast<cudaGraphConditionalHandle>(made.get());
  return cudaSuccess;
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                             const cudaGraphEdgeData *, size_t count, cudaGraphNodeParams *params) {
  guard g(standin_lock);
  auto &own = top_of(graph)->work->conditions;
  const auto found = std::find_if(own.begin(), own.end(), [=](const auto &condition) {
    return reinterpret_cast<cudaGraphConditionalHandle>(condition.get()) ==
           params->conditional.handle;
  });
  if (params->type != cudaGraphNodeTypeConditional || params->conditional.size != 1 ||
      found == own.end() || (*found)->used || fails_now(FAIL_CONDITIONAL, ""))
    return fail(cudaErrorInvalidValue);
  if (!are_ends(graph, nodes, count))
    die("a node doesn't wait for what was captured before it", "cudaGraphAddNode");
  (*found)->used = true;
  auto body = std::make_unique<standin_graph>();
  body->work = std::make_shared<standin_work>();
  body->card = graph->card;
  body->is_body = true;
  body->outer = graph;
  const bool again = params->conditional.type == cudaGraphCondTypeWhile;
  if (graph->apart)
    die("a node doesn't wait for one that was added", "cudaGraphAddNode");
  graph->apart = add_node(graph, [condition = *found, inner = body->work, again] {
    while (condition->value && !sticky) {
      run_nodes(inner->nodes);
      if (!again)
        break;
    }
  });
  graph->found = {body.get()};
  params->conditional.phGraph_out = graph->found.data();
  graph->bodies.push_back(std::move(body));
  *out = graph->apart;
  return cudaSuccess;
}

void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) {
  const auto is_it = [=](const auto &condition) {
    return reinterpret_cast<cudaGraphConditionalHandle>(condition.get()) == handle;
  };
  if (!running || std::none_of(running->conditions.begin(), running->conditions.end(), is_it))
    die("the condition isn't one of the graph that runs", "cudaGraphSetConditional");
  reinterpret_cast<standin_condition *>(handle)->value = value;
}

/* ---- Graphs --------------------------------------------------------------------------------- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  guard g(standin_lock);
  if (!graph || graph->is_body)
    return fail(cudaErrorInvalidValue);
  for (const auto &condition : graph->work->conditions)
    if (!condition->used)
      return fail(cudaErrorInvalidValue);
  if (fails_now(FAIL_INSTANTIATE, "") || !take_memory(graph->card, GRAPH))
    return fail(cudaErrorMemoryAllocation);
  *out = new standin_program{graph->work, graph->card};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  guard g(standin_lock);
  if (sticky)
    return fail(sticky);
  if (!is_of_card(stream))
    return fail(cudaErrorInvalidResourceHandle);
  note_graph_launch();
  put(stream, [held = graph->work] {
    for (const auto &condition : held->conditions)
      if (condition->assigned)
        condition->value = condition->initial;
    running = held.get();
    launched++;
    run_nodes(held->nodes);
    running = nullptr;
  });
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  guard g(standin_lock);
  all_cards()[(size_t)graph->card].taken -= GRAPH;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph && graph->is_body)
    die("a conditional node owns it", "cudaGraphDestroy");
  delete graph;
  return cudaSuccess;
}
