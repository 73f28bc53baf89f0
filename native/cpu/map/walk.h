/* map/walk.h: the order in which a kernel walks over strided operands, whose axes it merges where
 * all of them allow it. */
#ifndef DF_CPU_MAP_WALK_H
#define DF_CPU_MAP_WALK_H
#include "cpu.h"

enum {
  /* Axes of size 1 are dropped, so more than these would be more elements than an address counts.
   */
  DF_WALK_RANK = 64,
  DF_WALK_INPUTS = 6
};

/* Axes of the output after dropping those of size 1 and merging neighbours that all inputs allow.
 */
typedef struct df_walk {
  int32_t rank; /* at least 1 */
  int32_t inputs;
  int64_t shape[DF_WALK_RANK];
  int64_t strides[DF_WALK_INPUTS][DF_WALK_RANK];
} df_walk;

/* Plans the walk over |shape|; inputs broadcast to it as in NumPy. The output has elements. */
static inline void df_walk_plan(df_walk *walk, const int64_t *shape, int32_t rank,
                                const df_tensor *const *inputs, int32_t n_inputs) {
  walk->rank = 0;
  walk->inputs = n_inputs;
  for (int32_t axis = 0; axis < rank; axis++) {
    if (shape[axis] == 1)
      continue;
    int32_t last = walk->rank - 1;
    int merge = last >= 0;
    for (int32_t i = 0; i < n_inputs; i++) {
      int32_t own = axis - (rank - inputs[i]->rank);
      int64_t stride = own < 0 || inputs[i]->shape[own] == 1 ? 0 : inputs[i]->strides[own];
      walk->strides[i][walk->rank] = stride;
      merge = merge && walk->strides[i][last] == stride * shape[axis];
    }
    if (merge) {
      walk->shape[last] *= shape[axis];
      for (int32_t i = 0; i < n_inputs; i++)
        walk->strides[i][last] = walk->strides[i][walk->rank];
    } else {
      walk->shape[walk->rank++] = shape[axis];
    }
  }
  if (walk->rank == 0) {
    walk->rank = 1;
    walk->shape[0] = 1;
    for (int32_t i = 0; i < n_inputs; i++)
      walk->strides[i][0] = 1;
  }
}

/* Where a walk stands: coordinates, and per input the offset in elements. */
typedef struct df_cursor {
  int64_t at[DF_WALK_RANK];
  int64_t offset[DF_WALK_INPUTS];
} df_cursor;

static inline void df_cursor_set(df_cursor *cursor, const df_walk *walk, int64_t index) {
  for (int32_t i = 0; i < walk->inputs; i++)
    cursor->offset[i] = 0;
  for (int32_t axis = walk->rank - 1; axis >= 0; axis--) {
    int64_t at = index % walk->shape[axis];
    index /= walk->shape[axis];
    cursor->at[axis] = at;
    for (int32_t i = 0; i < walk->inputs; i++)
      cursor->offset[i] += at * walk->strides[i][axis];
  }
}

/* Moves on by |n| along |axis|, at most to its end; the axes behind it stay where they are. */
static inline void df_cursor_move(df_cursor *cursor, const df_walk *walk, int32_t axis, int64_t n) {
  cursor->at[axis] += n;
  for (int32_t i = 0; i < walk->inputs; i++)
    cursor->offset[i] += n * walk->strides[i][axis];
  while (axis > 0 && cursor->at[axis] == walk->shape[axis]) {
    cursor->at[axis] = 0;
    cursor->at[axis - 1]++;
    for (int32_t i = 0; i < walk->inputs; i++)
      cursor->offset[i] += walk->strides[i][axis - 1] - walk->shape[axis] * walk->strides[i][axis];
    axis--;
  }
}

/* Moves |n| elements on, at most to the end of the row. */
static inline void df_cursor_advance(df_cursor *cursor, const df_walk *walk, int64_t n) {
  df_cursor_move(cursor, walk, walk->rank - 1, n);
}

#endif
