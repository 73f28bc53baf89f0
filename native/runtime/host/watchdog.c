/* host/watchdog.c: ends runs whose time is over. One thread for all of them, started with the
 * first; it sleeps until the next deadline, so that a run pays for an entry in a list and nothing
 * while it goes on. */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  df_deadline *first; /* in no order: few runs go on at a time */
  int64_t wakes;      /* when the thread looks next; a deadline after it need not wake it */
  int started;
} watchdog = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int64_t now_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void make_condition(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
#if !defined(__APPLE__) /* where waits can be of a duration, but not by this clock */
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
  pthread_cond_init(&watchdog.changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* Waits for a change, no longer than until |time|. */
static void wait_until(int64_t time) {
#if defined(__APPLE__)
  const int64_t rest = time - now_nanoseconds();
  const struct timespec until = {.tv_sec = rest / 1000000000, .tv_nsec = rest % 1000000000};
  if (rest > 0)
    pthread_cond_timedwait_relative_np(&watchdog.changed, &watchdog.mutex, &until);
#else
  const struct timespec until = {.tv_sec = time / 1000000000, .tv_nsec = time % 1000000000};
  pthread_cond_timedwait(&watchdog.changed, &watchdog.mutex, &until);
#endif
}

/* Sets the words whose time has come; returns when the next one's does, or INT64_MAX. */
static int64_t expire(int64_t now) {
  int64_t next = INT64_MAX;
  for (df_deadline *entry = watchdog.first; entry; entry = entry->next) {
    if (entry->at <= now) {
      int32_t unset = 0; /* a cancellation that came before stays one */
      __atomic_compare_exchange_n(entry->cancel, &unset, DF_EXPIRED, 0, __ATOMIC_RELAXED,
                                  __ATOMIC_RELAXED);
    } else if (entry->at < next) {
      next = entry->at;
    }
  }
  return next;
}

static void *watch(void *unused) {
  (void)unused;
  pthread_mutex_lock(&watchdog.mutex);
  for (;;) {
    int64_t next = watchdog.wakes = expire(now_nanoseconds());
    if (next == INT64_MAX) {
      pthread_cond_wait(&watchdog.changed, &watchdog.mutex);
    } else {
      wait_until(next);
    }
  }
  return NULL;
}

/* The thread does not survive a fork, and the runs of the child begin after it. */
static void lock_before_fork(void) { pthread_mutex_lock(&watchdog.mutex); }
static void unlock_in_parent(void) { pthread_mutex_unlock(&watchdog.mutex); }
static void restart_in_child(void) {
  pthread_mutex_init(&watchdog.mutex, NULL);
  make_condition();
  watchdog.first = NULL;
  watchdog.started = 0;
}

static void prepare_once(void) {
  make_condition();
  pthread_atfork(lock_before_fork, unlock_in_parent, restart_in_child);
}

/* Starts the thread, with every signal blocked: they are for the program's own threads. */
static int start(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  int failed = pthread_create(&thread, NULL, watch, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed)
    return 0;
  pthread_detach(thread);
  return 1;
}

int32_t df_deadline_begin(df_deadline *deadline, volatile int32_t *cancel, int64_t nanoseconds) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, prepare_once);
  int64_t now = now_nanoseconds();
  deadline->cancel = cancel;
  deadline->at = nanoseconds < INT64_MAX - 1 - now ? now + nanoseconds : INT64_MAX - 1;
  pthread_mutex_lock(&watchdog.mutex);
  if (!watchdog.started)
    watchdog.started = start();
  int32_t started = watchdog.started;
  if (started) {
    deadline->next = watchdog.first;
    watchdog.first = deadline;
    if (deadline->at < watchdog.wakes)
      pthread_cond_signal(&watchdog.changed);
  }
  pthread_mutex_unlock(&watchdog.mutex);
  return started;
}

void df_deadline_end(df_deadline *deadline) {
  pthread_mutex_lock(&watchdog.mutex);
  for (df_deadline **at = &watchdog.first; *at; at = &(*at)->next)
    if (*at == deadline) {
      *at = deadline->next;
      break;
    }
  pthread_mutex_unlock(&watchdog.mutex);
}
