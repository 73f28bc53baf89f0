/* bodies.cu: the stretches of a segment. */
#include "bodies.h"
#include "branches.h"
#include "decision.h"

#include <algorithm>

/* ---- Opening -------------------------------------------------------------------------------- */

static bool is_decided(const df_step *step) { return step->body && step->body->kind != DF_REPEAT; }

static bool has_condition(const df_segment *segment) {
  return std::any_of(segment->steps, segment->steps + segment->n_steps, [](const df_step *step) {
    return is_decided(step) || (step->body && has_condition(step->body->segment));
  });
}

static df_status refuse(int32_t step, const char *what, df_error *error) {
  if (error) {
    error->code = DF_UNSUPPORTED;
    error->step = step;
    snprintf(error->text, sizeof error->text, "cuda: %s", what);
  }
  return DF_UNSUPPORTED;
}

/* Finds the operands of the step of a body; they lie in their arenas. */
static df_status take_going(const df_segment *segment, const df_step *step, df_stretch *out,
                            df_error *error) {
  const int32_t n = step->n_inputs + step->n_outputs;
  const bool loops = step->body->kind == DF_WHILE;
  if (step->n_inputs != (loops ? 2 : 1) || step->n_outputs != (loops ? 2 : 0))
    return refuse(out->step, "a body has other operands than its kind", error);
  for (int32_t i = 0; i < n; i++) {
    const df_operand *operand = segment->operands[step->first_operand + i];
    const bool absent = operand->arena < 0;
    if (absent ? i < step->n_inputs
               : operand->arena >= segment->n_arenas || operand->offset < 0 ||
                     operand->offset + operand->bytes > segment->arenas[operand->arena]->bytes)
      return refuse(out->step, "an operand of a body lies outside of its arena", error);
    out->going[i] = operand;
  }
  const df_segment *inner = step->body->segment;
  for (int32_t i = 0; i < inner->n_operands; i++)
    if (inner->operands[i]->iteration_stride || step->body->n_buffer_strides)
      return refuse(out->step, "operands move in a loop of unknown length", error);
  return DF_OK;
}

/* What an executor says of a step, said of the segment's. */
static df_status of_segment(const df_stretch &s, df_status status, df_error *error) {
  if (status && error && error->step >= 0)
    error->step = s.within ? s.step : s.step + error->step;
  return status;
}

static df_status open_steps(df_stretches *all, df_stretch *s, df_error *error) {
  s->number = all->count++;
  if (has_condition(&s->segment))
    return refuse(s->step, "a branch or loop with a condition lies within another one", error);
  const df_status status = df_cuda_host->segment_prepare(all->queue, &s->segment, &s->host, error);
  return of_segment(*s, status, error);
}

static df_status open_body(df_stretches *all, const df_segment *segment, const df_step *step,
                           df_stretch *s, df_error *error) {
  s->body = step->body;
  s->number = all->count++;
  df_status status = take_going(segment, step, s, error);
  if (!status && !all->side)
    status = df_cuda_fail(all->queue, cudaStreamCreateWithFlags(&all->side, cudaStreamNonBlocking),
                          "making a stream", error);
  if (status)
    return status;
  df_stretch inner{};
  inner.segment = *step->body->segment;
  inner.step = s->step;
  inner.within = true;
  status = open_steps(all, &inner, error);
  s->inner.push_back(std::move(inner));
  return status;
}

/* A segment without steps is a stretch too: the executor checks it. */
static df_status open_list(df_stretches *all, const df_segment *segment, df_error *error) {
  int32_t end = 0;
  do {
    df_stretch s{};
    s.segment = *segment;
    s.step = end;
    const bool decided = end < segment->n_steps && is_decided(segment->steps[end]);
    end += decided;
    while (!decided && end < segment->n_steps && !is_decided(segment->steps[end]))
      end++;
    s.segment.steps += s.step;
    s.segment.n_steps = end - s.step;
    const df_status status = decided ? open_body(all, segment, segment->steps[s.step], &s, error)
                                     : open_steps(all, &s, error);
    all->list.push_back(std::move(s));
    if (status)
      return status;
  } while (end < segment->n_steps);
  return DF_OK;
}

df_status df_stretches_open(df_queue *queue, const df_segment *segment, df_stretches *out,
                            df_error *error) {
  out->queue = queue;
  df_status code = open_list(out, segment, error);
  if (code)
    return code;
  const size_t count = static_cast<size_t>(out->count);
  void *card = nullptr, *host = nullptr;
  cudaError_t status = cudaMalloc(&card, count * (sizeof *out->fault + sizeof *out->made));
  out->fault = static_cast<df_fault *>(card);
  out->made = reinterpret_cast<int64_t *>(out->fault + count);
  if (!status)
    status = cudaMallocHost(&host, count * sizeof *out->down + sizeof *out->goes);
  out->down = static_cast<df_fault *>(host);
  out->goes = reinterpret_cast<int32_t *>(out->down + count);
  if (!status)
    status = df_stretches_clear(out);
  return df_cuda_fail(queue, status, "preparing a segment", error);
}

static void close_list(df_queue *queue, const std::vector<df_stretch> &list) {
  for (const df_stretch &s : list) {
    if (s.host)
      df_cuda_host->segment_release(queue, s.host);
    close_list(queue, s.inner);
  }
}

void df_stretches_close(df_stretches *stretches) {
  close_list(stretches->queue, stretches->list);
  if (stretches->side)
    cudaStreamDestroy(stretches->side);
  cudaFree(stretches->fault);
  cudaFreeHost(stretches->down);
}

/* ---- Faults --------------------------------------------------------------------------------- */

/* The lowest byte of struct_size is set by a call of its own: memory on the host from which all
 * came would have to stay as it is until the stream gets there. */
cudaError_t df_stretches_clear(df_stretches *s) {
  static_assert(sizeof *s->fault < 256, "the size is one byte");
  const size_t count = static_cast<size_t>(s->count);
  std::fill_n(s->down, count, df_fault{});
  cudaError_t status = cudaMemsetAsync(s->fault, 0, count * sizeof *s->fault, s->queue->stream);
  for (size_t i = 0; i < count && !status; i++)
    status = cudaMemsetAsync(s->fault + i, sizeof *s->fault, 1, s->queue->stream);
  return status;
}

cudaError_t df_stretches_fetch(df_stretches *s) {
  const size_t few = DF_SMALL_BYTES / sizeof *s->fault, count = static_cast<size_t>(s->count);
  cudaError_t status = cudaSuccess;
  for (size_t i = 0; i < count && !status; i += few)
    status = df_small_add(s->queue, s->down + i, s->fault + i,
                          std::min(few, count - i) * sizeof *s->fault);
  return status;
}

static const df_stretch *find(const std::vector<df_stretch> &list, int32_t number) {
  for (const df_stretch &s : list) {
    if (s.number == number)
      return &s;
    if (const df_stretch *within = find(s.inner, number))
      return within;
  }
  return nullptr;
}

/* A fault's step is counted in the executor's segment. */
df_fault df_stretches_fault(const df_stretches *all, const char **kernel) {
  *kernel = "?";
  for (int32_t i = 0; i < all->count; i++) {
    df_fault fault = all->down[i];
    const df_stretch *s = fault.code ? find(all->list, i) : nullptr;
    if (!s)
      continue;
    if (fault.step >= 0 && fault.step < s->segment.n_steps && s->segment.steps[fault.step]->kernel)
      *kernel = s->segment.steps[fault.step]->kernel->name;
    fault.step = s->within ? s->step : s->step + fault.step;
    return fault;
  }
  return df_fault{};
}

/* ---- Running -------------------------------------------------------------------------------- */

struct putting {
  df_stretches *all;
  const df_run *run;
  df_error *error;
  bool recorded;
};

static void *address(const df_stretch &s, const df_operand *operand, const df_run *run) {
  if (!operand || operand->arena < 0)
    return nullptr;
  const df_arena *arena = s.segment.arenas[operand->arena];
  char *base = static_cast<char *>(arena->slot < 0 ? arena->base : run->slots[arena->slot]);
  return base + operand->offset;
}

static df_decision decision_of(const putting &p, const df_stretch &s) {
  const bool loops = s.body->kind == DF_WHILE;
  void *at[4];
  for (int i = 0; i < 4; i++)
    at[i] = address(s, s.going[i], p.run);
  df_decision d{};
  d.kind = s.body->kind;
  d.when = s.body->when;
  d.wanted = static_cast<const int64_t *>(loops ? at[0] : nullptr);
  d.condition = static_cast<const uint8_t *>(loops ? at[1] : at[0]);
  d.number = static_cast<int64_t *>(at[2]);
  d.total = static_cast<int64_t *>(at[3]);
  d.most = s.body->iterations;
  d.made = p.all->made + s.number;
  d.fault = p.all->fault + s.number;
  d.begins = 1;
  return d;
}

/* Launches a stretch of kernels; in a graph they wait for what they must. */
static df_status put_steps(const putting &p, const df_stretch &s, cudaStream_t stream) {
  df_run own;
  df_take(&own, sizeof own, p.run);
  own.stream = stream;
  own.fault = p.all->fault + s.number;
  df_branches branches(s.segment, own, stream);
  if (p.recorded && p.all->queue->branches) {
    own.before = df_branches::note;
    own.context = &branches;
  }
  const df_status status =
      of_segment(s, df_cuda_host->segment_run(p.all->queue, s.host, &own, p.error), p.error);
  return status ? status : df_cuda_fail(p.all->queue, branches.end(), "joining branches", p.error);
}

/* Asks the card before each iteration, and waits for what it says. */
static df_status put_asked(const putting &p, const df_stretch &s) {
  cudaStream_t stream = p.all->queue->stream;
  df_decision d = decision_of(p, s);
  d.goes = p.all->goes;
  for (;; d.begins = 0) {
    cudaError_t asked = df_decide(d, stream);
    if (!asked)
      asked = cudaStreamSynchronize(stream);
    df_status status = df_cuda_fail(p.all->queue, asked, "asking for a condition", p.error);
    if (status || !*p.all->goes)
      return status;
    status = put_steps(p, s.inner[0], stream);
    if (status || d.kind == DF_WHEN)
      return status;
  }
}

/* Adds a node to the graph whose body is what another stream captures. */
static df_status put_node(const putting &p, const df_stretch &s) {
  df_queue *queue = p.all->queue;
  df_decision d = decision_of(p, s);
  cudaStream_t side = p.all->side;
  cudaGraph_t body = nullptr;
  cudaError_t made = df_add_conditional(d, queue->stream, side, &body);
  df_status status = df_cuda_fail(queue, made, "adding a conditional node", p.error);
  if (status)
    return status;
  status = put_steps(p, s.inner[0], side);
  d.begins = 0;
  if (!status && d.kind == DF_WHILE)
    status = df_cuda_fail(queue, df_decide(d, side), "launching decide", p.error);
  const cudaError_t ended = cudaStreamEndCapture(side, &body);
  return status ? status : df_cuda_fail(queue, ended, "ending to capture a body", p.error);
}

df_status df_stretches_put(df_stretches *stretches, const df_run *run, bool recorded,
                           df_error *error) {
  const putting p = {stretches, run, error, recorded};
  for (const df_stretch &s : stretches->list) {
    const df_status status = s.host     ? put_steps(p, s, stretches->queue->stream)
                             : recorded ? put_node(p, s)
                                        : put_asked(p, s);
    if (status)
      return status;
  }
  return DF_OK;
}
