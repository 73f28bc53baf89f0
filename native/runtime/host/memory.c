/* host/memory.c: memory for arenas, counted to the byte so that a plan can be compared with what it
 * took. */
#define _DEFAULT_SOURCE
#include "runtime.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

/* From here on an allocation begins at a huge page and asks for them: a matrix product over 4 KiB
 * pages spends a good part of its time in the TLB. */
static const int64_t HUGE_FROM = (int64_t)HUGE_PAGE;

static _Atomic int64_t allocated_bytes;
static _Atomic int64_t allocation_count;

df_status df_host_take(int64_t bytes, df_host_block *block) {
  if (bytes < 0 || bytes > INT64_MAX - HUGE_PAGE)
    return DF_OUT_OF_MEMORY;
  size_t alignment = bytes >= HUGE_FROM ? HUGE_PAGE : LINE;
  size_t size = bytes ? ((size_t)bytes + LINE - 1) / LINE * LINE : LINE;
  void *address = NULL;
  if (posix_memalign(&address, alignment, size))
    return DF_OUT_OF_MEMORY;
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE_FROM)
    (void)madvise(address, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  atomic_fetch_add(&allocated_bytes, bytes);
  atomic_fetch_add(&allocation_count, 1);
  *block = (df_host_block){.base = address, .bytes = bytes};
  return DF_OK;
}

void df_host_free(df_host_block *block) {
  if (!block->base)
    return;
  free(block->base);
  atomic_fetch_sub(&allocated_bytes, block->bytes);
  atomic_fetch_sub(&allocation_count, 1);
  *block = (df_host_block){0};
}

int64_t df_allocated_bytes(void) { return atomic_load(&allocated_bytes); }

int64_t df_allocation_count(void) { return atomic_load(&allocation_count); }
