/* conv/outer.c: dw[f, (c, t)] = sum over positions p of x[c, p shifted by t] * dy[f, p].
 *
 * A product of matrices whose left one, a row per channel and tap, is never written out: x is split
 * by phases (conv/phase_layout.h), so that a row is an address. dy is transposed once per block of
 * positions: panels of DF_OUTER_COLUMNS filters, a line per position, which all channels and taps
 * then read. A tile (conv/outer_tile.h) keeps a block of dw in registers while the positions of the
 * block pass; what it reads comes from the second cache, some 13 bytes a cycle.
 *
 * Per position a filter is transposed once for channels * taps / (2 * DF_LANES) multiply-adds of
 * vectors, and a channel copied once for filters * taps / DF_LANES. A product of plain matrices
 * (taps of one element) is the same with x and dy exchanged: the one with fewer rows is
 * transposed. */
#include "conv/outer.h"
#include "conv/common.h"
#include "conv/outer_plan.h"
#include "conv/outer_tile.h"
#include "gemm/pack.h"

/* ---- Operands ------------------------------------------------------------------------------- */

typedef struct gradient {
  df_outer_plan p;
  float *dw;
  float *copies; /* of dw, one per split of the blocks but the first */
  const float *left, *right;
} gradient;

typedef struct task {
  const gradient *gradient;
  int64_t group, filter, filters, channel, channels;
  int64_t image, images, z, first, rows; /* the block */
  int32_t accumulate;                    /* it is not the first of the split */
  float *dw;                             /* of the group */
  float *sums, *right, *left;
  int32_t *shift;
} task;

/* Floats between two lines of panels of |filters|, the last of which may have one vector only. */
static int64_t panel_width(int64_t filters) {
  return filters > DF_LANES ? DF_OUTER_COLUMNS : DF_LANES;
}

static int64_t block_positions(const task *s) {
  return s->images * s->rows * s->gradient->p.conv.window.out[2];
}

static void transpose_right(const task *s) {
  const df_outer_plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t positions = s->rows * w->out[2];
  float *to = s->right;
  for (int64_t done = 0; done < s->filters; done += DF_OUTER_COLUMNS) {
    int64_t width = panel_width(s->filters - done);
    for (int64_t image = s->image; image < s->image + s->images; image++, to += positions * width)
      for (int64_t lane = 0; lane < width; lane += DF_LANES) {
        int64_t at =
            (image * p->conv.groups + s->group) * p->conv.filters + s->filter + done + lane;
        const float *from =
            s->gradient->right + ((at * w->out[0] + s->z) * w->out[1] + s->first) * w->out[2];
        int64_t count = df_min(DF_LANES, s->filters - done - lane);
        df_pack_transposed(to + lane, from, w->out_size, count, positions, width);
      }
  }
}

/* Planes of |channels|: [channel][tap of depth][image][plane], zeros for slices in the padding. */
static void copy_left_phases(const task *s, int64_t channel, int64_t channels) {
  const df_outer_plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t slice_floats = w->in[1] * w->in[2], floats = df_outer_plane(p, s->rows);
  for (int64_t c = 0; c < channels; c++)
    for (int64_t tap = 0; tap < w->kernel[0]; tap++) {
      float *to = s->left + (c * w->kernel[0] + tap) * p->pitch;
      int64_t slice = df_slice(w, 0, s->z, tap);
      for (int64_t image = s->image; image < s->image + s->images; image++, to += floats) {
        int64_t at = (image * p->conv.groups + s->group) * p->conv.channels + channel + c;
        if (slice < 0)
          memset(to, 0, (size_t)floats * sizeof(float));
        else
          DF_NAME(df_phase_copy)(to, s->gradient->left + (at * w->in[0] + slice) * slice_floats,
                                 &p->down, &p->across, s->first, s->rows + p->down.reach);
      }
    }
}

/* Where the rows of |channels| begin: the taps of a plane, and the same a pitch further. */
static void find_shifts(const task *s, int64_t channels) {
  const df_outer_plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t rows = s->rows + p->down.reach, taps = w->kernel[1] * w->kernel[2];
  for (int64_t tap = 0; tap < taps; tap++) {
    int64_t down_phase, down_shift, across_phase, across_shift;
    df_phase_layout_tap(&p->down, 0, tap / w->kernel[2], &down_phase, &down_shift);
    df_phase_layout_tap(&p->across, 0, tap % w->kernel[2], &across_phase, &across_shift);
    int64_t row = (down_phase * p->across.phases + across_phase) * rows + down_shift;
    s->shift[tap] = (int32_t)(row * p->span + across_shift);
  }
  for (int64_t i = taps; i < channels * w->taps; i++)
    s->shift[i] = s->shift[i - taps] + (int32_t)p->pitch;
}

/* ---- Products ------------------------------------------------------------------------------- */

/* to[j * pitch + i] (+)= sums[i][j] for |rows| and |columns|, by squares transposed in registers.
 */
static void add_transposed(const float *sums, int64_t rows, int64_t columns, float *to,
                           int64_t pitch, int32_t accumulate) {
  for (int64_t j = 0; j < columns; j += DF_LANES, to += DF_LANES * pitch) {
    df_vec square[DF_LANES];
    for (int i = 0; i < DF_LANES; i++)
      square[i] = i < rows ? vec_load(sums + i * DF_OUTER_COLUMNS + j) : vec_zero();
    vec_transpose(square);
    for (int i = 0; i < df_min(DF_LANES, columns - j); i++) {
      float *line = to + i * pitch;
      vec_store_partial(line, accumulate ? square[i] + vec_load_partial(line, rows) : square[i],
                        rows);
    }
  }
}

/* to[i * pitch + j] (+)= sums[i][j]. */
static void add_straight(const float *sums, int64_t rows, int64_t columns, float *to, int64_t pitch,
                         int32_t accumulate) {
  for (int64_t i = 0; i < rows; i++, sums += DF_OUTER_COLUMNS, to += pitch)
    for (int64_t j = 0; j < columns; j += DF_LANES) {
      int64_t count = df_min(DF_LANES, columns - j);
      df_vec sum = vec_load(sums + j);
      vec_store_partial(to + j, accumulate ? sum + vec_load_partial(to + j, count) : sum, count);
    }
}

/* Fetches |lines| of |floats| each, which are about to be written: they are far apart, and the
 * hardware does not foresee them. */
static void fetch_lines(const float *to, int64_t lines, int64_t floats, int64_t pitch) {
  for (int64_t i = 0; i < lines; i++, to += pitch) {
    for (int64_t j = 0; j < floats; j += 16)
      __builtin_prefetch(to + j, 1);
    __builtin_prefetch(to + floats - 1, 1);
  }
}

/* Adds the products of |channels|, which are copied, to dw. */
static void multiply(const task *s, int64_t channel, int64_t channels) {
  const df_outer_plan *p = &s->gradient->p;
  const df_window *w = &p->conv.window;
  int64_t rows = channels * w->taps, height = df_even_split(rows, DF_OUTER_ROWS);
  df_outer outer = {.left = s->left,
                    .images = s->images,
                    .image_pitch = df_outer_plane(p, s->rows),
                    .lines = s->rows,
                    .line_pitch = p->span,
                    .width = w->out[2]};
  if (p->span == w->out[2]) { /* rows that follow one another are one line */
    outer.width *= outer.lines;
    outer.lines = 1;
    if (outer.image_pitch == outer.width) {
      outer.width *= outer.images;
      outer.images = 1;
    }
  }
  for (int64_t row = 0; row < rows; row += height) {
    int64_t count = df_min(height, rows - row), k = channel * w->taps + row;
    outer.shift = s->shift + row;
    outer.right = s->right;
    for (int64_t done = 0; done < s->filters; done += DF_OUTER_COLUMNS) {
      int64_t width = panel_width(s->filters - done);
      int64_t columns = df_min(width, s->filters - done), filter = s->filter + done;
      df_outer_tile tile = DF_NAME(df_outer_tiles)[count - 1][width / DF_LANES - 1];
      if (p->exchanged) {
        float *to = s->dw + k * p->conv.filters + filter;
        fetch_lines(to, count, columns, p->conv.filters);
        tile(&outer, s->sums);
        add_straight(s->sums, count, columns, to, p->conv.filters, s->accumulate);
      } else {
        float *to = s->dw + filter * p->k + k;
        fetch_lines(to, columns, count, p->k);
        tile(&outer, s->sums);
        add_transposed(s->sums, count, columns, to, p->k, s->accumulate);
      }
      outer.right += block_positions(s) * width;
    }
  }
}

/* at: split of the blocks, group, split of the channels, split of the filters. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const gradient *g = context;
  const df_outer_plan *p = &g->p;
  const df_window *w = &p->conv.window;
  task s = {.gradient = g, .group = at[1], .sums = scratch};
  s.channel = at[2] * p->channels;
  s.channels = df_min(p->channels, p->conv.channels - s.channel);
  s.filter = at[3] * p->filters;
  s.filters = df_min(p->filters, p->conv.filters - s.filter);
  s.dw = (at[0] ? g->copies + (at[0] - 1) * p->total : g->dw) + s.group * p->conv.filters * p->k;
  s.right = s.sums + DF_OUTER_ROWS * DF_OUTER_COLUMNS;
  s.left = s.right + df_round_up(p->filters, DF_LANES) * p->images * p->band * w->out[2];
  s.shift = (int32_t *)(s.left + p->group * w->kernel[0] * p->pitch);
  int64_t begin, end;
  df_task_range(at[0], p->block_splits, p->blocks, 1, &begin, &end);
  for (int64_t block = begin; block < end; block++) {
    int64_t above = block / p->bands;
    s.first = block % p->bands * p->band;
    s.rows = df_min(p->band, w->out[1] - s.first);
    s.z = above % w->out[0];
    s.image = above / w->out[0] * p->images;
    s.images = df_min(p->images, p->conv.batch - s.image);
    s.accumulate = block > begin;
    transpose_right(&s);
    for (int64_t done = 0; done < s.channels; done += p->group) {
      int64_t channels = df_min(p->group, s.channels - done);
      find_shifts(&s, channels);
      copy_left_phases(&s, s.channel + done, channels);
      multiply(&s, s.channel + done, channels);
    }
  }
}

/* ---- All tasks ------------------------------------------------------------------------------ */

static int64_t copies_floats(const df_outer_plan *p) {
  return df_round_up((p->block_splits - 1) * p->total, 16);
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const df_outer_plan *p) {
  return (df_tasks){.axes = 4,
                    .size = {p->block_splits, p->conv.groups, p->channel_splits, p->filter_splits},
                    .scratch = p->scratch};
}

int64_t DF_NAME(df_outer_floats)(const df_conv *conv, int32_t threads) {
  const df_outer_plan p = DF_NAME(df_outer_make_plan)(conv, threads);
  const df_tasks tasks = grid_of(&p);
  return copies_floats(&p) + df_tasks_floats(&tasks, threads);
}

void DF_NAME(df_outer_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                           const float *dy) {
  gradient g = {
      .p = DF_NAME(df_outer_make_plan)(conv, call->threads), .dw = dw, .copies = call->workspace};
  const df_outer_plan *p = &g.p;
  if (p->blocks == 0) {
    memset(dw, 0, (size_t)p->total * sizeof(float));
    return;
  }
  g.left = p->exchanged ? dy : x;
  g.right = p->exchanged ? x : dy;
  df_tasks tasks = grid_of(p);
  tasks.run = run_task;
  tasks.context = &g;
  tasks.workspace = g.copies + copies_floats(p);
  DF_NAME(df_run_tasks)(call, &tasks);
  DF_NAME(df_add_copies)(call, dw, g.copies, p->block_splits - 1, p->total);
}
