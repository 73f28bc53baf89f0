/* host/guard.c: pages that nobody may touch, and a description of the fault where somebody does. */
#define _GNU_SOURCE
#include "runtime.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__) && defined(__x86_64__)
#include <ucontext.h>
#endif

enum { REGIONS = 256, NEAR = 1 << 20 };

/* Faults this far from every region have nothing to do with one. The table is a ring: what was
 * named long ago is mostly unmapped. */
typedef struct region {
  uintptr_t begin, end;
  char name[64];
} region;

static region regions[REGIONS];
static atomic_int named;
static volatile sig_atomic_t report_to;

df_status df_guard_access(void *base, int64_t bytes, int32_t access) {
  int protection = access == DF_GUARD_NONE   ? PROT_NONE
                   : access == DF_GUARD_READ ? PROT_READ
                                             : PROT_READ | PROT_WRITE;
  return mprotect(base, (size_t)bytes, protection) ? DF_OUT_OF_MEMORY : DF_OK;
}

void df_guard_forget(const void *begin, int64_t bytes) {
  const uintptr_t from = (uintptr_t)begin, to = from + (uintptr_t)bytes;
  for (int i = 0; i < REGIONS; i++)
    if (regions[i].begin < to && regions[i].end > from)
      regions[i] = (region){0};
}

void df_guard_name(const void *begin, int64_t bytes, const char *name) {
  region *entry = &regions[(unsigned)atomic_fetch_add(&named, 1) % REGIONS];
  entry->begin = (uintptr_t)begin;
  entry->end = (uintptr_t)begin + (uintptr_t)bytes;
  snprintf(entry->name, sizeof entry->name, "%s", name);
}

/* Bytes between an address and a region; 0 inside. */
static uintptr_t distance(const region *entry, uintptr_t at) {
  return at < entry->begin ? entry->begin - at : at >= entry->end ? at - entry->end + 1 : 0;
}

static const char *access_of(const void *context) {
#if defined(__linux__) && defined(__x86_64__)
  return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
  (void)context;
  return "read or write";
#endif
}

/* The newest of the nearest regions: an address may have belonged to an older one. */
static void describe(int number, siginfo_t *fault, void *context) {
  (void)number;
  uintptr_t at = (uintptr_t)fault->si_addr;
  const region *nearest = NULL;
  unsigned count = (unsigned)atomic_load(&named);
  for (unsigned i = 0; i < REGIONS && i < count; i++) {
    const region *entry = &regions[(count - 1 - i) % REGIONS];
    if (entry->end && (!nearest || distance(entry, at) < distance(nearest, at)))
      nearest = entry;
  }
  char text[160];
  int length;
  if (!nearest || distance(nearest, at) > NEAR)
    length =
        snprintf(text, sizeof text, "a %s at address %p\n", access_of(context), fault->si_addr);
  else
    length = snprintf(text, sizeof text, "a %s, %llu bytes %s %s\n", access_of(context),
                      (unsigned long long)distance(nearest, at),
                      at < nearest->begin  ? "before"
                      : at >= nearest->end ? "behind"
                                           : "inside",
                      nearest->name);
  if (write((int)report_to, text, (size_t)length) < 0)
    return; /* the fault itself still ends the process */
}

/* Runs first of all handlers: what other libraries do as the process ends is nobody's fault here.
 */
static void tell_exit(void) {
  static const char text[] = "exit() was called\n";
  if (write((int)report_to, text, sizeof text - 1) >= 0)
    _exit(DF_GUARD_EXIT);
}

df_status df_guard_report(int32_t descriptor) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = describe;
  action.sa_flags =
      SA_SIGINFO | (int)SA_RESETHAND; /* the access is repeated, and ends the process */
  sigemptyset(&action.sa_mask);
  report_to = descriptor;
  const int failed = sigaction(SIGSEGV, &action, NULL) || sigaction(SIGBUS, &action, NULL);
  return failed || atexit(tell_exit) ? DF_UNSUPPORTED : DF_OK;
}
