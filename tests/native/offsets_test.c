/* offsets_test.c: random lifetimes through the offset search: no two that live at one time share a
 * byte. */
#include "planner/offsets.h"

#include "check.h"

#include <stdlib.h>

static uint64_t state = 1;

static int64_t below(int64_t limit) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((state >> 33) % (uint64_t)limit);
}

/* One without bytes or without time needs no memory. */
static int needs(const df_lifetime *life) { return life->bytes && life->start < life->stop; }

static int clash(const df_lifetime *a, int64_t at, const df_lifetime *b, int64_t other) {
  return needs(a) && needs(b) && a->start < b->stop && b->start < a->stop &&
         at < other + b->bytes && other < at + a->bytes;
}

static void try_random(int64_t count, int64_t effort, int with_fixed) {
  df_lifetime *lives = calloc((size_t)count + 1, sizeof *lives);
  int64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
  int64_t peak = 0, bound = 0;
  df_error error = {0};
  for (int64_t i = 0; i < count; i++) {
    int64_t start = below(count * 2);
    lives[i] = (df_lifetime){start, start + below(20), below(3) ? below(5000) : 0,
                             INT64_C(1) << below(9), -1};
  }
  if (with_fixed && count)
    lives[0].fixed = 4096;
  CHECK(df_plan_offsets(count, lives, effort, offsets, &peak, &bound, &error) == DF_OK);
  CHECK(peak >= bound);
  for (int64_t i = 0; i < count; i++) {
    CHECK(offsets[i] >= 0 && offsets[i] % lives[i].alignment == 0);
    CHECK(!lives[i].bytes || lives[i].start == lives[i].stop ||
          offsets[i] + lives[i].bytes <= peak);
    CHECK(lives[i].fixed < 0 || offsets[i] == lives[i].fixed);
    for (int64_t j = 0; j < i; j++)
      CHECK(!clash(&lives[i], offsets[i], &lives[j], offsets[j]));
  }
  free(lives);
  free(offsets);
}

static void refused(df_lifetime life) {
  int64_t offset, peak, bound;
  df_error error = {0};
  CHECK(df_plan_offsets(1, &life, 1000, &offset, &peak, &bound, &error) == DF_INVALID);
  CHECK(error.text[0]);
}

int main(void) {
  for (int round = 0; round < 60; round++)
    try_random(below(40), 200000, round % 2);
  try_random(1500, 2000000, 1);
  try_random(0, 0, 0);
  refused((df_lifetime){2, 1, 8, 8, -1});
  refused((df_lifetime){0, 1, -8, 8, -1});
  refused((df_lifetime){0, 1, 8, 3, -1});
  refused((df_lifetime){0, 1, INT64_MAX, 8, -1});
  refused((df_lifetime){0, 1, 8, 64, 32});
  return failures != 0;
}
