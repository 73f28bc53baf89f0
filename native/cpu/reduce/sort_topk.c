/* reduce/sort_topk.c: the largest or smallest elements along an axis, with their places; x is seen
 * as (outer, size, inner).
 *
 *   topk(x; k, axis, largest, sorted) -> values, indices
 *
 * NaN counts as the largest, and equal elements keep their order. A few of many are kept in a heap,
 * which most elements don't enter. Elsewhere floats of 32 bits, and integers that lie as near to
 * each other, become keys: those that the first digit leaves are sorted by their digits. No
 * comparison is to be foreseen there, which is what a heap costs. */
#include "cpu.h"

#include <math.h>

enum {
  BITS = 8, /* of a digit */
  DIGITS = 4,
  BUCKETS = 1 << BITS,
  FIRST_BITS = 11, /* of the digit that leaves some: a sign, an exponent and a little more */
  FIRST_BUCKETS = 1 << FIRST_BITS,
  LEAST = 512 /* elements that it is looked at for */
};

typedef struct choosing {
  void *out;
  int64_t *indices;
  const void *in;
  int64_t outer, size, inner;
  int64_t k;
  int largest;
  uint64_t *keys; /* for each worker two of each element; null: a heap is used */
} choosing;

/* Whether keys cost less than a heap: in nanoseconds, about. A heap is entered k (1 + ln(size / k))
 * times if the order is random. */
static int takes_keys(int32_t dtype, int64_t size, int64_t k) {
  if (dtype == DF_FLOAT64 || size > UINT32_MAX || k < 2)
    return 0;
  const double n = (double)size, m = (double)k;
  const double heap = n + 10 * m * (2 + log(n / m)) * log2(m);
  const double keys = size < LEAST ? 800 + 15 * n : 2000 + 4 * n + 15 * m;
  return keys < heap;
}

/* ---- A heap of the k best with the worst on top ------------------------------------------------
 *
 * It is emptied from the end, so in order. |indices| holds indices, their values are read from x.
 */

#define AT(i) indices[(i) * s->inner]
#define DEFINE_HEAP(type, T)                                                                       \
  static int first_##type(const choosing *s, T x, int64_t a, T y, int64_t b) {                     \
    const int nx = x != x, ny = y != y;                                                            \
    if (nx != ny)                                                                                  \
      return s->largest ? nx : ny;                                                                 \
    if (!nx && x != y)                                                                             \
      return s->largest ? x > y : x < y;                                                           \
    return a < b;                                                                                  \
  }                                                                                                \
  static int worse_##type(const choosing *s, const T *x, int64_t i, int64_t j) {                   \
    return first_##type(s, x[j * s->inner], j, x[i * s->inner], i);                                \
  }                                                                                                \
  static void sift_##type(const choosing *s, const T *x, int64_t *indices, int64_t n,              \
                          int64_t parent) {                                                        \
    for (;;) {                                                                                     \
      int64_t child = 2 * parent + 1;                                                              \
      if (child >= n)                                                                              \
        return;                                                                                    \
      if (child + 1 < n && worse_##type(s, x, AT(child + 1), AT(child)))                           \
        child++;                                                                                   \
      if (!worse_##type(s, x, AT(child), AT(parent)))                                              \
        return;                                                                                    \
      const int64_t swapped = AT(parent);                                                          \
      AT(parent) = AT(child);                                                                      \
      AT(child) = swapped;                                                                         \
      parent = child;                                                                              \
    }                                                                                              \
  }                                                                                                \
  static void heap_##type(const choosing *s, const T *x, int64_t *indices) {                       \
    const int64_t k = s->k;                                                                        \
    for (int64_t i = 0; i < k; i++)                                                                \
      AT(i) = i;                                                                                   \
    for (int64_t i = k / 2 - 1; i >= 0; i--)                                                       \
      sift_##type(s, x, indices, k, i);                                                            \
    T worst = x[AT(0) * s->inner];                                                                 \
    for (int64_t i = k; i < s->size; i++) {                                                        \
      const T own = x[i * s->inner];                                                               \
      if (s->largest ? own <= worst : own >= worst)                                                \
        continue; /* as most, and none that isn't a number */                                      \
      if (!first_##type(s, own, i, worst, AT(0)))                                                  \
        continue;                                                                                  \
      AT(0) = i;                                                                                   \
      sift_##type(s, x, indices, k, 0);                                                            \
      worst = x[AT(0) * s->inner];                                                                 \
    }                                                                                              \
    for (int64_t n = k - 1; n > 0; n--) {                                                          \
      const int64_t worst = AT(0);                                                                 \
      AT(0) = AT(n);                                                                               \
      AT(n) = worst;                                                                               \
      sift_##type(s, x, indices, n, 0);                                                            \
    }                                                                                              \
  }

/* ---- Keys of 32 bits, in the order of the elements, with an index below them -------------------
 */

static inline uint32_t key_f32(float x) {
  uint32_t bits;
  if (isnan(x))
    return UINT32_MAX;
  x += 0.0f; /* zeros are equal */
  memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* |keys| by their upper halves, from the lowest digit to the highest: equal ones keep their order.
 * |spare| has the same space. Returns where they are then. */
static const uint64_t *sort_by_digits(uint64_t *keys, uint64_t *spare, int64_t n) {
  uint32_t counts[DIGITS][BUCKETS] = {{0}};
  for (int64_t i = 0; i < n; i++)
    for (int digit = 0; digit < DIGITS; digit++)
      counts[digit][keys[i] >> (32 + digit * BITS) & (BUCKETS - 1)]++;
  for (int digit = 0; digit < DIGITS; digit++) {
    const int shift = 32 + digit * BITS;
    uint32_t *at = counts[digit], before = 0;
    if (at[keys[0] >> shift & (BUCKETS - 1)] == n)
      continue; /* all have this digit */
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
      const uint32_t count = at[bucket];
      at[bucket] = before;
      before += count;
    }
    for (int64_t i = 0; i < n; i++)
      spare[at[keys[i] >> shift & (BUCKETS - 1)]++] = keys[i];
    uint64_t *sorted = spare;
    spare = keys;
    keys = sorted;
  }
  return keys;
}

/* Of keys those whose first digit is not above the one in which number k is, in their order: |n|,
 * which lie in |to|. */
static int64_t leave(const uint64_t *keys, uint64_t *to, int64_t n, int64_t k) {
  enum { SHIFT = 64 - FIRST_BITS };
  uint32_t counts[FIRST_BUCKETS] = {0};
  int64_t some = 0, left = 0;
  uint64_t last = 0;
  for (int64_t i = 0; i < n; i++)
    counts[keys[i] >> SHIFT]++;
  for (; (some += counts[last]) < k; last++)
    ;
  for (int64_t i = 0; i < n; i++) {
    to[left] = keys[i];
    left += keys[i] >> SHIFT <= last;
  }
  return left;
}

/* The keys of the first k, in order. |keys| has space for |n| more. */
static const uint64_t *first_keys(uint64_t *keys, int64_t n, int64_t k) {
  uint64_t *from = keys, *spare = keys + n;
  if (n >= LEAST && k < n) {
    n = leave(keys, spare, n, k);
    from = spare;
    spare = keys;
  }
  return sort_by_digits(from, spare, n);
}

/* Fills the indices of a row by |key|, which is that of element |i|. */
#define INDICES_BY_KEY(s, indices, keys, key)                                                      \
  do {                                                                                             \
    const uint32_t inversion = (s)->largest ? UINT32_MAX : 0;                                      \
    for (int64_t i = 0; i < (s)->size; i++)                                                        \
      (keys)[i] = (uint64_t)((key) ^ inversion) << 32 | (uint64_t)i;                               \
    const uint64_t *first = first_keys(keys, (s)->size, (s)->k);                                   \
    for (int64_t i = 0; i < (s)->k; i++)                                                           \
      AT(i) = (int64_t)(uint32_t)first[i];                                                         \
  } while (0)

static int keys_f32(const choosing *s, const float *x, int64_t *indices, uint64_t *keys) {
  INDICES_BY_KEY(s, indices, keys, key_f32(x[i * s->inner]));
  return 1;
}

/* Distances from the least element, in the upper bits. Returns 0 where they need more than 32. */
#define DEFINE_INTEGER_KEYS(type, T)                                                               \
  static int keys_##type(const choosing *s, const T *x, int64_t *indices, uint64_t *keys) {        \
    T least = x[0], most = x[0];                                                                   \
    for (int64_t i = 1; i < s->size; i++) {                                                        \
      least = x[i * s->inner] < least ? x[i * s->inner] : least;                                   \
      most = x[i * s->inner] > most ? x[i * s->inner] : most;                                      \
    }                                                                                              \
    const uint64_t range = (uint64_t)most - (uint64_t)least;                                       \
    if (range > UINT32_MAX)                                                                        \
      return 0;                                                                                    \
    const int shift = __builtin_clz((uint32_t)range | 1);                                          \
    INDICES_BY_KEY(s, indices, keys,                                                               \
                   (uint32_t)((uint64_t)x[i * s->inner] - (uint64_t)least) << shift);              \
    return 1;                                                                                      \
  }

/* ---- Rows ------------------------------------------------------------------------------------ */

/* |choose|: statements that fill the indices of a row. */
#define DEFINE_TOPK(type, T, choose)                                                               \
  static void topk_##type##_task(void *context, int64_t index, int64_t count, int32_t worker) {    \
    const choosing *s = context;                                                                   \
    const int64_t k = s->k;                                                                        \
    int64_t unit, end;                                                                             \
    df_task_range(index, count, s->outer * s->inner, 1, &unit, &end);                              \
    (void)worker;                                                                                  \
    for (; unit < end; unit++) {                                                                   \
      const T *x = (const T *)s->in + unit / s->inner * s->size * s->inner + unit % s->inner;      \
      const int64_t out = unit / s->inner * k * s->inner + unit % s->inner;                        \
      int64_t *indices = s->indices + out;                                                         \
      choose;                                                                                      \
      for (int64_t i = 0; i < k; i++)                                                              \
        ((T *)s->out)[out + i * s->inner] = x[AT(i) * s->inner];                                   \
    }                                                                                              \
  }                                                                                                \
  static df_status topk_##type##_run(const df_call *call) { return topk(call, topk_##type##_task); }

/* |keys_...| is there before. */
#define DEFINE_BY_KEYS(type, T)                                                                    \
  DEFINE_HEAP(type, T)                                                                             \
  DEFINE_TOPK(type, T,                                                                             \
              if (!s->keys || !keys_##type(s, x, indices, s->keys + 2 * s->size * worker))         \
                  heap_##type(s, x, indices))
#define DEFINE_OF_INTEGERS(type, T)                                                                \
  DEFINE_INTEGER_KEYS(type, T)                                                                     \
  DEFINE_BY_KEYS(type, T)
#define DEFINE_BY_HEAP(type, T)                                                                    \
  DEFINE_HEAP(type, T)                                                                             \
  DEFINE_TOPK(type, T, heap_##type(s, x, indices))

static df_status topk(const df_call *call, df_task task) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (df_elements(y) == 0)
    return DF_OK;
  const int64_t axis = df_axis(call, DF_TOPK_AXIS, x->rank);
  choosing s = {.out = y->data,
                .indices = call->outputs[1]->data,
                .in = x->data,
                .outer = df_product(x->shape, 0, axis),
                .size = x->shape[axis],
                .inner = df_product(x->shape, axis + 1, x->rank),
                .k = y->shape[axis],
                .largest = df_attr_int(call, DF_TOPK_LARGEST) != 0};
  if (takes_keys(x->dtype, s.size, s.k))
    s.keys = call->workspace;
  df_parallel(call, task, &s,
              df_min(s.outer * s.inner, df_task_count(call, df_elements(x), DF_GRAIN / 4)));
  return DF_OK;
}

/* Keys of a row, and space to sort them, for each worker. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  const df_operand *x = node->inputs[0], *y = node->outputs[0];
  const int64_t axis =
      df_axis_of(df_attribute_int(node->attributes, node->n_attributes, DF_TOPK_AXIS), x->rank);
  (void)error;
  if (takes_keys(x->dtype, x->shape[axis], y->shape[axis]))
    out->workspace = 2 * x->shape[axis] * (int64_t)sizeof(uint64_t) * node->threads;
  return DF_OK;
}

DEFINE_BY_KEYS(f32, float)
DEFINE_OF_INTEGERS(i8, int8_t)
DEFINE_OF_INTEGERS(i16, int16_t)
DEFINE_OF_INTEGERS(i32, int32_t)
DEFINE_OF_INTEGERS(i64, int64_t)
DEFINE_OF_INTEGERS(u8, uint8_t)
DEFINE_BY_HEAP(f64, double)

#define TOPK(type)                                                                                 \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = "topk",                                                                 \
                     .name = "topk " #type " " DF_TEXT(DF_ISA),                                    \
                     .operands = #type "->" #type ",i64",                                          \
                     .prepare = prepare,                                                           \
                     .run = topk_##type##_run}
/* clang-format off */
DF_KERNELS(sort_topk) = {
    TOPK(f32), TOPK(f64), TOPK(i8), TOPK(i16), TOPK(i32), TOPK(i64), TOPK(u8),
    NULL};
