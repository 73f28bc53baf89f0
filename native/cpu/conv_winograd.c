/* conv_winograd.c: Winograd's F(4x4, 3x3).
 *
 * A square of 4 x 4 outputs reads 6 x 6 inputs d and has the weights g:
 *   Y = A' [sum over channels of (G g G') . (B' d B)] A
 * so a channel costs 36 products instead of 144. B', G and A' interpolate at the points 0, a, -a,
 * b, -b and infinity; a = 3/4 and b = 3/2 keep the error at about 2.5 times that of the plain sum,
 * half of what the usual 1 and 2 give.
 *
 * G g G' is packed ahead. Squares go in groups of as many as a tile has rows. For a few groups the
 * inputs are transformed, lanes over squares; then for a panel of filters each of the 36 places is
 * a product of matrices; then its outputs are transformed, lanes over filters, turned and stored.
 */
#include "conv_winograd.h"
#include "conv_direct_tile.h"

#define A (3.0f / 4.0f)
#define B (3.0f / 2.0f)

enum {
  PLACES = 36,
  SIDE = 4, /* of a square of outputs */
  LEAST_OUT = 400,
  LEAST_CHANNELS = 16,
  MOST_CHANNELS = 2048,
  STACK_CHANNELS = 64, /* up to these the transformed inputs of a group lie on the stack */
  MOST_GROUPS = 4,     /* groups that share a pass over the weights */
  LINE = SIDE * DF_LANES + 2 * DF_LANES, /* columns that a group reads, with slack */
  SUMS = PLACES * DF_DIRECT_ROWS * DF_DIRECT_FILTERS,
  GRAIN = 256 * 1024
};

#define WINO_INLINE static inline __attribute__((always_inline))

int DF_NAME(df_winograd_takes)(const df_conv *conv) {
  const df_window *w = &conv->window;
  for (int i = 1; i < DF_AXES; i++)
    if (w->kernel[i] != 3 || w->stride[i] != 1 || w->dilation[i] != 1)
      return 0;
  return w->kernel[0] == 1 && w->in[0] == 1 && w->out[0] == 1 && conv->groups == 1 &&
         w->out_size >= LEAST_OUT && conv->channels >= LEAST_CHANNELS &&
         conv->channels <= MOST_CHANNELS && conv->filters >= DF_LANES;
}

/* ---- Weights ----------------------------------------------------------------------------------
 */

static int64_t panels_of(const df_conv *conv) {
  return df_divide_up(conv->filters, DF_DIRECT_FILTERS);
}

static int64_t panel_width(const df_conv *conv, int64_t panel) {
  return conv->filters - panel * DF_DIRECT_FILTERS > DF_LANES ? DF_DIRECT_FILTERS : DF_LANES;
}

/* Floats of all panels: [panel][place][channel][lane]. */
static int64_t weight_floats(const df_conv *conv) {
  int64_t last = panels_of(conv) - 1;
  return PLACES * conv->channels * (last * DF_DIRECT_FILTERS + panel_width(conv, last));
}

int64_t DF_NAME(df_winograd_pack_bytes)(const df_conv *conv) {
  return weight_floats(conv) * (int64_t)sizeof(float);
}

/* out = G g for three numbers at distance |step|. */
static void turn_weights(double out[6], const double *g, int64_t step) {
  const double a = A, b = B;
  const double fa = 2 * a * a * (a * a - b * b), fb = 2 * b * b * (b * b - a * a);
  double even_a = g[0] + a * a * g[2 * step], odd_a = a * g[step];
  double even_b = g[0] + b * b * g[2 * step], odd_b = b * g[step];
  out[0] = g[0] / (a * a * b * b);
  out[1] = (even_a + odd_a) / fa;
  out[2] = (even_a - odd_a) / fa;
  out[3] = (even_b + odd_b) / fb;
  out[4] = (even_b - odd_b) / fb;
  out[5] = g[2 * step];
}

void DF_NAME(df_winograd_pack)(const df_conv *conv, const float *weight, float *packed) {
  int64_t channels = conv->channels;
  for (int64_t panel = 0; panel < panels_of(conv); panel++) {
    int64_t width = panel_width(conv, panel), first = panel * DF_DIRECT_FILTERS;
    for (int64_t lane = 0; lane < width; lane++)
      for (int64_t c = 0; c < channels; c++) {
        double g[9] = {0}, half[3][6], whole[6];
        for (int i = 0; i < 9 && first + lane < conv->filters; i++)
          g[i] = weight[((first + lane) * channels + c) * 9 + i];
        for (int j = 0; j < 3; j++)
          turn_weights(half[j], g + j, 3);
        for (int i = 0; i < 6; i++) {
          const double row[3] = {half[0][i], half[1][i], half[2][i]};
          turn_weights(whole, row, 1);
          for (int j = 0; j < 6; j++)
            packed[((i * 6 + j) * channels + c) * width + lane] = (float)whole[j];
        }
      }
    packed += PLACES * channels * width;
  }
}

/* ---- Cutting ----------------------------------------------------------------------------------
 */

typedef struct plan {
  int64_t down, across; /* squares */
  int64_t groups;       /* of squares, about equal */
  int64_t together;     /* groups that share a pass over the weights */
  int64_t place;        /* floats of a place's inputs in a group, odd lines apart */
  int64_t parts, cuts;  /* pieces of the groups and of the panels */
  int64_t scratch;      /* floats of a piece's workspace, 0 when it is on the stack */
} plan;

static plan make_plan(const df_conv *conv, int32_t threads) {
  const df_window *w = &conv->window;
  plan p = {.down = df_divide_up(w->out[1], SIDE), .across = df_divide_up(w->out[2], SIDE)};
  int64_t squares = p.down * p.across, panels = panels_of(conv);
  p.groups = df_divide_up(squares, DF_DIRECT_ROWS);
  p.place = (conv->channels + 1) * DF_LANES;
  int64_t work = conv->batch * squares * PLACES * conv->channels * conv->filters;
  int64_t wanted = threads > 1 ? df_max(1, df_min(4 * (int64_t)threads, work / GRAIN)) : 1;
  p.together = 1;
  if (conv->channels > STACK_CHANNELS) /* room for an eighth of what each pass reads of weights */
    p.together = df_max(1, df_min(MOST_GROUPS, weight_floats(conv) / 8 / (PLACES * p.place)));
  int64_t missing = df_divide_up(wanted, conv->batch);
  p.parts = df_min(missing, df_max(1, df_divide_up(p.groups, p.together)));
  p.parts = df_min(p.parts, p.groups);
  p.cuts = df_min(panels, df_divide_up(df_min(missing, threads), p.parts));
  p.together = df_min(p.together, df_divide_up(p.groups, p.parts));
  if (conv->channels > STACK_CHANNELS)
    p.scratch = p.together * (PLACES * p.place + SUMS);
  return p;
}

int64_t DF_NAME(df_winograd_workspace)(const df_conv *conv, int32_t threads) {
  return make_plan(conv, threads).scratch * (int64_t)sizeof(float) * threads;
}

/* ---- Inputs -----------------------------------------------------------------------------------
 */

/* t = B' d */
WINO_INLINE void turn_inputs(df_vec t[6], const df_vec d[6]) {
  df_vec even_a = d[4] - B * B * d[2], odd_a = A * (d[3] - B * B * d[1]);
  df_vec even_b = d[4] - A * A * d[2], odd_b = B * (d[3] - A * A * d[1]);
  t[0] = A * A * B * B * d[0] - (A * A + B * B) * d[2] + d[4];
  t[1] = even_a + odd_a;
  t[2] = even_a - odd_a;
  t[3] = even_b + odd_b;
  t[4] = even_b - odd_b;
  t[5] = A * A * B * B * d[1] - (A * A + B * B) * d[3] + d[5];
}

/* Columns [x, x + DF_LANES) of a row of |width|, zeros outside. */
static inline df_vec load_columns(const float *row, int64_t x, int64_t width) {
  if (x >= 0 && x + DF_LANES <= width)
    return vec_load(row + x);
#if defined(__AVX512F__)
  uint32_t low = x < 0 ? (uint32_t)df_min(DF_LANES, -x) : 0;
  uint32_t high = x + DF_LANES > width ? (uint32_t)df_max(0, width - x) : DF_LANES;
  uint32_t mask = high > low ? ((1u << high) - 1) & ~((1u << low) - 1) : 0;
  return (df_vec)_mm512_maskz_loadu_ps((__mmask16)mask, row + x);
#else
  df_vec value = vec_zero();
  for (int i = 0; i < DF_LANES; i++)
    if (x + i >= 0 && x + i < width)
      value[i] = row[x + i];
  return value;
#endif
}

/* The columns SIDE * i + phase of a line, i over lanes, for all four phases. */
WINO_INLINE void split_phases(df_vec phase[4], const float *line) {
  df_ivec first, second, low, high;
  df_vec v[4];
  for (int i = 0; i < DF_LANES; i++) {
    int half = DF_LANES / 2, at = i % half * SIDE;
    first[i] = at + i / half;
    second[i] = at + i / half + 2;
    low[i] = i < half ? i : i + half;
    high[i] = i < half ? i + half : i + DF_LANES;
  }
  for (int i = 0; i < 4; i++)
    v[i] = vec_load(line + i * DF_LANES);
  df_vec a = __builtin_shuffle(v[0], v[1], first), b = __builtin_shuffle(v[2], v[3], first);
  df_vec c = __builtin_shuffle(v[0], v[1], second), d = __builtin_shuffle(v[2], v[3], second);
  phase[0] = __builtin_shuffle(a, b, low);
  phase[1] = __builtin_shuffle(a, b, high);
  phase[2] = __builtin_shuffle(c, d, low);
  phase[3] = __builtin_shuffle(c, d, high);
}

/* Rows B' d of the squares [square, square + count) in one row of squares, columns as they lie. */
static void turn_rows(float lines[6][LINE], const df_window *w, const float *plane, int64_t down,
                      int64_t across, int64_t count) {
  int64_t top = down * SIDE - w->pad[1], left = across * SIDE - w->pad[2];
  for (int64_t x = 0; x < count * SIDE + 2; x += DF_LANES) {
    df_vec d[6], t[6];
    for (int i = 0; i < 6; i++) {
      int64_t row = top + i;
      d[i] = row >= 0 && row < w->in[1] ? load_columns(plane + row * w->in[2], left + x, w->in[2])
                                        : vec_zero();
    }
    turn_inputs(t, d);
    for (int i = 0; i < 6; i++)
      vec_store(lines[i] + x, t[i]);
  }
}

/* One channel of a group of squares: inputs[place][lane]. */
static void turn_group(const plan *p, const df_window *w, const float *plane, int64_t square,
                       int64_t count, float *inputs) {
  float lines[6][LINE], next[6][LINE], part[6][LINE];
  const float (*own)[LINE] = lines, (*behind)[LINE] = next;
  int64_t offset = 0;
  if (square % p->across + count <= p->across) {
    turn_rows(lines, w, plane, square / p->across, square % p->across, count);
    behind = (const float (*)[LINE])lines;
    offset = SIDE; /* the columns behind a square are those of its neighbour */
  } else {
    for (int64_t done = 0; done < count;) {
      int64_t at = square + done, across = at % p->across;
      int64_t some = df_min(count - done, p->across - across);
      turn_rows(part, w, plane, at / p->across, across, some);
      for (int i = 0; i < 6; i++) {
        memcpy(lines[i] + done * SIDE, part[i], (size_t)(some * SIDE) * sizeof(float));
        memcpy(next[i] + done * SIDE, part[i] + SIDE, (size_t)(some * SIDE) * sizeof(float));
      }
      done += some;
    }
  }
  for (int i = 0; i < 6; i++) {
    df_vec d[8], t[6];
    split_phases(d, own[i]);
    split_phases(d + 4, behind[i] + offset);
    turn_inputs(t, d);
    for (int j = 0; j < 6; j++)
      vec_store(inputs + (i * 6 + j) * p->place, t[j]);
  }
}

/* ---- Outputs ----------------------------------------------------------------------------------
 */

/* y = A' m */
WINO_INLINE void turn_sums(df_vec y[4], const df_vec m[6]) {
  df_vec even_a = m[1] + m[2], odd_a = m[1] - m[2];
  df_vec even_b = m[3] + m[4], odd_b = m[3] - m[4];
  y[0] = m[0] + even_a + even_b;
  y[1] = A * odd_a + B * odd_b;
  y[2] = A * A * even_a + B * B * even_b;
  y[3] = A * A * A * odd_a + B * B * B * odd_b + m[5];
}

/* The outputs of one square for one vector of filters, [row * SIDE + column]. */
WINO_INLINE void turn_square(df_vec y[SIDE * SIDE], const float *sums, int64_t place, df_vec bias,
                             int32_t relu) {
  df_vec half[SIDE][6];
  for (int j = 0; j < 6; j++) {
    df_vec m[6], column[SIDE];
    for (int i = 0; i < 6; i++)
      m[i] = vec_load(sums + (i * 6 + j) * place);
    turn_sums(column, m);
    for (int i = 0; i < SIDE; i++)
      half[i][j] = column[i];
  }
  for (int i = 0; i < SIDE; i++) {
    df_vec *row = y + i * SIDE;
    turn_sums(row, half[i]);
    for (int j = 0; j < SIDE; j++) {
      row[j] += bias;
      row[j] = relu ? vec_relu(row[j]) : row[j];
    }
  }
}

/* Stores them into the planes of |filters| filters; the last squares reach beyond the plane. */
static void store_square(float *out, const float *add, const df_window *w, int64_t top,
                         int64_t left, int64_t filters, int32_t relu, df_vec y[SIDE * SIDE]) {
  int64_t rows = df_min(SIDE, w->out[1] - top), columns = df_min(SIDE, w->out[2] - left);
  out += top * w->out[2] + left;
  add = add ? add + top * w->out[2] + left : NULL;
  for (int s = 0; s < SIDE * SIDE; s += DF_LANES) {
    vec_transpose(y + s);
    for (int64_t f = 0; f < filters; f++) {
      float line[DF_LANES];
      vec_store(line, y[s + f]);
      int64_t at = f * w->out_size + s / SIDE * w->out[2];
      for (int64_t i = 0; i < DF_LANES / SIDE && s / SIDE + i < rows; i++, at += w->out[2]) {
        float *part = line + i * SIDE;
        for (int64_t j = 0; j < columns && add; j++)
          part[j] += add[at + j];
        for (int64_t j = 0; j < SIDE && relu; j++)
          part[j] = part[j] < 0.0f ? 0.0f : part[j];
        memcpy(out + at, part, (size_t)columns * sizeof(float));
      }
    }
  }
}

/* ---- Pieces -----------------------------------------------------------------------------------
 */

static int64_t first_square(const plan *p, int64_t group) {
  return p->down * p->across * group / p->groups;
}

/* What a piece works on; the groups are those whose inputs are transformed. */
typedef struct piece {
  const df_direct *d;
  const plan *p;
  int64_t image, group, groups;
  const float *inputs;  /* [group][place][channel][lane] */
  float *sums;          /* [group][place][square][lane] */
  const int32_t *shift; /* per channel */
} piece;

/* Stores the outputs of a group for a panel of filters. */
static void finish_group(const piece *s, int64_t panel, int64_t group, const float *sums) {
  const df_conv *conv = &s->d->conv;
  int64_t first = first_square(s->p, group), count = first_square(s->p, group + 1) - first;
  int64_t vectors = panel_width(conv, panel) / DF_LANES, place = count * vectors * DF_LANES;
  for (int64_t j = 0; j < vectors; j++) {
    int64_t filter = panel * DF_DIRECT_FILTERS + j * DF_LANES;
    int64_t filters = df_min(DF_LANES, conv->filters - filter);
    float *out = s->d->out + (s->image * conv->filters + filter) * conv->window.out_size;
    const float *add = s->d->add ? s->d->add + (out - s->d->out) : NULL;
    df_vec bias = s->d->bias ? vec_load_part(s->d->bias + filter, filters) : vec_zero();
    for (int64_t i = 0; i < count; i++) {
      df_vec y[SIDE * SIDE];
      int64_t square = first + i;
      turn_square(y, sums + (i * vectors + j) * DF_LANES, place, bias, s->d->relu && !add);
      store_square(out, add, &conv->window, square / s->p->across * SIDE,
                   square % s->p->across * SIDE, filters, s->d->relu && add, y);
    }
  }
}

/* A panel of filters: place by place, so that its weights pass once for all groups. */
static void do_panel(const piece *s, int64_t panel) {
  const df_conv *conv = &s->d->conv;
  int64_t width = panel_width(conv, panel), channels = conv->channels;
  const float *weight = s->d->packed + PLACES * channels * panel * DF_DIRECT_FILTERS;
  for (int64_t place = 0; place < PLACES; place++, weight += channels * width)
    for (int64_t g = 0; g < s->groups; g++) {
      int64_t rows = first_square(s->p, s->group + g + 1) - first_square(s->p, s->group + g);
      DF_NAME(df_direct_tiles)
      [rows - 1][width / DF_LANES - 1](
          channels, weight, s->inputs + (g *PLACES + place) *s->p->place, s->shift,
          df_ahead_make(weight + channels *width, channels *width, channels, g, s->groups),
          s->sums + g *SUMS + place *rows *width);
    }
  for (int64_t g = 0; g < s->groups; g++)
    finish_group(s, panel, s->group + g, s->sums + g * SUMS);
}

typedef struct job {
  const df_direct *d;
  plan p;
  float *workspace;
} job;

/* Some groups, some panels, with room for the inputs and sums of p->together groups. */
static void do_groups(const job *job, int64_t index, float *inputs, float *sums) {
  const plan *p = &job->p;
  const df_conv *conv = &job->d->conv;
  const df_window *w = &conv->window;
  int32_t shift[MOST_CHANNELS];
  for (int64_t c = 0; c < conv->channels; c++)
    shift[c] = (int32_t)(c * DF_LANES);
  int64_t cut = index % p->cuts, part = index / p->cuts % p->parts;
  piece s = {.d = job->d,
             .p = p,
             .image = index / p->cuts / p->parts,
             .inputs = inputs,
             .sums = sums,
             .shift = shift};
  int64_t last = p->groups * (part + 1) / p->parts;
  for (s.group = p->groups * part / p->parts; s.group < last; s.group += s.groups) {
    s.groups = df_min(p->together, last - s.group);
    for (int64_t g = 0; g < s.groups; g++) {
      int64_t square = first_square(p, s.group + g);
      int64_t count = first_square(p, s.group + g + 1) - square;
      for (int64_t c = 0; c < conv->channels; c++)
        turn_group(p, w, job->d->source + (s.image * conv->channels + c) * w->in_size, square,
                   count, inputs + g * PLACES * p->place + c * DF_LANES);
    }
    int64_t panels = panels_of(conv);
    for (int64_t panel = panels * cut / p->cuts; panel < panels * (cut + 1) / p->cuts; panel++)
      do_panel(&s, panel);
  }
}

static void run_on_stack(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  (void)worker;
  float inputs[PLACES * (STACK_CHANNELS + 1) * DF_LANES], sums[SUMS];
  do_groups(context, index, inputs, sums);
}

static void run_in_workspace(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const job *job = context;
  float *inputs = job->workspace + worker * job->p.scratch;
  do_groups(job, index, inputs, inputs + job->p.together * PLACES * job->p.place);
}

void DF_NAME(df_winograd_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  job job = {.d = direct, .p = make_plan(conv, call->threads), .workspace = call->workspace};
  df_parallel(call, job.p.scratch ? run_in_workspace : run_on_stack, &job,
              conv->batch * job.p.parts * job.p.cuts);
}
