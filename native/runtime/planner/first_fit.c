/* planner/first_fit.c: each block at the lowest free offset, in several orders; then in orders in
 * which what stood out at the top comes earlier. */
#include "planner/assignment.h"

#include <stdlib.h>
#include <string.h>

/* A block with its offset; they are kept by rising offset. */
typedef struct assigned {
  int64_t offset;
  int64_t top;
  int32_t first;
  int32_t stop;
} assigned;

/* Assigns offsets in |order|, fixed ones first, and keeps the assignment when it is better. Returns
 * its peak. */
static int64_t assign(df_assignment *assignment, const df_ranked *order, assigned *done,
                      int64_t *offsets) {
  int32_t n_done = 0;
  int64_t peak = 0;
  for (int32_t i = 0; i < assignment->count; i++) {
    const df_block *block = &assignment->blocks[order[i].index];
    int64_t offset = block->fixed >= 0 ? block->fixed : 0;
    int32_t at = 0;
    for (; block->fixed < 0 && at < n_done; at++) {
      const assigned *other = &done[at];
      if (other->stop <= block->first || other->first >= block->stop || other->top <= offset)
        continue;
      if (other->offset - offset >= block->size)
        break;
      offset = df_align_up(other->top, block->alignment);
    }
    assignment->work -= at;
    /* The list is sorted: the position in it is found from either end of where the scan stopped. */
    while (at < n_done && done[at].offset < offset)
      at++;
    while (at > 0 && done[at - 1].offset > offset)
      at--;
    memmove(done + at + 1, done + at, (size_t)(n_done - at) * sizeof *done);
    done[at] = (assigned){offset, offset + block->size, block->first, block->stop};
    n_done++;
    offsets[order[i].index] = offset;
    if (offset + block->size > peak)
      peak = offset + block->size;
  }
  df_assignment_keep(assignment, offsets, peak);
  return peak;
}

/* ---- Learned orders ------------------------------------------------------------------------- */

enum { LEARNING = 20000000 }; /* visits, where branch and bound is tried behind it */

/* The next number of a linear congruential generator (Knuth's MMIX constants), below |limit|. */
static int32_t next_below(uint64_t *state, int32_t limit) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (int32_t)((*state >> 33) % (uint64_t)limit);
}

/* Moves the block at |from| forward to |to|; those between move one back. */
static void move_forward(df_ranked *order, int32_t from, int32_t to) {
  df_ranked moved = order[from];
  memmove(order + to + 1, order + to, (size_t)(from - to) * sizeof *order);
  order[to] = moved;
}

/* Iterated local search: the blocks that reach the peak, and one more, come earlier by a random
 * distance; an order that is no worse is gone on from. Behind |order| there is space for
 * another. */
static void learn(df_assignment *assignment, df_ranked *order, assigned *done, int64_t *offsets,
                  int32_t n_fixed) {
  const int32_t count = assignment->count;
  df_ranked *trial = order + count;
  uint64_t state = 1;
  int64_t current = assign(assignment, order, done, offsets);
  const int64_t rest =
      df_branches_apply(assignment)
          ? assignment->work - (assignment->work / 16 < LEARNING ? assignment->work / 16 : LEARNING)
          : 0;
  while (assignment->peak > assignment->lower_bound && assignment->work > rest &&
         count - n_fixed > 1) {
    memcpy(trial, order, (size_t)count * sizeof *order);
    for (int32_t i = n_fixed; i < count; i++) {
      const df_block *block = &assignment->blocks[trial[i].index];
      if (offsets[trial[i].index] + block->size == current && i > n_fixed)
        move_forward(trial, i, n_fixed + next_below(&state, i - n_fixed));
    }
    int32_t other = n_fixed + 1 + next_below(&state, count - n_fixed - 1);
    move_forward(trial, other, n_fixed + next_below(&state, other - n_fixed + 1));
    int64_t peak = assign(assignment, trial, done, offsets);
    assignment->work -= count;
    if (peak <= current) {
      current = peak;
      memcpy(order, trial, (size_t)count * sizeof *order);
    } else {
      assign(assignment, order, done, offsets); /* its offsets say again what stands out */
    }
  }
}

/* ---- Orders by key -------------------------------------------------------------------------- */

/* The keys of an order, highest first. */
typedef struct keys {
  int64_t key;
  int64_t second;
} keys;

enum { BY_SIZE, BY_DURATION, BY_AREA, BY_LOAD, BY_START, ORDERS };

/* |load| is the largest sum of sizes among the block's sections. */
static keys keys_of(const df_block *block, int64_t load, int order) {
  int64_t duration = block->stop - block->first;
  double area = (double)block->size * (double)duration;
  switch (order) {
  case BY_SIZE:
    return (keys){block->size, duration};
  case BY_DURATION:
    return (keys){duration, block->size};
  case BY_AREA:
    return (keys){area < 9e18 ? (int64_t)area : (int64_t)9e18, block->size};
  case BY_LOAD:
    return (keys){load, block->size};
  default:
    return (keys){-block->first, block->size};
  }
}

df_status df_assign_first_fit(df_assignment *assignment) {
  int64_t count = assignment->count;
  df_ranked *order = calloc((size_t)count, sizeof *order);
  assigned *done = calloc((size_t)count, sizeof *done);
  int64_t *offsets = calloc((size_t)count, sizeof *offsets);
  int64_t *load = calloc((size_t)assignment->sections, sizeof *load);
  df_ranked *best = calloc((size_t)count * 2, sizeof *best);
  int64_t best_peak = INT64_MAX;
  int32_t n_fixed = 0;
  df_status status = order && done && offsets && load && best ? DF_OK : DF_OUT_OF_MEMORY;
  if (!status)
    for (int32_t i = 0; i < count; i++)
      for (int32_t section = assignment->blocks[i].first; section < assignment->blocks[i].stop;
           section++)
        load[section] += assignment->blocks[i].size;
  for (int which = 0; !status && which < ORDERS; which++) {
    /* One order costs at most this, in visits. */
    if (assignment->peak == assignment->lower_bound || assignment->work < count * count / 2)
      break;
    for (int32_t i = 0; i < count; i++) {
      const df_block *block = &assignment->blocks[i];
      int64_t highest = 0;
      for (int32_t section = block->first; section < block->stop; section++)
        if (load[section] > highest)
          highest = load[section];
      keys keys = keys_of(block, highest, which);
      order[i] = (df_ranked){block->fixed >= 0 ? INT64_MAX : keys.key, keys.second, i};
    }
    df_sort_ranked(order, assignment->count);
    int64_t peak = assign(assignment, order, done, offsets);
    if (peak < best_peak) {
      best_peak = peak;
      memcpy(best, order, (size_t)count * sizeof *best);
    }
  }
  for (int32_t i = 0; !status && i < count; i++)
    n_fixed += assignment->blocks[i].fixed >= 0;
  if (!status && best_peak < INT64_MAX)
    learn(assignment, best, done, offsets, n_fixed);
  free(order);
  free(done);
  free(offsets);
  free(load);
  free(best);
  return status;
}
