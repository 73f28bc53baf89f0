/* host/thread_pool.c: the one thread pool of the process.
 *
 * A parallel loop is a range of tasks, split into a range for each thread that may join. A thread
 * draws from a counter of its own range, then from those of the others, so neighbouring tasks are
 * mostly done by one thread, which finds in its cache what it made of them in the loop before. The
 * calling thread always joins and never waits for a worker that has not come yet: workers join
 * through a gate with a limited number of seats, the caller closes it when no task is left and
 * waits only for those who came in. One loop at a time: a caller that finds the pool taken does its
 * tasks itself.
 */
#define _GNU_SOURCE
#include "host/affinity.h"
#include "host/internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum {
  MAX_THREADS = 1024,
  MAX_RANGES = 64,
  SPIN_NANOSECONDS = 150 *
      1000, /* the gap between the programs of a training step is shorter; waking takes longer */
  SPINS_PER_LOOK = 16 /* pauses between two looks at the clock */
};

/* The gate: serial number of the loop in the upper half, then seats, then how many are taken. */
typedef uint64_t gate_word;
static uint32_t gate_serial(gate_word gate) { return (uint32_t)(gate >> 32); }
static uint32_t gate_seats(gate_word gate) { return (uint32_t)(gate >> 16) & 0xffff; }
static uint32_t gate_taken(gate_word gate) { return (uint32_t)gate & 0xffff; }
static gate_word gate_make(uint32_t serial, uint32_t seats) {
  return (gate_word)serial << 32 | (gate_word)seats << 16;
}

/* Written by the owner of the pool before it opens the gate, read by those who came in. */
typedef struct loop {
  df_task task;
  void *context;
  int64_t count;
  const volatile int32_t *cancel;
  int32_t ranges;
} loop;

typedef struct range {
  _Alignas(64) _Atomic int64_t drawn; /* tasks of it */
} range;

typedef struct worker {
  pthread_t thread;
  pthread_cond_t wake;
  int asleep; /* at |wake|; under the pool's lock, as is the affinity */
  df_affinity affinity;
} worker;

static struct pool {
  _Alignas(64) _Atomic gate_word gate;
  range ranges[MAX_RANGES];
  _Alignas(64) atomic_uint left; /* how many have come in and gone again */
  atomic_int sleepers;           /* workers that are asleep */
  atomic_int owner_sleeps;       /* the owner is at |done| */
  atomic_int owned;              /* a caller has the pool */
  atomic_int count;              /* of the workers that there are */
  worker workers[MAX_THREADS];
  loop loop;
  pthread_mutex_t mutex;
  pthread_cond_t done;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* What the calling thread is doing: the cancel word of its run, and the task it is in, if any. */
static _Thread_local const volatile int32_t *current_cancel;
static _Thread_local int32_t current_worker = -1;

const volatile int32_t *df_cancel_swap(const volatile int32_t *cancel) {
  const volatile int32_t *before = current_cancel;
  current_cancel = cancel;
  return before;
}

int32_t df_pool_workers(void) { return atomic_load(&pool.count); }

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Spins until |ready| holds or the time is over; returns what |ready| said last. */
static int spin_until(int (*ready)(uint32_t), uint32_t argument) {
  int64_t end = nanoseconds() + SPIN_NANOSECONDS;
  do {
    for (int i = 0; i < SPINS_PER_LOOK; i++) {
      if (ready(argument))
        return 1;
      pause_briefly();
    }
  } while (nanoseconds() < end);
  return ready(argument);
}

/* ---- Tasks ---------------------------------------------------------------------------------- */

/* The next task for a thread, or -1. */
static int64_t draw(const loop *loop, int32_t worker) {
  for (int32_t i = 0; i < loop->ranges; i++) {
    int32_t at = (worker + i) % loop->ranges;
    int64_t begin = loop->count * at / loop->ranges;
    int64_t length = loop->count * (at + 1) / loop->ranges - begin;
    _Atomic int64_t *drawn = &pool.ranges[at].drawn;
    if (atomic_load_explicit(drawn, memory_order_relaxed) >= length)
      continue;
    int64_t number = atomic_fetch_add_explicit(drawn, 1, memory_order_relaxed);
    if (number < length)
      return begin + number;
  }
  return -1;
}

static void run_tasks(const loop *loop, int32_t worker) {
  const volatile int32_t *cancel_before = df_cancel_swap(loop->cancel);
  int32_t worker_before = current_worker;
  current_worker = worker;
  for (;;) {
    int64_t task = draw(loop, worker);
    if (task < 0 || df_is_cancelled(loop->cancel))
      break;
    loop->task(loop->context, task, loop->count, worker);
  }
  current_worker = worker_before;
  df_cancel_swap(cancel_before);
}

static void run_alone(const loop *loop) {
  /* Inside a task the worker's number stays, so that slices of the workspace stay apart. */
  int32_t worker_before = current_worker;
  if (current_worker < 0)
    current_worker = 0;
  for (int64_t task = 0; task < loop->count && !df_is_cancelled(loop->cancel); task++)
    loop->task(loop->context, task, loop->count, current_worker);
  current_worker = worker_before;
}

/* ---- Workers -------------------------------------------------------------------------------- */

static int seat_free(uint32_t last_serial) {
  gate_word gate = atomic_load(&pool.gate);
  return gate_taken(gate) < gate_seats(gate) && gate_serial(gate) != last_serial;
}

static void sleep_until_seat(worker *self, uint32_t last_serial) {
  pthread_mutex_lock(&pool.mutex);
  /* Announced before the last look: the owner opens the gate first and looks for sleepers after. */
  atomic_fetch_add(&pool.sleepers, 1);
  self->asleep = 1;
  df_affinity_restore(&self->affinity);
  while (!seat_free(last_serial))
    pthread_cond_wait(&self->wake, &pool.mutex);
  df_affinity_restore(&self->affinity);
  self->asleep = 0;
  atomic_fetch_sub(&pool.sleepers, 1);
  pthread_mutex_unlock(&pool.mutex);
}

static void *worker_main(void *argument) {
  worker *self = argument;
  uint32_t last_serial = 0;
  for (;;) {
    if (!spin_until(seat_free, last_serial))
      sleep_until_seat(self, last_serial);
    gate_word gate = atomic_load(&pool.gate);
    if (gate_taken(gate) >= gate_seats(gate) || gate_serial(gate) == last_serial)
      continue;
    /* The serial number in the word makes this fail when the loop is another one by now. */
    if (!atomic_compare_exchange_strong(&pool.gate, &gate, gate + 1))
      continue;
    last_serial = gate_serial(gate);
    run_tasks(&pool.loop, (int32_t)gate_taken(gate) + 1);
    atomic_fetch_add(&pool.left, 1);
    if (atomic_load(&pool.owner_sleeps)) {
      pthread_mutex_lock(&pool.mutex);
      pthread_cond_signal(&pool.done);
      pthread_mutex_unlock(&pool.mutex);
    }
  }
  return NULL;
}

/* Threads do not survive a fork and locks may be held by those that are gone: the child begins
 * anew. */
static void restart_in_child(void) {
  atomic_store(&pool.gate, gate_make(gate_serial(atomic_load(&pool.gate)), 0));
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.owner_sleeps, 0);
  atomic_store(&pool.owned, 0);
  atomic_store(&pool.count, 0);
  pthread_mutex_init(&pool.mutex, NULL);
  pthread_cond_init(&pool.done, NULL);
}

static void register_fork(void) { pthread_atfork(NULL, NULL, restart_in_child); }

/* Starts workers until there are |wanted|, or as many as the system allows: fewer are slower, not
 * wrong. */
static void grow(int32_t wanted) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_fork);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all,
                  &before); /* inherited: signals are for the program's own threads */
  while (atomic_load(&pool.count) < wanted) {
    worker *next = &pool.workers[atomic_load(&pool.count)];
    *next = (worker){.asleep = 0};
    pthread_cond_init(&next->wake, NULL);
    if (pthread_create(&next->thread, NULL, worker_main, next))
      break;
    pthread_detach(next->thread);
    atomic_fetch_add(&pool.count, 1);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- Callers -------------------------------------------------------------------------------- */

static int all_left(uint32_t came) { return atomic_load(&pool.left) == came; }

static void wait_until_left(uint32_t came) {
  if (spin_until(all_left, came))
    return;
  pthread_mutex_lock(&pool.mutex);
  atomic_store(&pool.owner_sleeps, 1);
  while (!all_left(came))
    pthread_cond_wait(&pool.done, &pool.mutex);
  atomic_store(&pool.owner_sleeps, 0);
  pthread_mutex_unlock(&pool.mutex);
}

static void wake_workers(int32_t wanted) {
  if (!atomic_load(&pool.sleepers))
    return;
  worker *woken[MAX_THREADS];
  int32_t found = 0;
  /* Whoever held the lock has seen the open gate or is asleep by now. The signals are sent
   * without it, so that those who wake up do not run into it. */
  pthread_mutex_lock(&pool.mutex);
  int32_t count = atomic_load(&pool.count);
  df_taken taken;
  df_taken_begin(&taken);
  for (int32_t i = 0; i < count; i++)
    if (!pool.workers[i].asleep)
      df_taken_add(&taken, &pool.workers[i].affinity);
  for (int32_t i = 0; i < count && found < wanted; i++) {
    worker *worker = &pool.workers[i];
    if (worker->asleep) {
      df_affinity_for_waking(&worker->affinity, worker->thread, &taken);
      woken[found++] = worker;
    }
  }
  pthread_mutex_unlock(&pool.mutex);
  for (int32_t i = 0; i < found; i++)
    pthread_cond_signal(&woken[i]->wake);
}

void df_parallel_for(df_task task, void *context, int64_t count, int32_t threads) {
  loop loop = {task, context, count, current_cancel, 1};
  if (threads > MAX_THREADS)
    threads = MAX_THREADS;
  if (threads > count)
    threads = (int32_t)count;
  if (threads <= 1 || current_worker >= 0 || atomic_exchange(&pool.owned, 1)) {
    run_alone(&loop);
    return;
  }
  int32_t seats = threads - 1;
  if (atomic_load(&pool.count) < seats)
    grow(seats);
  loop.ranges = threads < MAX_RANGES ? threads : MAX_RANGES;
  if (count > INT64_MAX / MAX_RANGES)
    loop.ranges = 1;
  pool.loop = loop;
  for (int32_t i = 0; i < loop.ranges; i++)
    atomic_store(&pool.ranges[i].drawn, 0);
  atomic_store(&pool.left, 0);
  uint32_t serial = gate_serial(atomic_load(&pool.gate)) + 1;
  atomic_store(&pool.gate, gate_make(serial, (uint32_t)seats));
  wake_workers(seats);
  run_tasks(&loop, 0);
  wait_until_left(gate_taken(atomic_exchange(&pool.gate, gate_make(serial, 0))));
  atomic_store(&pool.owned, 0);
}
