/* conv/winograd.c: Winograd's convolution with 3x3 kernels.
 *
 * A square of outputs with the side s reads (s + 2) x (s + 2) inputs d and has the weights g:
 *   Y = A' [sum over channels of (G g G') . (B' d B)] A
 * so a channel costs (s + 2)^2 products instead of 9 s^2: 36 instead of 144 with s = 4, 16 instead
 * of 36 with s = 2 (conv/winograd_transform.h). Which one is taken follows from what they cost:
 * small planes waste less with the smaller squares, whose weights are fewer too. Results are at
 * most some three times as far from the exact ones as those of the plain sum
 * (conv/winograd_transform.c; tests hold all algorithms to one bound); who wants none of that
 * avoids the algorithm "winograd" (df.Algorithms).
 *
 * Squares of all images go in groups of as many as a tile has rows. For a few groups the
 * inputs are transformed; then for a panel of filters each position is a product of matrices,
 * during which the weights of the next position are fetched; then its sums are transformed and
 * stored.
 */
#include "conv/winograd.h"
#include "conv/common.h"
#include "conv/direct_tile.h"
#include "conv/winograd_transform.h"

enum {
  LEAST_CHANNELS = 16,
  MOST_CHANNELS = 2048,
  MOST_GROUPS = 4,       /* groups that share a pass over the weights */
  MOST_FLOATS = 5 << 16, /* of their inputs: 1.25 MiB stay in the second cache */
  BYTES_A_CYCLE = 4,     /* of weights, from far */
  SUMS = DF_WINOGRAD_POSITIONS * DF_DIRECT_ROWS * DF_DIRECT_FILTERS,
  PREPACK_CHANNELS = 16, /* whose weights are transposed in one task */
  PREPACK_CYCLES = 12,   /* for a vector of prepacked weights */
  LEAST_GAIN = 8,        /* larger weights in the workspace must save an eighth */
  GRAIN = 256 * 1024
};

static int64_t panels_of(const df_conv *conv) {
  return df_divide_up(conv->filters, DF_DIRECT_FILTERS);
}

static int64_t panel_width(const df_conv *conv, int64_t panel) {
  return conv->filters - panel * DF_DIRECT_FILTERS > DF_LANES ? DF_DIRECT_FILTERS : DF_LANES;
}

/* ---- Costs ---------------------------------------------------------------------------------- */

/* Of an image. */
static int64_t squares_of(const df_conv *conv, const df_winograd_form *form) {
  const df_window *w = &conv->window;
  return df_divide_up(w->out[1], form->side) * df_divide_up(w->out[2], form->side);
}

/* Floats of a position's inputs in a group of squares, odd lines apart; behind the last channel's
 * are others, which its transform overwrites. */
static int64_t input_floats(const df_conv *conv) { return (conv->channels + 1) * DF_LANES; }

/* The most groups whose inputs stay in the second cache. */
static int64_t most_together(const df_conv *conv, const df_winograd_form *form) {
  return df_min(MOST_GROUPS, df_max(1, MOST_FLOATS / (form->positions * input_floats(conv))));
}

/* Cycles of |squares| squares for |panels| panels: two vectors of products a cycle, the transforms
 * about as counted from their instructions; or the time in which the weights come, when that is
 * more: they pass once for all groups that are together. */
static int64_t cost_of(const df_conv *conv, const df_winograd_form *form, int64_t squares,
                       int64_t panels) {
  int64_t across = df_divide_up(conv->window.out[2], form->side);
  int64_t rows = df_divide_up(squares, df_min(across, DF_LANES - 1));
  int64_t products = form->positions * conv->channels * panels * squares;
  int64_t transforms =
      conv->channels * rows * 5 * form->positions + squares * panels * 8 * form->positions;
  int64_t bytes = 4 * form->positions * conv->channels * panels * DF_DIRECT_FILTERS;
  int64_t groups = df_divide_up(squares, DF_DIRECT_ROWS);
  int64_t passes = df_divide_up(groups, most_together(conv, form));
  return df_max(products + transforms, passes * bytes / BYTES_A_CYCLE);
}

/* Cycles of packing |elements| per filter and channel. */
static int64_t prepack_cost(const df_conv *conv, int64_t elements) {
  int64_t cycles = elements * conv->channels * panels_of(conv) * DF_DIRECT_FILTERS;
  return conv->uses ? cycles / DF_LANES * PREPACK_CYCLES : 0;
}

/* The cheapest form for the images that share the packing, or null where the plain sum is cheaper.
 */
static const df_winograd_form *form_of(const df_conv *conv) {
  int64_t panels = panels_of(conv), images = df_max(1, conv->uses);
  int64_t least =
      9 * conv->channels * panels * conv->window.out_size * images + prepack_cost(conv, 9);
  const df_winograd_form *best = NULL;
  for (int i = 0; i < DF_WINOGRAD_FORMS; i++) {
    const df_winograd_form *form = &DF_NAME(df_winograd_forms)[i];
    int64_t cost = cost_of(conv, form, images * squares_of(conv, form), panels) +
                   prepack_cost(conv, form->positions);
    if (cost + (conv->uses ? cost / LEAST_GAIN : 0) < least) {
      least = cost;
      best = form;
    }
  }
  return best;
}

int DF_NAME(df_winograd_takes)(const df_conv *conv) {
  const df_window *w = &conv->window;
  for (int i = 1; i < DF_AXES; i++)
    if (w->kernel[i] != 3 || w->stride[i] != 1 || w->dilation[i] != 1)
      return 0;
  return w->kernel[0] == 1 && w->in[0] == 1 && w->out[0] == 1 && conv->groups == 1 &&
         w->out_size > 0 && conv->channels >= LEAST_CHANNELS && conv->channels <= MOST_CHANNELS &&
         conv->filters >= DF_LANES && form_of(conv);
}

/* ---- Weights -------------------------------------------------------------------------------- */

/* Floats of a position of a panel: odd lines apart, so that positions go to different sets of the
 * cache while they are packed. */
static int64_t position_floats(const df_conv *conv, int64_t width) {
  return (conv->channels * width / DF_LANES | 1) * DF_LANES;
}

/* Where a panel begins; all panels: [panel][position][channel][lane]. */
static int64_t panel_floats(const df_conv *conv, const df_winograd_form *form, int64_t panel) {
  return panel * form->positions * position_floats(conv, DF_DIRECT_FILTERS);
}

static int64_t weight_floats(const df_conv *conv, const df_winograd_form *form) {
  int64_t last = panels_of(conv) - 1;
  return panel_floats(conv, form, last) +
         form->positions * position_floats(conv, panel_width(conv, last));
}

int64_t DF_NAME(df_winograd_prepack_bytes)(const df_conv *conv) {
  return weight_floats(conv, form_of(conv)) * (int64_t)sizeof(float);
}

/* A task is some channels of a panel. */
int64_t DF_NAME(df_winograd_prepack_tasks)(const df_conv *conv) {
  return panels_of(conv) * df_divide_up(conv->channels, PREPACK_CHANNELS);
}

void DF_NAME(df_winograd_prepack)(const df_conv *conv, const df_weight *weight, int64_t task,
                                  float *prepacked) {
  const df_winograd_form *form = form_of(conv);
  int64_t panels = panels_of(conv), panel = task % panels, width = panel_width(conv, panel);
  int64_t begin = task / panels * PREPACK_CHANNELS;
  int64_t end = df_min(conv->channels, begin + PREPACK_CHANNELS);
  float lines[PREPACK_CHANNELS * 9 * DF_LANES];
  prepacked += panel_floats(conv, form, panel);
  for (int64_t lane = 0; lane < width; lane += DF_LANES) {
    int64_t first = panel * DF_DIRECT_FILTERS + lane;
    df_filters filters = {0, first, df_min(DF_LANES, conv->filters - first), DF_LANES};
    DF_NAME(df_weight_lines)(lines, DF_LANES, conv, weight, &filters, begin * 9, end * 9);
    for (int64_t c = begin; c < end; c++)
      form->transform_weights(prepacked + c * width + lane, position_floats(conv, width),
                              lines + (c - begin) * 9 * DF_LANES);
  }
}

/* ---- Cutting -------------------------------------------------------------------------------- */

typedef struct plan {
  const df_winograd_form *form;
  int64_t across;                     /* squares in a row */
  int64_t squares;                    /* of an image */
  int64_t all;                        /* of all images */
  int64_t groups;                     /* of them, about equal */
  int64_t together;                   /* groups that share a pass over the weights */
  int64_t position;                   /* floats of a position's inputs in a group */
  int64_t group_splits, panel_splits; /* how many tasks share the groups, the panels */
  int64_t scratch;                    /* floats of a task's workspace */
  const df_direct *d;
} plan;

/* Splitting the groups transforms fewer inputs in a task, splitting the panels reads fewer weights.
 * Among those that take about the shortest time the most: they even out threads that are held up.
 */
static void split(plan *p, const df_conv *conv, int32_t threads) {
  int64_t panels = panels_of(conv);
  int64_t work = p->all * p->form->positions * conv->channels * conv->filters;
  int64_t most = threads > 1 ? df_max(1, df_min(4 * (int64_t)threads, work / GRAIN)) : 1;
  int64_t best = INT64_MAX, tasks = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t down = 1; down <= df_min(p->groups, most); down++)
      for (int64_t across = 1; across <= df_min(panels, most / down); across++) {
        int64_t squares = df_divide_up(p->all * df_divide_up(p->groups, down), p->groups);
        int64_t cost = df_divide_up(down * across, threads) *
                       cost_of(conv, p->form, squares, df_divide_up(panels, across));
        if (pass == 0) {
          best = df_min(best, cost);
        } else if (cost <= best + best / 32 && down * across > tasks) {
          tasks = down * across;
          p->group_splits = down;
          p->panel_splits = across;
        }
      }
}

static plan make_plan(const df_conv *conv, int32_t threads) {
  plan p = {.form = form_of(conv)};
  DF_ASSUME(p.form);
  p.across = df_divide_up(conv->window.out[2], p.form->side);
  p.squares = squares_of(conv, p.form);
  p.all = conv->batch * p.squares;
  p.groups = df_divide_up(p.all, DF_DIRECT_ROWS);
  p.position = input_floats(conv);
  split(&p, conv, threads);
  DF_ASSUME(p.group_splits > 0);
  int64_t groups = df_divide_up(p.groups, p.group_splits);
  p.together = df_divide_up(groups, df_divide_up(groups, most_together(conv, p.form)));
  p.scratch = p.together * (p.form->positions * p.position + SUMS);
  return p;
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const plan *p) {
  return (df_tasks){
      .context = p, .axes = 2, .size = {p->group_splits, p->panel_splits}, .scratch = p->scratch};
}

int64_t DF_NAME(df_winograd_workspace)(const df_conv *conv, int32_t threads) {
  const plan p = make_plan(conv, threads);
  const df_tasks tasks = grid_of(&p);
  return df_tasks_floats(&tasks, threads) * (int64_t)sizeof(float);
}

/* ---- Tasks ---------------------------------------------------------------------------------- */

/* What a task works on; the groups are those whose inputs are transformed. */
typedef struct task {
  const df_direct *d;
  const plan *p;
  int64_t group, groups;
  float *inputs;        /* [group][position][channel][lane] */
  float *sums;          /* [group][position][square][lane] */
  const int32_t *shift; /* per channel */
} task;

/* Some of the squares of a group, all in one image. */
typedef struct span {
  df_squares squares;
  int64_t image;
  int64_t index; /* of the first one in the group */
} span;

static int64_t square_count(const plan *p, int64_t group) {
  return p->all * (group + 1) / p->groups - p->all * group / p->groups;
}

/* The span of a group that follows |s|, whose image is -1 before the first; 0 at the end. */
static int next_span(span *s, const plan *p, const df_conv *conv, int64_t group) {
  int64_t count = square_count(p, group);
  s->index = s->image < 0 ? 0 : s->index + s->squares.count;
  if (s->index == count)
    return 0;
  int64_t at = p->all * group / p->groups + s->index;
  s->image = at / p->squares;
  s->squares =
      (df_squares){.window = &conv->window, .across = p->across, .square = at % p->squares};
  s->squares.count = df_min(count - s->index, p->squares - s->squares.square);
  return 1;
}

/* What the transform of a channel overwrites behind its squares is written after it. */
static void start_group(const task *s, int64_t group, float *inputs) {
  const df_conv *conv = &s->d->conv;
  span spans[DF_DIRECT_ROWS];
  int64_t count = 0;
  for (span span = {.image = -1}; next_span(&span, s->p, conv, group);)
    spans[count++] = span;
  for (int64_t c = 0; c < conv->channels; c++)
    for (int64_t i = 0; i < count; i++)
      s->p->form->transform_inputs(&spans[i].squares,
                                   s->d->source +
                                       (spans[i].image * conv->channels + c) * conv->window.in_size,
                                   inputs + c * DF_LANES + spans[i].index, s->p->position);
}

/* Stores the outputs of a group for a panel of filters. */
static void finish_group(const task *s, int64_t panel, int64_t group, const float *sums) {
  const df_conv *conv = &s->d->conv;
  int64_t width = panel_width(conv, panel), count = square_count(s->p, group);
  for (span span = {.image = -1}; next_span(&span, s->p, conv, group);)
    for (int64_t lane = 0; lane < width; lane += DF_LANES) {
      int64_t filter = panel * DF_DIRECT_FILTERS + lane;
      int64_t to = (span.image * conv->filters + filter) * conv->window.out_size;
      df_square_epilogue epilogue = {.out = s->d->out + to,
                                     .add = s->d->add ? s->d->add + to : NULL,
                                     .bias = s->d->bias ? s->d->bias + filter : NULL,
                                     .sums = sums + span.index * width + lane,
                                     .position = count * width,
                                     .row = width,
                                     .filters = df_min(DF_LANES, conv->filters - filter),
                                     .high = s->d->high};
      s->p->form->transform_sums(&span.squares, &epilogue);
    }
}

/* A panel of filters: position by position, so that its weights pass once for all groups. */
static void do_panel(const task *s, int64_t panel) {
  const df_conv *conv = &s->d->conv;
  const plan *p = s->p;
  int64_t width = panel_width(conv, panel), channels = conv->channels,
          positions = p->form->positions;
  int64_t line = position_floats(conv, width);
  DF_ASSUME(width >= DF_LANES);
  const float *weight = s->d->prepacked + panel_floats(conv, p->form, panel);
  for (int64_t position = 0; position < positions; position++, weight += line)
    for (int64_t g = 0; g < s->groups; g++) {
      int64_t rows = square_count(p, s->group + g);
      DF_ASSUME(rows > 0);
      df_ahead ahead = df_ahead_make(weight + line, line, channels, g, s->groups);
      df_direct_tile tile = DF_NAME(df_direct_tiles)[rows - 1][width / DF_LANES - 1];
      tile(channels, weight, s->inputs + (g * positions + position) * p->position, s->shift, ahead,
           s->sums + g * SUMS + position * rows * width);
    }
  for (int64_t g = 0; g < s->groups; g++)
    finish_group(s, panel, s->group + g, s->sums + g * SUMS);
}

/* at: split of the groups, split of the panels. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const plan *p = context;
  const df_conv *conv = &p->d->conv;
  int32_t shift[MOST_CHANNELS];
  for (int64_t c = 0; c < conv->channels; c++)
    shift[c] = (int32_t)(c * DF_LANES);
  task s = {.d = p->d, .p = p, .shift = shift, .inputs = scratch};
  s.sums = s.inputs + p->together * p->form->positions * p->position;
  int64_t last, panel_begin, panel_end;
  df_task_range(at[0], p->group_splits, p->groups, 1, &s.group, &last);
  df_task_range(at[1], p->panel_splits, panels_of(conv), 1, &panel_begin, &panel_end);
  for (; s.group < last; s.group += s.groups) {
    s.groups = df_min(p->together, last - s.group);
    for (int64_t g = 0; g < s.groups; g++)
      start_group(&s, s.group + g, s.inputs + g * p->form->positions * p->position);
    for (int64_t panel = panel_begin; panel < panel_end; panel++)
      do_panel(&s, panel);
  }
}

void DF_NAME(df_winograd_run)(const df_call *call, const df_direct *direct) {
  plan p = make_plan(&direct->conv, call->threads);
  p.d = direct;
  df_tasks tasks = grid_of(&p);
  tasks.run = run_task;
  tasks.workspace = call->workspace;
  DF_NAME(df_run_tasks)(call, &tasks);
}
