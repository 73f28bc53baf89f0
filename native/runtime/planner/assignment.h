/* planner/assignment.h: what the files of the offset search share: blocks over compressed time, and
 * the best assignment found so far.
 *
 * Time is split into sections: a new one begins where something starts after something has
 * stopped. All blocks of a section live at one time, two blocks live at one time when they share a
 * section, and every largest set of blocks that live together is a section.
 */
#ifndef DF_RUNTIME_PLANNER_ASSIGNMENT_H
#define DF_RUNTIME_PLANNER_ASSIGNMENT_H

#include "host/internal.h"

/* A buffer that needs memory. Its sections are [first, stop), its size a multiple of its alignment;
 * |fixed| is its offset when that was given, else -1. */
typedef struct df_block {
  int64_t size;
  int64_t alignment;
  int64_t fixed;
  int32_t first;
  int32_t stop;
} df_block;

/* |work| is what is left of the effort, counted in visits of a block, and is what bounds the
 * search: it does not depend on the machine. |offsets| and |peak| are the best assignment so far.
 */
typedef struct df_assignment {
  const df_block *blocks;
  int64_t *offsets;
  int64_t lower_bound;
  int64_t peak;
  int64_t work;
  int32_t count;
  int32_t sections;
} df_assignment;

/* For sorting with qsort; |index| decides between equal keys, so the order is the same everywhere.
 */
typedef struct df_ranked {
  int64_t key;
  int64_t second;
  int32_t index;
} df_ranked;

/* Sorts by falling key, then falling second, then rising index. */
void df_sort_ranked(df_ranked *ranked, int32_t count);

/* The smallest multiple of |alignment| that is not below |offset|. */
static inline int64_t df_align_up(int64_t offset, int64_t alignment) {
  return (offset + alignment - 1) & -alignment;
}

/* Keeps an assignment that is better than the best one; |offsets| has an entry per block. */
void df_assignment_keep(df_assignment *assignment, const int64_t *offsets, int64_t peak);

/* Best fit on the skyline: O(n log n) for most inputs, so it takes any number of blocks. */
df_status df_assign_skyline(df_assignment *assignment);

/* First fit into the gaps between the blocks that have offsets, in several orders, then in orders
 * learned from what stood out at the top. */
df_status df_assign_first_fit(df_assignment *assignment);

/* Branch and bound for few blocks without fixed offsets, below the lower bound first, then below
 * what was found. */
df_status df_assign_branches(df_assignment *assignment);

/* Whether that is for these blocks. */
int df_branches_apply(const df_assignment *assignment);

#endif
