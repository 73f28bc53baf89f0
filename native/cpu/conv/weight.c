/* conv/weight.c: lines of weights, a line per step of k, with lanes over filters.
 *
 *   out[(k - begin) * pitch + lane] = weight(group, first + lane, channel, tap), k = (channel, tap)
 *
 * Filters that lie together are loaded as they are. Else what lies together are taps, or channels
 * and taps: these are loaded by filters and transposed in registers, by squares: a load, four or
 * five exchanges and a store for DF_LANES elements. */
#include "conv/weight.h"

/* Whether channels and taps lie together, in the order of k. */
static int is_contiguous(const df_conv *conv, const df_weight *weight) {
  const df_window *w = &conv->window;
  int64_t next = 1;
  for (int axis = DF_AXES - 1; axis >= 0; axis--) {
    if (w->kernel[axis] > 1 && weight->tap[axis] != next)
      return 0;
    next *= w->kernel[axis];
  }
  return weight->channel == next;
}

/* Lines of what lies together in each filter: element i goes to line line_of[i], or i with none; no
 * line outside of [0, lines) is written. */
static void transpose_run(float *out, int64_t pitch, int64_t lines, const float *from,
                          int64_t filter, const df_filters *f, int64_t count,
                          const int32_t *line_of, int64_t shift) {
  for (int64_t begin = 0; begin < count; begin += DF_LANES) {
    int64_t some = df_min(DF_LANES, count - begin);
    df_vec square[DF_LANES];
    for (int i = 0; i < DF_LANES; i++)
      square[i] = i >= f->count      ? vec_zero()
                  : some == DF_LANES ? vec_load(from + i * filter + begin)
                                     : vec_load_partial(from + i * filter + begin, some);
    vec_transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < DF_LANES; i++) {
      if (i >= some || (line_of && line_of[begin + i] < 0))
        continue;
      int64_t line = shift + (line_of ? line_of[begin + i] : begin + i);
      if (line < 0 || line >= lines)
        continue;
      if (f->lanes == DF_LANES)
        vec_store(out + line * pitch, square[i]);
      else
        vec_store_partial(out + line * pitch, square[i], f->lanes);
    }
  }
}

/* distance[tap] from the first tap. Returns the number of taps. */
static int64_t tap_distances(const df_conv *conv, const df_weight *weight, int64_t *distance) {
  const df_window *w = &conv->window;
  int64_t taps = 0;
  for (int64_t a = 0; a < w->kernel[0]; a++)
    for (int64_t b = 0; b < w->kernel[1]; b++)
      for (int64_t c = 0; c < w->kernel[2]; c++)
        distance[taps++] = a * weight->tap[0] + b * weight->tap[1] + c * weight->tap[2];
  return taps;
}

/* One vector of filters that do not lie together. */
static void transpose_vector(float *out, int64_t pitch, const df_conv *conv,
                             const df_weight *weight, const df_filters *f, const float *from,
                             int64_t begin, int64_t end) {
  int64_t distance[DF_MOST_TAPS], low = 0, high = 0;
  int32_t line_of[DF_MOST_TAPS];
  if (is_contiguous(conv, weight)) {
    transpose_run(out, pitch, end - begin, from + begin, weight->filter, f, end - begin, NULL, 0);
    return;
  }
  const int64_t taps = tap_distances(conv, weight, distance);
  DF_ASSUME(taps > 0);
  for (int64_t tap = 0; tap < taps; tap++) {
    low = df_min(low, distance[tap]);
    high = df_max(high, distance[tap]);
  }
  for (int64_t i = low; i <= high; i++)
    line_of[i - low] = -1;
  for (int64_t tap = 0; tap < taps; tap++)
    line_of[distance[tap] - low] = (int32_t)tap;
  for (int64_t channel = begin / taps; channel * taps < end; channel++)
    transpose_run(out, pitch, end - begin, from + channel * weight->channel + low, weight->filter,
                  f, high - low + 1, line_of, channel * taps - begin);
}

/* Filters that lie together. */
static void load_lines(float *out, int64_t pitch, const df_conv *conv, const df_weight *weight,
                       const df_filters *f, const float *from, int64_t begin, int64_t end) {
  int64_t distance[DF_MOST_TAPS];
  const int64_t taps = tap_distances(conv, weight, distance);
  DF_ASSUME(taps > 0);
  int64_t tap = begin % taps;
  from += begin / taps * weight->channel;
  for (int64_t k = begin; k < end; k++, out += pitch) {
    for (int64_t lane = 0; lane < f->lanes; lane += DF_LANES)
      vec_store_partial(out + lane,
                        vec_load_partial(from + distance[tap] + lane,
                                         df_max(0, df_min(DF_LANES, f->count - lane))),
                        df_min(DF_LANES, f->lanes - lane));
    if (++tap == taps) {
      tap = 0;
      from += weight->channel;
    }
  }
}

void DF_NAME(df_weight_lines)(float *out, int64_t pitch, const df_conv *conv,
                              const df_weight *weight, const df_filters *f, int64_t begin,
                              int64_t end) {
  const float *from = weight->data + weight->start + f->group * weight->group;
  if (weight->filter == 1) {
    load_lines(out, pitch, conv, weight, f, from + f->first, begin, end);
    return;
  }
  for (int64_t lane = 0; lane < f->lanes; lane += DF_LANES) {
    df_filters some = {f->group, f->first + lane, df_max(0, df_min(DF_LANES, f->count - lane)),
                       df_min(DF_LANES, f->lanes - lane)};
    transpose_vector(out + lane, pitch, conv, weight, &some, from + some.first * weight->filter,
                     begin, end);
  }
}
