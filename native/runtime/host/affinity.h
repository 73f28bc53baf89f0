/* host/affinity.h: on which processors the threads of the pool wake up.
 *
 * Linux often wakes a thread on the processor of the one that wakes it, most of all on virtual
 * machines, whose idle processors pass for ones that the host took away. There a worker is queued
 * behind its caller, who doesn't stop: the loop has one thread, for milliseconds. So a worker that
 * is woken may not run where other threads of the loop do, until it runs.
 */
#ifndef DF_RUNTIME_HOST_AFFINITY_H
#define DF_RUNTIME_HOST_AFFINITY_H

#include <pthread.h>
#include <sched.h>

#ifdef __linux__
typedef cpu_set_t df_processors;
#else
typedef char df_processors; /* where other systems put threads is left to them */
#endif

/* Processors on which threads of a loop run or will wake up. */
typedef struct df_taken {
  df_processors processors;
} df_taken;

/* Where a worker was when it last looked. All zero in the beginning; used under a lock. */
typedef struct df_affinity {
  int processor; /* its number and 1, or 0: not known */
  int sent;      /* until it looks again it may not use all that is |allowed| */
  df_processors allowed;
} df_affinity;

/* Nothing but the processor of the calling thread. */
void df_taken_begin(df_taken *taken);

/* And that of a worker which is awake. */
void df_taken_add(df_taken *taken, const df_affinity *affinity);

/* A sleeping worker may only wake on processors that aren't taken; on the next one, if it sleeps on
 * one that is. Adds the one where it most likely will. */
void df_affinity_for_waking(df_affinity *affinity, pthread_t sleeping, df_taken *taken);

/* The calling worker looks where it is, and may again use what it might before it was sent there.
 */
void df_affinity_restore(df_affinity *affinity);

#endif
