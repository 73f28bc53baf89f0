/* cache.c: what texts were built to. */
#include "source.h"

#include <stdlib.h>

struct source_built {
  source_built *next;
  char *text;
  void *object;
  int done;
  df_error error;
};

static source_built *find(const source_cache *cache, const char *text) {
  source_built *entry = cache->first;
  while (entry && strcmp(entry->text, text))
    entry = entry->next;
  return entry;
}

df_status source_build_once(source_cache *cache, char *text,
                            df_status (*build)(const char *text, void **object, df_error *error),
                            void **object, df_error *error) {
  pthread_mutex_lock(&cache->lock);
  source_built *entry = find(cache, text);
  if (entry) {
    free(text);
    while (!entry->done)
      pthread_cond_wait(&cache->changed, &cache->lock);
  } else if ((entry = calloc(1, sizeof *entry))) {
    entry->text = text;
    entry->next = cache->first;
    cache->first = entry;
    cache->builds++;
    pthread_mutex_unlock(&cache->lock);
    entry->error.code = build(text, &entry->object, &entry->error);
    pthread_mutex_lock(&cache->lock);
    entry->done = 1;
    pthread_cond_broadcast(&cache->changed);
  } else {
    free(text);
    error->code = DF_OUT_OF_MEMORY;
  }
  if (entry) {
    *object = entry->object;
    error->code = entry->error.code;
    error->step = entry->error.step;
    memcpy(error->text, entry->error.text, sizeof entry->error.text);
  }
  const df_status status = entry ? entry->error.code : DF_OUT_OF_MEMORY;
  pthread_mutex_unlock(&cache->lock);
  return status;
}
