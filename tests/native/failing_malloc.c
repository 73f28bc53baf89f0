/* failing_malloc.c: preloaded, lets one allocation fail of those that the native libraries of
 * dataflow make; all others, Python's among them, are glibc's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_long calls, failing;
static atomic_int armed;

/* Counts from 0 and fails number |which|, or none when that is negative. */
void failing_begin(long which) {
  atomic_store(&calls, 0);
  atomic_store(&failing, which);
  atomic_store(&armed, 1);
}

long failing_end(void) {
  atomic_store(&armed, 0);
  return atomic_load(&calls);
}

static int fails(void *caller) {
  if (!atomic_load_explicit(&armed, memory_order_relaxed))
    return 0;
  Dl_info info;
  if (!dladdr(caller, &info) || !info.dli_fname ||
      (!strstr(info.dli_fname, "/_runtime.") && !strstr(info.dli_fname, "/_cpu.")))
    return 0;
  return atomic_fetch_add(&calls, 1) == atomic_load(&failing);
}

void *malloc(size_t size) {
  return fails(__builtin_return_address(0)) ? (errno = ENOMEM, NULL) : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  return fails(__builtin_return_address(0)) ? (errno = ENOMEM, NULL) : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  return fails(__builtin_return_address(0)) ? (errno = ENOMEM, NULL) : __libc_realloc(old, size);
}

int posix_memalign(void **result, size_t alignment, size_t size) {
  if (fails(__builtin_return_address(0)) || !(*result = __libc_memalign(alignment, size)))
    return ENOMEM;
  return 0;
}

void *aligned_alloc(size_t alignment, size_t size) {
  return fails(__builtin_return_address(0)) ? (errno = ENOMEM, NULL)
                                            : __libc_memalign(alignment, size);
}
