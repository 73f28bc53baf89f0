/* pool_test.c: the thread pool: every task once, workers' numbers, nesting, sharing, cancelling,
 * forking, processors. */
#define _GNU_SOURCE
#include "check.h"
#include "host/internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TASKS = 1000, MOST_THREADS = 8 };

typedef struct task_counts {
  atomic_int done[MOST_TASKS];
  atomic_int inside[MOST_THREADS]; /* tasks that run now under this worker's number */
  atomic_int wrong;
  int32_t threads;
} task_counts;

static void count_task(void *context, int64_t index, int64_t count, int32_t worker) {
  task_counts *t = context;
  if (index < 0 || index >= count || worker < 0 || worker >= t->threads) {
    atomic_fetch_add(&t->wrong, 1);
    return;
  }
  if (atomic_fetch_add(&t->inside[worker], 1))
    atomic_fetch_add(&t->wrong, 1);
  atomic_fetch_add(&t->done[index], 1);
  atomic_fetch_sub(&t->inside[worker], 1);
}

static int once_each(const task_counts *t, int64_t count) {
  for (int64_t i = 0; i < MOST_TASKS; i++)
    if (atomic_load(&t->done[i]) != (i < count))
      return 0;
  return !atomic_load(&t->wrong);
}

static void test_every_task_once(void) {
  const int64_t counts[] = {0, 1, 2, 3, 7, 64, MOST_TASKS};
  for (int32_t threads = 0; threads <= MOST_THREADS; threads++) {
    for (int i = 0; i < 7; i++) {
      task_counts *t = calloc(1, sizeof *t);
      t->threads = threads > 1 ? threads : 1;
      df_parallel_for(count_task, t, counts[i], threads);
      CHECK(once_each(t, counts[i]));
      free(t);
    }
  }
  CHECK(df_pool_workers() ==
        MOST_THREADS - 1); /* grown to the largest asked for, the caller included */
}

static void test_many_short_jobs(void) {
  task_counts *t = calloc(1, sizeof *t);
  t->threads = 4;
  for (int i = 0; i < 20000; i++)
    df_parallel_for(count_task, t, 3, 4);
  for (int i = 0; i < 3; i++)
    CHECK(t->done[i] == 20000);
  CHECK(!t->wrong);
  free(t);
}

/* Ends only when both tasks run at one time. */
static void meet(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)index, (void)worker;
  atomic_int *met = context;
  atomic_fetch_add(met, 1);
  while (atomic_load(met) < count)
    usleep(10);
}

static void test_tasks_run_side_by_side(void) {
  atomic_int met = 0;
  df_parallel_for(meet, &met, 4, 4);
  CHECK(met == 4);
}

#ifdef __linux__
typedef struct processors {
  atomic_int met, less;
  cpu_set_t allowed;
} processors;

static void look_and_meet(void *context, int64_t index, int64_t count, int32_t worker) {
  processors *p = context;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) || !CPU_EQUAL(&set, &p->allowed))
    atomic_fetch_add(&p->less, 1);
  meet(&p->met, index, count, worker);
}

/* A worker that slept is woken beside the others, but may run wherever the process may. */
static void test_workers_may_use_all_processors(void) {
  processors p = {.met = 0};
  sched_getaffinity(0, sizeof p.allowed, &p.allowed);
  for (int i = 0; i < 20; i++) {
    usleep(1000); /* longer than workers spin */
    atomic_store(&p.met, 0);
    df_parallel_for(look_and_meet, &p, 4, 4);
  }
  CHECK(p.less == 0);
}

/* Where there is but one processor, or those that workers sleep on were taken from the process. */
static void test_workers_follow_the_processors_of_the_process(void) {
  processors p = {.met = 0};
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  df_parallel_for(meet, &p.met, 2, 2);
  for (int number = 0; number < CPU_SETSIZE; number++) {
    if (!CPU_ISSET(number, &before))
      continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(number, &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < 3; i++) {
      usleep(1000);
      atomic_store(&p.met, 0);
      df_parallel_for(meet, &p.met, 4, 4);
    }
  }
  sched_setaffinity(0, sizeof before, &before);
}
#endif

typedef struct nest {
  atomic_int inner, wrong;
} nest;

typedef struct caller {
  nest *nest;
  int32_t worker;
  pthread_t thread;
} caller;

static void inner_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)index, (void)count;
  const caller *outer = context;
  if (worker != outer->worker || !pthread_equal(pthread_self(), outer->thread))
    atomic_fetch_add(&outer->nest->wrong, 1);
  atomic_fetch_add(&outer->nest->inner, 1);
  usleep(100); /* so that a worker that should not come would have the time to */
}

static void outer_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)index, (void)count;
  caller here = {context, worker, pthread_self()};
  df_parallel_for(inner_task, &here, 5, 4);
}

static void test_nested_calls_run_inside_the_task(void) {
  for (int32_t threads = 1; threads <= 4; threads += 3) {
    nest n = {0};
    df_parallel_for(outer_task, &n, 20, threads);
    CHECK(n.inner == 100);
    CHECK(n.wrong == 0);
  }
}

static void *call_often(void *context) {
  int *bad = context;
  for (int i = 0; i < 300; i++) {
    task_counts *t = calloc(1, sizeof *t);
    t->threads = 3;
    df_parallel_for(count_task, t, 50, 3);
    *bad += !once_each(t, 50);
    free(t);
  }
  return NULL;
}

static void test_callers_share_the_pool(void) {
  pthread_t threads[4];
  int bad[4] = {0};
  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, call_often, &bad[i]);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < 4; i++)
    CHECK(bad[i] == 0);
}

typedef struct stop {
  volatile int32_t cancel;
  atomic_int started;
} stop;

static void cancel_at_ten(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count, (void)worker;
  stop *s = context;
  atomic_fetch_add(&s->started, 1);
  if (index == 10)
    __atomic_store_n(&s->cancel, 1, __ATOMIC_RELAXED);
}

static void test_no_task_starts_after_the_cancel(void) {
  for (int32_t threads = 1; threads <= 2; threads++) {
    stop s = {0};
    const volatile int32_t *before = df_cancel_swap(&s.cancel);
    df_parallel_for(cancel_at_ten, &s, 1 << 30, threads);
    CHECK(df_cancel_swap(before) == &s.cancel);
    CHECK(s.started >= 11);
    CHECK(s.started < 1 << 30);
  }
}

#ifndef __SANITIZE_THREAD__ /* which cannot follow threads that a forked child starts */
static void *hold_the_pool(void *context) {
  atomic_int *held = context;
  df_parallel_for(meet, held, 3, 2); /* three tasks, two threads: ends when somebody adds one */
  return NULL;
}

/* The child is forked while another thread is in the middle of a job; its pool begins anew. */
static void test_pool_restarts_in_a_forked_child(void) {
  atomic_int held = 0;
  pthread_t holder;
  pthread_create(&holder, NULL, hold_the_pool, &held);
  while (atomic_load(&held) < 2)
    usleep(10);
  pid_t child = fork();
  if (!child) {
    alarm(60);
    failures = df_pool_workers() != 0;
    atomic_int met = 0;
    df_parallel_for(meet, &met, 3, 3);
    CHECK(df_pool_workers() == 2);
    test_callers_share_the_pool();
    _exit(failures != 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  atomic_fetch_add(&held, 1);
  pthread_join(holder, NULL);
  CHECK(held == 4);
}
#endif

int main(void) {
  alarm(120); /* a pool that loses a wake-up hangs */
  test_tasks_run_side_by_side();
  test_every_task_once();
  test_many_short_jobs();
  test_nested_calls_run_inside_the_task();
  test_callers_share_the_pool();
#ifdef __linux__
  test_workers_may_use_all_processors();
  test_workers_follow_the_processors_of_the_process();
#endif
  test_no_task_starts_after_the_cancel();
#ifndef __SANITIZE_THREAD__
  test_pool_restarts_in_a_forked_child();
#endif
  return failures != 0;
}
