/* conv/phase_layout.c: copies a source plane with its padding, by phases, so that every tap is a
 * shift.
 *
 * One load and store per element of the copy, which every output row of the weight then reads
 * instead of an im2col matrix that would be as many times larger as the kernel has taps. */
#include "conv/phase_layout.h"
#include "simd/vector.h"

static void fill_zero(float *out, int64_t count) {
  int64_t i = 0;
  for (; i + DF_LANES <= count; i += DF_LANES)
    vec_store(out + i, vec_zero());
  if (i < count)
    vec_store_partial(out + i, vec_zero(), count - i);
}

/* out[i] = from[2 * i] for |count| elements; reads nothing beyond from[2 * count - 2]. */
static void copy_even(float *out, const float *from, int64_t count) {
  int64_t i = 0;
  for (; i + DF_LANES < count; i += DF_LANES)
    vec_store(out + i, vec_even(vec_load(from + 2 * i), vec_load(from + 2 * i + DF_LANES)));
  if (i < count) {
    int64_t left = 2 * (count - i) - 1;
    df_vec low = vec_load_partial(from + 2 * i, df_min(DF_LANES, left));
    df_vec high = vec_load_partial(from + 2 * i + DF_LANES, df_max(0, left - DF_LANES));
    vec_store_partial(out + i, vec_even(low, high), count - i);
  }
}

/* out[u] = line[u * step + start] for u in [begin, end), zeros in the rest of |count|. */
typedef struct line {
  int64_t step, start;
  int64_t begin, end, count;
} line;

/* Those that lie in a source of |size|. */
static line line_of(int64_t size, int64_t step, int64_t start, int64_t count) {
  int64_t begin = start >= 0 ? 0 : df_min(count, df_divide_up(-start, step));
  int64_t end = start >= size ? begin : df_min(count, df_divide_up(size - start, step));
  return (line){step, start, begin, df_max(begin, end), count};
}

static inline void copy_phase_line(float *out, const float *source, const line *l) {
  const float *from = source + l->begin * l->step + l->start;
  fill_zero(out, l->begin);
  fill_zero(out + l->end, l->count - l->end);
  if (l->begin == l->end)
    return;
  if (l->step == 1) {
    int64_t i = l->begin;
    for (; i + DF_LANES <= l->end; i += DF_LANES, from += DF_LANES)
      vec_store(out + i, vec_load(from));
    vec_store_partial(out + i, vec_load_partial(from, l->end - i), l->end - i);
  } else if (l->step == 2) {
    copy_even(out + l->begin, from, l->end - l->begin);
  } else {
    for (int64_t i = l->begin; i < l->end; i++, from += l->step)
      out[i] = *from;
  }
}

void DF_NAME(df_phase_copy)(float *out, const float *plane, const df_phase_layout *down,
                            const df_phase_layout *across, int64_t band, int64_t rows) {
  int64_t span = across->grid + across->reach;
  if (span == 1 && across->source == 1 && across->start == 0) {
    /* Columns of one element: the rows are a line. */
    for (int64_t r = 0; r < down->phases; r++, out += rows) {
      line l = line_of(down->source, down->step, band * down->step + down->start + r, rows);
      copy_phase_line(out, plane, &l);
    }
    return;
  }
  for (int64_t r = 0; r < down->phases; r++)
    for (int64_t c = 0; c < across->phases; c++) {
      line l = line_of(across->source, across->step, across->start + c, span);
      for (int64_t u = 0; u < rows; u++, out += span) {
        int64_t row = (band + u) * down->step + down->start + r;
        if (row < 0 || row >= down->source)
          fill_zero(out, span);
        else
          copy_phase_line(out, plane + row * across->source, &l);
      }
    }
}
