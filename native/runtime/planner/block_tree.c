/* planner/block_tree.c: a k-d tree of blocks over (first, stop). */
#include "planner/block_tree.h"

#include <stdlib.h>

enum { LEAF_BLOCKS = 8 };

static const df_box EMPTY = {-1, INT32_MAX, -1, INT32_MAX, -1};

/* The position in |order| where leaf |leaf| begins. */
static int32_t leaf_begin(const df_tree *tree, int32_t leaf) {
  return (int32_t)((int64_t)tree->count * leaf / tree->leaves);
}

/* ---- Making --------------------------------------------------------------------------------- */

/* Orders the blocks of |leaves| leaves so that each half of the leaves has the earlier or later
 * half of the blocks, by first and by stop alternately. */
static void arrange(const df_tree *tree, df_ranked *sorted, int32_t leaf, int32_t leaves,
                    int by_stop) {
  if (leaves == 1)
    return;
  int32_t from = leaf_begin(tree, leaf), to = leaf_begin(tree, leaf + leaves);
  for (int32_t i = from; i < to; i++) {
    const df_block *block = &tree->blocks[sorted[i].index];
    sorted[i].key = by_stop ? block->stop : block->first;
    sorted[i].second = by_stop ? block->first : block->stop;
  }
  df_sort_ranked(sorted + from, to - from);
  arrange(tree, sorted, leaf, leaves / 2, !by_stop);
  arrange(tree, sorted, leaf + leaves / 2, leaves / 2, !by_stop);
}

df_status df_tree_make(df_tree *tree, const df_assignment *assignment, const int32_t *members,
                       int32_t count) {
  *tree = (df_tree){.blocks = assignment->blocks, .count = count, .leaves = 1};
  while (tree->leaves * LEAF_BLOCKS < count)
    tree->leaves *= 2;
  size_t blocks = (size_t)assignment->count;
  df_ranked *sorted = calloc((size_t)count + 1, sizeof *sorted);
  tree->order = calloc((size_t)count + 1, sizeof *tree->order);
  tree->rank = calloc(blocks + 1, sizeof *tree->rank);
  tree->leaf_of = calloc(blocks + 1, sizeof *tree->leaf_of);
  tree->boxes = calloc((size_t)tree->leaves * 2, sizeof *tree->boxes);
  if (!sorted || !tree->order || !tree->rank || !tree->leaf_of || !tree->boxes) {
    free(sorted);
    df_tree_free(tree);
    return DF_OUT_OF_MEMORY;
  }
  for (int32_t i = 0; i < count; i++)
    sorted[i].index = members[i];
  arrange(tree, sorted, 0, tree->leaves, 0);
  for (int32_t leaf = 0; leaf < tree->leaves; leaf++)
    for (int32_t i = leaf_begin(tree, leaf); i < leaf_begin(tree, leaf + 1); i++) {
      tree->order[i] = sorted[i].index;
      tree->leaf_of[sorted[i].index] = leaf;
    }
  free(sorted);
  return DF_OK;
}

void df_tree_free(df_tree *tree) {
  free(tree->order);
  free(tree->rank);
  free(tree->leaf_of);
  free(tree->boxes);
  *tree = (df_tree){0};
}

/* ---- Ranks and removal ---------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

static df_box leaf_box(const df_tree *tree, int32_t leaf) {
  df_box box = EMPTY;
  for (int32_t i = leaf_begin(tree, leaf); i < leaf_begin(tree, leaf + 1); i++) {
    const df_block *block = &tree->blocks[tree->order[i]];
    int32_t rank = tree->rank[tree->order[i]];
    if (rank < 0)
      continue;
    box.best = most(box.best, rank);
    box.first_min = least(box.first_min, block->first);
    box.first_max = most(box.first_max, block->first);
    box.stop_min = least(box.stop_min, block->stop);
    box.stop_max = most(box.stop_max, block->stop);
  }
  return box;
}

static df_box box_of_two(const df_box *a, const df_box *b) {
  return (df_box){most(a->best, b->best), least(a->first_min, b->first_min),
                  most(a->first_max, b->first_max), least(a->stop_min, b->stop_min),
                  most(a->stop_max, b->stop_max)};
}

df_status df_tree_rank(df_tree *tree, const int64_t *key, const int64_t *second) {
  df_ranked *sorted = calloc((size_t)tree->count + 1, sizeof *sorted);
  if (!sorted)
    return DF_OUT_OF_MEMORY;
  for (int32_t i = 0; i < tree->count; i++)
    sorted[i] = (df_ranked){key[tree->order[i]], second[tree->order[i]], tree->order[i]};
  df_sort_ranked(sorted, tree->count);
  for (int32_t i = 0; i < tree->count; i++)
    tree->rank[sorted[i].index] = tree->count - 1 - i;
  free(sorted);
  for (int32_t leaf = 0; leaf < tree->leaves; leaf++)
    tree->boxes[tree->leaves - 1 + leaf] = leaf_box(tree, leaf);
  for (int32_t node = tree->leaves - 2; node >= 0; node--)
    tree->boxes[node] = box_of_two(&tree->boxes[2 * node + 1], &tree->boxes[2 * node + 2]);
  return DF_OK;
}

void df_tree_remove(df_tree *tree, int32_t block) {
  tree->rank[block] = -1;
  int32_t node = tree->leaves - 1 + tree->leaf_of[block];
  tree->boxes[node] = leaf_box(tree, tree->leaf_of[block]);
  while (node) {
    node = (node - 1) / 2;
    tree->boxes[node] = box_of_two(&tree->boxes[2 * node + 1], &tree->boxes[2 * node + 2]);
  }
}

/* ---- Questions ------------------------------------------------------------------------------ */

static int fits_within(const df_block *block, const df_opening *opening) {
  return block->first >= opening->from && block->stop <= opening->to &&
         opening->limit - df_align_up(opening->height, block->alignment) >= block->size;
}

static int lives_in(const df_block *block, const df_opening *opening) {
  return block->first < opening->to && block->stop > opening->from;
}

/* Improves |best|, a block or -1, by what is below |node|. */
static void ask(const df_tree *tree, int32_t node, int within, const df_opening *opening,
                int32_t *best, int64_t *work) {
  const df_box *box = &tree->boxes[node];
  ++*work;
  if (box->best < 0 || (*best >= 0 && box->best <= tree->rank[*best]))
    return;
  if (within ? box->first_max < opening->from || box->stop_min > opening->to
             : box->first_min >= opening->to || box->stop_max <= opening->from)
    return;
  if (node < tree->leaves - 1) {
    int32_t left = 2 * node + 1;
    int32_t better = tree->boxes[left].best >= tree->boxes[left + 1].best ? left : left + 1;
    ask(tree, better, within, opening, best, work);
    ask(tree, better == left ? left + 1 : left, within, opening, best, work);
    return;
  }
  int32_t leaf = node - (tree->leaves - 1);
  for (int32_t i = leaf_begin(tree, leaf); i < leaf_begin(tree, leaf + 1); i++) {
    int32_t candidate = tree->order[i];
    if (tree->rank[candidate] < 0 || (*best >= 0 && tree->rank[candidate] <= tree->rank[*best]))
      continue;
    const df_block *block = &tree->blocks[candidate];
    if (within ? fits_within(block, opening) : lives_in(block, opening))
      *best = candidate;
  }
  *work += LEAF_BLOCKS;
}

int32_t df_tree_within(const df_tree *tree, const df_opening *opening, int64_t *work) {
  int32_t best = -1;
  ask(tree, 0, 1, opening, &best, work);
  return best;
}

int32_t df_tree_in(const df_tree *tree, const df_opening *opening, int64_t *work) {
  int32_t best = -1;
  ask(tree, 0, 0, opening, &best, work);
  return best;
}
