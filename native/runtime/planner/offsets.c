/* planner/offsets.c: checks lifetimes, splits their time into sections, and lets the heuristics
 * find offsets. */
#include "planner/offsets.h"

#include "planner/assignment.h"

#include <stdlib.h>
#include <string.h>

/* ---- What the heuristics share -------------------------------------------------------------- */

static int by_rank(const void *left, const void *right) {
  const df_ranked *a = left, *b = right;
  if (a->key != b->key)
    return a->key > b->key ? -1 : 1;
  if (a->second != b->second)
    return a->second > b->second ? -1 : 1;
  return (a->index > b->index) - (a->index < b->index);
}

void df_sort_ranked(df_ranked *ranked, int32_t count) {
  qsort(ranked, (size_t)count, sizeof *ranked, by_rank);
}

void df_assignment_keep(df_assignment *assignment, const int64_t *offsets, int64_t peak) {
  if (peak >= assignment->peak)
    return;
  assignment->peak = peak;
  memcpy(assignment->offsets, offsets, (size_t)assignment->count * sizeof *offsets);
}

/* ---- Lifetimes -> blocks -------------------------------------------------------------------- */

static df_status refuse(df_error *error, int64_t index, const char *why) {
  return df_error_set(error, DF_INVALID, index, "lifetime %lld: %s", (long long)index, why);
}

static df_status check(int64_t count, const df_lifetime *buffers, df_error *error) {
  int64_t total = 0;
  if (count < 0 || count > INT32_MAX / 4)
    return df_error_set(error, DF_INVALID, -1, "%lld lifetimes are too many", (long long)count);
  for (int64_t i = 0; i < count; i++) {
    const df_lifetime *buffer = &buffers[i];
    if (buffer->bytes < 0 || buffer->start > buffer->stop)
      return refuse(error, i, "a negative size, or it stops before it starts");
    if (buffer->alignment < 1 || (buffer->alignment & (buffer->alignment - 1)) ||
        buffer->alignment > INT64_C(1) << 32)
      return refuse(error, i, "the alignment is no power of two up to 2^32");
    if (buffer->fixed < -1 || (buffer->fixed > 0 && buffer->fixed & (buffer->alignment - 1)))
      return refuse(error, i, "the fixed offset breaks the alignment");
    int64_t high = buffer->fixed > 0 ? buffer->fixed : 0;
    if (buffer->bytes > INT64_MAX / 4 - buffer->alignment - total || high > INT64_MAX / 4)
      return refuse(error, i, "the sizes do not fit in 63 bits");
    total += df_align_up(buffer->bytes, buffer->alignment);
  }
  return DF_OK;
}

/* An end of a lifetime. At one time what stops comes before what starts. */
typedef struct event {
  int64_t time;
  int32_t index;
  int32_t starts;
} event;

static int by_time(const void *left, const void *right) {
  const event *a = left, *b = right;
  if (a->time != b->time)
    return a->time < b->time ? -1 : 1;
  if (a->starts != b->starts)
    return a->starts - b->starts;
  return (a->index > b->index) - (a->index < b->index);
}

/* Fills |blocks| from the buffers that need memory, whose numbers are |kept|; returns the number of
 * sections and the largest sum of sizes. */
static int32_t split_time(const df_lifetime *buffers, const int32_t *kept, int32_t count,
                          df_block *blocks, event *events, int64_t *bound) {
  for (int32_t i = 0; i < count; i++) {
    const df_lifetime *buffer = &buffers[kept[i]];
    blocks[i] = (df_block){.size = df_align_up(buffer->bytes, buffer->alignment),
                           .alignment = buffer->alignment,
                           .fixed = buffer->fixed};
    events[2 * i] = (event){buffer->start, i, 1};
    events[2 * i + 1] = (event){buffer->stop, i, 0};
  }
  qsort(events, (size_t)count * 2, sizeof *events, by_time);
  int32_t section = 0, started = 0;
  int64_t alive = 0;
  *bound = 0;
  for (int64_t i = 0; i < 2 * (int64_t)count; i++) {
    df_block *block = &blocks[events[i].index];
    if (events[i].starts) {
      block->first = section;
      alive += block->size;
      started = 1;
      if (alive > *bound)
        *bound = alive;
      if (block->fixed >= 0 && block->fixed + block->size > *bound)
        *bound = block->fixed + block->size;
    } else {
      if (started) /* the first stop after a start ends the section */
        section++;
      started = 0;
      block->stop = section;
      alive -= block->size;
    }
  }
  return section;
}

/* Whether no two fixed blocks that live at one time share bytes. */
static int fixed_fit(const df_block *blocks, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    for (int32_t j = 0; blocks[i].fixed >= 0 && j < i; j++)
      if (blocks[j].fixed >= 0 && blocks[j].first < blocks[i].stop &&
          blocks[i].first < blocks[j].stop && blocks[j].fixed < blocks[i].fixed + blocks[i].size &&
          blocks[i].fixed < blocks[j].fixed + blocks[j].size)
        return 0;
  return 1;
}

/* ---- The search ----------------------------------------------------------------------------- */

static df_status search(df_assignment *assignment) {
  df_status status = df_assign_skyline(assignment);
  if (!status && assignment->peak > assignment->lower_bound && assignment->work > 0)
    status = df_assign_first_fit(assignment);
  if (!status && assignment->peak > assignment->lower_bound && assignment->work > 0)
    status = df_assign_branches(assignment);
  return status;
}

df_status df_plan_offsets(int64_t count, const df_lifetime *buffers, int64_t effort,
                          int64_t *offsets, int64_t *peak, int64_t *lower_bound, df_error *error) {
  df_status status = check(count, buffers, error);
  *peak = *lower_bound = 0;
  if (status)
    return status;
  int32_t n = 0;
  size_t capacity = (size_t)count + 1;
  int32_t *kept = calloc(capacity, sizeof *kept);
  df_block *blocks = calloc(capacity, sizeof *blocks);
  event *events = calloc(capacity * 2, sizeof *events);
  int64_t *found = calloc(capacity, sizeof *found);
  if (!kept || !blocks || !events || !found) {
    status = df_error_set(error, DF_OUT_OF_MEMORY, -1, "no memory to plan %lld lifetimes",
                          (long long)count);
  } else {
    for (int32_t i = 0; i < count; i++) {
      offsets[i] = buffers[i].fixed > 0 ? buffers[i].fixed : 0;
      if (buffers[i].bytes > 0 && buffers[i].stop > buffers[i].start)
        kept[n++] = i;
    }
    df_assignment assignment = {
        .blocks = blocks, .offsets = found, .peak = INT64_MAX, .work = effort, .count = n};
    if (n)
      assignment.sections = split_time(buffers, kept, n, blocks, events, &assignment.lower_bound);
    if (n && !fixed_fit(blocks, n))
      status = df_error_set(error, DF_INVALID, -1,
                            "two fixed buffers that live at one time share bytes");
    else if (n)
      status = search(&assignment);
    for (int32_t i = 0; i < n && !status; i++)
      offsets[kept[i]] = found[i];
    if (!status && n) {
      *peak = assignment.peak;
      *lower_bound = assignment.lower_bound;
    } else if (status == DF_OUT_OF_MEMORY) {
      df_error_set(error, status, -1, "no memory to plan %lld lifetimes", (long long)count);
    }
  }
  free(kept);
  free(blocks);
  free(events);
  free(found);
  return status;
}
