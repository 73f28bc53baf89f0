/* planner/block_tree.h: blocks by their sections, for "the best block that lives within" and "...
 * in" a stretch of time. A k-d tree over (first, stop).
 */
#ifndef DF_RUNTIME_PLANNER_BLOCK_TREE_H
#define DF_RUNTIME_PLANNER_BLOCK_TREE_H

#include "planner/assignment.h"

/* A node: the bounds of the blocks below it that are left, and the best rank among them. */
typedef struct df_box {
  int32_t best; /* -1 when none is left */
  int32_t first_min, first_max;
  int32_t stop_min, stop_max;
} df_box;

/* |order| has the blocks from leaf to leaf; node i has the children 2i + 1 and 2i + 2. */
typedef struct df_tree {
  const df_block *blocks;
  int32_t *rank; /* by block; all different, higher is better, -1 when it was removed */
  int32_t *order;
  int32_t *leaf_of; /* by block */
  df_box *boxes;
  int32_t count;
  int32_t leaves; /* a power of two */
} df_tree;

/* A stretch [from, to) of time, at |height|, with |limit| above it. */
typedef struct df_opening {
  int64_t height;
  int64_t limit;
  int32_t from, to;
} df_opening;

/* Makes the tree of the |count| blocks named in |members|; ranks come with df_tree_rank. */
df_status df_tree_make(df_tree *tree, const df_assignment *assignment, const int32_t *members,
                       int32_t count);
void df_tree_free(df_tree *tree);

/* Ranks the blocks by their keys, by block: highest key, then highest second, first. Restores
 * removed blocks. */
df_status df_tree_rank(df_tree *tree, const int64_t *key, const int64_t *second);

void df_tree_remove(df_tree *tree, int32_t block);

/* The best block that lives within the opening and fits between height and limit, -1 when there
 * is none. Adds the visits to |work|. */
int32_t df_tree_within(const df_tree *tree, const df_opening *opening, int64_t *work);

/* The best block that lives at some time of the opening. */
int32_t df_tree_in(const df_tree *tree, const df_opening *opening, int64_t *work);

#endif
