/* cache.c: what texts were built to, as long as something uses it, and the last ones longer. */
#include "source.h"

#include <stdlib.h>

struct source_built {
  source_built *next;
  char *text;
  void *object;
  int32_t users;
  int done;
  df_error error;
};

void *source_object(const source_built *built) { return built->object; }

/* Under the lock: the entry of a text, which becomes the first, or null. */
static source_built *find(source_cache *cache, const char *text) {
  source_built **at = &cache->first, *entry;
  while (*at && strcmp((*at)->text, text))
    at = &(*at)->next;
  entry = *at;
  if (entry) {
    *at = entry->next;
    entry->next = cache->first;
    cache->first = entry;
  }
  return entry;
}

/* Under the lock: takes an entry out and gives back what it has. */
static void forget(source_cache *cache, source_built **at) {
  source_built *entry = *at;
  *at = entry->next;
  cache->count--;
  if (entry->object)
    cache->discard(entry->object);
  free(entry->text);
  free(entry);
}

/* Under the lock: what failed and what is too much goes, of entries that nobody uses those whose
 * last use was first. */
static void trim(source_cache *cache) {
  for (source_built **at = &cache->first; *at;)
    if (!(*at)->users && (*at)->error.code)
      forget(cache, at);
    else
      at = &(*at)->next;
  while (cache->count > SOURCE_MOST_BUILT) {
    source_built **last = NULL;
    for (source_built **at = &cache->first; *at; at = &(*at)->next)
      if (!(*at)->users)
        last = at;
    if (!last)
      return;
    forget(cache, last);
  }
}

void source_drop(source_cache *cache, source_built *built) {
  pthread_mutex_lock(&cache->lock);
  built->users--;
  trim(cache);
  pthread_mutex_unlock(&cache->lock);
}

df_status source_build_once(source_cache *cache, char *text, source_built **built,
                            df_error *error) {
  pthread_mutex_lock(&cache->lock);
  source_built *entry = find(cache, text);
  if (entry) {
    free(text);
    entry->users++;
    while (!entry->done)
      pthread_cond_wait(&cache->changed, &cache->lock);
  } else if ((entry = calloc(1, sizeof *entry))) {
    *entry = (source_built){.next = cache->first, .text = text, .users = 1};
    cache->first = entry;
    cache->count++;
    cache->builds++;
    pthread_mutex_unlock(&cache->lock);
    entry->error.code = cache->build(text, &entry->object, &entry->error);
    pthread_mutex_lock(&cache->lock);
    entry->done = 1;
    pthread_cond_broadcast(&cache->changed);
  } else
    free(text);
  pthread_mutex_unlock(&cache->lock);
  if (!entry)
    return error->code = DF_OUT_OF_MEMORY;
  const df_status status = error->code = entry->error.code;
  if (!status) {
    *built = entry;
    return DF_OK;
  }
  error->step = entry->error.step;
  memcpy(error->text, entry->error.text, sizeof error->text);
  source_drop(cache, entry);
  return status;
}
