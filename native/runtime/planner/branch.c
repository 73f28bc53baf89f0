/* planner/branch.c: branch and bound over assignments that fit below a limit.
 *
 * Blocks get offsets in rising order, each the lowest that those below it leave (the canonical
 * solutions of Moffitt, "MiniMalloc", ASPLOS 2023): every packing can be pushed down to one of
 * these. What is left after an assignment falls into components that share no time, which are
 * searched one by one. A branch ends
 * - when a block fits below the offset that was reached last: it could be pushed down there;
 * - when in some section the lowest offset of the blocks left and the sum of their sizes exceed the
 *   limit. A block whose lowest offset lies below the one reached needs another one under it.
 * Among the blocks left none is tried that lies above the end of another one.
 *
 * The order in which blocks of one offset are tried decides; a search that takes long begins again
 * with another order, and with a little more effort each time. */
#include "planner/assignment.h"

#include <stdlib.h>
#include <string.h>

enum {
  MOST_BLOCKS = 1024, /* lists of a search take n^2 entries */
  ORDERS = 6,
  SHORT = 300000 /* visits of the shortest search */
};

typedef enum outcome { FOUND, NOT_THERE, OUT_OF_EFFORT } outcome;

/* A lowest offset before it was raised. */
typedef struct raised {
  int64_t before;
  int32_t block;
} raised;

typedef struct branches {
  const df_block *blocks;
  int64_t limit;
  int64_t work;     /* that is left */
  int64_t *lowest;  /* offset of a block above those assigned */
  int64_t *offsets; /* of assigned blocks */
  int64_t *sum;     /* of the sizes that are left in a section */
  int64_t *base;    /* of a section: the lowest offset of a block that is left in it */
  int32_t *rank;    /* of a block; lower ranks are tried earlier */
  raised *raises;   /* to be undone, the last first */
  int32_t *lists;   /* of blocks, one behind another */
  int64_t n_raises, n_lists;
} branches;

/* Blocks of one component by rising first section, and what was assigned before. */
typedef struct component {
  const int32_t *blocks;
  int32_t count;
  int32_t last;    /* rank of the block assigned last */
  int64_t reached; /* and its offset */
} component;

static int share_time(const df_block *a, const df_block *b) {
  return a->first < b->stop && b->first < a->stop;
}

/* ---- Bounds --------------------------------------------------------------------------------- */

/* Whether a block can be the next one: of equal offsets the one with the lower rank comes first. */
static int can_follow(const branches *s, const component *c, int32_t block) {
  const int64_t offset = s->lowest[block];
  return offset > c->reached || (offset == c->reached && s->rank[block] > c->last);
}

/* The lowest offset of a block that can't be the next one: above another that shares its time. */
static int64_t lifted(branches *s, const component *c, int32_t block) {
  int64_t found = INT64_MAX;
  for (int32_t i = 0; i < c->count; i++) {
    const int32_t other = c->blocks[i];
    if (other == block || !share_time(&s->blocks[other], &s->blocks[block]))
      continue;
    const int64_t from = s->lowest[other] > c->reached ? s->lowest[other] : c->reached;
    if (from + s->blocks[other].size < found)
      found = from + s->blocks[other].size;
  }
  s->work -= c->count;
  return found;
}

/* Whether the component may fit; |lowest_end| is that of the blocks at their lowest offsets. */
static int may_fit(branches *s, const component *c, int64_t *lowest_end) {
  uint32_t from = UINT32_MAX, to = 0; /* sections */
  *lowest_end = INT64_MAX;
  for (int32_t i = 0; i < c->count; i++) {
    const df_block *block = &s->blocks[c->blocks[i]];
    const int64_t end = s->lowest[c->blocks[i]] + block->size;
    if (end > s->limit)
      return 0;
    *lowest_end = end < *lowest_end ? end : *lowest_end;
    from = (uint32_t)block->first < from ? (uint32_t)block->first : from;
    to = (uint32_t)block->stop > to ? (uint32_t)block->stop : to;
  }
  if (*lowest_end <= c->reached)
    return 0;
  for (uint32_t section = from; section < to; section++)
    s->base[section] = INT64_MAX;
  for (int32_t i = 0; i < c->count; i++) {
    const df_block *block = &s->blocks[c->blocks[i]];
    int64_t offset = s->lowest[c->blocks[i]];
    if (!can_follow(s, c, c->blocks[i])) {
      offset = lifted(s, c, c->blocks[i]);
      if (offset > s->limit - block->size)
        return 0;
    }
    for (int32_t section = block->first; section < block->stop; section++)
      s->base[section] = offset < s->base[section] ? offset : s->base[section];
    s->work -= (block->stop - block->first) / 4;
  }
  for (uint32_t section = from; section < to; section++)
    if (s->sum[section] && s->base[section] > s->limit - s->sum[section])
      return 0;
  return 1;
}

/* ---- Branches ------------------------------------------------------------------------------- */

/* Sorts blocks by rising lowest offset, then rank; there are few. */
static void sort_candidates(const branches *s, int32_t *candidates, int32_t count) {
  for (int32_t i = 1; i < count; i++) {
    const int32_t block = candidates[i];
    int32_t at = i;
    for (; at > 0; at--) {
      const int32_t other = candidates[at - 1];
      if (s->lowest[other] < s->lowest[block] ||
          (s->lowest[other] == s->lowest[block] && s->rank[other] < s->rank[block]))
        break;
      candidates[at] = other;
    }
    candidates[at] = block;
  }
}

/* Adds |sign| times the size of a block to the sums of its sections. */
static void count_block(branches *s, int32_t block, int64_t sign) {
  for (int32_t at = s->blocks[block].first; at < s->blocks[block].stop; at++)
    s->sum[at] += sign * s->blocks[block].size;
}

/* Assigns a block its lowest offset: the others are raised above it, and listed in |left|. */
static void assign(branches *s, const component *c, int32_t block, int32_t *left) {
  const df_block *own = &s->blocks[block];
  const int64_t end = s->lowest[block] + own->size;
  s->offsets[block] = s->lowest[block];
  count_block(s, block, -1);
  for (int32_t i = 0; i < c->count; i++) {
    const int32_t other = c->blocks[i];
    if (other == block)
      continue;
    *left++ = other;
    if (s->lowest[other] < end && share_time(&s->blocks[other], own)) {
      s->raises[s->n_raises++] = (raised){s->lowest[other], other};
      s->lowest[other] = df_align_up(end, s->blocks[other].alignment);
    }
  }
}

static outcome search_component(branches *s, const component *c);

/* Searches each component of |count| blocks; |reached| and |last| as in component. */
static outcome search_apart(branches *s, const int32_t *blocks, int32_t count, int64_t reached,
                            int32_t last) {
  outcome found = FOUND;
  for (int32_t from = 0, to; from < count && found == FOUND; from = to) {
    int32_t stop = s->blocks[blocks[from]].stop;
    for (to = from + 1; to < count && s->blocks[blocks[to]].first < stop; to++)
      if (s->blocks[blocks[to]].stop > stop)
        stop = s->blocks[blocks[to]].stop;
    const component c = {blocks + from, to - from, last, reached};
    found = search_component(s, &c);
  }
  return found;
}

static outcome search_component(branches *s, const component *c) {
  s->work -= 2 * c->count;
  if (s->work < 0)
    return OUT_OF_EFFORT;
  int64_t lowest_end;
  if (!may_fit(s, c, &lowest_end))
    return NOT_THERE;
  int32_t *const candidates = s->lists + s->n_lists;
  int32_t n = 0;
  for (int32_t i = 0; i < c->count; i++)
    if (s->lowest[c->blocks[i]] < lowest_end && can_follow(s, c, c->blocks[i]))
      candidates[n++] = c->blocks[i];
  sort_candidates(s, candidates, n);
  int32_t *const left = candidates + n;
  s->n_lists += n + c->count;
  outcome found = NOT_THERE;
  for (int32_t i = 0; i < n && found == NOT_THERE; i++) {
    const int64_t raises = s->n_raises;
    assign(s, c, candidates[i], left);
    found = search_apart(s, left, c->count - 1, s->offsets[candidates[i]], s->rank[candidates[i]]);
    if (found == FOUND)
      break;
    while (s->n_raises > raises) {
      const raised *last = &s->raises[--s->n_raises];
      s->lowest[last->block] = last->before;
    }
    count_block(s, candidates[i], 1);
  }
  s->n_lists -= n + c->count;
  return found;
}

/* ---- Searches ------------------------------------------------------------------------------- */

/* A number of [0, 1) by Knuth's MMIX generator. */
static double next_fraction(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 40) / (1 << 24);
}

/* Ranks blocks by two of: the largest sum in their sections, duration, area, size. From the second
 * round on the orders vary by a random factor. */
static void rank_blocks(branches *s, int32_t count, const int64_t *load, int64_t index,
                        uint64_t *state, df_ranked *order) {
  const int which = (int)(index % ORDERS);
  for (int32_t i = 0; i < count; i++) {
    const df_block *block = &s->blocks[i];
    const double varied = index < ORDERS ? 1.0 : 0.75 + 0.5 * next_fraction(state);
    const double duration = block->stop - block->first, area = duration * (double)block->size;
    const double keys[ORDERS][2] = {
        {(double)load[i], duration * varied},     {duration * varied, area},
        {(double)load[i], area * varied},         {area * varied, duration},
        {(double)block->size * varied, duration}, {duration * varied, (double)load[i]}};
    /* Keys below 2^62 keep their order as integers; above, orders are as good as any. */
    for (int key = 0; key < 2; key++) {
      const double value = keys[which][key] < 4e18 ? keys[which][key] : 4e18;
      *(key ? &order[i].second : &order[i].key) = (int64_t)value;
    }
    order[i].index = i;
  }
  df_sort_ranked(order, count);
  for (int32_t i = 0; i < count; i++)
    s->rank[order[i].index] = i;
}

/* The limit of a search: mostly |least|, else between that and below the best so far. */
static int64_t limit_of(const df_assignment *assignment, int64_t least, int64_t index) {
  static const int eighths[] = {0, 4, 0, 6, 0, 7, 0, 2};
  const int64_t range = assignment->peak - 1 - least, share = eighths[index % 8];
  return least + range / 8 * share + range % 8 * share / 8;
}

static void search(df_assignment *assignment, branches *s, const int32_t *by_first,
                   const int64_t *load, const int64_t *sums, df_ranked *order) {
  const int32_t count = assignment->count;
  int64_t least = assignment->lower_bound; /* of peaks that were not excluded */
  uint64_t state = 1;
  for (int64_t index = 0; least < assignment->peak && assignment->work > 0; index++) {
    rank_blocks(s, count, load, index, &state, order);
    memset(s->lowest, 0, (size_t)count * sizeof *s->lowest);
    memcpy(s->sum, sums, (size_t)assignment->sections * sizeof *s->sum);
    const int64_t effort = SHORT + SHORT / 32 * index;
    s->n_raises = s->n_lists = 0;
    s->limit = limit_of(assignment, least, index);
    s->work = effort < assignment->work ? effort : assignment->work;
    assignment->work -= s->work + count;
    const outcome found = search_apart(s, by_first, count, 0, -1);
    assignment->work += s->work > 0 ? s->work : 0;
    if (found == NOT_THERE)
      least = s->limit + 1;
    int64_t peak = 0;
    for (int32_t i = 0; i < count && found == FOUND; i++)
      if (s->offsets[i] + s->blocks[i].size > peak)
        peak = s->offsets[i] + s->blocks[i].size;
    if (found == FOUND)
      df_assignment_keep(assignment, s->offsets, peak);
  }
}

int df_branches_apply(const df_assignment *assignment) {
  if (assignment->count > MOST_BLOCKS)
    return 0;
  for (int32_t i = 0; i < assignment->count; i++)
    if (assignment->blocks[i].fixed >= 0)
      return 0;
  return 1;
}

df_status df_assign_branches(df_assignment *assignment) {
  const size_t count = (size_t)assignment->count, sections = (size_t)assignment->sections;
  if (!df_branches_apply(assignment))
    return DF_OK;
  branches s = {.blocks = assignment->blocks};
  s.lowest = calloc(count, sizeof *s.lowest);
  s.offsets = calloc(count, sizeof *s.offsets);
  s.sum = calloc(sections, sizeof *s.sum);
  s.base = calloc(sections, sizeof *s.base);
  s.rank = calloc(count, sizeof *s.rank);
  s.raises = malloc(count * count * sizeof *s.raises);
  s.lists = malloc(count * count * 2 * sizeof *s.lists);
  int64_t *sums = calloc(sections, sizeof *sums), *load = calloc(count, sizeof *load);
  int32_t *by_first = calloc(count, sizeof *by_first);
  df_ranked *order = calloc(count, sizeof *order);
  df_status status = DF_OUT_OF_MEMORY;
  if (s.lowest && s.offsets && s.sum && s.base && s.rank && s.raises && s.lists && sums && load &&
      by_first && order) {
    status = DF_OK;
    for (int32_t i = 0; i < assignment->count; i++) {
      order[i] = (df_ranked){-s.blocks[i].first, 0, i};
      for (int32_t at = s.blocks[i].first; at < s.blocks[i].stop; at++)
        sums[at] += s.blocks[i].size;
    }
    df_sort_ranked(order, assignment->count);
    for (int32_t i = 0; i < assignment->count; i++) {
      by_first[i] = order[i].index;
      for (int32_t at = s.blocks[i].first; at < s.blocks[i].stop; at++)
        load[i] = sums[at] > load[i] ? sums[at] : load[i];
    }
    search(assignment, &s, by_first, load, sums, order);
  }
  free(s.lowest);
  free(s.offsets);
  free(s.sum);
  free(s.base);
  free(s.rank);
  free(s.raises);
  free(s.lists);
  free(sums);
  free(load);
  free(by_first);
  free(order);
  return status;
}
