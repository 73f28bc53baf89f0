/* conv/winograd_transform.c: Winograd's F(2x2, 3x3) and F(4x4, 3x3).
 *
 * B', G and A' of F(4x4) interpolate at the points 0, a, -a, b, -b and infinity; a = 3/4 and b =
 * 3/2 keep the error at about 2.5 times that of the plain sum, half of what the usual 1 and 2 give.
 * F(2x2) takes 0, 1, -1 and infinity and adds no error to speak of. Inputs are transformed with
 * lanes over squares, sums with lanes over filters. */
#include "conv/winograd_transform.h"

#define A (3.0f / 4.0f)
#define B (3.0f / 2.0f)

#define TRANSFORM_INLINE static inline __attribute__((always_inline))

enum {
  MOST_SIDE = 4,
  MOST_READS = MOST_SIDE + 2, /* a square reads as many rows and columns */
  OUTPUTS = 16 /* that are transposed together: one square of 4 x 4, or four of 2 x 2 */
};

/* ---- One axis ------------------------------------------------------------------------------- */

/* Half as many lanes, in double precision. */
typedef double df_doubles __attribute__((vector_size(sizeof(df_vec))));
typedef float df_half __attribute__((vector_size(sizeof(df_vec) / 2), aligned(4), may_alias));

/* out = G g for three numbers at distance |step|. */
TRANSFORM_INLINE void weights_2(df_doubles out[4], const df_doubles *g, int step) {
  df_doubles even = g[0] + g[2 * step];
  out[0] = g[0];
  out[1] = (even + g[step]) * 0.5;
  out[2] = (even - g[step]) * 0.5;
  out[3] = g[2 * step];
}

TRANSFORM_INLINE void weights_4(df_doubles out[6], const df_doubles *g, int step) {
  const double a = A, b = B;
  const double fa = 1 / (2 * a * a * (a * a - b * b)), fb = 1 / (2 * b * b * (b * b - a * a));
  df_doubles even_a = fa * g[0] + fa * a * a * g[2 * step], odd_a = fa * a * g[step];
  df_doubles even_b = fb * g[0] + fb * b * b * g[2 * step], odd_b = fb * b * g[step];
  out[0] = g[0] * (1 / (a * a * b * b));
  out[1] = even_a + odd_a;
  out[2] = even_a - odd_a;
  out[3] = even_b + odd_b;
  out[4] = even_b - odd_b;
  out[5] = g[2 * step];
}

/* t = B' d */
TRANSFORM_INLINE void inputs_2(df_vec t[4], const df_vec d[4]) {
  t[0] = d[0] - d[2];
  t[1] = d[1] + d[2];
  t[2] = d[2] - d[1];
  t[3] = d[3] - d[1];
}

TRANSFORM_INLINE void inputs_4(df_vec t[6], const df_vec d[6]) {
  df_vec even_a = d[4] - B * B * d[2], odd_a = A * (d[3] - B * B * d[1]);
  df_vec even_b = d[4] - A * A * d[2], odd_b = B * (d[3] - A * A * d[1]);
  t[0] = A * A * B * B * d[0] - (A * A + B * B) * d[2] + d[4];
  t[1] = even_a + odd_a;
  t[2] = even_a - odd_a;
  t[3] = even_b + odd_b;
  t[4] = even_b - odd_b;
  t[5] = A * A * B * B * d[1] - (A * A + B * B) * d[3] + d[5];
}

/* y = A' m */
TRANSFORM_INLINE void sums_2(df_vec y[2], const df_vec m[4]) {
  y[0] = m[0] + m[1] + m[2];
  y[1] = m[1] - m[2] + m[3];
}

TRANSFORM_INLINE void sums_4(df_vec y[4], const df_vec m[6]) {
  df_vec even_a = m[1] + m[2], odd_a = m[1] - m[2];
  df_vec even_b = m[3] + m[4], odd_b = m[3] - m[4];
  y[0] = m[0] + even_a + even_b;
  y[1] = A * odd_a + B * odd_b;
  y[2] = A * A * even_a + B * B * even_b;
  y[3] = A * A * A * odd_a + B * B * B * odd_b + m[5];
}

/* ---- Weights -------------------------------------------------------------------------------- */

TRANSFORM_INLINE void transform_weights(int side, float *out, int64_t step, const float *g) {
  int reads = side + 2;
  for (int lane = 0; lane < DF_LANES; lane += DF_LANES / 2) {
    df_doubles taps[9], half[3][MOST_READS], transposed[MOST_READS];
#pragma GCC unroll 9
    for (int i = 0; i < 9; i++)
      taps[i] = __builtin_convertvector(*(const df_half *)(g + i * DF_LANES + lane), df_doubles);
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++)
      side == 2 ? weights_2(half[j], taps + j, 3) : weights_4(half[j], taps + j, 3);
#pragma GCC unroll 6
    for (int i = 0; i < reads; i++) {
      const df_doubles row[3] = {half[0][i], half[1][i], half[2][i]};
      side == 2 ? weights_2(transposed, row, 1) : weights_4(transposed, row, 1);
#pragma GCC unroll 6
      for (int j = 0; j < reads; j++)
        *(df_half *)(out + (i * reads + j) * step + lane) =
            __builtin_convertvector(transposed[j], df_half);
    }
  }
}

/* ---- Inputs --------------------------------------------------------------------------------- */

/* Columns [x, x + DF_LANES) of a row of |width|, zeros outside. */
TRANSFORM_INLINE df_vec load_columns(const float *row, int64_t x, int64_t width) {
  if (x >= 0 && x + DF_LANES <= width)
    return vec_load(row + x);
  int64_t first = x < 0 ? df_min(DF_LANES, -x) : 0;
  return vec_load_lanes(row + x + first, first, df_min(DF_LANES, width - x) - first);
}

/* phase[j] = the columns side * i + j of |side| vectors, i over lanes; those behind the last
 * square's own are its neighbour's first, so the last lane has none. */
TRANSFORM_INLINE void split_phases(int side, df_vec phase[MOST_READS], const df_vec v[MOST_SIDE]) {
  if (side == 2) {
    phase[0] = vec_even(v[0], v[1]);
    phase[1] = vec_odd(v[0], v[1]);
  } else {
    df_vec a = vec_even(v[0], v[1]), b = vec_even(v[2], v[3]);
    df_vec c = vec_odd(v[0], v[1]), d = vec_odd(v[2], v[3]);
    phase[0] = vec_even(a, b);
    phase[1] = vec_even(c, d);
    phase[2] = vec_odd(a, b);
    phase[3] = vec_odd(c, d);
  }
  phase[side] = vec_rotate(phase[0]);
  phase[side + 1] = vec_rotate(phase[1]);
}

/* Up to DF_LANES - 1 squares in one row of them; lanes behind these are overwritten. */
TRANSFORM_INLINE void transform_row(int side, const df_window *w, const float *plane, int64_t down,
                                    int64_t across, int64_t count, float *inputs, int64_t pitch) {
  int reads = side + 2;
  int64_t top = down * side - w->pad[1], left = across * side - w->pad[2];
  df_vec t[MOST_READS][MOST_SIDE];
#pragma GCC unroll 4
  for (int v = 0; v < side; v++) {
    df_vec d[MOST_READS], transposed[MOST_READS];
    if (v * DF_LANES < count * side + 2) {
#pragma GCC unroll 6
      for (int i = 0; i < reads; i++) {
        int64_t row = top + i;
        d[i] = row >= 0 && row < w->in[1]
                   ? load_columns(plane + row * w->in[2], left + v * DF_LANES, w->in[2])
                   : vec_zero();
      }
      side == 2 ? inputs_2(transposed, d) : inputs_4(transposed, d);
    } else {
      for (int i = 0; i < reads; i++)
        transposed[i] = vec_zero();
    }
#pragma GCC unroll 6
    for (int i = 0; i < reads; i++)
      t[i][v] = transposed[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < reads; i++) {
    df_vec d[MOST_READS], transposed[MOST_READS];
    split_phases(side, d, t[i]);
    side == 2 ? inputs_2(transposed, d) : inputs_4(transposed, d);
#pragma GCC unroll 6
    for (int j = 0; j < reads; j++)
      vec_store(inputs + (i * reads + j) * pitch, transposed[j]);
  }
}

TRANSFORM_INLINE void transform_inputs(int side, const df_squares *s, const float *plane,
                                       float *inputs, int64_t pitch) {
  for (int64_t done = 0, some; done < s->count; done += some) {
    int64_t at = s->square + done, across = at % s->across;
    some = df_min(df_min(s->count - done, s->across - across), DF_LANES - 1);
    transform_row(side, s->window, plane, at / s->across, across, some, inputs + done, pitch);
  }
}

/* ---- Outputs -------------------------------------------------------------------------------- */

/* A' m A of one square: y[row * pitch + column]. */
TRANSFORM_INLINE void transform_square(int side, df_vec *y, int pitch, const float *sums,
                                       int64_t position) {
  int reads = side + 2;
  df_vec half[MOST_SIDE][MOST_READS];
#pragma GCC unroll 6
  for (int j = 0; j < reads; j++) {
    df_vec m[MOST_READS], column[MOST_SIDE];
#pragma GCC unroll 6
    for (int i = 0; i < reads; i++)
      m[i] = vec_load(sums + (i * reads + j) * position);
    side == 2 ? sums_2(column, m) : sums_4(column, m);
#pragma GCC unroll 4
    for (int i = 0; i < side; i++)
      half[i][j] = column[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < side; i++)
    side == 2 ? sums_2(y + i * pitch, half[i]) : sums_4(y + i * pitch, half[i]);
}

/* |count| outputs, |step| at most, of each filter from a transposed block to the filters' planes.
 */
TRANSFORM_INLINE void store_lines(const df_square_epilogue *epilogue, int64_t plane,
                                  const float *lines, int64_t to, int64_t count, int step) {
  float *out = epilogue->out + to;
  const float *add = epilogue->add ? epilogue->add + to : NULL;
  const int64_t filters = epilogue->filters;
  const float high = epilogue->high;
  for (int64_t b = 0; b < filters; b += step)
    for (int64_t j = 0; j < df_min(step, filters - b); j++, out += plane) {
      const float *line = lines + j * DF_LANES + b;
      if (add) {
        df_vec value = vec_load_partial(line, count) + vec_load_partial(add, count);
        vec_store_partial(out, vec_activate(value, high), count);
        add += plane;
      } else if (count == step) {
        memcpy(out, line, (size_t)step * sizeof(float));
      } else {
        vec_store_partial(out, vec_load_partial(line, count), count);
      }
    }
}

/* OUTPUTS vectors over filters, rows of |width| columns of which |columns| exist, go to the planes
 * of their filters, transposed as far as what lies together there; |top| and |left| say where. */
TRANSFORM_INLINE void store_outputs(const df_square_epilogue *epilogue, const df_window *w,
                                    int64_t top, int64_t left, int width, int64_t columns,
                                    df_vec y[OUTPUTS]) {
  int64_t rows = w->out[1] - top, at = top * w->out[2] + left;
  int step = width < DF_LANES ? width : DF_LANES;
  float lines[OUTPUTS * DF_LANES];
  int s = 0;
  do {
    vec_transpose_squares(y + s, step);
    s += DF_LANES;
  } while (s < OUTPUTS);
#pragma GCC unroll 16
  for (int i = 0; i < OUTPUTS; i++)
    vec_store(lines + i * DF_LANES, y[i]);
  for (int i = 0; i < OUTPUTS && i / width < rows; i += step)
    if (i % width < columns)
      store_lines(epilogue, w->out_size, lines + i * DF_LANES,
                  at + i / width * w->out[2] + i % width, df_min(step, columns - i % width), step);
}

TRANSFORM_INLINE void transform_sums(int side, const df_squares *s,
                                     const df_square_epilogue *epilogue) {
  const df_window *w = s->window;
  int together = OUTPUTS / (side * side), width = together * side;
  df_vec bias = epilogue->bias ? vec_load_partial(epilogue->bias, epilogue->filters) : vec_zero();
  for (int64_t done = 0, some; done < s->count; done += some) {
    int64_t at = s->square + done, across = at % s->across, left = across * side;
    some = df_min(df_min(s->count - done, s->across - across), together);
    df_vec y[OUTPUTS];
#pragma GCC unroll 4
    for (int i = 0; i < together; i++) /* beyond |some|: the last one again, and not stored */
      transform_square(side, y + i * side, width,
                       epilogue->sums + (done + df_min(i, some - 1)) * epilogue->row,
                       epilogue->position);
#pragma GCC unroll 16
    for (int i = 0; i < OUTPUTS; i++) {
      y[i] += bias;
      y[i] = epilogue->add ? y[i] : vec_activate(y[i], epilogue->high);
    }
    store_outputs(epilogue, w, at / s->across * side, left, width,
                  df_min(some * side, w->out[2] - left), y);
  }
}

/* ---- Forms ---------------------------------------------------------------------------------- */

#define FORM(side)                                                                                 \
  static void transform_weights_##side(float *out, int64_t step, const float *g) {                 \
    transform_weights(side, out, step, g);                                                         \
  }                                                                                                \
  static void transform_inputs_##side(const df_squares *squares, const float *plane,               \
                                      float *inputs, int64_t pitch) {                              \
    transform_inputs(side, squares, plane, inputs, pitch);                                         \
  }                                                                                                \
  static void transform_sums_##side(const df_squares *squares,                                     \
                                    const df_square_epilogue *epilogue) {                          \
    transform_sums(side, squares, epilogue);                                                       \
  }
#define FORM_ENTRY(side)                                                                           \
  {side, (side + 2) * (side + 2), transform_weights_##side, transform_inputs_##side,               \
   transform_sums_##side}

FORM(2)
FORM(4)

const df_winograd_form DF_NAME(df_winograd_forms)[DF_WINOGRAD_FORMS] = {FORM_ENTRY(2),
                                                                        FORM_ENTRY(4)};
