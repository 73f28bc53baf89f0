/* families.h: every kernel file of the CUDA plugin, in alphabetical order. */
#ifndef DF_CUDA_FAMILIES_H
#define DF_CUDA_FAMILIES_H

/* clang-format off */
#define DF_CUDA_FAMILIES(X)                                                                        \
  X(activation)                                                                                    \
  X(activation_sums)                                                                               \
  X(arg_reduce)                                                                                    \
  X(arithmetic)                                                                                    \
  X(attention)                                                                                     \
  X(attention_grad)                                                                                \
  X(batch_norm)                                                                                    \
  X(cast)                                                                                          \
  X(conv)                                                                                          \
  X(cublaslt)                                                                                      \
  X(cudnn)                                                                                         \
  X(cudnn_last)                                                                                    \
  X(dynamic_shape)                                                                                 \
  X(fused_elementwise)                                                                             \
  X(fused_elementwise_sums)                                                                        \
  X(gather)                                                                                        \
  X(layer_norm) X(layer_norm_grad)                                                                                    \
  X(linalg)                                                                                        \
  X(loss)                                                                                          \
  X(loss_with_grad)                                                                                \
  X(lrn)                                                                                           \
  X(optimizer)                                                                                     \
  X(optimizer_squares)                                                                             \
  X(pool)                                                                                          \
  X(pool_max_grad)                                                                                 \
  X(random)                                                                                        \
  X(recurrent)                                                                                     \
  X(recurrent_grad)                                                                                \
  X(reduce)                                                                                        \
  X(resize)                                                                                        \
  X(scatter)                                                                                       \
  X(shape)                                                                                         \
  X(softmax)                                                                                       \
  X(sort_cumsum)                                                                                   \
  X(sort_topk)
/* clang-format on */

#endif
