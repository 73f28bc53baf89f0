/* executor/resolve.c: from operands (arena, offset) to the pointers of calls, once per prepared
 * segment. */
#include "executor/resolve.h"
#include "executor/group.h"
#include "host/internal.h"

#include <stddef.h>
#include <stdlib.h>

/* What the functions below share while one segment is resolved. */
typedef struct context {
  df_resolved *out;
  df_error *error;
  const df_segment *segment;     /* this one, or the segment of the body that is being resolved */
  const df_body *body;           /* null at the top */
  const int64_t *buffer_strides; /* per operand of the body; null when nothing alternates */
  df_loop *loop;
  int64_t step; /* index in the top segment */
} context;

/* ---- Memory that lives as long as the prepared segment -------------------------------------- */

typedef struct block {
  struct block *next;
  int64_t reserved; /* keeps what follows aligned to 16 bytes */
} block;

/* Zeroed memory for |count| things, or null with the error filled. */
static void *take(void *context_, int64_t count, int64_t size) {
  context *c = context_;
  block *block = NULL;
  if (count >= 0 && count <= (INT64_MAX - (int64_t)sizeof *block) / size)
    block = calloc(1, sizeof *block + (size_t)(count * size));
  if (!block) {
    df_error_set(c->error, DF_OUT_OF_MEMORY, c->step, "no memory to prepare %lld records",
                 (long long)count);
    return NULL;
  }
  block->next = c->out->blocks;
  c->out->blocks = block;
  return block + 1;
}

void df_resolved_free(df_resolved *resolved) {
  if (!resolved)
    return;
  for (block *block = resolved->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  free(resolved);
}

/* ---- Where an operand lies ------------------------------------------------------------------ */

static int is_empty(const df_operand *operand) {
  for (int32_t axis = 0; axis < operand->rank; axis++)
    if (operand->shape[axis] == 0)
      return 1;
  return 0;
}

/* Bytes from the operand's lowest element up to its first one; not zero with negative strides. */
static int64_t bytes_below(const df_operand *operand) {
  int64_t elements = 0;
  for (int32_t axis = 0; axis < operand->rank && operand->strides; axis++)
    if (operand->strides[axis] < 0)
      elements -= operand->strides[axis] * (operand->shape[axis] - 1);
  return elements * operand->item_bytes;
}

static int64_t buffer_stride_of(const context *c, int64_t index) {
  return c->buffer_strides ? c->buffer_strides[index] : 0;
}

/* Checks that the operand is inside its arena on every iteration. */
static df_status check_range(context *c, int64_t index, const df_operand *operand) {
  if (operand->arena < 0 || operand->arena >= c->segment->n_arenas)
    return df_error_set(c->error, DF_INVALID, c->step, "operand %lld is in arena %d of %d",
                        (long long)index, operand->arena, c->segment->n_arenas);
  int64_t size = c->segment->arenas[operand->arena]->bytes;
  int64_t iterations = c->body ? c->body->iterations : 1;
  int64_t buffer_stride = buffer_stride_of(c, index);
  /* Even and odd iterations each move in one direction, so the first and the last bound them. */
  const int64_t telling[] = {0, 1, iterations - 2, iterations - 1};
  int inside = operand->bytes >= 0;
  for (int i = 0; i < 4; i++) {
    int64_t iteration = telling[i];
    if (iteration < 0 || iteration >= iterations)
      continue;
    __int128 low = (__int128)iteration * operand->iteration_stride +
                   (iteration & 1 ? buffer_stride : 0) + operand->offset - bytes_below(operand);
    inside &= low >= 0 && low + operand->bytes <= size;
  }
  if (!inside)
    return df_error_set(
        c->error, DF_INVALID, c->step,
        "operand %lld lies outside arena %d of %lld bytes: offset %lld, %lld bytes, "
        "iteration stride %lld, buffer stride %lld, %lld iterations",
        (long long)index, operand->arena, (long long)size, (long long)operand->offset,
        (long long)operand->bytes, (long long)operand->iteration_stride, (long long)buffer_stride,
        (long long)iterations);
  return DF_OK;
}

/* Sees to it that *pointer holds the operand's address: now, on every iteration, and when a slot
 * changes. With handles it holds the base of the buffer, and *offset how far behind that the
 * operand lies. */
static df_status locate(context *c, int64_t index, void **pointer, int64_t *offset) {
  const df_operand *operand = c->segment->operands[index];
  df_status status = check_range(c, index, operand);
  if (status)
    return status;
  const df_arena *arena = c->segment->arenas[operand->arena];
  const int handle = c->segment->flags & DF_HANDLES;
  const int64_t buffer_stride = buffer_stride_of(c, index), added = handle ? 0 : operand->offset;
  if (handle)
    *offset = operand->offset;
  if (c->body && (operand->iteration_stride || buffer_stride)) {
    df_moving *moving = &c->loop->moving[c->loop->n_moving++];
    *moving = (df_moving){.pointer = pointer,
                          .offset = handle ? offset : NULL,
                          .first = operand->offset,
                          .stride = operand->iteration_stride,
                          .buffer_stride = buffer_stride};
    if (!handle)
      pointer = &moving->base;
  }
  if (arena->slot < 0) {
    *pointer = (char *)arena->base + added;
    return DF_OK;
  }
  df_slot *slot = &c->out->slots[arena->slot];
  df_patch *patch = take(c, 1, sizeof *patch);
  if (!patch)
    return DF_OUT_OF_MEMORY;
  *patch = (df_patch){.pointer = pointer, .offset = added, .next = slot->patches};
  slot->patches = patch;
  return DF_OK;
}

static df_status resolve_tensor(context *c, int64_t index, df_tensor *out) {
  const df_operand *operand = c->segment->operands[index];
  int empty = operand->dtype != DF_NONE && is_empty(operand);
  out->struct_size = sizeof *out;
  if (operand->dtype == DF_NONE || (operand->arena == -1 && !empty))
    return DF_OK; /* absent: all else is zero */
  *out = (df_tensor){.struct_size = sizeof *out,
                     .dtype = operand->dtype,
                     .rank = operand->rank,
                     .item_bytes = operand->item_bytes,
                     .shape = operand->shape,
                     .strides = operand->strides,
                     .bytes = operand->bytes};
  return empty ? DF_OK : locate(c, index, &out->data, &out->offset);
}

/* |count| tensors that are not resolved yet; null with the error filled. */
static df_tensor **take_tensors(context *c, int64_t count) {
  df_tensor **tensors = take(c, count, sizeof *tensors);
  df_tensor *records = take(c, count, sizeof *records);
  for (int64_t i = 0; tensors && records && i < count; i++)
    tensors[i] = &records[i];
  return records ? tensors : NULL;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static df_status resolve_loop(context *c, int64_t iterations, df_loop *out);

/* The operands that say how often a body runs. */
static df_status resolve_control(context *c, const df_step *step, df_ready *out) {
  static const int32_t inputs[] = {[DF_REPEAT] = 0, [DF_WHEN] = 1, [DF_WHILE] = 2};
  static const int32_t outputs[] = {[DF_REPEAT] = 0, [DF_WHEN] = 0, [DF_WHILE] = 2};
  int32_t kind = step->body->kind;
  if (kind != DF_REPEAT && c->segment->flags & DF_HANDLES)
    return df_error_set(c->error, DF_UNSUPPORTED, c->step,
                        "whether a body runs is behind a handle");
  if (kind < DF_REPEAT || kind > DF_WHILE || step->n_inputs != inputs[kind] ||
      step->n_outputs != outputs[kind])
    return df_error_set(c->error, DF_INVALID, c->step,
                        "a body of kind %d has %d inputs and %d outputs", kind, step->n_inputs,
                        step->n_outputs);
  int64_t n_tensors = (int64_t)step->n_inputs + step->n_outputs;
  df_tensor **tensors = take_tensors(c, n_tensors);
  if (!tensors)
    return DF_OUT_OF_MEMORY;
  out->call.inputs = (const df_tensor *const *)tensors;
  out->call.outputs = (const df_tensor *const *)tensors + step->n_inputs;
  for (int64_t i = 0; i < n_tensors; i++) {
    df_status status = resolve_tensor(c, step->first_operand + i, tensors[i]);
    if (status)
      return status;
    if (i < step->n_inputs && c->segment->operands[step->first_operand + i]->arena < 0)
      return df_error_set(c->error, DF_INVALID, c->step, "input %lld of a body has no place",
                          (long long)i);
  }
  return DF_OK;
}

static df_status resolve_body(context *c, const df_step *step, df_ready *out) {
  const df_body *body = step->body;
  if (body->iterations < 0)
    return df_error_set(c->error, DF_INVALID, c->step, "a loop has %lld iterations",
                        (long long)body->iterations);
  df_loop *loop = take(c, 1, sizeof *loop);
  if (!loop)
    return DF_OUT_OF_MEMORY;
  context inner = {
      .out = c->out, .error = c->error, .segment = body->segment, .body = body, .step = c->step};
  if (body->n_buffer_strides) {
    int64_t *buffer_strides = take(c, body->segment->n_operands, sizeof *buffer_strides);
    if (!buffer_strides)
      return DF_OUT_OF_MEMORY;
    for (int32_t i = 0; i < body->n_buffer_strides; i++) {
      int32_t operand = body->buffer_strides[i]->operand;
      if (operand < 0 || operand >= body->segment->n_operands)
        return df_error_set(c->error, DF_INVALID, c->step,
                            "buffer stride %d is of operand %d of %d", i, operand,
                            body->segment->n_operands);
      buffer_strides[operand] = body->buffer_strides[i]->distance;
    }
    inner.buffer_strides = buffer_strides;
  }
  out->loop = loop;
  loop->kind = body->kind;
  loop->when = body->when;
  df_status status = resolve_control(c, step, out);
  return status ? status : resolve_loop(&inner, body->iterations, loop);
}

static int64_t operands_of(const df_step *step) {
  return (int64_t)step->n_inputs + step->n_outputs + (step->body ? 0 : 1 + step->n_prepacks);
}

static df_status check_step(context *c, int64_t index, const df_step *step) {
  if (!step->body && (!step->kernel || !step->kernel->run))
    return df_error_set(c->error, DF_INVALID, c->step, "step %lld has neither a kernel nor a body",
                        (long long)index);
  if (step->first_operand < 0 || step->n_inputs < 0 || step->n_outputs < 0 ||
      step->n_prepacks < 0 || step->first_operand + operands_of(step) > c->segment->n_operands)
    return df_error_set(c->error, DF_INVALID, c->step,
                        "step %lld (kernel '%s') has operands %d to %lld of %d: %d inputs, %d "
                        "outputs, a workspace, %d prepacked copies",
                        (long long)index, step->kernel ? step->kernel->name : "of a body",
                        step->first_operand,
                        (long long)(step->first_operand + operands_of(step) - 1),
                        c->segment->n_operands, step->n_inputs, step->n_outputs, step->n_prepacks);
  return DF_OK;
}

static df_status resolve_call(context *c, int64_t index, const df_step *step, df_ready *out) {
  int64_t n_tensors = (int64_t)step->n_inputs + step->n_outputs;
  df_tensor **tensors = take_tensors(c, n_tensors);
  void **prepacked = step->n_prepacks ? take(c, step->n_prepacks, sizeof *prepacked) : NULL;
  int64_t *offsets = step->n_prepacks ? take(c, step->n_prepacks, sizeof *offsets) : NULL;
  if (!tensors || (step->n_prepacks && !(prepacked && offsets)))
    return DF_OUT_OF_MEMORY;
  out->run = step->kernel->run;
  out->name = step->kernel->name;
  out->call = (df_call){.struct_size = sizeof(df_call),
                        .n_inputs = step->n_inputs,
                        .n_outputs = step->n_outputs,
                        .n_attributes = step->n_attributes,
                        .inputs = (const df_tensor *const *)tensors,
                        .outputs = (const df_tensor *const *)tensors + step->n_inputs,
                        .attributes = step->attributes,
                        .state = step->state,
                        .prepacked = prepacked,
                        .prepacked_offsets = c->segment->flags & DF_HANDLES ? offsets : NULL,
                        .host = df_host_table(),
                        .error = &c->out->error,
                        .threads = c->segment->threads,
                        .step = (int32_t)index};
  int64_t operand = step->first_operand;
  df_status status = DF_OK;
  for (int64_t i = 0; i < n_tensors && !status; i++)
    status = resolve_tensor(c, operand++, tensors[i]);
  if (!status && c->segment->operands[operand]->arena != -1)
    status = locate(c, operand, &out->call.workspace, &out->call.workspace_offset);
  operand++;
  for (int32_t i = 0; i < step->n_prepacks && !status; i++, operand++)
    if (c->segment->operands[operand]->arena != -1)
      status = locate(c, operand, &prepacked[i], &offsets[i]);
  return status;
}

/* Resolves c->segment into |out|. */
static df_status resolve_loop(context *c, int64_t iterations, df_loop *out) {
  const df_segment *segment = c->segment;
  const size_t least = offsetof(df_segment, compiled) + sizeof segment->compiled; /* as in 2.0 */
  if (segment->struct_size < least)
    return df_error_set(c->error, DF_INVALID, c->step,
                        "the segment has struct_size %u, expected at least %zu",
                        segment->struct_size, least);
  /* Steps may share operands, so what can move is counted per step. */
  int64_t most_moving = 0;
  for (int32_t i = 0; i < segment->n_steps && c->body; i++)
    most_moving += operands_of(segment->steps[i]);
  c->loop = out;
  out->iterations = iterations;
  out->n_steps = segment->n_steps;
  out->steps = take(c, segment->n_steps, sizeof *out->steps);
  out->moving = take(c, most_moving, sizeof *out->moving);
  if (!out->steps || !out->moving)
    return DF_OUT_OF_MEMORY;
  for (int32_t i = 0; i < segment->n_steps; i++) {
    const df_step *step = segment->steps[i];
    if (!c->body)
      c->step = i;
    df_status status = check_step(c, i, step);
    if (!status)
      status = step->body ? resolve_body(c, step, &out->steps[i])
                          : resolve_call(c, i, step, &out->steps[i]);
    if (status)
      return status;
  }
  return c->body ? DF_OK : df_group_steps(segment, out->steps, take, c);
}

/* One more than the highest slot that |segment| and its bodies name. */
static int32_t count_slots(const df_segment *segment) {
  int32_t count = 0;
  for (int32_t i = 0; i < segment->n_arenas; i++)
    if (segment->arenas[i]->slot >= count)
      count = segment->arenas[i]->slot + 1;
  for (int32_t i = 0; i < segment->n_steps; i++) {
    int32_t inner = segment->steps[i]->body ? count_slots(segment->steps[i]->body->segment) : 0;
    if (inner > count)
      count = inner;
  }
  return count;
}

df_resolved *df_resolve(const df_segment *segment, df_error *error) {
  df_resolved *out = calloc(1, sizeof *out);
  if (!out) {
    df_error_set(error, DF_OUT_OF_MEMORY, -1, "no memory to prepare a segment");
    return NULL;
  }
  context c = {.out = out, .error = error, .segment = segment, .step = -1};
  out->n_slots = count_slots(segment);
  out->slots = take(&c, out->n_slots, sizeof *out->slots);
  if (!out->slots || resolve_loop(&c, 1, &out->loop)) {
    df_resolved_free(out);
    return NULL;
  }
  return out;
}
