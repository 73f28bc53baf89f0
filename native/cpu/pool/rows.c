/* pool/rows.c: a window's maximum or sum, first down its columns, then along the row of these.
 *
 *   line[i] = join over rows (a, b) of the window of x[a, b, i]
 *   y[o]    = join over taps c of line[o * stride - pad + c * dilation]
 *
 * The line is padded with what joining leaves as it is, so every window has all its taps. An output
 * costs kernel rows + kernel columns reads, where the plain loop takes their product. As many lines
 * as fit the stack are made before they are read: what was just stored can't be read at another
 * offset without a wait. */
#include "pool/rows.h"
#include "simd/vector.h"

#include <math.h>

enum { MOST_LINE = 4096 }; /* floats of all lines: 16 KiB on the stack */

/* Floats of a line: what windows reach, at least the padded row, and what vectors read beyond. */
static int64_t line_floats(const df_window *w) {
  int64_t reach = (w->out[2] - 1) * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2] + 1;
  return df_max(reach, w->pad[2] + w->in[2]) + w->stride[2] * DF_LANES;
}

int DF_NAME(df_pool_rows_fit)(const df_window *w) { return line_floats(w) <= MOST_LINE; }

static inline df_vec join(int sums, df_vec a, df_vec b) { return sums ? a + b : vec_larger(a, b); }

/* The rows of the windows at (o0, o1), joined, with the padding around them. */
static inline __attribute__((always_inline)) void
join_down(int sums, const df_window *w, const float *x, int64_t o0, int64_t o1, float *line) {
  int64_t begin[2] = {0}, end[2] = {0}, first[2] = {0}, width = w->in[2];
  const int64_t o[2] = {o0, o1};
  for (int axis = 0; axis < 2; axis++) {
    df_window_taps(w, axis, o[axis], &begin[axis], &end[axis]);
    first[axis] = o[axis] * w->stride[axis] - w->pad[axis] + begin[axis] * w->dilation[axis];
  }
  int64_t slice = w->dilation[0] * w->in[1] * width, row = w->dilation[1] * width;
  df_vec nothing = vec_splat(sums ? 0.0f : -INFINITY);
  x += (first[0] * w->in[1] + first[1]) * width;
  line += w->pad[2];
  for (int64_t i = 0; i < width; i += DF_LANES) {
    int64_t count = df_min(DF_LANES, width - i);
    df_vec all = nothing;
    const float *from = x + i;
    for (int64_t a = begin[0]; a < end[0]; a++, from += slice) {
      const float *at = from;
      if (count == DF_LANES) {
        for (int64_t b = begin[1]; b < end[1]; b++, at += row)
          all = join(sums, all, vec_load(at));
      } else {
        for (int64_t b = begin[1]; b < end[1]; b++, at += row)
          all = join(sums, all, vec_load_partial(at, count));
      }
    }
    if (count == DF_LANES)
      vec_store(line + i, all);
    else
      vec_store_partial(line + i, all, count);
  }
}

/* The outputs of a row; sums are divided by rows * counts[o], and are 0 where that is 0. */
static inline __attribute__((always_inline)) void join_along(int sums, int64_t stride,
                                                             const df_window *w, const float *line,
                                                             const float *counts, float rows,
                                                             float *y) {
  for (int64_t o = 0; o < w->out[2]; o += DF_LANES) {
    const float *from = line + o * stride;
    df_vec all = vec_load_steps(from, stride);
    for (int64_t c = 1; c < w->kernel[2]; c++)
      all = join(sums, all, vec_load_steps(from + c * w->dilation[2], stride));
    if (sums) {
      df_vec count = vec_load(counts + o) * rows;
      df_ivec some = count > 0.0f;
      all = (df_vec)(some & (df_ivec)(all / count));
    }
    vec_store_partial(y + o, all, df_min(DF_LANES, w->out[2] - o));
  }
}

/* Means of windows so far apart that elements are loaded one by one anyhow. */
static void mean_along(const df_window *w, const float *line, const float *counts, float rows,
                       float *y) {
  for (int64_t o = 0; o < w->out[2]; o++) {
    const float *from = line + o * w->stride[2];
    float sum = from[0];
    for (int64_t c = 1; c < w->kernel[2]; c++)
      sum += from[c * w->dilation[2]];
    const float count = counts[o] * rows;
    y[o] = count > 0.0f ? sum / count : 0.0f;
  }
}

/* What of the window at position |o| of |axis| counts. */
static int64_t counted(const df_window *w, int axis, int64_t o, int32_t pads_count) {
  int64_t begin, end;
  if (pads_count) {
    /* Taps up to the end of the padding: the last window may reach beyond it when sizes were
     * rounded up. */
    int64_t span = w->in[axis] + w->pad[axis] + w->pad_end[axis] - o * w->stride[axis];
    return df_max(0, df_min(w->kernel[axis], df_divide_up(span, w->dilation[axis])));
  }
  df_window_taps(w, axis, o, &begin, &end);
  return end - begin;
}

/* Rows of windows in one slice, whose joined rows are |lines|; counts of the rows are in |down|. */
static inline __attribute__((always_inline)) void join_lines(int sums, int64_t stride,
                                                             const df_window *w, const float *lines,
                                                             int64_t rows, const float *counts,
                                                             const float *down, float *y) {
  for (int64_t i = 0; i < rows; i++)
    join_along(sums, stride, w, lines + i * line_floats(w), counts, sums ? down[i] : 0.0f,
               y + i * w->out[2]);
}

static inline __attribute__((always_inline)) void join_planes(int sums, const df_window *w,
                                                              int64_t planes, const float *x,
                                                              float *y, int32_t pads_count) {
  float lines[MOST_LINE], counts[MOST_LINE], down[MOST_LINE];
  int64_t floats = line_floats(w), together = MOST_LINE / floats;
  DF_ASSUME(together > 0);
  for (int64_t i = 0; i < together * floats; i++)
    lines[i] = sums ? 0.0f : -INFINITY;
  if (sums)
    memset(counts, 0, (size_t)(w->out[2] + DF_LANES) * sizeof *counts);
  for (int64_t o = 0; o < w->out[2] && sums; o++)
    counts[o] = (float)counted(w, 2, o, pads_count);
  for (int64_t slice = 0; slice < planes * w->out[0]; slice++) {
    int64_t o0 = slice % w->out[0];
    const float *plane = x + slice / w->out[0] * w->in_size;
    for (int64_t row = 0, rows; row < w->out[1]; row += rows, y += rows * w->out[2]) {
      rows = df_min(together, w->out[1] - row);
      for (int64_t i = 0; i < rows; i++)
        join_down(sums, w, plane, o0, row + i, lines + i * floats);
      for (int64_t i = 0; i < rows && sums && (slice == 0 || w->out[0] > 1 || rows < w->out[1]);
           i++)
        down[i] = (float)(counted(w, 0, o0, pads_count) * counted(w, 1, row + i, pads_count));
      if (w->stride[2] == 1)
        join_lines(sums, 1, w, lines, rows, counts, down, y);
      else if (w->stride[2] == 2)
        join_lines(sums, 2, w, lines, rows, counts, down, y);
      else if (sums)
        for (int64_t i = 0; i < rows; i++)
          mean_along(w, lines + i * floats, counts, down[i], y + i * w->out[2]);
      else
        join_lines(0, w->stride[2], w, lines, rows, counts, down, y);
    }
  }
}

/* ---- Maxima of windows two apart --------------------------------------------------------------
 *
 * The commonest pool: 2 or 3 columns, a stride of 2. Elements are joined down the columns, parted
 * into even and odd ones and joined along, all in registers: an output costs half as much as by
 * lines. */

static int in_pairs(const df_window *w) {
  return w->stride[2] == 2 && w->dilation[2] == 1 && (w->kernel[2] == 2 || w->kernel[2] == 3) &&
         w->in[0] == 1 && w->out[0] == 1 && w->kernel[0] == 1 && w->pad[0] == 0 &&
         w->in[2] < INT32_MAX / 2;
}

/* Elements [begin, end) of a vector; the others lose against every other. */
static inline df_vec load_some(const float *from, int64_t begin, int64_t end) {
#if defined(__AVX512F__)
  uint32_t mask = (1u << end) - (1u << begin);
  return (df_vec)_mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), (__mmask16)mask, from);
#else
  df_vec lanes = vec_splat(-INFINITY);
  for (int64_t i = begin; i < end; i++)
    lanes[i] = from[i];
  return lanes;
#endif
}

/* Elements [at, at + DF_LANES) of |rows| rows, joined. */
static inline df_vec join_inside(const float *x, int64_t rows, int64_t step, int64_t at,
                                 int64_t width) {
  x += at;
  if (at >= 0 && at + DF_LANES <= width) {
    df_vec all = vec_load(x);
    for (int64_t i = 1; i < rows; i++)
      all = vec_larger(all, vec_load(x + i * step));
    return all;
  }
  int64_t begin = df_min(DF_LANES, df_max(0, -at)),
          end = df_max(begin, df_min(DF_LANES, width - at));
  df_vec all = load_some(x, begin, end);
  for (int64_t i = 1; i < rows && end > begin; i++)
    all = vec_larger(all, load_some(x + i * step, begin, end));
  return all;
}

static inline __attribute__((always_inline)) void max_pairs(int64_t columns, const df_window *w,
                                                            const float *x, float *y) {
  for (int64_t row = 0; row < w->out[1]; row++, y += w->out[2]) {
    int64_t begin, end;
    df_window_taps(w, 1, row, &begin, &end);
    int64_t first = row * w->stride[1] - w->pad[1] + begin * w->dilation[1];
    int64_t rows = end - begin, step = w->dilation[1] * w->in[2];
    const float *from = x + first * w->in[2];
    for (int64_t o = 0; o < w->out[2]; o += DF_LANES) {
      int64_t at = 2 * o - w->pad[2];
      df_vec all = vec_splat(-INFINITY);
      if (rows > 0) {
        df_vec low = join_inside(from, rows, step, at, w->in[2]);
        df_vec high = join_inside(from, rows, step, at + DF_LANES, w->in[2]);
        df_vec evens = vec_even(low, high);
        all = vec_larger(evens, vec_odd(low, high));
        if (columns == 3) {
          df_vec behind = join_inside(from, rows, step, at + 2 * DF_LANES, w->in[2]);
          all = vec_larger(all, vec_next(evens, behind));
        }
      }
      vec_store_partial(y + o, all, df_min(DF_LANES, w->out[2] - o));
    }
  }
}

void DF_NAME(df_max_rows)(const df_window *w, int64_t planes, const float *x, float *y) {
  if (!in_pairs(w)) {
    join_planes(0, w, planes, x, y, 0);
    return;
  }
  for (int64_t plane = 0; plane < planes; plane++) {
    if (w->kernel[2] == 2)
      max_pairs(2, w, x + plane * w->in_size, y + plane * w->out_size);
    else
      max_pairs(3, w, x + plane * w->in_size, y + plane * w->out_size);
  }
}

/* ---- Maxima with their indices -------------------------------------------------------------- */

/* Joins one row of the windows' taps into the maxima of a row of outputs. |line| is the padded row,
 * whose first element is number |at| of the plane. Of equals the first stays, and so does a NaN. */
static inline __attribute__((always_inline)) void join_indices(int64_t stride, const df_window *w,
                                                               const float *line, int64_t at,
                                                               float *y, int32_t *indices) {
  df_ivec lane = {0};
  for (int i = 0; i < DF_LANES; i++)
    lane[i] = i;
  for (int64_t o = 0; o < w->out[2]; o += DF_LANES) {
    const int64_t count = df_min(DF_LANES, w->out[2] - o);
    df_vec best = vec_load_partial(y + o, count);
    df_ivec argmax = (df_ivec)vec_load_partial((const float *)(const void *)(indices + o), count);
    const df_ivec first = (lane + (int32_t)o) * (int32_t)stride - (int32_t)w->pad[2];
    for (int64_t c = 0; c < w->kernel[2]; c++) {
      const int64_t tap = c * w->dilation[2];
      const df_vec value = vec_load_steps(line + o * stride + tap, stride);
      const df_ivec i = first + (int32_t)tap;
      const df_ivec inside = (i >= 0) & (i < (int32_t)w->in[2]);
      const df_ivec better = ~(value <= best) & (best == best);
      const df_ivec take = inside & ((argmax < 0) | better);
      best = (df_vec)((take & (df_ivec)value) | (~take & (df_ivec)best));
      argmax = (take & (i + (int32_t)at)) | (~take & argmax);
    }
    vec_store_partial(y + o, best, count);
    vec_store_partial((float *)(void *)(indices + o), (df_vec)argmax, count);
  }
}

void DF_NAME(df_max_indices)(const df_window *w, const float *x, float *y, int32_t *indices) {
  float line[MOST_LINE];
  const int64_t floats = line_floats(w);
  for (int64_t i = 0; i < floats; i++)
    line[i] = 0.0f;
  for (int64_t o0 = 0; o0 < w->out[0]; o0++)
    for (int64_t o1 = 0; o1 < w->out[1]; o1++, y += w->out[2], indices += w->out[2]) {
      int64_t begin[2], end[2], start[2];
      const int64_t o[2] = {o0, o1};
      for (int axis = 0; axis < 2; axis++) {
        df_window_taps(w, axis, o[axis], &begin[axis], &end[axis]);
        start[axis] = o[axis] * w->stride[axis] - w->pad[axis];
      }
      for (int64_t i = 0; i < w->out[2]; i++) {
        y[i] = -INFINITY;
        indices[i] = -1; /* the window lies in the padding whole */
      }
      for (int64_t a = begin[0]; a < end[0]; a++)
        for (int64_t b = begin[1]; b < end[1]; b++) {
          const int64_t row =
              (start[0] + a * w->dilation[0]) * w->in[1] + start[1] + b * w->dilation[1];
          const int64_t at = row * w->in[2];
          memcpy(line + w->pad[2], x + at, (size_t)w->in[2] * sizeof(float));
          if (w->stride[2] == 1)
            join_indices(1, w, line, at, y, indices);
          else if (w->stride[2] == 2)
            join_indices(2, w, line, at, y, indices);
          else
            join_indices(w->stride[2], w, line, at, y, indices);
        }
    }
}

void DF_NAME(df_avg_rows)(const df_window *w, int64_t planes, const float *x, float *y,
                          int32_t pads_count) {
  join_planes(1, w, planes, x, y, pads_count);
}
