/* conv/depthwise.c: convolution where every group has one channel.
 *
 *   y[n, g, f, o]  = relu(bias[g, f] + sum over t of x[n, g, o * stride - pad + t * dilation] *
 * w[g, f, t]) dx[n, g, i]    = sum over f, t of dy[n, g, f, o] * w[g, f, t] where o * stride - pad
 * + t * dilation = i dw[g, f, t]    = sum over n, o of dy[n, g, f, o] * x[n, g, o * stride - pad +
 * t * dilation]
 *
 * Some rows of a plane are copied to the stack with their padding; after that every tap is a read
 * at a fixed distance, by vectors along the row. dx is the same sum as y over dy with zeros put
 * between its elements, taps transposed round. The commonest kernel, 3x3, needs no copy
 * (conv/depthwise_3x3.h). */
#include "conv/depthwise.h"
#include "conv/common.h"
#include "conv/depthwise_3x3.h"
#include "conv/depthwise_channels.h"
#include "simd/vector.h"

enum {
  BUFFER = 1 << 14, /* floats: 64 KiB */
  MOST_TAPS = 128,
  LEAST_BAND = 4, /* rows of results that a buffer must hold */
  MOST_ROWS = 6   /* that are computed at once: as many sums as additions are in progress */
};

/* One axis: position o reads element o * stride - pad + t * dilation of a line of |in| elements
 * that lie |up| apart, with zeros between. */
typedef struct axis {
  int64_t in, out, kernel, stride, pad, dilation, up;
} axis;

typedef struct shape {
  axis down, across;
  int64_t line; /* floats of a padded line */
  int64_t band; /* rows of results at a time */
} shape;

/* Floats of a line that windows reach, and a vector of slack for each stride. */
static int64_t line_of(const axis *a) {
  int64_t reach = (a->out - 1) * a->stride + (a->kernel - 1) * a->dilation + 1;
  return df_max(reach, a->pad + (a->in - 1) * a->up + 1) + a->stride * DF_LANES;
}

static axis axis_of(const df_window *w, int i) {
  return (axis){w->in[i], w->out[i], w->kernel[i], w->stride[i], w->pad[i], w->dilation[i], 1};
}

/* The axis of the gradient by the input. */
static axis transposed(axis a) {
  return (axis){.in = a.out,
                .out = a.in,
                .kernel = a.kernel,
                .stride = 1,
                .pad = (a.kernel - 1) * a.dilation - a.pad,
                .dilation = a.dilation,
                .up = a.stride};
}

static shape make_shape(const df_conv *conv, int backward) {
  const df_window *w = &conv->window;
  /* A single long axis stands where rows are: here it is the one along vectors. */
  int single = w->in[2] == 1 && w->out[2] == 1 && w->kernel[2] == 1;
  shape s = {.down = axis_of(w, single ? 2 : 1), .across = axis_of(w, single ? 1 : 2)};
  if (backward) {
    s.down = transposed(s.down);
    s.across = transposed(s.across);
  }
  s.line = line_of(&s.across);
  int64_t lines = BUFFER / s.line - (s.down.kernel - 1) * s.down.dilation - 1;
  s.band = lines < 0 ? 0 : df_min(s.down.out, lines / s.down.stride + 1);
  return s;
}

static int fits(const shape *s) {
  return s->down.pad >= 0 && s->across.pad >= 0 && s->band >= df_min(s->down.out, LEAST_BAND);
}

int DF_NAME(df_depthwise_takes)(const df_conv *conv) {
  const df_window *w = &conv->window;
  if (conv->channels != 1 || conv->groups == 1 || w->kernel[0] != 1 || w->in[0] != 1 ||
      w->out[0] != 1 || w->taps > MOST_TAPS)
    return 0;
  shape forward = make_shape(conv, 0), backward = make_shape(conv, 1);
  return fits(&forward) && fits(&backward);
}

/* ---- The padded lines ----------------------------------------------------------------------- */

/* Whether line |row| of the padded, phase-split plane has elements; |*from| is its line in the
 * source.
 */
static inline int has_line(const axis *a, int64_t row, int64_t *from) {
  int64_t at = row - a->pad;
  *from = at / a->up;
  return at >= 0 && at % a->up == 0 && *from < a->in;
}

static inline void fill_zero(float *out, int64_t count) {
  for (int64_t i = 0; i < count; i += DF_LANES)
    vec_store_partial(out + i, vec_zero(), df_min(DF_LANES, count - i));
}

/* Lines [first, first + count) of a padded plane; those without elements are zeros. */
static void fill_lines(float *buffer, const shape *s, const float *plane, int64_t first,
                       int64_t count) {
  const axis *a = &s->across;
  for (int64_t i = 0; i < count; i++, buffer += s->line) {
    int64_t from;
    if (!has_line(&s->down, first + i, &from)) {
      memset(buffer, 0, (size_t)s->line * sizeof(float));
      continue;
    }
    const float *line = plane + from * a->in;
    if (a->up == 1) {
      fill_zero(buffer, a->pad);
      for (int64_t j = 0; j < a->in; j += DF_LANES) {
        int64_t lanes = df_min(DF_LANES, a->in - j);
        vec_store_partial(buffer + a->pad + j, vec_load_partial(line + j, lanes), lanes);
      }
      fill_zero(buffer + a->pad + a->in, s->line - a->pad - a->in);
    } else {
      memset(buffer, 0, (size_t)s->line * sizeof(float));
      for (int64_t j = 0; j < a->in; j++)
        buffer[a->pad + j * a->up] = line[j];
    }
  }
}

/* ---- y and dx ------------------------------------------------------------------------------- */

typedef struct planes {
  const df_depthwise *d;
  shape s;
  int64_t inner;    /* source planes summed up in one of out */
  int64_t outs;     /* planes of out with the same source planes */
  int32_t reversed; /* taps are read from the last to the first */
} planes;

/* Where the taps of a row of results read, relative to its first element, without lines of zeros.
 */
typedef struct reads {
  int64_t count;
  int64_t at[MOST_TAPS];
  float weight[MOST_TAPS];
} reads;

static void find_reads(reads *r, const planes *j, const float *weight, int64_t row) {
  const axis *down = &j->s.down, *across = &j->s.across;
  int64_t taps = down->kernel * across->kernel, from;
  r->count = 0;
  for (int64_t a = 0; a < down->kernel; a++) {
    if (down->up > 1 && !has_line(down, row * down->stride + a * down->dilation, &from))
      continue;
    for (int64_t b = 0; b < across->kernel; b++) {
      int64_t tap = a * across->kernel + b;
      r->at[r->count] = a * down->dilation * j->s.line + b * across->dilation;
      r->weight[r->count++] = weight[j->reversed ? taps - 1 - tap : tap];
    }
  }
}

/* |rows| rows of results that read alike, |line| floats apart: out[i] = relu(bias + add[i] +
 * reads). A sum waits for itself, tap by tap, so those of several rows are in progress at once.
 * |rows| and |stride| are constants at the uses. */
static inline __attribute__((always_inline)) void do_block(int rows, int64_t stride, const reads *r,
                                                           const float *buffer, int64_t line,
                                                           float *out, int64_t width, float bias,
                                                           const float *add, float high) {
  for (int64_t i = 0; i < width; i += DF_LANES) {
    int64_t lanes = df_min(DF_LANES, width - i);
    df_vec sums[MOST_ROWS];
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
      sums[row] = vec_splat(bias);
      if (add)
        sums[row] += vec_load_partial(add + row * width + i, lanes);
    }
    for (int64_t t = 0; t < r->count; t++) {
      const float *from = buffer + i * stride + r->at[t];
      const float weight = r->weight[t];
#pragma GCC unroll 6
      for (int row = 0; row < rows; row++)
        sums[row] += vec_load_steps(from + row * line, stride) * weight;
    }
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
      vec_store_partial(out + row * width + i, vec_activate(sums[row], high), lanes);
  }
}

/* do_block for up to MOST_ROWS rows. */
static inline __attribute__((always_inline)) void do_few(int64_t rows, int64_t stride,
                                                         const reads *r, const float *buffer,
                                                         int64_t line, float *out, int64_t width,
                                                         float bias, const float *add, float high) {
  switch (rows) {
#define CASE(n)                                                                                    \
  case n:                                                                                          \
    do_block(n, stride, r, buffer, line, out, width, bias, add, high);                             \
    break
    CASE(1);
    CASE(2);
    CASE(3);
    CASE(4);
    CASE(5);
    CASE(6);
#undef CASE
  default:
    break;
  }
}

/* The same for any number of rows. */
static void do_rows(const planes *j, const reads *r, const float *buffer, float *out, int64_t rows,
                    float bias, const float *add, float high) {
  int64_t stride = j->s.across.stride, width = j->s.across.out;
  int64_t line = j->s.down.stride * j->s.line;
  for (int64_t left = df_divide_up(rows, MOST_ROWS); left > 0; left--) {
    const int64_t count = df_divide_up(rows, left);
    if (stride == 1)
      do_few(count, 1, r, buffer, line, out, width, bias, add, high);
    else if (stride == 2)
      do_few(count, 2, r, buffer, line, out, width, bias, add, high);
    else
      do_few(count, stride, r, buffer, line, out, width, bias, add, high);
    rows -= count;
    buffer += count * line;
    out += count * width;
    add = add ? add + count * width : NULL;
  }
}

/* Whether a plane of out is one of the source with a kernel of 3x3 taps next to each other. */
static int is_three(const planes *j) {
  const axis *down = &j->s.down, *across = &j->s.across;
  return j->inner == 1 && down->up == 1 && across->up == 1 && down->kernel == 3 &&
         across->kernel == 3 && down->dilation == 1 && across->dilation == 1 && down->stride <= 2 &&
         across->stride <= 2;
}

static void do_three(const planes *j, int64_t plane) {
  const df_depthwise *d = j->d;
  const axis *down = &j->s.down, *across = &j->s.across;
  int64_t out_size = down->out * across->out, unit = plane / j->outs;
  int64_t filter = unit % d->conv.groups * d->conv.filters + plane % j->outs;
  df_depthwise_3x3 t = {.x = d->source + unit * down->in * across->in,
                        .out = d->out + plane * out_size,
                        .add = d->add ? d->add + plane * out_size : NULL,
                        .weight = d->weight + filter * 9,
                        .bias = d->bias ? d->bias[filter] : 0.0f,
                        .high = d->high,
                        .reversed = j->reversed,
                        .in = {down->in, across->in},
                        .out_size = {down->out, across->out},
                        .pad = {down->pad, across->pad},
                        .stride = {down->stride, across->stride}};
  DF_NAME(df_depthwise_3x3_run)(&t);
}

/* One plane of out. */
static void do_plane(const planes *j, int64_t plane) {
  const df_depthwise *d = j->d;
  const shape *s = &j->s;
  float buffer[BUFFER];
  reads r;
  int64_t source_size = s->down.in * s->across.in, out_size = s->down.out * s->across.out;
  int64_t taps = s->down.kernel * s->across.kernel, filters = d->conv.filters;
  int64_t unit = plane / j->outs, group = unit % d->conv.groups;
  for (int64_t first = 0; first < s->down.out; first += s->band) {
    int64_t rows = df_min(s->band, s->down.out - first);
    int64_t top = first * s->down.stride;
    int64_t lines = (rows - 1) * s->down.stride + (s->down.kernel - 1) * s->down.dilation + 1;
    for (int64_t inner = 0; inner < j->inner; inner++) {
      int64_t filter = group * filters + (j->outs > 1 ? plane % j->outs : inner);
      const float *weight = d->weight + filter * taps;
      fill_lines(buffer, s, d->source + (unit * j->inner + inner) * source_size, top, lines);
      float bias = d->bias && inner == 0 ? d->bias[filter] : 0.0f;
      float high = inner == j->inner - 1 ? d->high : 0.0f;
      float *out = d->out + plane * out_size + first * s->across.out;
      /* With zeros between the source's lines, rows read different taps. */
      int64_t alike = s->down.up == 1 ? rows : 1;
      for (int64_t row = 0; row < rows; row += alike) {
        find_reads(&r, j, weight, first + row);
        float *to = out + row * s->across.out;
        const float *add = inner > 0 ? to : d->add ? d->add + (to - d->out) : NULL;
        do_rows(j, &r, buffer + row * s->down.stride * s->line, to, alike, bias, add, high);
      }
    }
  }
}

/* The planes from |plane| on, of the channels of one image, by vectors of channels. */
static df_depthwise_channels channels_of(const planes *j, int64_t plane, int64_t count) {
  const df_depthwise *d = j->d;
  const axis *down = &j->s.down, *across = &j->s.across;
  const int64_t channel = plane % d->conv.groups;
  return (df_depthwise_channels){.x = d->source + plane * down->in * across->in,
                                 .out = d->out + plane * down->out * across->out,
                                 .weight = d->weight + channel * down->kernel * across->kernel,
                                 .bias = d->bias ? d->bias + channel : NULL,
                                 .channels = count,
                                 .high = d->high,
                                 .reversed = j->reversed,
                                 .three = is_three(j),
                                 .in = {down->in, across->in},
                                 .out_size = {down->out, across->out},
                                 .kernel = {down->kernel, across->kernel},
                                 .stride = {down->stride, across->stride},
                                 .pad = {down->pad, across->pad},
                                 .dilation = {down->dilation, across->dilation}};
}

static int by_channels(const planes *j) {
  const df_depthwise_channels t = channels_of(j, 0, DF_LANES);
  return j->inner == 1 && j->outs == 1 && !j->d->add && j->s.down.up == 1 && j->s.across.up == 1 &&
         DF_NAME(df_depthwise_channels_takes)(&t);
}

/* Vectors of channels, numbered through the images. */
static void run_channels(const void *context, int64_t begin, int64_t end) {
  const planes *j = context;
  const int64_t groups = j->d->conv.groups, vectors = df_divide_up(groups, DF_LANES);
  for (int64_t i = begin; i < end; i++) {
    const int64_t channel = i % vectors * DF_LANES;
    const df_depthwise_channels t =
        channels_of(j, i / vectors * groups + channel, df_min(DF_LANES, groups - channel));
    DF_NAME(df_depthwise_channels_run)(&t);
  }
}

static void run_planes(const void *context, int64_t begin, int64_t end) {
  const planes *j = context;
  const int three = is_three(j);
  for (int64_t plane = begin; plane < end; plane++)
    if (three)
      do_three(j, plane);
    else
      do_plane(j, plane);
}

static void run(const df_call *call, const planes *j) {
  const df_conv *conv = &j->d->conv;
  int64_t count = conv->batch * conv->groups * j->outs;
  int64_t work = conv->batch * conv->groups * conv->filters *
                 (j->s.down.out * j->s.across.out * 4 + j->s.down.in * j->s.across.in);
  if (by_channels(j)) {
    count = conv->batch * df_divide_up(conv->groups, DF_LANES);
    DF_NAME(df_run_units)(call, count, work, run_channels, j);
  } else {
    DF_NAME(df_run_units)(call, count, work, run_planes, j);
  }
}

void DF_NAME(df_depthwise_run)(const df_call *call, const df_depthwise *depthwise) {
  planes j = {.d = depthwise,
              .s = make_shape(&depthwise->conv, 0),
              .inner = 1,
              .outs = depthwise->conv.filters};
  run(call, &j);
}

void DF_NAME(df_depthwise_run_dx)(const df_call *call, const df_depthwise *depthwise) {
  planes j = {.d = depthwise,
              .s = make_shape(&depthwise->conv, 1),
              .inner = depthwise->conv.filters,
              .outs = 1,
              .reversed = 1};
  run(call, &j);
}

/* ---- dw ------------------------------------------------------------------------------------- */

/* sums[t] += the dot products of a row of dy with what each tap reads. */
static inline __attribute__((always_inline)) void add_row(df_vec *sums, const reads *r,
                                                          const float *buffer, int64_t stride,
                                                          const float *dy, int64_t count) {
  for (int64_t i = 0; i < count; i += DF_LANES) {
    df_vec left = vec_load_partial(dy + i, df_min(DF_LANES, count - i));
    const float *from = buffer + i * stride;
    for (int64_t t = 0; t < r->count; t++)
      sums[t] += left * vec_load_steps(from + r->at[t], stride);
  }
}

/* All taps of one filter; the sums of an image are joined on their own, so that rounding does not
 * grow with the batch. */
static void do_filter(const planes *j, int64_t filter) {
  const df_depthwise *d = j->d;
  const shape *s = &j->s;
  float buffer[BUFFER];
  double total[MOST_TAPS] = {0};
  int64_t x_size = s->down.in * s->across.in, y_size = s->down.out * s->across.out;
  int64_t filters = d->conv.filters, group = filter / filters;
  reads r = {0};
  for (int64_t a = 0; a < s->down.kernel; a++)
    for (int64_t b = 0; b < s->across.kernel; b++)
      r.at[r.count++] = a * s->down.dilation * s->line + b * s->across.dilation;
  for (int64_t n = 0; n < d->conv.batch; n++) {
    const float *x = d->source + (n * d->conv.groups + group) * x_size;
    const float *dy = d->weight + (n * d->conv.groups * filters + filter) * y_size;
    df_vec sums[MOST_TAPS];
    for (int64_t t = 0; t < r.count; t++)
      sums[t] = vec_zero();
    for (int64_t first = 0; first < s->down.out; first += s->band) {
      int64_t rows = df_min(s->band, s->down.out - first);
      int64_t lines = (rows - 1) * s->down.stride + (s->down.kernel - 1) * s->down.dilation + 1;
      fill_lines(buffer, s, x, first * s->down.stride, lines);
      for (int64_t row = 0; row < rows; row++) {
        const float *from = buffer + row * s->down.stride * s->line;
        const float *left = dy + (first + row) * s->across.out;
        if (s->across.stride == 1)
          add_row(sums, &r, from, 1, left, s->across.out);
        else if (s->across.stride == 2)
          add_row(sums, &r, from, 2, left, s->across.out);
        else
          add_row(sums, &r, from, s->across.stride, left, s->across.out);
      }
    }
    for (int64_t t = 0; t < r.count; t++)
      total[t] += vec_sum(sums[t]);
  }
  for (int64_t t = 0; t < r.count; t++)
    d->out[filter * r.count + t] = (float)total[t];
}

static void run_filters(const void *context, int64_t begin, int64_t end) {
  const planes *j = context;
  for (int64_t filter = begin; filter < end; filter++)
    do_filter(j, filter);
}

void DF_NAME(df_depthwise_run_dw)(const df_call *call, const df_depthwise *depthwise) {
  const df_conv *conv = &depthwise->conv;
  planes j = {.d = depthwise, .s = make_shape(conv, 0)};
  int64_t filters = conv->groups * conv->filters;
  int64_t work = conv->batch * filters * (conv->window.in_size + conv->window.out_size * 4);
  DF_NAME(df_run_units)(call, filters, work, run_filters, &j);
}
