/* shape/copy.h: copies a box of elements between two strided layouts. */
#ifndef DF_CPU_SHAPE_COPY_H
#define DF_CPU_SHAPE_COPY_H
#include "map/gather.h"
#include "map/walk.h"

enum {
  DF_COPY_RUN = 16384 /* elements of a long row in one unit of work */
};

/* to[i, j, ...] = from[i, j, ...] for |shape|; strides in elements. */
typedef struct df_box {
  df_walk walk;  /* axes; strides[0] of the source, strides[1] of the target */
  df_walk outer; /* the axes left when the rows or squares are taken out */
  const char *from;
  char *to;
  int64_t item;
  int32_t across; /* the axis along which the source is dense while rows are not, or -1 */
  int64_t blocks; /* units per outer index */
  int64_t units;
} df_box;

static inline void df_box_plan(df_box *box, void *to, const int64_t *to_strides, const void *from,
                               const int64_t *from_strides, const int64_t *shape, int32_t rank,
                               int64_t item) {
  const df_tensor one = {.shape = shape, .strides = from_strides, .rank = rank},
                  other = {.shape = shape, .strides = to_strides, .rank = rank};
  const df_tensor *const sides[2] = {&one, &other};
  df_walk_plan(&box->walk, shape, rank, sides, 2);
  const df_walk *walk = &box->walk;
  const int32_t inner = walk->rank - 1;
  box->from = from;
  box->to = to;
  box->item = item;
  box->across = -1;
  if (walk->strides[0][inner] != 1 && walk->strides[1][inner] == 1 && item <= 8)
    for (int32_t axis = 0; axis < inner; axis++)
      if (walk->strides[0][axis] == 1 && walk->shape[axis] >= DF_COPY_TILE / 2)
        box->across = axis;
  box->outer.rank = 0;
  box->outer.inputs = 2;
  int64_t outer = 1;
  for (int32_t axis = 0; axis < inner; axis++) {
    if (axis == box->across)
      continue;
    const int32_t own = box->outer.rank++;
    box->outer.shape[own] = walk->shape[axis];
    box->outer.strides[0][own] = walk->strides[0][axis];
    box->outer.strides[1][own] = walk->strides[1][axis];
    outer *= walk->shape[axis];
  }
  box->blocks = box->across >= 0 ? df_divide_up(walk->shape[box->across], DF_COPY_TILE)
                                 : df_divide_up(walk->shape[inner], DF_COPY_RUN);
  box->units = outer * box->blocks;
}

/* n elements of a row. */
#define DF_COPY_ROW(T)                                                                             \
  {                                                                                                \
    T *t = (T *)(void *)to;                                                                        \
    const T *f = (const T *)(const void *)from;                                                    \
    if (from_step == 0 && to_step == 1) {                                                          \
      const T value = *f;                                                                          \
      for (int64_t i = 0; i < n; i++)                                                              \
        t[i] = value;                                                                              \
    } else if (to_step == 1) {                                                                     \
      for (int64_t i = 0; i < n; i++)                                                              \
        t[i] = f[i * from_step];                                                                   \
    } else {                                                                                       \
      for (int64_t i = 0; i < n; i++)                                                              \
        t[i * to_step] = f[i * from_step];                                                         \
    }                                                                                              \
    break;                                                                                         \
  }

/* Up to 64 bytes: the first and the last of them, as many as a register has, which may overlap. */
static inline __attribute__((always_inline)) void df_copy_short(char *to, const char *from,
                                                                int64_t bytes) {
#define DF_COPY_ENDS(half)                                                                         \
  if (bytes >= (half)) {                                                                           \
    char first[half], last[half];                                                                  \
    memcpy(first, from, half);                                                                     \
    memcpy(last, from + bytes - (half), half);                                                     \
    memcpy(to, first, half);                                                                       \
    memcpy(to + bytes - (half), last, half);                                                       \
    return;                                                                                        \
  }
  DF_COPY_ENDS(32)
  DF_COPY_ENDS(16)
  DF_COPY_ENDS(8)
  DF_COPY_ENDS(4)
  for (int64_t i = 0; i < bytes; i++)
    to[i] = from[i];
#undef DF_COPY_ENDS
}

static inline void df_copy_row(char *to, int64_t to_step, const char *from, int64_t from_step,
                               int64_t n, int64_t item) {
  if (to_step == 1 && from_step == 1) {
    if (n * item > 64)
      memcpy(to, from, (size_t)(n * item));
    else
      df_copy_short(to, from, n * item);
    return;
  }
  switch (item) {
  case 1:
    DF_COPY_ROW(uint8_t)
  case 2:
    DF_COPY_ROW(uint16_t)
  case 4:
    DF_COPY_ROW(uint32_t)
  case 8:
    DF_COPY_ROW(uint64_t)
  default:
    for (int64_t i = 0; i < n; i++)
      memcpy(to + i * to_step * item, from + i * from_step * item, (size_t)item);
  }
}

static void df_box_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const df_box *box = context;
  const df_walk *walk = &box->walk;
  const int32_t inner = walk->rank - 1;
  DF_ASSUME(inner >= 0 && box->outer.inputs == 2);
  int64_t unit, end;
  df_task_range(index, count, box->units, 1, &unit, &end);
  df_cursor cursor;
  df_cursor_set(&cursor, &box->outer, unit / box->blocks);
  int64_t block = unit % box->blocks;
  for (; unit < end; unit++) {
    const char *from = box->from + cursor.offset[0] * box->item;
    char *to = box->to + cursor.offset[1] * box->item;
    const int64_t from_step = walk->strides[0][inner], to_step = walk->strides[1][inner];
    if (box->across >= 0) {
      const int64_t first = block * DF_COPY_TILE, size = walk->shape[box->across];
      const int64_t apart = walk->strides[1][box->across];
      df_copy_strip(to + first * apart * box->item, apart, from + first * box->item, from_step,
                    df_min(DF_COPY_TILE, size - first), walk->shape[inner], box->item);
    } else {
      const int64_t first = block * DF_COPY_RUN;
      df_copy_row(to + first * to_step * box->item, to_step, from + first * from_step * box->item,
                  from_step, df_min(DF_COPY_RUN, walk->shape[inner] - first), box->item);
    }
    if (++block == box->blocks) {
      block = 0;
      if (box->outer.rank)
        df_cursor_advance(&cursor, &box->outer, 1);
    }
  }
}

/* Copies the box; does nothing when it is empty. */
static inline void df_copy_box(const df_call *call, void *to, const int64_t *to_strides,
                               const void *from, const int64_t *from_strides, const int64_t *shape,
                               int32_t rank, int64_t item) {
  const int64_t elements = df_product(shape, 0, rank);
  if (elements == 0)
    return;
  df_box box;
  df_box_plan(&box, to, to_strides, from, from_strides, shape, rank, item);
  const int64_t tasks = df_min(box.units, df_task_count(call, elements * item, 4 * DF_GRAIN));
  df_parallel(call, df_box_task, &box, tasks);
}

#endif
