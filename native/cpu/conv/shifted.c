/* conv/shifted.c: a product with shifted reads of a phase-split source.
 *
 * The plain loop, for every output row and position q:
 *   out[row][q] = sum over channels c and taps t of weight[row][c][t] * source[c][q + shift(t)]
 *
 * A task is some rows of the output for some images, or for a band of one. It splits the source by
 * phases that it reads (one load and store per element), then for each panel of rows it copies the
 * weights in the order of tiles and runs the tiles over all positions, k in blocks. Positions run
 * through the rows of phases without a stop, so those in the last columns of a row are computed and
 * dropped. The sums lie in a buffer of the panel; from there each row goes out once. */
#include "conv/shifted.h"
#include "conv/common.h"
#include "conv/phase_layout.h"
#include "conv/tile.h"
#include "gemm/pack.h"

enum {
  K_BLOCK = 384,          /* a panel of weights stays in the first cache */
  PHASE_FLOATS = 1 << 17, /* 512 KiB of phases stay in the second cache */
  MOST_POSITIONS = 2048,  /* of a task: the buffer of a panel is 14 times that */
  GRAIN = 256 * 1024      /* multiply-adds of the smallest task worth a thread's while */
};

typedef struct plan {
  df_phase_layout down, across;
  int64_t span;                 /* floats of a row of a phase */
  int64_t depth;                /* slices of an output plane */
  int64_t band, bands;          /* rows of positions in a task, and how many bands */
  int64_t weight_rows, splits;  /* rows of the weight in a task, and how many tasks share them */
  int64_t images, image_splits; /* images in a task */
  int64_t plane;                /* floats of the phases of a plane */
  int64_t pitch;                /* floats of the buffer for one row and image */
  int64_t most_k;
  int64_t scratch; /* floats of a task's workspace */
  const df_shifted *a;
} plan;

/* Units of a split when |total| is split |count| times, all about equal. */
static int64_t split_of(int64_t total, int64_t count) {
  return df_divide_up(total, df_max(1, df_min(total, count)));
}

static int64_t plane_floats(const plan *p, int64_t rows) {
  return p->down.phases * p->across.phases * (rows + p->down.reach) * p->span;
}

static plan make_plan(const df_shifted *a, int32_t threads) {
  const df_window *w = &a->window;
  plan p = {.down = df_phase_layout_make(w, 1, a->backward),
            .across = df_phase_layout_make(w, 2, a->backward)};
  p.span = p.across.grid + p.across.reach;
  p.depth = a->backward ? w->in[0] : w->out[0];
  p.most_k = a->channels * w->taps;
  int64_t planes = a->channels * w->kernel[0];

  int64_t positions = p.depth * p.down.grid * p.across.grid;
  int64_t work = df_times(df_times(a->batch * a->groups * a->rows, positions), p.most_k);
  int64_t wanted = threads > 1 ? df_max(1, df_min(4 * (int64_t)threads, work / GRAIN)) : 1;

  /* Bands: as few as keep the phases and the buffer in the cache. */
  int64_t per_row = planes * p.down.phases * p.across.phases * p.span;
  int64_t most = df_min(MOST_POSITIONS / p.span, PHASE_FLOATS / df_max(1, per_row) - p.down.reach);
  p.band = split_of(p.down.grid, df_divide_up(p.down.grid, df_max(1, most)));
  p.bands = df_divide_up(p.down.grid, p.band);

  /* Images together while they are small and there are tasks enough: the weights are packed once
   * for them. */
  int64_t units = a->batch * a->groups * p.depth * p.bands;
  p.images = 1;
  if (p.bands == 1)
    p.images = df_max(1, df_min(df_min(MOST_POSITIONS / 2 / (p.band * p.span), units / wanted),
                                PHASE_FLOATS / df_max(1, planes * plane_floats(&p, p.band))));
  p.images = split_of(a->batch, df_divide_up(a->batch, p.images));
  p.image_splits = df_divide_up(a->batch, p.images);
  units = p.image_splits * a->groups * p.depth * p.bands;

  /* Too few tasks: split the rows of the weight, or the bands where there are few rows. */
  int64_t missing = df_divide_up(wanted, units);
  p.weight_rows = a->rows;
  if (missing > 1 && a->rows >= 2 * DF_SHIFT_ROWS) {
    p.weight_rows = split_of(a->rows, missing);
  } else if (missing > 1) {
    p.band = split_of(p.down.grid, p.bands * missing);
    p.bands = df_divide_up(p.down.grid, p.band);
  }
  p.splits = df_divide_up(a->rows, p.weight_rows);

  p.plane = plane_floats(&p, p.band);
  p.pitch = df_round_up(p.band * p.span, DF_LANES) + DF_SHIFT_COLUMNS;
  p.scratch = K_BLOCK * DF_SHIFT_ROWS + DF_LANES                         /* panel of weights */
              + df_round_up(p.most_k, 16) + 2 * df_round_up(w->taps, 16) /* shifts and terms */
              + DF_SHIFT_ROWS * p.images * p.pitch                       /* buffer */
              + p.images * planes * p.plane + p.span + DF_SHIFT_COLUMNS; /* phases and slack */
  p.scratch = df_round_up(p.scratch, 16);
  return p;
}

/* The tasks of a plan, but for what they do. */
static df_tasks grid_of(const df_shifted *shifted, const plan *p) {
  return (df_tasks){.context = p,
                    .axes = 5,
                    .size = {p->image_splits, shifted->groups, p->depth, p->bands, p->splits},
                    .scratch = p->scratch};
}

int64_t DF_NAME(df_shifted_workspace)(const df_shifted *shifted, int32_t threads) {
  const plan p = make_plan(shifted, threads);
  const df_tasks tasks = grid_of(shifted, &p);
  return df_tasks_floats(&tasks, threads) * (int64_t)sizeof(float);
}

/* ---- One task ------------------------------------------------------------------------------- */

/* What a task works on, and where in its workspace. */
typedef struct task {
  const df_shifted *a;
  const plan *p;
  int64_t group, z;
  int64_t image, images;
  int64_t first, rows;  /* band */
  int64_t from, to;     /* rows of the weight */
  int64_t slices;       /* of the source that z reads */
  int64_t terms;        /* taps that count for this class, in these slices */
  int64_t image_floats; /* phases of an image: channels * slices * plane */
  float *panel;
  int32_t *shift;       /* per k */
  int32_t *term_shift;  /* per term */
  int32_t *term_weight; /* per term: index of its tap in the weight */
  float *buffer;
  float *phases;
} task;

/* Splits the images of the task by phases: [image][channel][slice][plane]. */
static void copy_phases(task *s) {
  const df_shifted *a = s->a;
  const plan *p = s->p;
  const df_window *w = &a->window;
  int64_t depth = a->backward ? w->out[0] : w->in[0];
  int64_t plane = p->down.source * p->across.source;
  s->slices = 0;
  for (int64_t tap = 0; tap < w->kernel[0]; tap++)
    s->slices += df_slice(w, a->backward, s->z, tap) >= 0;
  s->image_floats = a->channels * s->slices * p->plane;
  float *to = s->phases;
  for (int64_t image = 0; image < s->images; image++)
    for (int64_t channel = 0; channel < a->channels; channel++) {
      int64_t at = (s->image + image) * a->groups + s->group;
      const float *from = a->source + (at * a->channels + channel) * depth * plane;
      for (int64_t tap = 0; tap < w->kernel[0]; tap++) {
        int64_t slice = df_slice(w, a->backward, s->z, tap);
        if (slice < 0)
          continue;
        DF_NAME(df_phase_copy)(to, from + slice * plane, &p->down, &p->across, s->first,
                               s->rows + p->down.reach);
        to += p->plane;
      }
    }
}

/* The taps of one class: their shifts and their indices in the weight. */
static void find_terms(task *s, int64_t down_class, int64_t across_class) {
  const df_shifted *a = s->a;
  const plan *p = s->p;
  const df_window *w = &a->window;
  int64_t rows = s->rows + p->down.reach, slice = 0, terms = 0;
  for (int64_t i = 0; i < w->kernel[0]; i++) {
    if (df_slice(w, a->backward, s->z, i) < 0)
      continue;
    for (int64_t j = 0; j < w->kernel[1]; j++)
      for (int64_t k = 0; k < w->kernel[2]; k++) {
        int64_t down_phase, down_shift, across_phase, across_shift;
        if (!df_phase_layout_tap(&p->down, down_class, j, &down_phase, &down_shift) ||
            !df_phase_layout_tap(&p->across, across_class, k, &across_phase, &across_shift))
          continue;
        int64_t phase = down_phase * p->across.phases + across_phase;
        s->term_shift[terms] =
            (int32_t)(slice * p->plane + (phase * rows + down_shift) * p->span + across_shift);
        s->term_weight[terms++] = (int32_t)((i * w->kernel[1] + j) * w->kernel[2] + k);
      }
    slice++;
  }
  s->terms = terms;
  for (int64_t channel = 0, k = 0; channel < a->channels; channel++)
    for (int64_t term = 0; term < terms; term++)
      s->shift[k++] = (int32_t)(channel * s->slices * p->plane) + s->term_shift[term];
}

/* panel[k * rows + i] = weight of output row |row| + i, k from |begin| to |end|. */
static void pack_panel(const task *s, int64_t row, int64_t rows, int64_t begin, int64_t end) {
  const df_shifted *a = s->a;
  const float *weight = a->weight + s->group * a->weight_group + row * a->weight_row;
  if (!a->backward && s->terms == a->window.taps) {
    df_pack_transposed(s->panel, weight + begin, a->weight_row, rows, end - begin, rows);
    return;
  }
  float *to = s->panel;
  int64_t channel = begin / df_max(1, s->terms), term = begin % df_max(1, s->terms);
  for (int64_t k = begin; k < end; k++) {
    const float *from = weight + channel * a->weight_channel + s->term_weight[term];
    for (int64_t i = 0; i < rows; i++)
      *to++ = from[i * a->weight_row];
    if (++term == s->terms) {
      term = 0;
      channel++;
    }
  }
}

/* out[i * step] = activate(in[i] + bias (+ add[i * step])) */
static void send_line(float *out, const float *add, int64_t step, const float *in, int64_t count,
                      float bias, float high) {
  if (step != 1) {
    for (int64_t i = 0; i < count; i++) {
      float value = in[i] + bias + (add ? add[i * step] : 0.0f);
      out[i * step] = df_activate(value, high);
    }
    return;
  }
  int64_t i = 0;
  for (; i + DF_LANES <= count; i += DF_LANES) {
    df_vec value = vec_load(in + i) + bias;
    if (add)
      value += vec_load(add + i);
    vec_store(out + i, vec_activate(value, high));
  }
  if (i < count) {
    df_vec value = vec_load_partial(in + i, count - i) + bias;
    if (add)
      value += vec_load_partial(add + i, count - i);
    vec_store_partial(out + i, vec_activate(value, high), count - i);
  }
}

/* One plane of sums from the buffer to its outputs. */
static void send_plane(const task *s, float *out, const float *in, int64_t down_class,
                       int64_t across_class, float bias) {
  const df_phase_layout *down = &s->p->down, *across = &s->p->across;
  int64_t top, bottom, left, right, span = s->p->span;
  df_phase_layout_targets(down, down_class, &top, &bottom);
  df_phase_layout_targets(across, across_class, &left, &right);
  top = df_max(top, s->first);
  bottom = df_min(bottom, s->first + s->rows);
  if (top >= bottom || left >= right)
    return;
  out += (top * down->target_step + down->target_start + down_class) * across->target +
         left * across->target_step + across->target_start + across_class;
  in += (top - s->first) * span + left;
  int64_t step = down->target_step * across->target;
  const float *add = s->a->add ? s->a->add + (out - s->a->out) : NULL;
  if (span == 1 && across->target == 1) {
    send_line(out, add, step, in, bottom - top, bias, s->a->high);
  } else if (span == right && left == 0 && step == span && across->target_step == 1) {
    send_line(out, add, 1, in, (bottom - top) * span, bias, s->a->high);
  } else {
    for (int64_t row = top; row < bottom; row++, out += step, in += span) {
      send_line(out, add, across->target_step, in, right - left, bias, s->a->high);
      add = add ? add + step : NULL;
    }
  }
}

/* All positions of a panel of |rows| rows of the weight. */
static void do_panel(const task *s, int64_t row, int64_t rows, int64_t down_class,
                     int64_t across_class) {
  const df_shifted *a = s->a;
  const plan *p = s->p;
  const df_shift_tiles *tiles = &DF_NAME(df_shift_tile_table)[rows - 1];
  int64_t k = a->channels * s->terms, width = tiles->vectors * DF_LANES;
  int64_t positions = (s->rows - 1) * p->span + p->across.grid;
  int64_t pitch = s->images * p->pitch;
  int64_t block = split_of(k, df_divide_up(k, K_BLOCK));
  for (int64_t begin = 0; begin < k || begin == 0; begin += df_max(1, block)) {
    int64_t end = df_min(k, begin + block);
    pack_panel(s, row, rows, begin, end);
    for (int64_t image = 0; image < s->images; image++)
      for (int64_t q = 0; q < positions; q += width)
        tiles->tile(end - begin, s->panel, s->phases + image * s->image_floats + q,
                    s->shift + begin, s->buffer + image * p->pitch + q, pitch, begin > 0);
  }
  int64_t slice = p->down.target * p->across.target;
  for (int64_t image = 0; image < s->images; image++)
    for (int64_t i = 0; i < rows; i++) {
      int64_t plane = ((s->image + image) * a->groups + s->group) * a->rows + row + i;
      float bias = a->bias ? a->bias[s->group * a->rows + row + i] : 0.0f;
      send_plane(s, a->out + (plane * p->depth + s->z) * slice,
                 s->buffer + i * pitch + image * p->pitch, down_class, across_class, bias);
    }
}

/* ---- All tasks ------------------------------------------------------------------------------ */

/* at: split of the images, group, slice, band, split of the rows of the weight. */
static void run_task(const void *context, const int64_t *at, float *scratch) {
  const plan *p = context;
  const df_shifted *a = p->a;
  task s = {.a = a, .p = p, .group = at[1], .z = at[2], .panel = scratch};
  s.image = at[0] * p->images;
  s.images = df_min(p->images, a->batch - s.image);
  s.first = at[3] * p->band;
  s.rows = df_min(p->band, p->down.grid - s.first);
  s.from = at[4] * p->weight_rows;
  s.to = df_min(a->rows, s.from + p->weight_rows);

  s.shift = (int32_t *)(s.panel + K_BLOCK * DF_SHIFT_ROWS + DF_LANES);
  s.term_shift = s.shift + df_round_up(p->most_k, 16);
  s.term_weight = s.term_shift + df_round_up(a->window.taps, 16);
  s.buffer = (float *)(s.term_weight + df_round_up(a->window.taps, 16));
  s.phases = s.buffer + DF_SHIFT_ROWS * p->images * p->pitch;

  copy_phases(&s);
  int64_t rows = split_of(s.to - s.from, df_divide_up(s.to - s.from, DF_SHIFT_ROWS));
  for (int64_t down = 0; down < p->down.classes; down++)
    for (int64_t across = 0; across < p->across.classes; across++) {
      find_terms(&s, down, across);
      for (int64_t row = s.from; row < s.to; row += rows)
        do_panel(&s, row, df_min(rows, s.to - row), down, across);
    }
}

void DF_NAME(df_shifted_run)(const df_call *call, const df_shifted *shifted) {
  plan p = make_plan(shifted, call->threads);
  p.a = shifted;
  df_tasks tasks = grid_of(shifted, &p);
  tasks.run = run_task;
  tasks.workspace = call->workspace;
  DF_NAME(df_run_tasks)(call, &tasks);
}
