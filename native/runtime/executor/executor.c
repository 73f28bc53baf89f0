/* executor/executor.c: runs a resolved segment. Between two kernels it reads the cancel word and
 * counts; nothing else. */
#include "executor/resolve.h"
#include "host/internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* One run: what the caller gave, and where it stands. */
typedef struct running {
  const volatile int32_t *cancel;
  int64_t calls;
  df_error *error; /* the resolved segment's own */
  void (*before)(void *context, int32_t first, int32_t count);
  void *context;
  const df_loop *top; /* whose steps |before| is for: the segment, no loop in it */
} running;

static df_status run_loop(const df_ready *step, running *r);

static df_status run_steps(const df_loop *loop, running *r, int32_t *failed) {
  df_ready *step = loop->steps;
  df_ready *end = step + loop->n_steps;
  df_status status = DF_OK;
  for (; step < end; step++) {
    if (df_is_cancelled(r->cancel)) {
      status = DF_CANCELLED;
      break;
    }
    if (r->before && loop == r->top)
      r->before(r->context, (int32_t)(step - loop->steps),
                step->run_many ? (int32_t)step->group : 1);
    if (step->run_many) {
      r->calls += step->group;
      status = step->run_many(step->calls, step->group);
    } else if (step->run) {
      r->calls++;
      status = step->run(&step->call);
    } else {
      status = run_loop(step, r);
    }
    if (status) {
      if (!r->error->text[0] && step->run)
        df_error_set(r->error, status, -1, "kernel '%s' failed with status %d and no message",
                     step->name, status);
      break;
    }
    if (step->run_many)
      step += step->group - 1;
  }
  *failed = (int32_t)(step - loop->steps);
  return status;
}

static df_status run_iteration(const df_loop *loop, int64_t iteration, running *r) {
  for (int32_t i = 0; i < loop->n_moving; i++) {
    const df_moving *moving = &loop->moving[i];
    const int64_t distance =
        iteration * moving->stride + (iteration & 1 ? moving->buffer_stride : 0);
    if (moving->offset)
      *moving->offset = moving->first + distance;
    else
      *moving->pointer = (char *)moving->base + distance;
  }
  int32_t failed;
  df_status status = run_steps(loop, r, &failed);
  if (status && loop->kind != DF_WHEN) {
    size_t length = strlen(r->error->text);
    snprintf(r->error->text + length, sizeof r->error->text - length, " (iteration %lld)",
             (long long)iteration);
  }
  return status;
}

/* As long as the condition holds; see DF_WHILE. */
static df_status run_while(const df_ready *step, running *r) {
  const df_loop *loop = step->loop;
  const int64_t wanted = *(const int64_t *)step->call.inputs[0]->data;
  const volatile uint8_t *go = step->call.inputs[1]->data;
  int64_t *number = step->call.outputs[0]->data, *made = step->call.outputs[1]->data;
  int64_t iteration = 0;
  for (; iteration < wanted && *go; iteration++) {
    if (df_is_cancelled(r->cancel))
      return DF_CANCELLED;
    if (iteration >= loop->iterations)
      return df_error_set(
          r->error, DF_INVALID, -1,
          "the loop makes more than %lld iterations; raise max_iterations, or correct its "
          "condition",
          (long long)loop->iterations);
    if (number)
      *number = iteration;
    df_status status = run_iteration(loop, iteration, r);
    if (status)
      return status;
  }
  if (made)
    *made = iteration;
  return DF_OK;
}

static df_status run_loop(const df_ready *step, running *r) {
  const df_loop *loop = step->loop;
  if (loop->kind == DF_WHILE)
    return run_while(step, r);
  if (loop->kind == DF_WHEN &&
      (*(const uint8_t *)step->call.inputs[0]->data != 0) != (loop->when != 0))
    return DF_OK;
  for (int64_t iteration = 0; iteration < loop->iterations; iteration++) {
    df_status status = run_iteration(loop, iteration, r);
    if (status)
      return status;
  }
  return DF_OK;
}

/* Gives the pointers of slots that have another address than in the run before their new values. */
static df_status patch_slots(df_resolved *resolved, const df_run *run, df_error *error) {
  if (run->n_slots < resolved->n_slots)
    return df_error_set(error, DF_INVALID, -1, "the run has %d slots, the segment needs %d",
                        run->n_slots, resolved->n_slots);
  for (int32_t i = 0; i < resolved->n_slots; i++) {
    df_slot *slot = &resolved->slots[i];
    if (run->slots[i] == slot->address || !slot->patches)
      continue;
    if (!run->slots[i])
      return df_error_set(error, DF_INVALID, -1, "slot %d has no address", i);
    for (df_patch *patch = slot->patches; patch; patch = patch->next)
      *patch->pointer = (char *)run->slots[i] + patch->offset;
    slot->address = run->slots[i];
  }
  return DF_OK;
}

/* Puts stream and fault of a run into every call. */
static void give_stream(df_loop *loop, void *stream, df_fault *fault) {
  for (int32_t i = 0; i < loop->n_steps; i++) {
    loop->steps[i].call.stream = stream;
    loop->steps[i].call.fault = fault;
    if (loop->steps[i].loop)
      give_stream(loop->steps[i].loop, stream, fault);
  }
}

df_status df_segment_prepare(void *device, const df_segment *segment, void **prepared,
                             df_error *error) {
  (void)device;
  df_error reason = {.code = DF_INTERNAL, .step = -1};
  *prepared = df_resolve(segment, &reason);
  if (*prepared)
    return DF_OK;
  return df_error_set(error, reason.code, reason.step, "%s", reason.text);
}

df_status df_segment_run(void *device, void *prepared, const df_run *run, df_error *error) {
  (void)device;
  df_resolved *resolved = prepared;
  if (!resolved)
    return df_error_set(
        error, DF_INTERNAL, -1,
        "segment_run was given null for |prepared|; expected what segment_prepare gave: "
        "the device's prepare said DF_OK and gave none");
  const size_t least = offsetof(df_run, fault) + sizeof(df_fault *); /* as in 2.0 */
  if (run->struct_size < least)
    return df_error_set(error, DF_INVALID, -1, "the run has struct_size %u, expected at least %zu",
                        run->struct_size, least);
  df_status status = patch_slots(resolved, run, error);
  if (status)
    return status;
  if (run->stream != resolved->stream || run->fault != resolved->fault) {
    give_stream(&resolved->loop, run->stream, run->fault);
    resolved->stream = run->stream;
    resolved->fault = run->fault;
  }
  resolved->error.text[0] = 0;
  running r = {.cancel = run->cancel, .error = &resolved->error};
  if (run->struct_size >= offsetof(df_run, context) + sizeof run->context) { /* since 2.1 */
    r.before = run->before;
    r.context = run->context;
    r.top = &resolved->loop;
  }
  const volatile int32_t *cancel_before = df_cancel_swap(run->cancel);
  int32_t failed = -1;
  status = run_steps(&resolved->loop, &r, &failed);
  df_cancel_swap(cancel_before);
  if (run->calls)
    *run->calls += r.calls;
  /* Tasks skipped after cancellation leave outputs undefined, so cancellation overrides any other
   * status.
   */
  if (df_is_cancelled(run->cancel))
    return df_error_set(error, DF_CANCELLED, failed < resolved->loop.n_steps ? failed : -1,
                        "cancelled");
  if (status)
    return df_error_set(error, status, failed, "%s", resolved->error.text);
  return DF_OK;
}

void df_segment_release(void *device, void *prepared) {
  (void)device;
  df_resolved_free(prepared);
}
