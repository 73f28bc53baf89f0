/* built_test.c: what texts are built to, in the examples of devices that write their kernels. */
#include "source.h"

#include "check.h"

#include <stdlib.h>

static int discards; /* under the lock of the cache */

static df_status build(const char *text, void **object, df_error *error) {
  *object = malloc(1);
  if (text[0] != '!')
    return DF_OK;
  snprintf(error->text, sizeof error->text, "it can't be built");
  return error->code = DF_DEVICE;
}

static void discard(void *object) {
  discards++;
  free(object);
}

static char *copy(const char *text) {
  char *to = malloc(strlen(text) + 1);
  return strcpy(to, text);
}

static source_built *built(source_cache *cache, int number) {
  source_built *found = NULL;
  char text[16];
  df_error error = {.struct_size = sizeof error};
  snprintf(text, sizeof text, "%d", number);
  CHECK(source_build_once(cache, copy(text), &found, &error) == DF_OK);
  CHECK(found && source_object(found));
  return found;
}

/* As many as are kept stay, of those that nobody uses the last, and what is used. */
static void test_the_first_used_go_first(void) {
  static source_cache cache = SOURCE_CACHE(build, discard);
  source_built *used = built(&cache, -1);
  discards = 0;
  for (int k = 0; k < SOURCE_MOST_BUILT + 9; k++) {
    source_drop(&cache, built(&cache, k));
    source_drop(&cache, built(&cache, 0));
  }
  CHECK(cache.count == SOURCE_MOST_BUILT && discards == 10);
  const int64_t builds = cache.builds;
  source_drop(&cache, built(&cache, -1));
  source_drop(&cache, built(&cache, 0));
  source_drop(&cache, built(&cache, SOURCE_MOST_BUILT));
  CHECK(cache.builds == builds);
  source_drop(&cache, built(&cache, 1));
  CHECK(cache.builds == builds + 1);
  CHECK(source_object(used));
  source_drop(&cache, used);
}

static void test_all_that_is_used_stays(void) {
  enum { COUNT = SOURCE_MOST_BUILT + 5 };
  static source_cache cache = SOURCE_CACHE(build, discard);
  source_built *used[COUNT];
  discards = 0;
  for (int k = 0; k < COUNT; k++)
    used[k] = built(&cache, k);
  CHECK(cache.count == COUNT && discards == 0);
  for (int k = 0; k < COUNT; k++)
    source_drop(&cache, used[k]);
  CHECK(cache.count == SOURCE_MOST_BUILT && discards == 5);
}

static void test_what_failed_is_tried_again(void) {
  static source_cache cache = SOURCE_CACHE(build, discard);
  source_built *found = NULL;
  df_error error = {.struct_size = sizeof error};
  discards = 0;
  for (int k = 1; k < 3; k++) {
    CHECK(source_build_once(&cache, copy("!"), &found, &error) == DF_DEVICE && !found);
    CHECK_TEXT(error.text, "it can't be built");
    CHECK(cache.builds == k && cache.count == 0 && discards == k);
  }
}

static void *ask(void *given) {
  for (int k = 0; k < 2 * SOURCE_MOST_BUILT; k++)
    source_drop(given, built(given, k % (SOURCE_MOST_BUILT - 1)));
  return NULL;
}

static void test_threads_share_what_is_built(void) {
  enum { THREADS = 4 };
  static source_cache cache = SOURCE_CACHE(build, discard);
  pthread_t threads[THREADS];
  for (int k = 0; k < THREADS; k++)
    pthread_create(&threads[k], NULL, ask, &cache);
  for (int k = 0; k < THREADS; k++)
    pthread_join(threads[k], NULL);
  CHECK(cache.builds == SOURCE_MOST_BUILT - 1);
}

int main(void) {
  test_the_first_used_go_first();
  test_all_that_is_used_stays();
  test_what_failed_is_tried_again();
  test_threads_share_what_is_built();
  return failures != 0;
}
