/* host/interrupt.c: lets Ctrl-C end a native run (see df_interrupt_begin). */
#define _GNU_SOURCE
#include "host/internal.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
static int on_main_thread(void) { return syscall(SYS_gettid) == getpid(); }
#else
static int on_main_thread(void) { return pthread_main_np(); }
#endif

/* Written by the main thread only, with the handler not yet or no longer in place. */
static volatile int32_t *volatile watched;
static struct sigaction before;

static void handle(int number, siginfo_t *info, void *context) {
  /* On another thread, which gets the signal where the main one blocks it, the run may be ending:
   * its word would be gone. */
  volatile int32_t *cancel = on_main_thread() ? watched : NULL;
  if (cancel)
    __atomic_store_n(cancel, 1, __ATOMIC_RELAXED);
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  }
}

/* The thread that ran when another one forked does not run in the child. */
static void end_in_child(void) {
  if (watched)
    df_interrupt_end();
}

static void register_fork(void) { pthread_atfork(NULL, NULL, end_in_child); }

int df_interrupt_begin(volatile int32_t *cancel) {
  if (!cancel || !on_main_thread() || watched)
    return 0;
  if (sigaction(SIGINT, NULL, &before))
    return 0;
  if (!(before.sa_flags & SA_SIGINFO) &&
      (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN))
    return 0;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_fork);
  watched = cancel;
  struct sigaction ours = {
      .sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK, .sa_mask = before.sa_mask};
  if (sigaction(SIGINT, &ours, NULL)) {
    watched = NULL;
    return 0;
  }
  return 1;
}

void df_interrupt_end(void) {
  sigaction(SIGINT, &before, NULL);
  watched = NULL;
}
