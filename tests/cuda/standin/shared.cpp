/* shared.cpp: the shared memory of a block, with noise in what nobody wrote, and zones around each
 * array that nobody may write. */
#include "standin.h"

#include <cstring>

namespace {

const size_t ZONE = 64;
const int MOST_ARRAYS = 64;
const char NOISE = (char)0xc7, UNTOUCHED = (char)0xa9;

struct array {
  const void *key; /* null: the dynamic memory */
  const char *name;
  size_t begin, bytes;
};

alignas(128) char memory[MOST_SHARED + (MOST_ARRAYS + 1) * 2 * ZONE];
array arrays[MOST_ARRAYS];
int count;
size_t used, limit; /* bytes of arrays */
const char *running;

size_t end_of(const array &a) { return a.begin + a.bytes; }

/* Where the zone behind |a| ends, and the next array begins. */
size_t zone_end(const array &a) { return (end_of(a) + ZONE + ZONE - 1) / ZONE * ZONE; }

void *add(const void *key, const char *name, size_t bytes) {
  used += bytes;
  if (count == MOST_ARRAYS || used > limit)
    die("more shared memory than a block may have", running);
  array &a = arrays[count];
  a = {key, name, count ? zone_end(arrays[count - 1]) : ZONE, bytes};
  count++;
  memset(memory + a.begin, NOISE, bytes);
  memset(memory + end_of(a), UNTOUCHED, zone_end(a) - end_of(a));
  return memory + a.begin;
}

} // namespace

void begin_shared(const char *kernel, size_t dynamic, size_t most) {
  static const bool known = (add_region(memory, sizeof memory, true), true);
  running = kernel;
  count = known ? 0 : MOST_ARRAYS;
  used = 0;
  limit = most;
  memset(memory, UNTOUCHED, ZONE);
  add(nullptr, "dynamic", dynamic);
}

void end_shared() {
  size_t begin = 0; /* of the zone before an array */
  for (int i = 0; i <= count; i++) {
    const size_t end = i < count ? arrays[i].begin : zone_end(arrays[count - 1]);
    for (size_t at = begin; at < end; at++)
      if (memory[at] != UNTOUCHED) {
        std::string text(running);
        die("a block writes outside of its shared arrays",
            (text + ", beside " + arrays[i ? i - 1 : 0].name).c_str());
      }
    if (i < count)
      begin = end_of(arrays[i]);
  }
}

void *standin_shared() { return memory + arrays[0].begin; }

void *standin_shared_array(const void *key, const char *name, size_t bytes) {
  for (int i = 1; i < count; i++)
    if (arrays[i].key == key)
      return memory + arrays[i].begin;
  return add(key, name, bytes);
}

/* As on a card, for the card that the thread has chosen alone. */
cudaError_t standin_allow_shared(const void *kernel, int bytes) {
  guard g(standin_lock);
  if (bytes < 0 || bytes > MOST_SHARED)
    return fail(cudaErrorInvalidValue);
  all_cards()[(size_t)current_card()].allowed[kernel] = bytes;
  return cudaSuccess;
}
