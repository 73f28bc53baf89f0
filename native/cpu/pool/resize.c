/* pool/resize.c: weighted sums of a few elements along an axis; x is seen as (outer, size, inner).
 *
 *   resample       y[u, o, j] = sum over t of weight[o, t] x[u, index[o, t], j]
 *   resample_grad  dx[u, index[o, t], j] += weight[o, t] dy[u, o, j], from zero
 *
 * A unit of work is some columns of one outer index, so that no two threads write one element and
 * sums are made in the order of o and t whatever the number of threads. */
#include "cpu.h"
#include "simd/vector.h"

enum {
  COLUMNS = 512,
  ROWS = 16,     /* for which lanes and weights of a vector of results stay in registers */
  ENTRIES = 2048 /* of the table at a time, as vectors on the stack */
};

typedef struct sampling {
  float *out;
  const float *in;
  const int64_t *index;
  const float *weight;
  int64_t outer, inner;
  int64_t results, taps; /* of the table */
  int64_t size;          /* of the axis that the index points into */
} sampling;

#define RESIZE_INLINE static inline __attribute__((always_inline))

/* a b + c, rounded once where the instruction set can: of a sum of two products the compiler fuses
 * either one into it, and results would differ by the form of a loop. */
RESIZE_INLINE df_vec fused(df_vec a, df_vec b, df_vec c) {
#if defined(__AVX512F__)
  return (df_vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (df_vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

/* Up to DF_LANES neighbours of one row of results. */
RESIZE_INLINE df_vec gather_lanes(const float *x, const int64_t *index, const float *weight,
                                  int64_t taps, int64_t inner, int64_t lanes) {
  df_vec sum = vec_splat(weight[0]) * vec_load_partial(x + index[0] * inner, lanes);
  for (int64_t t = 1; t < taps; t++)
    sum = fused(vec_splat(weight[t]), vec_load_partial(x + index[t] * inner, lanes), sum);
  return sum;
}

/* One row of results for |n| neighbours. */
static void gather_row(float *y, const float *x, const int64_t *index, const float *weight,
                       int64_t taps, int64_t inner, int64_t n) {
  int64_t j = 0;
  for (; j + DF_LANES <= n; j += DF_LANES)
    vec_store(y + j, gather_lanes(x + j, index, weight, taps, inner, DF_LANES));
  if (j < n)
    vec_store_partial(y + j, gather_lanes(x + j, index, weight, taps, inner, n - j), n - j);
}

/* ---- Along the last axis -------------------------------------------------------------------
 *
 * A vector of results reads elements that lie near each other, but where x is reduced: then one
 * vector of x has them all, and each tap is a permutation of it. */

/* Some vectors of results, for all rows: where each begins to read, or -1 where it reads too far;
 * lanes and weights by vector, tap and result. */
typedef struct strip {
  int64_t vectors;
  int64_t first[ENTRIES / DF_LANES];
  int32_t lane[ENTRIES];
  float weight[ENTRIES];
} strip;

static void read_table(const sampling *s, int64_t o, int64_t vectors, strip *t) {
  DF_ASSUME(vectors > 0 && s->taps > 0);
  t->vectors = vectors;
  for (int64_t v = 0; v < vectors; v++, o += DF_LANES) {
    const int64_t n = df_min(DF_LANES, s->results - o);
    const int64_t *index = s->index + o * s->taps;
    int64_t least = index[0], most = index[0];
    for (int64_t i = 1; i < n * s->taps; i++) {
      least = df_min(least, index[i]);
      most = df_max(most, index[i]);
    }
    /* A row that has a vector is read in full ones. */
    const int64_t first = df_max(0, df_min(least, s->size - DF_LANES));
    t->first[v] = most - least < DF_LANES ? first : -1;
    for (int64_t tap = 0; tap < s->taps; tap++) {
      for (int64_t i = 0; i < DF_LANES; i++) {
        const int64_t to = (v * s->taps + tap) * DF_LANES + i, from = i * s->taps + tap;
        const int inside = i < n && t->first[v] >= 0;
        t->lane[to] = inside ? (int32_t)(index[from] - first) : 0;
        t->weight[to] = inside ? s->weight[o * s->taps + from] : 0.0f;
      }
    }
  }
}

static df_ivec strip_lanes(const strip *t, int64_t at) {
  df_ivec lanes;
  memcpy(&lanes, t->lane + at, sizeof lanes);
  return lanes;
}

/* Results [o, last) of rows [begin, end), one by one; |few| taps, or 0 for any number. */
RESIZE_INLINE void gather_each(int few, const sampling *s, int64_t o, int64_t last, int64_t begin,
                               int64_t end) {
  const int64_t taps = few ? few : s->taps;
  for (int64_t u = begin; u < end; u++) {
    const float *x = s->in + u * s->size;
    float *y = s->out + u * s->results;
    for (int64_t i = o; i < last; i++) {
      float sum = 0.0f;
      for (int64_t t = 0; t < taps; t++)
        sum += s->weight[i * taps + t] * x[s->index[i * taps + t]];
      y[i] = sum;
    }
  }
}

static void gather_rows(const sampling *s, int64_t o, int64_t last, int64_t begin, int64_t end) {
  if (s->taps == 1)
    gather_each(1, s, o, last, begin, end);
  else if (s->taps == 2)
    gather_each(2, s, o, last, begin, end);
  else
    gather_each(0, s, o, last, begin, end);
}

/* Vector |v| of the results, which begin at |o|, for rows [begin, end). Lanes and weights of |few|
 * taps, up to two, are read once; 0 for any number. |full|: a full vector is read and written. */
RESIZE_INLINE void permute(int few, int full, const sampling *s, const strip *t, int64_t v,
                           int64_t o, int64_t begin, int64_t end) {
  const int64_t taps = few ? few : s->taps;
  const int64_t entry = v * taps * DF_LANES, last = entry + (taps - 1) * DF_LANES;
  const int64_t n = df_min(DF_LANES, s->results - o);
  const int64_t read = df_min(DF_LANES, s->size - t->first[v]);
  const df_ivec lanes[2] = {strip_lanes(t, entry), strip_lanes(t, last)};
  const df_vec weights[2] = {vec_load(t->weight + entry), vec_load(t->weight + last)};
  for (int64_t u = begin; u < end; u++) {
    const float *from = s->in + u * s->size + t->first[v];
    const df_vec near = full ? vec_load(from) : vec_load_partial(from, read);
    df_vec sum = weights[0] * vec_permute(near, lanes[0]);
    for (int64_t i = 1; i < taps; i++) {
      const int64_t at = entry + i * DF_LANES;
      sum = fused(few ? weights[1] : vec_load(t->weight + at),
                  vec_permute(near, few ? lanes[1] : strip_lanes(t, at)), sum);
    }
    if (full)
      vec_store(s->out + u * s->results + o, sum);
    else
      vec_store_partial(s->out + u * s->results + o, sum, n);
  }
}

RESIZE_INLINE void permute_rows(int few, const sampling *s, const strip *t, int64_t v, int64_t o,
                                int64_t begin, int64_t end) {
  if (s->size >= DF_LANES && s->results - o >= DF_LANES)
    permute(few, 1, s, t, v, o, begin, end);
  else
    permute(few, 0, s, t, v, o, begin, end);
}

static void resample_last(const sampling *s, int64_t begin, int64_t end) {
  const int64_t entries = s->taps * DF_LANES;
  if (s->taps > ENTRIES / DF_LANES) {
    gather_rows(s, 0, s->results, begin, end);
    return;
  }
  strip table;
  const int64_t all = df_divide_up(s->results, DF_LANES), most = ENTRIES / entries;
  for (int64_t done = 0; done < all; done += most) {
    read_table(s, done * DF_LANES, df_min(most, all - done), &table);
    for (int64_t u = begin; u < end; u += ROWS) {
      const int64_t until = df_min(end, u + ROWS);
      for (int64_t v = 0; v < table.vectors; v++) {
        const int64_t o = (done + v) * DF_LANES;
        if (table.first[v] < 0)
          gather_rows(s, o, df_min(s->results, o + DF_LANES), u, until);
        else if (s->taps == 1)
          permute_rows(1, s, &table, v, o, u, until);
        else if (s->taps == 2)
          permute_rows(2, s, &table, v, o, u, until);
        else
          permute_rows(0, s, &table, v, o, u, until);
      }
    }
  }
}

/* ---- Tasks --------------------------------------------------------------------------------- */

static void resample_task(void *context, int64_t unit, int64_t count, int32_t worker) {
  (void)worker;
  const sampling *s = context;
  const int64_t chunks = df_divide_up(s->inner, COLUMNS);
  int64_t at, end;
  df_task_range(unit, count, s->outer * chunks, 1, &at, &end);
  if (s->inner == 1) {
    resample_last(s, at, end);
    return;
  }
  for (; at < end; at++) {
    const int64_t u = at / chunks, first = at % chunks * COLUMNS;
    const int64_t n = df_min(COLUMNS, s->inner - first);
    const float *x = s->in + u * s->size * s->inner + first;
    float *y = s->out + u * s->results * s->inner + first;
    for (int64_t o = 0; o < s->results; o++)
      gather_row(y + o * s->inner, x, s->index + o * s->taps, s->weight + o * s->taps, s->taps,
                 s->inner, n);
  }
}

/* A row of dx whose elements lie beside each other. */
static void grad_row(const sampling *s, float *restrict dx, const float *restrict dy) {
  const int64_t *index = s->index;
  const float *weight = s->weight;
  for (int64_t o = 0; o < s->results; o++)
    for (int64_t t = 0; t < s->taps; t++)
      dx[*index++] += *weight++ * dy[o];
}

static void grad_task(void *context, int64_t unit, int64_t count, int32_t worker) {
  (void)worker;
  const sampling *s = context;
  const int64_t chunks = df_divide_up(s->inner, COLUMNS);
  int64_t at, end;
  df_task_range(unit, count, s->outer * chunks, 1, &at, &end);
  for (; at < end; at++) {
    const int64_t u = at / chunks, first = at % chunks * COLUMNS;
    const int64_t n = df_min(COLUMNS, s->inner - first);
    const float *dy = s->in + u * s->results * s->inner + first;
    float *dx = s->out + u * s->size * s->inner + first;
    for (int64_t i = 0; i < s->size; i++)
      memset(dx + i * s->inner, 0, (size_t)n * sizeof(float));
    if (s->inner == 1) {
      grad_row(s, dx, dy);
      continue;
    }
    for (int64_t o = 0; o < s->results; o++) {
      const float *row = dy + o * s->inner;
      for (int64_t t = 0; t < s->taps; t++) {
        float *to = dx + s->index[o * s->taps + t] * s->inner;
        const float w = s->weight[o * s->taps + t];
        DF_IVDEP
        for (int64_t j = 0; j < n; j++)
          to[j] += w * row[j];
      }
    }
  }
}

static df_status run(const df_call *call, const char *name, int64_t size, df_task task) {
  const df_tensor *in = call->inputs[0], *index = call->inputs[1], *out = call->outputs[0];
  const int64_t *positions = index->data;
  const int64_t axis = df_axis(call, DF_RESAMPLE_AXIS, out->rank), entries = df_elements(index);
  for (int64_t i = 0; i < entries; i++)
    if (positions[i] < 0 || positions[i] >= size)
      return df_fail(call, DF_INVALID, "%s: index %lld is outside [0, %lld)", name,
                     (long long)positions[i], (long long)size);
  if (df_elements(out) == 0)
    return DF_OK;
  sampling s = {.out = out->data,
                .in = in->data,
                .index = positions,
                .weight = call->inputs[2]->data,
                .outer = df_product(out->shape, 0, axis),
                .inner = df_product(out->shape, axis + 1, out->rank),
                .results = index->shape[0],
                .taps = index->shape[1],
                .size = size};
  const int64_t work = (df_elements(in) + df_elements(out)) * df_max(1, s.taps);
  const int64_t units = s.outer * df_divide_up(s.inner, COLUMNS);
  df_parallel(call, task, &s, df_min(units, df_task_count(call, work, DF_GRAIN)));
  return DF_OK;
}

static df_status resample_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  return run(call, "resample", x->shape[df_axis(call, DF_RESAMPLE_AXIS, x->rank)], resample_task);
}

static df_status grad_run(const df_call *call) {
  const df_tensor *dx = call->outputs[0];
  return run(call, "resample_grad", dx->shape[df_axis(call, DF_RESAMPLE_AXIS, dx->rank)],
             grad_task);
}

static const char *accepts(const df_node *node) {
  return node->inputs[1]->shape[1] < 1 ? "the table has no taps" : NULL;
}

DF_KERNELS(resize) = {
    DF_KERNEL_IF("resample", "f32", "f32,i64,f32->f32", NULL, accepts, resample_run),
    DF_KERNEL_IF("resample_grad", "f32", "f32,i64,f32->f32", NULL, accepts, grad_run), NULL};
