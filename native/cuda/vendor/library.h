/* vendor/library.h: libraries of the card's maker, opened when they are first asked for. */
#ifndef DF_CUDA_VENDOR_LIBRARY_H
#define DF_CUDA_VENDOR_LIBRARY_H
#include "dataflow_cuda.h"

#include <dlfcn.h>
#include <mutex>
#include <stdlib.h>
#include <string>

/* Where a library is, as the environment said when the plugin was opened: the path in |variable|;
 * none when that is empty; without it the one that the system finds by |name|. */
struct df_vendor_library {
  std::string path;

  df_vendor_library(const char *variable, const char *name) {
    const char *value = getenv(variable);
    path = value ? value : name;
  }
  /* Null when there is none; it stays open as long as the process. */
  void *open() const {
    return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
};

/* A library's handles, one per card, made when first asked for; they stay as long as the process.
 */
template <typename H> struct df_vendor_handles {
  enum { MOST_CARDS = 64 };
  std::mutex lock;
  H handles[MOST_CARDS];

  /* That of the calling thread's card; null when |create| fails. */
  template <typename F> H of_card(F create) {
    int card = 0;
    if (cudaGetDevice(&card) != cudaSuccess || card < 0 || card >= MOST_CARDS)
      return nullptr;
    std::lock_guard<std::mutex> guard(lock);
    if (!handles[card] && create(&handles[card]) != 0)
      handles[card] = nullptr;
    return handles[card];
  }
};

static inline int df_vendor_card() {
  int card = -1;
  return cudaGetDevice(&card) == cudaSuccess ? card : -1;
}

#endif
