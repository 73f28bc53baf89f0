/* map/random.c: random ops by kernels/philox.h. */
#include "cpu.h"
#include "kernels/philox.h"
#include "simd/vmath.h"

enum { BLOCKS = 64, WORDS = 4 * BLOCKS }; /* computed at a time; a task begins at a multiple */

/* w[4 i + k] = word k of block first + i. The rounds run over arrays, so that they become vector
 * code. */
static void philox(uint32_t *w, uint64_t first, uint32_t stream, uint32_t step, uint64_t seed) {
  uint32_t c0[BLOCKS], c1[BLOCKS], c2[BLOCKS], c3[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    const uint64_t block = first + (uint64_t)i;
    c0[i] = (uint32_t)block;
    c1[i] = (uint32_t)(block >> 32);
    c2[i] = stream;
    c3[i] = step;
  }
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < DF_PHILOX_ROUNDS; round++) {
    for (int i = 0; i < BLOCKS; i++)
      df_philox_round(&c0[i], &c1[i], &c2[i], &c3[i], k0, k1);
    k0 += DF_PHILOX_KEY_0;
    k1 += DF_PHILOX_KEY_1;
  }
  for (int i = 0; i < BLOCKS; i++) {
    w[4 * i] = c0[i];
    w[4 * i + 1] = c1[i];
    w[4 * i + 2] = c2[i];
    w[4 * i + 3] = c3[i];
  }
}

typedef struct generator generator;
struct generator {
  void (*make)(const generator *g, float *out, const float *x, const uint32_t *words, int64_t n);
  float *out;
  const float *x; /* dropout */
  int64_t count;
  uint64_t seed;
  uint32_t step, stream;
  float a, b; /* low, range; mean, scale; ratio, factor */
};

static void uniform(const generator *g, float *out, const float *x, const uint32_t *w, int64_t n) {
  (void)x;
  for (int64_t i = 0; i < n; i++)
    out[i] = g->a + df_philox_upper(w[i]) * DF_PHILOX_UNIT * g->b;
}

static void normal(const generator *g, float *out, const float *x, const uint32_t *w, int64_t n) {
  (void)x;
  float z[WORDS];
  for (int i = 0; i < WORDS; i += 2) {
    const float r = sqrtf(-2.0f * df_log((df_philox_upper(w[i]) + 1.0f) * DF_PHILOX_UNIT));
    const float t = df_philox_upper(w[i + 1]) * DF_PHILOX_ANGLE;
    z[i] = g->a + g->b * r * df_cos(t);
    z[i + 1] = g->a + g->b * r * df_sin(t);
  }
  memcpy(out, z, (size_t)n * sizeof *out);
}

static void drop(const generator *g, float *out, const float *x, const uint32_t *w, int64_t n) {
  DF_ASSUME(x);
  DF_IVDEP
  for (int64_t i = 0; i < n; i++)
    out[i] = df_philox_upper(w[i]) * DF_PHILOX_UNIT >= g->a ? x[i] * g->b : 0.0f;
}

static void generate_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const generator *g = context;
  uint32_t words[WORDS];
  int64_t begin, end;
  df_task_range(index, count, g->count, WORDS, &begin, &end);
  for (; begin < end; begin += WORDS) {
    philox(words, (uint64_t)begin / 4, g->stream, g->step, g->seed);
    g->make(g, g->out + begin, g->x ? g->x + begin : NULL, words, df_min(WORDS, end - begin));
  }
}

static df_status generate(const df_call *call, generator *g, const df_tensor *key, int64_t stream) {
  uint64_t words[2];
  memcpy(words, key->data, sizeof words);
  g->seed = words[0];
  g->step = (uint32_t)words[1];
  g->stream = (uint32_t)stream;
  g->out = call->outputs[0]->data;
  g->count = df_elements(call->outputs[0]);
  df_parallel(call, generate_task, g, df_task_count(call, g->count, DF_GRAIN / 4));
  return DF_OK;
}

/* random_uniform(key; shape, low, high, dtype, stream) */
static df_status random_uniform_run(const df_call *call) {
  const double low = df_attr_float(call, DF_RANDOM_UNIFORM_LOW),
               high = df_attr_float(call, DF_RANDOM_UNIFORM_HIGH);
  generator g = {.make = uniform, .a = (float)low, .b = (float)(high - low)};
  return generate(call, &g, call->inputs[0], df_attr_int(call, DF_RANDOM_UNIFORM_STREAM));
}

/* random_normal(key; shape, mean, scale, dtype, stream) */
static df_status random_normal_run(const df_call *call) {
  generator g = {.make = normal,
                 .a = (float)df_attr_float(call, DF_RANDOM_NORMAL_MEAN),
                 .b = (float)df_attr_float(call, DF_RANDOM_NORMAL_SCALE)};
  return generate(call, &g, call->inputs[0], df_attr_int(call, DF_RANDOM_NORMAL_STREAM));
}

/* dropout(x, key; ratio, stream); with ratio 1 nothing stays. */
static df_status dropout_run(const df_call *call) {
  const double ratio = df_attr_float(call, DF_DROPOUT_RATIO);
  generator g = {.make = drop,
                 .x = call->inputs[0]->data,
                 .a = (float)ratio,
                 .b = ratio < 1.0 ? (float)(1.0 / (1.0 - ratio)) : 0.0f};
  return generate(call, &g, call->inputs[1], df_attr_int(call, DF_DROPOUT_STREAM));
}

DF_KERNELS(random) = {DF_KERNEL("random_uniform", "f32", "u64->f32", NULL, random_uniform_run),
                      DF_KERNEL("random_normal", "f32", "u64->f32", NULL, random_normal_run),
                      DF_KERNEL("dropout", "f32", "f32,u64->f32", "0<0", dropout_run), NULL};
