/* families.h: every kernel file of the CUDA plugin, in alphabetical order. */
#ifndef DF_CUDA_FAMILIES_H
#define DF_CUDA_FAMILIES_H

/* clang-format off */
#define DF_CUDA_FAMILIES(X)                                                                        \
  X(arg_reduce)                                                                                    \
  X(batch_norm)                                                                                    \
  X(binary)                                                                                        \
  X(cast)                                                                                          \
  X(conv)                                                                                          \
  X(cublaslt)                                                                                      \
  X(cudnn)                                                                                         \
  X(cumsum)                                                                                        \
  X(elementwise)                                                                                   \
  X(index)                                                                                         \
  X(layer_norm)                                                                                    \
  X(loss)                                                                                          \
  X(lrn)                                                                                           \
  X(matmul)                                                                                        \
  X(max_pool_grad)                                                                                 \
  X(movement)                                                                                      \
  X(nonzero)                                                                                       \
  X(optim)                                                                                         \
  X(pool)                                                                                          \
  X(random)                                                                                        \
  X(recurrent)                                                                                     \
  X(recurrent_grad)                                                                                \
  X(reduce)                                                                                        \
  X(resample)                                                                                      \
  X(scatter)                                                                                       \
  X(softmax)                                                                                       \
  X(topk)
/* clang-format on */

#endif
