/* map/random_mersenne.c: mersenne_uniform(; shape, seed): MT19937 of Matsumoto and Nishimura
 * (1998), seeded and drawn from as by numpy.random.RandomState. Each number follows from the one
 * before. */
#include "cpu.h"

enum { WORDS = 624, SHIFT = 397 };

typedef struct mersenne {
  uint32_t words[WORDS];
  int next;
} mersenne;

static void seed_words(mersenne *m, uint32_t seed) {
  for (int i = 0; i < WORDS; i++) {
    m->words[i] = seed;
    seed = 1812433253u * (seed ^ (seed >> 30)) + (uint32_t)i + 1u;
  }
  m->next = WORDS;
}

static void renew(mersenne *m) {
  for (int i = 0; i < WORDS; i++) {
    const uint32_t y = (m->words[i] & 0x80000000u) | (m->words[(i + 1) % WORDS] & 0x7fffffffu);
    m->words[i] = m->words[(i + SHIFT) % WORDS] ^ (y >> 1) ^ (y & 1u ? 0x9908b0dfu : 0u);
  }
  m->next = 0;
}

static uint32_t draw(mersenne *m) {
  if (m->next == WORDS)
    renew(m);
  uint32_t y = m->words[m->next++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

static df_status mersenne_uniform_run(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  const int64_t count = df_elements(y);
  double *out = y->data;
  mersenne m;
  seed_words(&m, (uint32_t)df_attr_int(call, DF_MERSENNE_UNIFORM_SEED));
  for (int64_t i = 0; i < count; i++) {
    const double upper = (double)(draw(&m) >> 5), lower = (double)(draw(&m) >> 6);
    out[i] = (upper * 0x1p26 + lower) * 0x1p-53;
  }
  return DF_OK;
}

DF_KERNELS(random_mersenne) = {
    DF_KERNEL("mersenne_uniform", "f64", "->f64", NULL, mersenne_uniform_run), NULL};
