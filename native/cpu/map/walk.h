/* map/walk.h: applies an elementwise loop to strided inputs and a contiguous output.
 *
 * A kernel gives a df_rows function for |n| elements that lie one after another; an input's step is
 * 1, or 0 when one element serves all |n|. Whatever the strides of the inputs, this file reduces
 * them to that form: whole tensors when they are contiguous or scalar, rows when rows are long,
 * otherwise elements gathered into a buffer on the stack.
 */
#ifndef DF_CPU_MAP_WALK_H
#define DF_CPU_MAP_WALK_H
#include "cpu.h"

/* out[i] = f(in[0][i * step[0]], in[1][i * step[1]], ...) for i < n; outputs are |n| elements one
 * after another. Each step is 0 or 1 and at least one of them is 1: that of a loop with one input,
 * which need not look at it. Who has nothing but single elements asks for n = 1, with steps of 1.
 * The loop must allow the output to be one of the inputs whose step is 1. */
typedef void (*df_rows)(void *out, const void *const *in, const int64_t *step, int64_t n,
                        const df_call *call);

enum {
  /* Axes of size 1 are dropped, so more than these would be more elements than an address counts.
   */
  DF_WALK_RANK = 64,
  DF_WALK_INPUTS = 6,
  DF_SHORT_ROW = 48,     /* elements; calling a loop for shorter rows costs more than gathering */
  DF_GATHER_BYTES = 8192 /* per input, on the stack */
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

/* Moves |n| elements on, at most to the end of the row. */
static inline void df_cursor_advance(df_cursor *cursor, const df_walk *walk, int64_t n) {
  int32_t axis = walk->rank - 1;
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

/* to[0..n) = from[0], from[stride], ... */
static inline void df_gather_row(char *to, const char *from, int64_t stride, int64_t n,
                                 int64_t item) {
  if (stride == 1) { /* short rows of a larger tensor, as the heads of attention are */
    memcpy(to, from, (size_t)(n * item));
    return;
  }
#define DF_GATHER_TYPE(T)                                                                          \
  {                                                                                                \
    T *t = (T *)(void *)to;                                                                        \
    const T *f = (const T *)(const void *)from;                                                    \
    for (int64_t i = 0; i < n; i++)                                                                \
      t[i] = f[i * stride];                                                                        \
    break;                                                                                         \
  }
  switch (item) {
  case 1:
    DF_GATHER_TYPE(uint8_t)
  case 2:
    DF_GATHER_TYPE(uint16_t)
  case 4:
    DF_GATHER_TYPE(uint32_t)
  case 8:
    DF_GATHER_TYPE(uint64_t)
  default:
    DF_ASSUME(item > 0);
    for (int64_t i = 0; i < n; i++)
      memcpy(to + i * item, from + i * stride * item, (size_t)item);
  }
#undef DF_GATHER_TYPE
}

/* ---- Running a loop ------------------------------------------------------------------------- */

typedef struct df_map {
  df_rows rows;
  const df_call *call;
  const df_walk *walk; /* null: all inputs are contiguous or scalar */
  int64_t count;
  char *out;
  const char *in[DF_WALK_INPUTS];
  int64_t step[DF_WALK_INPUTS]; /* without a walk */
  int64_t item[DF_WALK_INPUTS];
  int64_t out_item;
  int32_t n_inputs;
} df_map;

static inline void df_map_flat(const df_map *map, int64_t begin, int64_t end) {
  const void *in[DF_WALK_INPUTS];
  for (int32_t i = 0; i < map->n_inputs; i++)
    in[i] = map->in[i] + begin * map->step[i] * map->item[i];
  map->rows(map->out + begin * map->out_item, in, map->step, end - begin, map->call);
}

static inline void df_map_by_rows(const df_map *map, int64_t begin, int64_t end) {
  const df_walk *walk = map->walk;
  int32_t inner = walk->rank - 1;
  DF_ASSUME(inner >= 0 && walk->inputs == map->n_inputs);
  df_cursor cursor;
  df_cursor_set(&cursor, walk, begin);
  int64_t step[DF_WALK_INPUTS];
  for (int32_t i = 0; i < map->n_inputs; i++)
    step[i] = walk->strides[i][inner];
  while (begin < end) {
    int64_t n = df_min(end - begin, walk->shape[inner] - cursor.at[inner]);
    const void *in[DF_WALK_INPUTS];
    for (int32_t i = 0; i < map->n_inputs; i++)
      in[i] = map->in[i] + cursor.offset[i] * map->item[i];
    map->rows(map->out + begin * map->out_item, in, step, n, map->call);
    df_cursor_advance(&cursor, walk, n);
    begin += n;
  }
}

static inline int df_walk_is_flat(const df_walk *walk, int32_t input) {
  int64_t expected = 1;
  for (int32_t axis = walk->rank - 1; axis >= 0; axis--) {
    if (walk->strides[input][axis] != expected)
      return 0;
    expected *= walk->shape[axis];
  }
  return 1;
}

static inline void df_map_by_gathering(const df_map *map, int64_t begin, int64_t end) {
  const df_walk *walk = map->walk;
  int32_t inner = walk->rank - 1;
  DF_ASSUME(inner >= 0 && walk->inputs == map->n_inputs);
  _Alignas(64) char buffers[DF_WALK_INPUTS][DF_GATHER_BYTES];
  const int64_t step[DF_WALK_INPUTS] = {1, 1, 1, 1, 1, 1};
  int flat[DF_WALK_INPUTS];
  int64_t widest = 1;
  for (int32_t i = 0; i < map->n_inputs; i++) {
    flat[i] = df_walk_is_flat(walk, i);
    widest = df_max(widest, map->item[i]);
  }
  df_cursor cursor;
  df_cursor_set(&cursor, walk, begin);
  while (begin < end) {
    int64_t n = df_min(end - begin, DF_GATHER_BYTES / widest);
    for (int64_t done = 0; done < n;) {
      int64_t some = df_min(n - done, walk->shape[inner] - cursor.at[inner]);
      for (int32_t i = 0; i < map->n_inputs; i++)
        if (!flat[i])
          df_gather_row(buffers[i] + done * map->item[i],
                        map->in[i] + cursor.offset[i] * map->item[i], walk->strides[i][inner], some,
                        map->item[i]);
      df_cursor_advance(&cursor, walk, some);
      done += some;
    }
    const void *in[DF_WALK_INPUTS];
    for (int32_t i = 0; i < map->n_inputs; i++)
      in[i] = flat[i] ? map->in[i] + begin * map->item[i] : buffers[i];
    map->rows(map->out + begin * map->out_item, in, step, n, map->call);
    begin += n;
  }
}

/* True when rows can go to the loop as they lie. */
static inline int df_rows_fit(const df_walk *walk, int scalars) {
  int32_t inner = walk->rank - 1;
  int any = 0;
  for (int32_t i = 0; i < walk->inputs; i++) {
    int64_t stride = walk->strides[i][inner];
    if (stride != 1 && !(stride == 0 && scalars))
      return 0;
    any |= stride == 1;
  }
  return any && (walk->rank == 1 || walk->shape[inner] >= DF_SHORT_ROW);
}

/* Elements [begin, end) of the result. */
static inline void df_map_range(const df_map *map, int64_t begin, int64_t end) {
  if (!map->walk)
    df_map_flat(map, begin, end);
  else if (df_rows_fit(map->walk, map->n_inputs > 1))
    df_map_by_rows(map, begin, end);
  else
    df_map_by_gathering(map, begin, end);
}

static void df_map_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const df_map *map = context;
  int64_t begin, end;
  df_task_range(index, count, map->count, 64, &begin, &end);
  df_map_range(map, begin, end);
}

/* True when |x| has the elements of |out| in the same order without gaps. */
static inline int df_is_flat(const df_tensor *x, int64_t count) {
  return df_contiguous(x) && df_elements(x) == count;
}

/* A map over |shape|, for which |walk| has room. */
static inline df_map df_map_make(const df_call *call, int32_t n_inputs, df_rows rows,
                                 const int64_t *shape, int32_t rank, df_walk *walk) {
  df_map map = {.rows = rows,
                .call = call,
                .count = df_product(shape, 0, rank),
                .out = call->outputs[0]->data,
                .out_item = df_item_bytes(call->outputs[0]->dtype),
                .n_inputs = n_inputs};
  int flat = 1, any = 0;
  for (int32_t i = 0; i < n_inputs; i++) {
    const df_tensor *x = call->inputs[i];
    map.in[i] = x->data;
    map.item[i] = df_item_bytes(x->dtype);
    map.step[i] = df_is_flat(x, map.count);
    any |= map.step[i] == 1;
    flat = flat && (map.step[i] || (n_inputs > 1 && df_elements(x) == 1));
  }
  if (!(flat && any)) {
    df_walk_plan(walk, shape, rank, call->inputs, n_inputs);
    map.walk = walk;
  }
  return map;
}

/* The general case of df_map_run: large or strided. */
static __attribute__((noinline)) df_status df_map_any(const df_call *call, int32_t n_inputs,
                                                      df_rows rows, int64_t count) {
  const df_tensor *out = call->outputs[0];
  df_walk walk;
  df_map map = df_map_make(call, n_inputs, rows, out->shape, out->rank, &walk);
  df_parallel(call, df_map_task, &map, df_task_count(call, count, DF_GRAIN / 2));
  return DF_OK;
}

/* out = rows(inputs[0..n_inputs)); the short cut keeps calls on a few elements cheap. */
static inline df_status df_map_run(const df_call *call, int32_t n_inputs, df_rows rows) {
  int64_t count = df_elements(call->outputs[0]);
  if (count < DF_GRAIN) {
    const void *in[DF_WALK_INPUTS];
    const int64_t step[DF_WALK_INPUTS] = {1, 1, 1, 1, 1, 1};
    int flat = 1;
    for (int32_t i = 0; i < n_inputs; i++) {
      in[i] = call->inputs[i]->data;
      flat = flat && df_is_flat(call->inputs[i], count);
    }
    if (flat) {
      rows(call->outputs[0]->data, in, step, count, call);
      return DF_OK;
    }
    if (count == 0)
      return DF_OK;
  }
  return df_map_any(call, n_inputs, rows, count);
}

/* Loops on floats without parameters, by the number of their op in programs (DF_STEP_abs, ...); the
 * last has none. */
typedef struct df_step_rows {
  int64_t code;
  int32_t arity;
  df_rows rows;
} df_step_rows;

extern const df_step_rows DF_NAME(df_arithmetic_steps)[];
extern const df_step_rows DF_NAME(df_activation_steps)[];

#endif
