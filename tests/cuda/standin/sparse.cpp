/* sparse.cpp: filling and copying memory that mostly isn't there, see sparse() in standin.h. */
#include "standin.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace {

enum { PAGE = 4096, PAGES = 1 << 16 }; /* pages that are looked up together */

char *page_of(const void *at) { return (char *)((uintptr_t)at / PAGE * PAGE); }

} // namespace

void set_bytes(void *to, int value, size_t bytes) {
  char *const begin = (char *)to, *const end = begin + bytes;
  char *const first = page_of(begin + PAGE - 1), *const last = page_of(end);
  if (!sparse() || value || first >= last) {
    memset(to, value, bytes);
    return;
  }
  memset(begin, 0, (size_t)(first - begin));
  madvise(first, (size_t)(last - first), MADV_DONTNEED); /* zeros when they are touched */
  memset(last, 0, (size_t)(end - last));
}

void copy_bytes(void *to, const void *from, size_t bytes) {
  const char *const begin = (const char *)from, *const end = begin + bytes;
  const bool apart = (char *)to + bytes <= begin || end <= (char *)to;
  if (!sparse() || bytes < PAGE || !apart) {
    memmove(to, from, bytes);
    return;
  }
  set_bytes(to, 0, bytes);
  std::vector<unsigned char> present(PAGES);
  for (char *some = page_of(begin); some < end; some += (size_t)PAGES * PAGE) {
    const size_t pages = std::min<size_t>(PAGES, (size_t)(end - some + PAGE - 1) / PAGE);
    if (mincore(some, pages * PAGE, present.data()))
      die("mincore", "a copy of what is there");
    for (size_t i = 0; i < pages; i++) {
      const char *a = std::max<const char *>(begin, some + i * PAGE);
      const char *b = std::min<const char *>(end, some + (i + 1) * PAGE);
      if (present[i] & 1)
        memcpy((char *)to + (a - begin), a, (size_t)(b - a));
    }
  }
}
