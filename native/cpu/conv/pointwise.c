/* conv/pointwise.c: out[f][q] = relu(bias[f] + sum over channels c of weight[f][c] * in[c][q]).
 *
 * The product of prepacked weights with planes: rows of the result are planes of the output, so
 * nothing is transposed. Strips of DF_TILE_COLUMNS positions are copied to the workspace, a line
 * per channel; then each panel of filters passes over all of them, so that it writes its few planes
 * from left to right, and stays in the first cache. For a few panels copying takes longer than it
 * saves: they read a strip as it lies. */
#include "conv/pointwise.h"
#include "conv/common.h"
#include "gemm/tile.h"
#include "simd/vector.h"

enum {
  K_BLOCK = 512,         /* a panel is 28 KiB with 14 rows */
  MOST_FLOATS = 1 << 17, /* of the strips of a pass: 512 KiB stay in the second cache */
  FEW_PANELS = 4,        /* read strips as they lie ... */
  ONE_SET = 512,         /* ... unless channels lie a multiple of so many floats apart */
  LEAST_STRIPS = 12,     /* below, too many lanes of the last strip are empty */
  GRAIN = 256 * 1024     /* multiply-adds of the smallest task worth a thread's while */
};

static int64_t block_of(int64_t k) { return df_divide_up(k, df_divide_up(k, K_BLOCK)); }

static int64_t panels_of(const df_conv *conv) { return df_divide_up(conv->filters, DF_TILE_ROWS); }

/* The first filter of a panel; panels are about equal. */
static int64_t first_of(const df_conv *conv, int64_t panel) {
  return conv->filters * panel / panels_of(conv);
}

static int64_t steps_of(const df_conv *conv) { return conv->channels * conv->window.taps; }

int DF_NAME(df_pointwise_can)(const df_conv *conv) {
  return steps_of(conv) > 0 && df_conv_is_plain(&conv->window) &&
         conv->window.in_size <= INT32_MAX / 2;
}

int DF_NAME(df_pointwise_takes)(const df_conv *conv) {
  return DF_NAME(df_pointwise_can)(conv) && conv->window.out_size >= LEAST_STRIPS * DF_TILE_COLUMNS;
}

/* Per group and block of k the panels, each of them k lines of DF_TILE_ROWS. */
static int64_t group_floats(const df_conv *conv) {
  return panels_of(conv) * DF_TILE_ROWS * steps_of(conv);
}

int64_t DF_NAME(df_pointwise_prepack_bytes)(const df_conv *conv) {
  return conv->groups * group_floats(conv) * (int64_t)sizeof(float);
}

int64_t DF_NAME(df_pointwise_prepack_tasks)(const df_conv *conv) {
  int64_t k = steps_of(conv);
  return conv->groups * df_divide_up(k, block_of(k)) * panels_of(conv);
}

void DF_NAME(df_pointwise_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                   float *prepacked) {
  int64_t k = steps_of(conv), block = block_of(k), panels = panels_of(conv);
  int64_t blocks = df_divide_up(k, block), panel = task % panels;
  int64_t begin = task / panels % blocks * block, end = df_min(k, begin + block);
  int64_t group = task / panels / blocks, first = first_of(conv, panel);
  df_filters filters = {group, first, first_of(conv, panel + 1) - first, DF_TILE_ROWS};
  prepacked += group * group_floats(conv) + (begin * panels + panel * (end - begin)) * DF_TILE_ROWS;
  DF_NAME(df_weight_lines)(prepacked, DF_TILE_ROWS, conv, weight, &filters, begin, end);
}

/* ---- Running -------------------------------------------------------------------------------- */

typedef struct plan {
  int64_t k, block;
  int64_t strips, splits; /* strips of a plane, and how many tasks share them */
  int64_t together;       /* strips of a pass */
  int64_t scratch;        /* floats of a task's workspace */
  int32_t as_it_lies;     /* whole strips are not copied */
  const df_direct *d;
} plan;

static plan make_plan(const df_conv *conv, int32_t threads) {
  plan p = {.k = steps_of(conv)};
  int64_t plane = conv->window.out_size, units = conv->batch * conv->groups;
  int64_t work = df_times(units * conv->filters * plane, p.k);
  int64_t wanted = threads > 1 ? df_max(1, df_min(4 * threads, work / GRAIN)) : 1;
  p.block = block_of(p.k);
  p.strips = df_divide_up(plane, DF_TILE_COLUMNS);
  p.splits = df_min(p.strips, df_divide_up(wanted, units));
  p.as_it_lies = panels_of(conv) <= FEW_PANELS && plane % ONE_SET != 0;
  int64_t strips = p.as_it_lies ? 1 : df_divide_up(p.strips, p.splits);
  int64_t most = df_max(1, MOST_FLOATS / (p.block * DF_TILE_COLUMNS));
  p.together = df_divide_up(strips, df_divide_up(strips, most));
  p.scratch = p.together * p.block * DF_TILE_COLUMNS;
  return p;
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const df_conv *conv, const plan *p) {
  return (df_tasks){.context = p,
                    .axes = 3,
                    .size = {conv->batch, conv->groups, p->splits},
                    .scratch = p->scratch};
}

int64_t DF_NAME(df_pointwise_workspace)(const df_conv *conv, int32_t threads) {
  const plan p = make_plan(conv, threads);
  const df_tasks tasks = grid_of(conv, &p);
  return df_tasks_floats(&tasks, threads) * (int64_t)sizeof(float);
}

/* What a task works on. */
typedef struct task {
  const df_direct *d;
  const plan *p;
  const float *source;    /* of the image and group */
  const float *prepacked; /* of the group */
  const float *bias;
  int64_t out;  /* where in the output the group begins */
  int64_t last; /* one past its strips */
  float *lines; /* [strip][k][position] */
} task;

/* Positions of a strip. */
static int64_t columns_of(const task *s, int64_t strip) {
  return df_min(DF_TILE_COLUMNS, s->d->conv.window.out_size - strip * DF_TILE_COLUMNS);
}

/* Lanes that a strip takes. */
static int64_t width_of(int64_t columns) { return columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES; }

/* lines[strip][p][j], channel by channel from left to right; what is beyond the plane is not read.
 */
static void copy_strips(const task *s, int64_t first, int64_t count, int64_t begin, int64_t end) {
  int64_t plane = s->d->conv.window.out_size, pitch = (end - begin) * DF_TILE_COLUMNS;
  for (int64_t p = begin; p < end; p++) {
    const float *source = s->source + p * plane + first * DF_TILE_COLUMNS;
    for (int64_t i = 0; i < count; i++, source += DF_TILE_COLUMNS) {
      int64_t columns = columns_of(s, first + i), width = width_of(columns);
      float *to = s->lines + i * pitch + (p - begin) * width;
      for (int64_t j = 0; j < width; j += DF_LANES) {
        if (columns - j >= DF_LANES)
          vec_store(to + j, vec_load(source + j));
        else
          vec_store(to + j, vec_load_partial(source + j, columns - j));
      }
    }
  }
}

static int is_copied(const task *s, int64_t strip) {
  return !s->p->as_it_lies || columns_of(s, strip) < DF_TILE_COLUMNS;
}

/* A panel of filters for some strips; while one is computed, the lines that the next one writes
 * are fetched. */
static void do_panel(const task *s, int64_t panel, int64_t first, int64_t count, int64_t begin,
                     int64_t end) {
  const df_direct *d = s->d;
  const df_conv *conv = &d->conv;
  int64_t plane = conv->window.out_size, k = end - begin;
  int64_t filter = first_of(conv, panel), rows = first_of(conv, panel + 1) - filter;
  const float *weight = s->prepacked + (begin * panels_of(conv) + panel * k) * DF_TILE_ROWS;
  for (int64_t i = 0; i < count; i++) {
    int64_t columns = columns_of(s, first + i);
    DF_ASSUME(rows > 0 && rows <= DF_TILE_ROWS && columns > 0);
    int64_t to = s->out + filter * plane + (first + i) * DF_TILE_COLUMNS;
    df_tile_epilogue epilogue = {.row_bias = begin == 0 && s->bias ? s->bias + filter : NULL,
                                 .add = begin == 0 && d->add ? d->add + to : NULL,
                                 .accumulate = begin > 0,
                                 .high = end == s->p->k ? d->high : 0.0f,
                                 .a_step = DF_TILE_ROWS};
    for (int64_t row = 0; row < rows && first + i + 1 < s->last; row++)
      for (int64_t j = 1; j <= DF_TILE_VECTORS; j++) {
        __builtin_prefetch(d->out + to + row * plane + DF_TILE_COLUMNS + j * DF_LANES - 1, 1);
        if (epilogue.add)
          __builtin_prefetch(epilogue.add + row * plane + DF_TILE_COLUMNS + j * DF_LANES - 1);
      }
    float *out = d->out + to;
    if (is_copied(s, first + i)) {
      df_tile tile = DF_NAME(df_tiles)[rows - 1][width_of(columns) / DF_LANES - 1];
      tile(k, weight, s->lines + i * k * DF_TILE_COLUMNS, out, plane, columns, &epilogue);
    } else {
      epilogue.b_step = plane;
      const float *lines = s->source + begin * plane + (first + i) * DF_TILE_COLUMNS;
      DF_NAME(df_strided_tiles)[rows - 1](k, weight, lines, out, plane, columns, &epilogue);
    }
  }
}

/* at: image, group, split of the strips. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const plan *p = context;
  const df_direct *d = p->d;
  const df_conv *conv = &d->conv;
  const df_window *w = &conv->window;
  const int64_t group = at[1], plane = at[0] * conv->groups + group;
  int64_t strip, last;
  df_task_range(at[2], p->splits, p->strips, 1, &strip, &last);
  task s = {.d = d,
            .p = p,
            .source = d->source + plane * conv->channels * w->in_size,
            .prepacked = d->prepacked + group * group_floats(conv),
            .bias = d->bias ? d->bias + group * conv->filters : NULL,
            .out = plane * conv->filters * w->out_size,
            .last = last,
            .lines = scratch};
  for (int64_t begin = 0; begin < p->k; begin += p->block) {
    int64_t end = df_min(p->k, begin + p->block);
    for (int64_t first = strip, some; first < last; first += some) {
      some = df_min(p->together, last - first);
      if (is_copied(&s, first))
        copy_strips(&s, first, some, begin, end);
      for (int64_t panel = 0; panel < panels_of(conv); panel++)
        do_panel(&s, panel, first, some, begin, end);
    }
  }
}

void DF_NAME(df_pointwise_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  plan p = make_plan(conv, call->threads);
  p.d = direct;
  df_tasks tasks = grid_of(conv, &p);
  tasks.run = run_task;
  tasks.workspace = call->workspace;
  DF_NAME(df_run_tasks)(call, &tasks);
}
