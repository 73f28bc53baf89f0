/* card.cu: the card that a thread works with, put back through the driver: the runtime knows cards
 * by numbers alone, and a thread without one would come back with a context on the first. */
#include "card.h"

/* The driver's cuCtxGetCurrent and cuCtxSetCurrent, null where there is no driver. */
struct driver {
  int (*get)(void **);
  int (*set)(void *);
};

template <typename F> static void find(const char *name, F **function) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result))
    found = nullptr;
  *function = reinterpret_cast<F *>(found);
}

static const driver &the_driver() {
  static const driver found = [] {
    driver d{};
    find("cuCtxGetCurrent", &d.get);
    find("cuCtxSetCurrent", &d.set);
    return d;
  }();
  return found;
}

static void *current_context() {
  void *context = nullptr;
  if (the_driver().get)
    the_driver().get(&context);
  return context;
}

static cudaError_t choose(const df_card *card) {
  cudaGetLastError();
  return cudaSetDevice(card->ordinal);
}

df_on_card::df_on_card(const df_card *card)
    : before(current_context()), restores(before || card->ordinal != 0), status(choose(card)) {}

df_on_card::~df_on_card() {
  if (restores && the_driver().set && current_context() != before)
    the_driver().set(before);
}
