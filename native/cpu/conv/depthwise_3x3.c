/* conv/depthwise_3x3.c: see conv/depthwise_3x3.h.
 *
 * Two rows of results at a time, vector by vector: the rows of x that they read are loaded once per
 * tap along the row, under masks that leave out the padding, and nothing is copied.
 * With stride 1 that is 12 loads for 18 multiply-adds, with 18 operations on 4 (1 + 1) bytes per
 * result. */
#include "conv/depthwise_3x3.h"
#include "simd/vector.h"

#define DEPTHWISE_INLINE static inline __attribute__((always_inline))

enum {
  TAPS = 3,
  ROWS = 2,    /* of results at a time */
  VECTORS = 16 /* of such rows, one after the other, so that x is read as it lies */
};

/* Lanes [begin, end) of a vector. */
#if defined(__AVX512F__)
typedef __mmask16 lanes;
DEPTHWISE_INLINE lanes lanes_of(int64_t begin, int64_t end) {
  return (lanes)((1u << end) - (1u << begin));
}
DEPTHWISE_INLINE df_vec load(const float *from, lanes mask) {
  return (df_vec)_mm512_maskz_loadu_ps(mask, from);
}
#elif defined(__AVX2__)
typedef __m256i lanes;
DEPTHWISE_INLINE lanes lanes_of(int64_t begin, int64_t end) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)begin), lane),
                             _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), lane));
}
DEPTHWISE_INLINE df_vec load(const float *from, lanes mask) {
  return (df_vec)_mm256_maskload_ps(from, mask);
}
#else
typedef struct lanes {
  int64_t begin, end;
} lanes;
DEPTHWISE_INLINE lanes lanes_of(int64_t begin, int64_t end) { return (lanes){begin, end}; }
DEPTHWISE_INLINE df_vec load(const float *from, lanes mask) {
  if (mask.begin == 0 && mask.end == DF_LANES)
    return vec_load(from);
  df_vec value = vec_zero();
  for (int64_t i = mask.begin; i < mask.end; i++)
    value[i] = from[i];
  return value;
}
#endif

/* Those of the elements [at, at + DF_LANES) of a row of |width| that are in it. */
DEPTHWISE_INLINE lanes inside(int64_t at, int64_t width) {
  int64_t begin = df_min(DF_LANES, df_max(0, -at));
  return lanes_of(begin, df_max(begin, df_min(DF_LANES, width - at)));
}

/* Where a vector of results reads, and the masks of it: with stride 2 two vectors for taps 0 and 1,
 * two for tap 2. */
typedef struct reads {
  int64_t at;
  lanes mask[4];
} reads;

DEPTHWISE_INLINE reads find_reads(const df_depthwise_3x3 *t, int64_t column, int stride) {
  reads r = {.at = column * stride - t->pad[1]};
  for (int i = 0; i < 4; i++) {
    int64_t ahead = stride == 1 ? i : i / 2 * 2 + i % 2 * DF_LANES;
    r.mask[i] = inside(r.at + ahead, t->in[1]);
  }
  return r;
}

/* What the three taps of a row of x read; zeros where it is none. */
DEPTHWISE_INLINE void read_row(df_vec value[TAPS], const df_depthwise_3x3 *t, const reads *r,
                               int64_t row, int stride) {
  if (row < 0 || row >= t->in[0]) {
    for (int b = 0; b < TAPS; b++)
      value[b] = vec_zero();
    return;
  }
  const float *from = t->x + row * t->in[1] + r->at;
  if (stride == 1) {
    for (int b = 0; b < TAPS; b++)
      value[b] = load(from + b, r->mask[b]);
    return;
  }
  df_vec low = load(from, r->mask[0]), high = load(from + DF_LANES, r->mask[1]);
  value[0] = vec_even(low, high);
  value[1] = vec_odd(low, high);
  low = load(from + 2, r->mask[2]);
  high = load(from + 2 + DF_LANES, r->mask[3]);
  value[2] = vec_even(low, high);
}

/* |rows| rows of results from |row| on, |count| columns from |column| on. */
DEPTHWISE_INLINE void do_rows(const df_depthwise_3x3 *t, const df_vec *weight, const reads *r,
                              int64_t row, int64_t column, int64_t count, int rows, int down,
                              int across) {
  enum { MOST = (ROWS - 1) * 2 + TAPS };
  df_vec x[MOST][TAPS];
  for (int i = 0; i < (rows - 1) * down + TAPS; i++)
    read_row(x[i], t, r, row * down - t->pad[0] + i, across);
  for (int i = 0; i < rows; i++) {
    int64_t to = (row + i) * t->out_size[1] + column;
    df_vec sum = vec_splat(t->bias);
    if (t->add)
      sum += vec_load_partial(t->add + to, count);
    for (int a = 0; a < TAPS; a++)
      for (int b = 0; b < TAPS; b++)
        sum += x[i * down + a][b] * weight[a * TAPS + b];
    sum = vec_activate(sum, t->high);
    if (count == DF_LANES)
      vec_store(t->out + to, sum);
    else
      vec_store_partial(t->out + to, sum, count);
  }
}

DEPTHWISE_INLINE void run(const df_depthwise_3x3 *t, int down, int across) {
  df_vec weight[TAPS * TAPS];
  for (int i = 0; i < TAPS * TAPS; i++)
    weight[i] = vec_splat(t->weight[t->reversed ? TAPS * TAPS - 1 - i : i]);
  for (int64_t first = 0; first < t->out_size[1]; first += VECTORS * DF_LANES) {
    const int64_t columns = df_min(VECTORS * DF_LANES, t->out_size[1] - first);
    const int64_t vectors = df_divide_up(columns, DF_LANES);
    reads r[VECTORS];
    for (int64_t v = 0; v < vectors; v++)
      r[v] = find_reads(t, first + v * DF_LANES, across);
    for (int64_t row = 0; row < t->out_size[0]; row += ROWS)
      for (int64_t v = 0; v < vectors; v++) {
        const int64_t column = v * DF_LANES, count = df_min(DF_LANES, columns - column);
        if (row + ROWS <= t->out_size[0])
          do_rows(t, weight, &r[v], row, first + column, count, ROWS, down, across);
        else
          do_rows(t, weight, &r[v], row, first + column, count, 1, down, across);
      }
  }
}

void DF_NAME(df_depthwise_3x3_run)(const df_depthwise_3x3 *given) {
  const df_depthwise_3x3 t = *given; /* which no store of a result can change */
  if (t.stride[0] == 1 && t.stride[1] == 1)
    run(&t, 1, 1);
  else if (t.stride[0] == 1)
    run(&t, 1, 2);
  else if (t.stride[1] == 1)
    run(&t, 2, 1);
  else
    run(&t, 2, 2);
}
