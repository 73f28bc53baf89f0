/* conv/depthwise_channels.c: see conv/depthwise_channels.h.
 *
 * On a map of 5x5, vectors along rows hold five results; vectors of channels are full on every map.
 * Squares of planes are transposed in registers, a position's channels then lie together, and each
 * tap is one load and one multiply-add for a position, whatever the stride. Rows of padding are
 * left out, columns of it are zeros in the buffer. The squares take log2(lanes) shuffles per vector
 * of x and of the results. */
#include "conv/depthwise_channels.h"
#include "simd/vector.h"

#define CHANNELS_INLINE static inline __attribute__((always_inline))

enum {
  READ = 1 << 13,    /* floats of rows of x, in the first cache */
  WRITTEN = 1 << 12, /* floats of results */
  MOST_TAPS = 128,
  TOGETHER = 8, /* results in progress at once: as many as additions that wait for each other */
  /* Measured, in multiply-adds: to transpose a vector, what one along a row takes in the kernel of
   * 3x3 taps with stride 1 and 2, and per tap in that of any kernel, and a plane for itself. */
  TRANSPOSED = 12,
  ROW_3X3 = DF_LANES == 16 ? 23 : 34, /* masks are slow elsewhere: rows never gain */
  ROW_3X3_STEPS = DF_LANES == 16 ? 41 : 84,
  ROW_TAP = 3,
  ROW_TAP_STEPS = 7,
  PLANE = 100
};

/* Vectors of a row of x with its padding. */
static int64_t line_of(const df_depthwise_channels *t) {
  const int64_t reach = (t->out_size[1] - 1) * t->stride[1] + (t->kernel[1] - 1) * t->dilation[1];
  return df_max(reach + 1, t->pad[1] + t->in[1]);
}

/* Rows of results whose results and rows of x fit in the buffers. */
static int64_t band_of(const df_depthwise_channels *t) {
  const int64_t lines = READ / (line_of(t) * DF_LANES) - (t->kernel[0] - 1) * t->dilation[0] - 1;
  const int64_t results = WRITTEN / (t->out_size[1] * DF_LANES);
  return lines < 0 ? 0 : df_min(t->out_size[0], df_min(results, lines / t->stride[0] + 1));
}

int DF_NAME(df_depthwise_channels_takes)(const df_depthwise_channels *t) {
  const int64_t taps = t->kernel[0] * t->kernel[1], results = t->out_size[0] * t->out_size[1];
  if (taps > MOST_TAPS || t->pad[0] < 0 || t->pad[1] < 0 || band_of(t) == 0)
    return 0;
  const int64_t read = t->in[0] * t->in[1], steps = t->stride[1] > 1;
  const int64_t vector =
      t->three ? (steps ? ROW_3X3_STEPS : ROW_3X3) : taps * (steps ? ROW_TAP_STEPS : ROW_TAP);
  const int64_t vectors = t->out_size[0] * df_divide_up(t->out_size[1], DF_LANES);
  return TRANSPOSED * (read + results + taps) + taps * results <
         t->channels * (vectors * vector + PLANE);
}

/* to[i] = the channels of element i of |count| neighbours; channels lie |plane| apart. */
CHANNELS_INLINE void load_square(df_vec to[DF_LANES], const float *from, int64_t plane,
                                 int64_t channels, int64_t count) {
  const int full = channels == DF_LANES && count == DF_LANES;
#pragma GCC unroll 16
  for (int i = 0; i < DF_LANES; i++)
    to[i] = full           ? vec_load(from + i * plane)
            : i < channels ? vec_load_partial(from + i * plane, count)
                           : vec_zero();
  vec_transpose(to);
}

/* The vectors of the weights of all taps. */
static void load_weights(const df_depthwise_channels *t, float *to) {
  const int64_t taps = t->kernel[0] * t->kernel[1];
  for (int64_t first = 0; first < taps; first += DF_LANES) {
    const int64_t count = df_min(DF_LANES, taps - first);
    df_vec square[DF_LANES] = {0};
    load_square(square, t->weight + first, taps, t->channels, count);
#pragma GCC unroll 16
    for (int i = 0; i < DF_LANES; i++)
      if (i < count)
        vec_store(to + (t->reversed ? taps - 1 - first - i : first + i) * DF_LANES, square[i]);
  }
}

/* Rows [first, end) of x, at least one, between columns of zeros, |line| vectors apart. */
static void load_rows(const df_depthwise_channels *t, float *to, int64_t line, int64_t first,
                      int64_t end) {
  const int64_t width = t->in[1], plane = t->in[0] * width, after = line - t->pad[1] - width;
  int64_t column = 0;
  memset(to, 0, (size_t)(t->pad[1] * DF_LANES) * sizeof *to);
  to += t->pad[1] * DF_LANES;
  /* Squares go on from row to row. */
  for (int64_t at = first * width; at < end * width; at += DF_LANES) {
    const int64_t count = df_min(DF_LANES, end * width - at);
    df_vec square[DF_LANES] = {0};
    load_square(square, t->x + at, plane, t->channels, count);
#pragma GCC unroll 16
    for (int i = 0; i < DF_LANES; i++) {
      if (i == count)
        break;
      if (column == width) {
        const int64_t zeros = (after + (at + i < end * width ? t->pad[1] : 0)) * DF_LANES;
        memset(to, 0, (size_t)zeros * sizeof *to);
        to += zeros;
        column = 0;
      }
      vec_store(to, square[i]);
      to += DF_LANES;
      column++;
    }
  }
  memset(to, 0, (size_t)(after * DF_LANES) * sizeof *to);
}

/* Results [at, at + count) of the planes. */
static void store_results(const df_depthwise_channels *t, const float *from, int64_t at,
                          int64_t count) {
  const int64_t plane = t->out_size[0] * t->out_size[1];
  for (int64_t i = 0; i < count; i += DF_LANES, from += DF_LANES * DF_LANES) {
    const int64_t some = df_min(DF_LANES, count - i);
    float *to = t->out + at + i;
    df_vec square[DF_LANES] = {0};
#pragma GCC unroll 16
    for (int j = 0; j < DF_LANES; j++)
      square[j] = vec_load(from + j * DF_LANES);
    vec_transpose(square);
    if (t->channels == DF_LANES && some == DF_LANES) {
#pragma GCC unroll 16
      for (int j = 0; j < DF_LANES; j++)
        vec_store(to + j * plane, square[j]);
    } else {
      for (int64_t j = 0; j < t->channels; j++)
        vec_store_partial(to + j * plane, square[j], some);
    }
  }
}

/* A row of results from the taps [begin, end) of rows; |x| is what the first of them reads. */
typedef struct row {
  const float *x;
  const float *weight;
  int64_t down, across, step; /* floats from tap to tap, and from result to result */
  int64_t taps[2];
  df_vec bias;
  float high; /* see |vec_activate| */
} row;

CHANNELS_INLINE void do_results(int results, const row *r, const float *x, float *out) {
  const float *weight = r->weight;
  df_vec sum[TOGETHER];
#pragma GCC unroll 8
  for (int i = 0; i < results; i++)
    sum[i] = r->bias;
  for (int64_t a = 0; a < r->taps[0]; a++, x += r->down) {
    const float *from = x;
    for (int64_t b = 0; b < r->taps[1]; b++, from += r->across, weight += DF_LANES) {
      const df_vec factor = vec_load(weight);
#pragma GCC unroll 8
      for (int i = 0; i < results; i++)
        sum[i] += vec_load(from + i * r->step) * factor;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < results; i++)
    vec_store(out + i * DF_LANES, vec_activate(sum[i], r->high));
}

static void do_row(const row *r, float *out, int64_t width) {
  const float *x = r->x;
  for (int64_t left = df_divide_up(width, TOGETHER); left > 0; left--) {
    const int64_t count = df_divide_up(width, left);
    switch (count) {
#define CASE(n)                                                                                    \
  case n:                                                                                          \
    do_results(n, r, x, out);                                                                      \
    break
      CASE(1);
      CASE(2);
      CASE(3);
      CASE(4);
      CASE(5);
      CASE(6);
      CASE(7);
      CASE(8);
#undef CASE
    default:
      break;
    }
    x += count * r->step;
    out += count * DF_LANES;
    width -= count;
  }
}

void DF_NAME(df_depthwise_channels_run)(const df_depthwise_channels *t) {
  _Alignas(64) float weights[MOST_TAPS * DF_LANES];
  _Alignas(64) float read[READ];
  _Alignas(64) float written[WRITTEN + DF_LANES * DF_LANES];
  const int64_t line = line_of(t), band = band_of(t), width = t->out_size[1];
  load_weights(t, weights);
  row r = {.down = t->dilation[0] * line * DF_LANES,
           .across = t->dilation[1] * DF_LANES,
           .step = t->stride[1] * DF_LANES,
           .bias = t->bias ? vec_load_partial(t->bias, t->channels) : vec_zero(),
           .high = t->high};
  r.taps[1] = t->kernel[1];
  int64_t held = 0, held_end = 0; /* the rows in |read| */
  for (int64_t first = 0; first < t->out_size[0]; first += band) {
    const int64_t rows = df_min(band, t->out_size[0] - first);
    const int64_t start = first * t->stride[0] - t->pad[0];
    const int64_t reach = (rows - 1) * t->stride[0] + (t->kernel[0] - 1) * t->dilation[0] + 1;
    const int64_t top = df_max(0, start), end = df_max(top, df_min(t->in[0], start + reach));
    /* Windows overlap: what the last rows of results read stays. */
    const int64_t kept = df_max(0, held_end - top), size = line * DF_LANES;
    if (kept > 0)
      memmove(read, read + (top - held) * size, (size_t)(kept * size) * sizeof *read);
    if (top + kept < end)
      load_rows(t, read + kept * size, line, top + kept, end);
    held = top;
    held_end = end;
    for (int64_t i = 0; i < rows; i++) {
      const int64_t at = start + i * t->stride[0], step = t->dilation[0];
      const int64_t begin = at < 0 ? df_divide_up(-at, step) : 0;
      const int64_t last =
          at < t->in[0] ? df_min(t->kernel[0], df_divide_up(t->in[0] - at, step)) : 0;
      r.taps[0] = df_max(0, last - begin);
      r.x = read + (r.taps[0] ? (at + begin * step - top) * line * DF_LANES : 0);
      r.weight = weights + (r.taps[0] ? begin * t->kernel[1] * DF_LANES : 0);
      do_row(&r, written + i * width * DF_LANES, width);
    }
    store_results(t, written, first * width, rows * width);
  }
}
