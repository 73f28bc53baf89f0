/* conv_outer.c: dw[f, (c, t)] = sum over positions p of x[c, p shifted by t] * dy[f, p].
 *
 * A product of matrices whose left one, a row per channel and tap, is never written out: x is
 * spread (conv_lattice.h), so that a row is an address. dy is turned once per block of positions:
 * panels of DF_OUTER_COLUMNS filters, a line per position, which all channels and taps then read.
 * A tile (conv_outer_tile.h) keeps a block of dw in registers while the positions of the block
 * pass; its rows of x stay in the first cache, the panels in the second.
 *
 * Per position a filter is turned once for channels * taps / (2 * DF_LANES) multiply-adds of
 * vectors, and a channel spread once for filters * taps / DF_LANES. A product of plain matrices
 * (taps of one element) is the same with x and dy in each other's place: the one with fewer rows is
 * turned. */
#include "conv_outer.h"
#include "conv_lattice.h"
#include "conv_outer_tile.h"
#include "pack.h"

enum {
  TILE_FLOATS = 1 << 15,   /* rows of a tile: 128 KiB; they come from the second cache in time */
  PANEL_FLOATS = 1 << 18,  /* turned filters: 1 MiB of the second cache */
  SPREAD_FLOATS = 1 << 16, /* channels spread at a time */
  MOST_FILTERS = 512,      /* turned at a time */
  COPY_FLOATS = 1 << 18,   /* of all copies of dw */
  GRAIN = 256 * 1024,      /* multiply-adds of the smallest piece worth a thread's while */
};

/* How often over a position may cost what its multiply-adds would with all lanes full, before dot
 * products are faster. As measured; their tiles are smaller with fewer registers, and wait less for
 * the caches. */
#define EMPTY (DF_LANES == 16 ? 1.9 : 1.25)

typedef struct plan {
  df_conv conv; /* of the product: the roles of x and dy may be exchanged */
  int32_t exchanged;
  df_lattice down, across;
  int64_t span;  /* floats of a spread row */
  int64_t k;     /* rows of the left: channels * taps */
  int64_t total; /* floats of dw */
  /* Blocks of positions: some images, or a band of rows of one. */
  int64_t images, image_blocks;
  int64_t band, bands;
  int64_t blocks;
  int64_t plane; /* floats of a spread plane of one image */
  int64_t pitch; /* of all images; an odd number of cache lines, so that rows don't collide */
  int64_t group; /* channels spread at a time */
  /* Pieces. */
  int64_t parts; /* of the blocks; all but the first sum into copies of dw */
  int64_t channels, channel_parts;
  int64_t filters, filter_parts;
  int64_t scratch; /* floats of a piece's workspace */
} plan;

static int64_t round_up(int64_t a, int64_t b) { return df_divide_up(a, b) * b; }

/* Size of the parts when |total| is cut into |count| parts, all about equal. */
static int64_t part_of(int64_t total, int64_t count) {
  return df_divide_up(total, df_max(1, df_min(total, count)));
}

/* Size of equal parts of |total| of at most |most|. */
static int64_t even_part(int64_t total, int64_t most) {
  return part_of(total, df_divide_up(total, df_max(1, most)));
}

/* ---- Cost -------------------------------------------------------------------------------------
 */

/* Cycles of a position, about: multiply-adds of vectors, of which loads are the limit where a panel
 * has one vector; turning; and spreading |spread| elements of each channel. */
static double position_cycles(int64_t channels, int64_t taps, int64_t filters, double spread) {
  int64_t lanes = round_up(filters, DF_LANES);
  double per_vector = lanes > DF_LANES ? 0.5 : 0.65;
  return (double)(channels * taps * lanes) / DF_LANES * per_vector + 0.4 * (double)lanes +
         0.2 * spread * (double)channels;
}

/* Whether dy is spread and x turned. */
static int is_exchanged(const df_conv *conv) {
  return df_conv_is_plain(&conv->window) &&
         position_cycles(conv->filters, 1, conv->channels, 1.0) <
             position_cycles(conv->channels, 1, conv->filters, 1.0);
}

int DF_NAME(df_outer_takes)(const df_conv *conv) {
  int exchanged = is_exchanged(conv);
  int64_t taps = conv->window.taps;
  double cycles = exchanged ? position_cycles(conv->filters, taps, conv->channels, 1.0)
                            : position_cycles(conv->channels, taps, conv->filters, 1.0);
  return cycles * 2 * DF_LANES < EMPTY * (double)(conv->filters * conv->channels * taps);
}

/* ---- Cutting ----------------------------------------------------------------------------------
 */

static int64_t plane_floats(const plan *p, int64_t rows) {
  return p->down.phases * p->across.phases * (rows + p->down.reach) * p->span;
}

/* Blocks of positions and groups of channels that fit the caches, for pieces of p->filters. */
static void cut_blocks(plan *p) {
  const df_window *w = &p->conv.window;
  /* The rows of a tile, one after the other by channels and taps, read so many planes. */
  int64_t touched = df_min(p->conv.channels, (DF_OUTER_ROWS - 2) / w->taps + 2);
  touched = df_min(DF_OUTER_ROWS, touched * p->down.phases * p->across.phases);
  int64_t tile_floats = TILE_FLOATS / df_max(1, touched * p->span);
  int64_t panel_floats = PANEL_FLOATS / df_max(1, p->filters * w->out[2]);
  p->band = even_part(w->out[1], df_min(tile_floats - p->down.reach, panel_floats));
  p->bands = df_divide_up(w->out[1], df_max(1, p->band));
  p->plane = plane_floats(p, p->band);
  p->images = 1;
  if (p->bands == 1)
    p->images = even_part(p->conv.batch, df_min(tile_floats / df_max(1, p->band + p->down.reach),
                                                panel_floats / df_max(1, p->band)));
  p->image_blocks = df_divide_up(p->conv.batch, df_max(1, p->images));
  p->blocks = p->image_blocks * w->out[0] * p->bands;
  p->pitch = (df_divide_up(p->images * p->plane, 16) | 1) * 16;
  p->group = even_part(p->channels, SPREAD_FLOATS / (p->pitch * w->kernel[0]));
}

/* Cycles of the busiest thread, about. */
static double cut_cycles(const plan *p, int32_t threads) {
  const df_window *w = &p->conv.window;
  int64_t positions = df_divide_up(p->blocks, p->parts) * p->images * p->band * w->out[2];
  double spread = (double)(w->kernel[0] * p->plane) / (double)df_max(1, p->band * w->out[2]);
  int64_t pieces = p->parts * p->channel_parts * p->filter_parts * p->conv.groups;
  return (double)df_divide_up(pieces, threads) * (double)positions *
             position_cycles(p->channels, w->taps, p->filters, spread) +
         (double)(p->parts - 1) * (double)p->total;
}

static void cut_pieces(plan *p, int32_t threads) {
  const df_conv *conv = &p->conv;
  int64_t work = p->total * conv->batch * conv->window.out_size;
  int64_t wanted = threads > 1 ? df_max(1, df_min(2 * (int64_t)threads, work / GRAIN)) : 1;
  int64_t least = df_divide_up(conv->filters, MOST_FILTERS);
  p->parts = 1;
  plan best = *p;
  double cost = -1.0;
  for (int64_t filter_parts = least; filter_parts <= least * wanted; filter_parts *= 2) {
    p->filters = round_up(part_of(conv->filters, filter_parts), DF_LANES);
    p->filters = df_min(conv->filters, p->filters);
    p->filter_parts = df_divide_up(conv->filters, df_max(1, p->filters));
    for (int64_t channel_parts = 1; channel_parts <= wanted; channel_parts *= 2) {
      p->channels = part_of(conv->channels, channel_parts);
      p->channel_parts = df_divide_up(conv->channels, df_max(1, p->channels));
      cut_blocks(p);
      for (p->parts = 1; p->parts <= df_min(wanted, p->blocks); p->parts++) {
        if (p->parts > 1 && (p->parts - 1) * p->total > COPY_FLOATS)
          break;
        double this = cut_cycles(p, threads);
        if (cost < 0.0 || this < cost) {
          cost = this;
          best = *p;
        }
      }
    }
  }
  *p = best;
}

static plan make_plan(const df_conv *conv, int32_t threads) {
  plan p = {.conv = *conv};
  df_window *w = &p.conv.window;
  if (df_conv_is_plain(w)) {
    /* One axis of positions. */
    *w = (df_window){.in = {1, w->in_size, 1},
                     .out = {1, w->out_size, 1},
                     .kernel = {1, 1, 1},
                     .stride = {1, 1, 1},
                     .dilation = {1, 1, 1},
                     .in_size = w->in_size,
                     .out_size = w->out_size,
                     .taps = 1};
    p.exchanged = is_exchanged(conv);
    if (p.exchanged) {
      p.conv.filters = conv->channels;
      p.conv.channels = conv->filters;
    }
  }
  p.down = df_lattice_make(w, 1, 0);
  p.across = df_lattice_make(w, 2, 0);
  p.span = p.across.grid + p.across.reach;
  p.k = p.conv.channels * w->taps;
  p.total = conv->groups * conv->filters * conv->channels * w->taps;
  cut_pieces(&p, threads);
  p.scratch = DF_OUTER_ROWS * DF_OUTER_COLUMNS +
              round_up(p.filters, DF_LANES) * p.images * p.band * w->out[2] +
              p.group * w->kernel[0] * p.pitch + p.group * w->taps;
  p.scratch = round_up(p.scratch, 16);
  return p;
}

/* ---- One piece --------------------------------------------------------------------------------
 */

typedef struct job {
  plan p;
  float *dw;
  float *copies; /* of dw, one per part but the first */
  const float *left, *right;
  float *workspace;
} job;

typedef struct piece {
  const job *job;
  int64_t group, filter, filters, channel, channels;
  int64_t image, images, z, first, rows; /* the block */
  int32_t accumulate;                    /* it is not the first of the part */
  float *dw;                             /* of the group */
  float *sums, *right, *left;
  int32_t *shift;
} piece;

/* Floats between two lines of panels of |filters|, the last of which may have one vector only. */
static int64_t panel_width(int64_t filters) {
  return filters > DF_LANES ? DF_OUTER_COLUMNS : DF_LANES;
}

static int64_t block_positions(const piece *s) {
  return s->images * s->rows * s->job->p.conv.window.out[2];
}

static void turn_right(const piece *s) {
  const plan *p = &s->job->p;
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
            s->job->right + ((at * w->out[0] + s->z) * w->out[1] + s->first) * w->out[2];
        int64_t count = df_min(DF_LANES, s->filters - done - lane);
        df_pack_turned(to + lane, from, w->out_size, count, positions, width);
      }
  }
}

/* Planes of |channels|: [channel][tap of depth][image][plane], zeros for slices in the padding. */
static void spread_left(const piece *s, int64_t channel, int64_t channels) {
  const plan *p = &s->job->p;
  const df_window *w = &p->conv.window;
  int64_t slice_floats = w->in[1] * w->in[2], floats = plane_floats(p, s->rows);
  for (int64_t c = 0; c < channels; c++)
    for (int64_t tap = 0; tap < w->kernel[0]; tap++) {
      float *to = s->left + (c * w->kernel[0] + tap) * p->pitch;
      int64_t slice = df_slice(w, 0, s->z, tap);
      for (int64_t image = s->image; image < s->image + s->images; image++, to += floats) {
        int64_t at = (image * p->conv.groups + s->group) * p->conv.channels + channel + c;
        if (slice < 0)
          memset(to, 0, (size_t)floats * sizeof(float));
        else
          DF_NAME(df_spread)(to, s->job->left + (at * w->in[0] + slice) * slice_floats, &p->down,
                             &p->across, s->first, s->rows + p->down.reach);
      }
    }
}

/* Where the rows of |channels| begin: the taps of a plane, and the same a pitch further. */
static void find_shifts(const piece *s, int64_t channels) {
  const plan *p = &s->job->p;
  const df_window *w = &p->conv.window;
  int64_t rows = s->rows + p->down.reach, taps = w->kernel[1] * w->kernel[2];
  for (int64_t tap = 0; tap < taps; tap++) {
    int64_t down_phase, down_shift, across_phase, across_shift;
    df_lattice_tap(&p->down, 0, tap / w->kernel[2], &down_phase, &down_shift);
    df_lattice_tap(&p->across, 0, tap % w->kernel[2], &across_phase, &across_shift);
    int64_t row = (down_phase * p->across.phases + across_phase) * rows + down_shift;
    s->shift[tap] = (int32_t)(row * p->span + across_shift);
  }
  for (int64_t i = taps; i < channels * w->taps; i++)
    s->shift[i] = s->shift[i - taps] + (int32_t)p->pitch;
}

/* to[j * pitch + i] (+)= sums[i][j] for |rows| and |columns|, by squares turned in registers. */
static void add_turned(const float *sums, int64_t rows, int64_t columns, float *to, int64_t pitch,
                       int32_t accumulate) {
  for (int64_t j = 0; j < columns; j += DF_LANES, to += DF_LANES * pitch) {
    df_vec square[DF_LANES];
    for (int i = 0; i < DF_LANES; i++)
      square[i] = i < rows ? vec_load(sums + i * DF_OUTER_COLUMNS + j) : vec_zero();
    vec_transpose(square);
    for (int i = 0; i < df_min(DF_LANES, columns - j); i++) {
      float *line = to + i * pitch;
      vec_store_part(line, accumulate ? square[i] + vec_load_part(line, rows) : square[i], rows);
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
      vec_store_part(to + j, accumulate ? sum + vec_load_part(to + j, count) : sum, count);
    }
}

/* Adds the products of |channels|, which are spread, to dw. */
static void multiply(const piece *s, int64_t channel, int64_t channels) {
  const plan *p = &s->job->p;
  const df_window *w = &p->conv.window;
  int64_t rows = channels * w->taps, height = even_part(rows, DF_OUTER_ROWS);
  df_outer outer = {.left = s->left,
                    .images = s->images,
                    .image_pitch = plane_floats(p, s->rows),
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
      DF_NAME(df_outer_tiles)[count - 1][width / DF_LANES - 1](&outer, s->sums);
      if (p->exchanged)
        add_straight(s->sums, count, columns, s->dw + k * p->conv.filters + filter, p->conv.filters,
                     s->accumulate);
      else
        add_turned(s->sums, count, columns, s->dw + filter * p->k + k, p->k, s->accumulate);
      outer.right += block_positions(s) * width;
    }
  }
}

static void run_piece(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const job *job = context;
  const plan *p = &job->p;
  const df_window *w = &p->conv.window;
  piece s = {.job = job};
  s.filter = index % p->filter_parts * p->filters;
  s.filters = df_min(p->filters, p->conv.filters - s.filter);
  index /= p->filter_parts;
  s.channel = index % p->channel_parts * p->channels;
  s.channels = df_min(p->channels, p->conv.channels - s.channel);
  index /= p->channel_parts;
  s.group = index % p->conv.groups;
  int64_t part = index / p->conv.groups;
  s.dw = (part ? job->copies + (part - 1) * p->total : job->dw) + s.group * p->conv.filters * p->k;
  s.sums = job->workspace + worker * p->scratch;
  s.right = s.sums + DF_OUTER_ROWS * DF_OUTER_COLUMNS;
  s.left = s.right + round_up(p->filters, DF_LANES) * p->images * p->band * w->out[2];
  s.shift = (int32_t *)(s.left + p->group * w->kernel[0] * p->pitch);
  int64_t begin = p->blocks * part / p->parts, end = p->blocks * (part + 1) / p->parts;
  for (int64_t block = begin; block < end; block++) {
    int64_t above = block / p->bands;
    s.first = block % p->bands * p->band;
    s.rows = df_min(p->band, w->out[1] - s.first);
    s.z = above % w->out[0];
    s.image = above / w->out[0] * p->images;
    s.images = df_min(p->images, p->conv.batch - s.image);
    s.accumulate = block > begin;
    turn_right(&s);
    for (int64_t done = 0; done < s.channels; done += p->group) {
      int64_t channels = df_min(p->group, s.channels - done);
      find_shifts(&s, channels);
      spread_left(&s, s.channel + done, channels);
      multiply(&s, s.channel + done, channels);
    }
  }
}

/* ---- The sum of the copies --------------------------------------------------------------------
 */

static void add_copies(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const job *job = context;
  int64_t begin, end, total = job->p.total;
  df_piece(index, count, total, DF_LANES, &begin, &end);
  for (int64_t part = 1; part < job->p.parts; part++) {
    const float *copy = job->copies + (part - 1) * total;
    for (int64_t i = begin; i < end; i++)
      job->dw[i] += copy[i];
  }
}

static int64_t copies_floats(const plan *p) { return round_up((p->parts - 1) * p->total, 16); }

int64_t DF_NAME(df_outer_floats)(const df_conv *conv, int32_t threads) {
  plan p = make_plan(conv, threads);
  return copies_floats(&p) + p.scratch * threads;
}

void DF_NAME(df_outer_run)(const df_call *call, const df_conv *conv, float *dw, const float *x,
                           const float *dy) {
  job job = {.p = make_plan(conv, call->threads), .dw = dw};
  const plan *p = &job.p;
  if (p->blocks == 0) {
    memset(dw, 0, (size_t)p->total * sizeof(float));
    return;
  }
  job.left = p->exchanged ? dy : x;
  job.right = p->exchanged ? x : dy;
  job.copies = call->workspace;
  job.workspace = job.copies + copies_floats(p);
  df_parallel(call, run_piece, &job,
              p->parts * p->conv.groups * p->channel_parts * p->filter_parts);
  if (p->parts > 1)
    df_parallel(call, add_copies, &job, df_pieces(call, p->total * p->parts, DF_GRAIN));
}
