/* planner/skyline.c: best fit on the skyline, for any number of blocks.
 *
 * The skyline is the highest assigned byte over time, as stretches of one height. The
 * lowest stretch takes the best of the blocks that live within it; when there is none, it is lifted
 * to the lower of its neighbours, and the space below is lost. A fixed block is the limit until the
 * skyline has risen to it.
 */
#include "planner/block_tree.h"

#include <stdlib.h>

typedef struct skyline {
  df_assignment *assignment;
  int64_t *offsets;
  /* Keys of blocks; |falling| is higher for lower fixed offsets. */
  int64_t *falling;
  int64_t *duration;
  int64_t *size;
  /* A stretch is known by the section where it begins. */
  int64_t *height;
  int32_t *end;
  int32_t *begin;      /* by the last section of a stretch */
  int64_t *tournament; /* lowest height below each node, INT64_MAX where no stretch begins */
  int32_t width;       /* leaves of the tournament, a power of two */
  df_tree movable;
  df_tree fixed;
} skyline;

/* ---- Stretches ------------------------------------------------------------------------------ */

/* Makes |height| the entry of |section| in the tournament; INT64_MAX takes it out. */
static void enter(skyline *s, int32_t section, int64_t height) {
  int32_t node = s->width - 1 + section;
  s->tournament[node] = height;
  while (node) {
    node = (node - 1) / 2;
    int64_t left = s->tournament[2 * node + 1], right = s->tournament[2 * node + 2];
    s->tournament[node] = left < right ? left : right;
  }
}

/* The earliest of the lowest stretches. */
static int32_t lowest(const skyline *s) {
  int32_t node = 0;
  while (node < s->width - 1)
    node = 2 * node + (s->tournament[2 * node + 1] == s->tournament[node] ? 1 : 2);
  return node - (s->width - 1);
}

static void add_stretch(skyline *s, int32_t from, int32_t to, int64_t height) {
  s->height[from] = height;
  s->end[from] = to;
  s->begin[to - 1] = from;
  enter(s, from, height);
}

/* Raises the sections [from, to) of |stretch| to |height|, which is above it. */
static void raise_range(skyline *s, int32_t stretch, int32_t from, int32_t to, int64_t height) {
  int64_t below = s->height[stretch];
  int32_t end = s->end[stretch];
  enter(s, stretch, INT64_MAX);
  if (from > stretch)
    add_stretch(s, stretch, from, below);
  else if (from > 0 && s->height[s->begin[from - 1]] == height)
    from = s->begin[from - 1];
  if (to < end) {
    add_stretch(s, to, end, below);
  } else if (to < s->assignment->sections && s->height[to] == height) {
    enter(s, to, INT64_MAX);
    to = s->end[to];
  }
  add_stretch(s, from, to, height);
}

/* ---- Placing -------------------------------------------------------------------------------- */

/* The lowest that |opening| can be lifted to: a neighbour or the limit. */
static int64_t lifted(const skyline *s, const df_opening *opening) {
  int64_t height = opening->limit;
  if (opening->from > 0 && s->height[s->begin[opening->from - 1]] < height)
    height = s->height[s->begin[opening->from - 1]];
  if (opening->to < s->assignment->sections && s->height[opening->to] < height)
    height = s->height[opening->to];
  return height;
}

/* Assigns every block, the best first by |key|, then |second|, and keeps the assignment if it is
 * better. */
static df_status assign(skyline *s, const int64_t *key, const int64_t *second) {
  df_assignment *assignment = s->assignment;
  df_status status = df_tree_rank(&s->movable, key, second);
  if (!status)
    status = df_tree_rank(&s->fixed, s->falling, s->falling);
  if (status)
    return status;
  for (int32_t node = 0; node < 2 * s->width - 1; node++)
    s->tournament[node] = INT64_MAX;
  add_stretch(s, 0, assignment->sections, 0);
  int64_t peak = 0, work = 0;
  for (int32_t left = assignment->count; left;) {
    int32_t from = lowest(s);
    df_opening opening = {s->height[from], INT64_MAX, from, s->end[from]};
    int32_t fixed = df_tree_in(&s->fixed, &opening, &work);
    if (fixed >= 0)
      opening.limit = assignment->blocks[fixed].fixed;
    /* At the limit all that the fixed block lives through is in this stretch. */
    int32_t b =
        opening.limit == opening.height ? fixed : df_tree_within(&s->movable, &opening, &work);
    if (b < 0) {
      raise_range(s, from, from, opening.to, lifted(s, &opening));
      continue;
    }
    const df_block *block = &assignment->blocks[b];
    s->offsets[b] = df_align_up(opening.height, block->alignment);
    int64_t top = s->offsets[b] + block->size;
    raise_range(s, from, block->first, block->stop, top);
    df_tree_remove(b == fixed ? &s->fixed : &s->movable, b);
    if (top > peak)
      peak = top;
    left--;
  }
  assignment->work -= work;
  df_assignment_keep(assignment, s->offsets, peak);
  return DF_OK;
}

static df_status prepare(skyline *s) {
  df_assignment *assignment = s->assignment;
  size_t count = (size_t)assignment->count, sections = (size_t)assignment->sections;
  for (s->width = 1; s->width < assignment->sections;)
    s->width *= 2;
  s->offsets = calloc(count, sizeof *s->offsets);
  s->falling = calloc(count, sizeof *s->falling);
  s->duration = calloc(count, sizeof *s->duration);
  s->size = calloc(count, sizeof *s->size);
  s->height = calloc(sections, sizeof *s->height);
  s->end = calloc(sections, sizeof *s->end);
  s->begin = calloc(sections, sizeof *s->begin);
  s->tournament = calloc((size_t)s->width * 2, sizeof *s->tournament);
  int32_t *members = calloc(count, sizeof *members);
  df_status status = DF_OUT_OF_MEMORY;
  if (s->offsets && s->falling && s->duration && s->size && s->height && s->end && s->begin &&
      s->tournament && members) {
    int32_t movable = 0, fixed = assignment->count;
    for (int32_t b = 0; b < assignment->count; b++) {
      const df_block *block = &assignment->blocks[b];
      s->falling[b] = -block->fixed;
      s->duration[b] = block->stop - block->first;
      s->size[b] = block->size;
      members[block->fixed < 0 ? movable++ : --fixed] = b;
    }
    status = df_tree_make(&s->movable, assignment, members, movable);
    if (!status)
      status = df_tree_make(&s->fixed, assignment, members + movable, assignment->count - movable);
  }
  free(members);
  return status;
}

df_status df_assign_skyline(df_assignment *assignment) {
  skyline s = {.assignment = assignment};
  df_status status = prepare(&s);
  if (!status)
    status = assign(&s, s.duration, s.size);
  if (!status && assignment->peak > assignment->lower_bound && assignment->work > 0)
    status = assign(&s, s.size, s.duration);
  df_tree_free(&s.movable);
  df_tree_free(&s.fixed);
  free(s.offsets);
  free(s.falling);
  free(s.duration);
  free(s.size);
  free(s.height);
  free(s.end);
  free(s.begin);
  free(s.tournament);
  return status;
}
