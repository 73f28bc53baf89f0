/* conv_lattice.c: copies a source plane with its padding, by phases, so that every tap is a shift.
 *
 * One load and store per element of the copy, which every output row of the weight then reads in
 * place of an im2col matrix that would be as many times larger as the kernel has taps. */
#include "conv_lattice.h"
#include "vector.h"

static void fill_zero(float *out, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    out[i] = 0.0f;
}

/* out[i] = from[2 * i] for |count| elements; reads nothing beyond from[2 * count - 2]. */
static void copy_even(float *out, const float *from, int64_t count) {
  df_ivec even;
  for (int i = 0; i < DF_LANES; i++)
    even[i] = 2 * i;
  int64_t i = 0;
  for (; i + DF_LANES < count; i += DF_LANES)
    vec_store(out + i,
              __builtin_shuffle(vec_load(from + 2 * i), vec_load(from + 2 * i + DF_LANES), even));
  if (i < count) {
    int64_t left = 2 * (count - i) - 1;
    df_vec low = vec_load_part(from + 2 * i, df_min(DF_LANES, left));
    df_vec high = vec_load_part(from + 2 * i + DF_LANES, df_max(0, left - DF_LANES));
    vec_store_part(out + i, __builtin_shuffle(low, high, even), count - i);
  }
}

/* out[u] = line[u * step + start], zero outside of [0, size); elements of the line lie together. */
static void spread_line(float *out, const float *line, int64_t size, int64_t step, int64_t start,
                        int64_t count) {
  int64_t begin = start >= 0 ? 0 : df_min(count, df_divide_up(-start, step));
  int64_t end = start >= size ? begin : df_min(count, df_divide_up(size - start, step));
  end = df_max(begin, end);
  fill_zero(out, begin);
  fill_zero(out + end, count - end);
  const float *from = line + begin * step + start;
  if (begin == end)
    return;
  if (step == 1) {
    int64_t i = begin;
    for (; i + DF_LANES <= end; i += DF_LANES)
      vec_store(out + i, vec_load(from + i - begin));
    vec_store_part(out + i, vec_load_part(from + i - begin, end - i), end - i);
  } else if (step == 2) {
    copy_even(out + begin, from, end - begin);
  } else {
    for (int64_t i = begin; i < end; i++)
      out[i] = line[i * step + start];
  }
}

void DF_NAME(df_spread)(float *out, const float *plane, const df_lattice *down,
                        const df_lattice *across, int64_t band, int64_t rows) {
  int64_t span = across->grid + across->reach;
  if (span == 1 && across->source == 1 && across->start == 0) {
    /* Columns of one element: the rows are a line. */
    for (int64_t r = 0; r < down->phases; r++, out += rows)
      spread_line(out, plane, down->source, down->step, band * down->step + down->start + r, rows);
    return;
  }
  for (int64_t r = 0; r < down->phases; r++)
    for (int64_t c = 0; c < across->phases; c++)
      for (int64_t u = 0; u < rows; u++, out += span) {
        int64_t row = (band + u) * down->step + down->start + r;
        if (row < 0 || row >= down->source)
          fill_zero(out, span);
        else
          spread_line(out, plane + row * across->source, across->source, across->step,
                      across->start + c, span);
      }
}
