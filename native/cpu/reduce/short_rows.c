/* reduce/short_rows.c: sum, largest and smallest of rows[i][0..n).
 *
 * A row is joined in the lanes of a vector; the vectors of as many rows as there are lanes are then
 * transposed, so that one operation per lane joins the lanes of all rows at a time: for rows of a
 * few vectors joining lanes row by row takes longer than coming to them. 4 bytes an operation. */
#include "reduce/short_rows.h"
#include "simd/vector.h"

#include <math.h>

static inline df_vec sum_of(const float *x, int64_t n) {
  df_vec one = vec_zero(), two = vec_zero();
  int64_t i = 0;
  for (; i + 2 * DF_LANES <= n; i += 2 * DF_LANES) {
    one += vec_load(x + i);
    two += vec_load(x + i + DF_LANES);
  }
  if (i + DF_LANES <= n) {
    one += vec_load(x + i);
    i += DF_LANES;
  }
  if (i < n)
    two += vec_load_partial(x + i, n - i);
  return one + two;
}

/* The largest of sign * x, per lane. */
static inline df_vec largest_of(const float *x, int64_t n, float sign) {
  if (n < DF_LANES) {
    df_ivec lane = {0};
    for (int i = 0; i < DF_LANES; i++)
      lane[i] = i;
    df_ivec inside = lane < (int32_t)n;
    df_vec values = vec_load_partial(x, n) * sign;
    return (df_vec)((inside & (df_ivec)values) | (~inside & (df_ivec)vec_splat(-INFINITY)));
  }
  df_vec most = vec_load(x) * sign;
  for (int64_t i = DF_LANES; i + DF_LANES <= n; i += DF_LANES)
    most = vec_larger(most, vec_load(x + i) * sign);
  return vec_larger(most, vec_load(x + n - DF_LANES) * sign); /* some of them for the second time */
}

static inline df_vec joined(int sums, df_vec a, df_vec b) {
  return sums ? a + b : vec_larger(a, b);
}

static inline __attribute__((always_inline)) void join_rows(int sums, float sign,
                                                            const float *const *rows, int64_t count,
                                                            int64_t n, float *results) {
  for (int64_t first = 0; first < count; first += DF_LANES) {
    int64_t some = df_min(DF_LANES, count - first);
    df_vec lanes[DF_LANES];
    for (int64_t i = 0; i < some; i++)
      lanes[i] = sums ? sum_of(rows[first + i], n) : largest_of(rows[first + i], n, sign);
    for (int64_t i = some; i < DF_LANES; i++)
      lanes[i] = vec_zero();
    vec_transpose(lanes);
    for (int half = DF_LANES / 2; half > 0; half /= 2)
      for (int i = 0; i < half; i++)
        lanes[i] = joined(sums, lanes[i], lanes[i + half]);
    vec_store_partial(results + first, lanes[0] * sign, some);
  }
}

void DF_NAME(df_sum_rows)(const float *const *rows, int64_t count, int64_t n, float *sums) {
  join_rows(1, 1.0f, rows, count, n, sums);
}

void DF_NAME(df_largest_of_rows)(const float *const *rows, int64_t count, int64_t n, float *most) {
  join_rows(0, 1.0f, rows, count, n, most);
}

void DF_NAME(df_smallest_of_rows)(const float *const *rows, int64_t count, int64_t n,
                                  float *least) {
  join_rows(0, -1.0f, rows, count, n, least);
}
