/* host/affinity.c: see host/affinity.h. */
#define _GNU_SOURCE
#include "host/affinity.h"

#ifdef __linux__

/* The calling thread's processor and 1; 0: the system doesn't say, or it is beyond a |cpu_set_t|.
 */
static int here(void) {
  int found = sched_getcpu();
  return found < CPU_SETSIZE ? found + 1 : 0;
}

static int is_taken(const df_taken *taken, int processor) {
  return processor > 0 && CPU_ISSET(processor - 1, &taken->processors);
}

static void take(cpu_set_t *set, int processor) {
  if (processor > 0)
    CPU_SET(processor - 1, set);
}

void df_taken_begin(df_taken *taken) {
  CPU_ZERO(&taken->processors);
  take(&taken->processors, here());
}

void df_taken_add(df_taken *taken, const df_affinity *affinity) {
  take(&taken->processors, affinity->processor);
}

/* The next processor behind |from| that is free; 0: there is none. */
static int next_of(const cpu_set_t *free, int from) {
  for (int i = 0; i < CPU_SETSIZE; i++) {
    int number = (from + i) % CPU_SETSIZE;
    if (CPU_ISSET(number, free))
      return number + 1;
  }
  return 0;
}

void df_affinity_for_waking(df_affinity *affinity, pthread_t sleeping, df_taken *taken) {
  /* A refusal leaves the worker where it is: that is slower, not wrong. */
  if (!affinity->sent &&
      pthread_getaffinity_np(sleeping, sizeof affinity->allowed, &affinity->allowed))
    return;
  cpu_set_t free;
  CPU_XOR(&free, &affinity->allowed, &taken->processors);
  CPU_AND(&free, &free, &affinity->allowed);
  if (is_taken(taken, affinity->processor)) {
    affinity->processor = next_of(&free, affinity->processor);
    CPU_ZERO(&free);
    take(&free, affinity->processor);
  }
  if (CPU_COUNT(&free) && !pthread_setaffinity_np(sleeping, sizeof free, &free))
    affinity->sent = 1;
  take(&taken->processors, affinity->processor);
}

void df_affinity_restore(df_affinity *affinity) {
  if (affinity->sent) {
    pthread_setaffinity_np(pthread_self(), sizeof affinity->allowed, &affinity->allowed);
    affinity->sent = 0;
  }
  affinity->processor = here();
}

#else

void df_taken_begin(df_taken *taken) { (void)taken; }
void df_taken_add(df_taken *taken, const df_affinity *affinity) { (void)taken, (void)affinity; }
void df_affinity_for_waking(df_affinity *affinity, pthread_t sleeping, df_taken *taken) {
  (void)affinity, (void)sleeping, (void)taken;
}
void df_affinity_restore(df_affinity *affinity) { (void)affinity; }

#endif
