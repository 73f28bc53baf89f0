/* map/run.h: applies an elementwise loop to strided inputs and a contiguous output.
 *
 * A kernel gives a df_rows function for |n| elements that lie one after another; an input's step is
 * 1, or 0 when one element serves all |n|. Whatever the strides of the inputs, this file reduces
 * them to that form: whole tensors when they are contiguous or scalar, rows when rows are long,
 * otherwise elements gathered into a buffer on the stack, by strips of rows where they lie across,
 * as those of a transposed tensor do.
 */
#ifndef DF_CPU_MAP_RUN_H
#define DF_CPU_MAP_RUN_H
#include "map/gather.h"
#include "map/walk.h"

/* out[i] = f(in[0][i * step[0]], in[1][i * step[1]], ...) for i < n; outputs are |n| elements one
 * after another. Each step is 0 or 1 and at least one of them is 1: that of a loop with one input,
 * which need not look at it. Who has nothing but single elements asks for n = 1, with steps of 1.
 * The loop must allow the output to be one of the inputs whose step is 1. */
typedef void (*df_rows)(void *out, const void *const *in, const int64_t *step, int64_t n,
                        const df_call *call);

enum {
  DF_SHORT_ROW = 48,     /* elements; calling a loop for shorter rows costs more than gathering */
  DF_GATHER_BYTES = 8192 /* per input, on the stack */
};

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

/* True when rows of an input lie across: its elements are dense along the axis before the last. */
static inline int df_walk_is_across(const df_walk *walk, int32_t input, int64_t item) {
  const int32_t inner = walk->rank - 1;
  DF_ASSUME(inner < DF_WALK_RANK);
  if (inner < 1)
    return 0;
  const int64_t stride = walk->strides[input][inner];
  return walk->strides[input][inner - 1] == 1 && stride != 0 && stride != 1 && item <= 8;
}

/* How the two below get at their inputs. */
typedef struct df_gathering {
  /* Of each input: whether it lies as the result does, is one element, or has rows across. */
  int flat[DF_WALK_INPUTS], scalar[DF_WALK_INPUTS], across[DF_WALK_INPUTS];
  int any_across;
  int64_t most; /* elements in a buffer */
} df_gathering;

static inline df_gathering df_gathering_of(const df_map *map) {
  DF_ASSUME(map->walk->rank > 0 && map->walk->rank <= DF_WALK_RANK);
  df_gathering g = {.any_across = 0};
  int64_t widest = 1;
  int32_t scalars = 0;
  for (int32_t i = 0; i < map->n_inputs; i++) {
    g.flat[i] = df_walk_is_flat(map->walk, i);
    g.scalar[i] = 1;
    for (int32_t axis = 0; axis < map->walk->rank; axis++)
      g.scalar[i] = g.scalar[i] && map->walk->strides[i][axis] == 0;
    scalars += g.scalar[i];
    g.across[i] = df_walk_is_across(map->walk, i, map->item[i]);
    g.any_across |= g.across[i];
    widest = df_max(widest, map->item[i]);
  }
  for (int32_t i = 0; scalars == map->n_inputs && i < map->n_inputs; i++)
    g.scalar[i] = 0; /* a loop wants a step of 1 */
  g.most = DF_GATHER_BYTES / widest;
  return g;
}

/* |n| elements of each of |rows| rows of an input, into rows |pitch| apart. */
static inline void df_gather_rows(const df_map *map, int32_t input, int across, char *to,
                                  int64_t pitch, const char *from, int64_t rows, int64_t n) {
  const df_walk *walk = map->walk;
  const int32_t inner = walk->rank - 1;
  const int64_t item = map->item[input], stride = walk->strides[input][inner];
  if (across) {
    for (int64_t r = 0; r < rows; r += DF_COPY_TILE)
      df_copy_strip(to + r * pitch * item, pitch, from + r * item, stride,
                    df_min(DF_COPY_TILE, rows - r), n, item);
    return;
  }
  for (int64_t r = 0; r < rows; r++)
    df_gather_row(to + r * pitch * item,
                  from + (inner ? r * walk->strides[input][inner - 1] * item : 0), stride, n, item);
}

/* How many elements to gather from where |cursor| is, at most |n|: where rows lie across, as many
 * strips of them as have room, so that the next begin where whole lines do. */
static inline int64_t df_gather_length(const df_walk *walk, const df_cursor *cursor, int64_t n) {
  const int32_t inner = walk->rank - 1;
  const int64_t width = walk->shape[inner], strip = DF_COPY_TILE * width;
  const int64_t at = cursor->at[inner - 1] * width + cursor->at[inner];
  const int64_t stop = at + n < walk->shape[inner - 1] * width ? (at + n) / strip * strip : 0;
  return stop > at ? stop - at : n;
}

static inline void df_map_by_gathering(const df_map *map, const df_gathering *g, int64_t begin,
                                       int64_t end) {
  const df_walk *walk = map->walk;
  int32_t inner = walk->rank - 1;
  DF_ASSUME(inner >= 0 && walk->inputs == map->n_inputs);
  _Alignas(64) char buffers[DF_WALK_INPUTS][DF_GATHER_BYTES];
  int64_t step[DF_WALK_INPUTS];
  for (int32_t i = 0; i < map->n_inputs; i++)
    step[i] = !g->scalar[i];
  const int64_t width = walk->shape[inner];
  df_cursor cursor;
  df_cursor_set(&cursor, walk, begin);
  while (begin < end) {
    int64_t n = df_min(end - begin, g->most);
    if (g->any_across)
      n = df_gather_length(walk, &cursor, n);
    for (int64_t done = 0; done < n;) {
      int64_t some = df_min(n - done, width - cursor.at[inner]), rows = 1;
      if (g->any_across && some == width)
        rows = df_min((n - done) / width, walk->shape[inner - 1] - cursor.at[inner - 1]);
      for (int32_t i = 0; i < map->n_inputs; i++)
        if (!g->flat[i] && !g->scalar[i])
          df_gather_rows(map, i, g->across[i], buffers[i] + done * map->item[i], width,
                         map->in[i] + cursor.offset[i] * map->item[i], rows, some);
      if (g->any_across && some == width)
        df_cursor_move(&cursor, walk, inner - 1, rows);
      else
        df_cursor_advance(&cursor, walk, some);
      done += rows * some;
    }
    const void *in[DF_WALK_INPUTS];
    for (int32_t i = 0; i < map->n_inputs; i++)
      in[i] = g->scalar[i] ? map->in[i]
              : g->flat[i] ? map->in[i] + begin * map->item[i]
                           : buffers[i];
    map->rows(map->out + begin * map->out_item, in, step, n, map->call);
    begin += n;
  }
}

/* Where a strip of rows that lie across is more than a buffer holds: by tiles of it, of which the
 * loop does each row by itself. Other inputs are read where they are if they can be. */
static inline void df_map_by_tiles(const df_map *map, const df_gathering *g, int64_t begin,
                                   int64_t end) {
  const df_walk *walk = map->walk;
  const int32_t inner = walk->rank - 1;
  DF_ASSUME(inner > 0 && walk->inputs == map->n_inputs);
  _Alignas(64) char buffers[DF_WALK_INPUTS][DF_GATHER_BYTES];
  const int64_t width = walk->shape[inner];
  const int64_t tiles = df_divide_up(width, g->most / DF_COPY_TILE);
  const int64_t tile = df_divide_up(df_divide_up(width, tiles), DF_COPY_TILE) * DF_COPY_TILE;
  df_cursor cursor;
  df_cursor_set(&cursor, walk, begin);
  while (begin < end) {
    const int64_t at = cursor.at[inner], some = df_min(end - begin, width - at);
    int64_t rows = 1;
    if (some == width)
      rows =
          df_min(df_min((end - begin) / width, DF_COPY_TILE - cursor.at[inner - 1] % DF_COPY_TILE),
                 walk->shape[inner - 1] - cursor.at[inner - 1]);
    for (int64_t first = 0; first < some; first += tile) {
      const int64_t n = df_min(tile, some - first);
      const char *from[DF_WALK_INPUTS];
      int64_t step[DF_WALK_INPUTS], apart[DF_WALK_INPUTS];
      for (int32_t i = 0; i < map->n_inputs; i++) {
        const int64_t stride = walk->strides[i][inner], item = map->item[i];
        from[i] = map->in[i] + (cursor.offset[i] + first * stride) * item;
        step[i] = stride;
        apart[i] = walk->strides[i][inner - 1] * item;
        if (stride == 0 || stride == 1)
          continue;
        df_gather_rows(map, i, g->across[i], buffers[i], tile, from[i], rows, n);
        from[i] = buffers[i];
        step[i] = 1;
        apart[i] = tile * item;
      }
      for (int64_t r = 0; r < rows; r++) {
        const void *in[DF_WALK_INPUTS];
        for (int32_t i = 0; i < map->n_inputs; i++)
          in[i] = from[i] + r * apart[i];
        map->rows(map->out + (begin + r * width + first) * map->out_item, in, step, n, map->call);
      }
    }
    if (some == width)
      df_cursor_move(&cursor, walk, inner - 1, rows);
    else
      df_cursor_advance(&cursor, walk, some);
    begin += rows * some;
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
  else {
    const df_gathering gathering = df_gathering_of(map);
    if (gathering.any_across &&
        map->walk->shape[map->walk->rank - 1] > gathering.most / DF_COPY_TILE)
      df_map_by_tiles(map, &gathering, begin, end);
    else
      df_map_by_gathering(map, &gathering, begin, end);
  }
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
