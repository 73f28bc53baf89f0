/* card.h: the card that a thread works with. */
#ifndef DF_CUDA_CARD_H
#define DF_CUDA_CARD_H
#include <cuda_runtime.h>

/* The least compute capability that the kernels are made for: TF32, bfloat16, asynchronous copies.
 */
enum { DF_LEAST_MAJOR = 8 };

/* A card as the plugin found it; lives as long as the process. */
struct df_card {
  int ordinal;
  int processors; /* multiprocessors */
  char name[128];
  char unavailable[160]; /* why it can't be used, or empty */
};

/* Makes |card| the calling thread's while it lives; then the thread has again what it had before,
 * which may be none: choosing a card by its number would give it a context. A thread without one
 * counts as one of the first card, and stays there if that is |card|. An error that somebody left
 * behind is dropped, so that no launch is taken for its cause. */
class df_on_card {
public:
  explicit df_on_card(const df_card *card);
  ~df_on_card();
  df_on_card(const df_on_card &) = delete;
  df_on_card &operator=(const df_on_card &) = delete;

private:
  void *const before;
  const bool restores;

public:
  const cudaError_t status; /* why the card can't be chosen */
};

#endif
