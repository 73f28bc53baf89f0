/* vendor/cudnn_api.h: what we use of cuDNN 9, declared by ourselves so that nothing of it is needed
 * to build. Names of functions, numbers and sizes are those of its header. */
#ifndef DF_CUDA_VENDOR_CUDNN_API_H
#define DF_CUDA_VENDOR_CUDNN_API_H
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

namespace df_dnn {

enum { VERSION = 9 }; /* major */

typedef struct context *handle;
typedef struct tensor_content *tensor;
typedef struct filter_content *filter;
typedef struct convolution_content *convolution;
typedef struct activation_content *activation;

/* What the library says of an algorithm, for all three kinds of convolution. */
struct candidate {
  int32_t algo, status;
  float time;
  size_t memory; /* bytes of workspace */
  int32_t determinism, math;
  int32_t reserved[3];
};

enum { SUCCESS = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
enum { DATA_FLOAT = 0 };
enum { TENSOR_NCHW = 0, TENSOR_NHWC = 1 };
enum { CROSS_CORRELATION = 1 };
enum { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, TENSOR_OP_MATH_ALLOW_CONVERSION = 2, FMA_MATH = 3 };
enum { NON_DETERMINISTIC = 0, DETERMINISTIC = 1 };
enum { ACTIVATION_RELU = 1, ACTIVATION_IDENTITY = 5 };
enum { PROPAGATE_NAN = 1 };
enum { FORWARD_PRECOMPUTED_GEMM = 1 };
enum { FORWARD_WINOGRAD_NONFUSED = 7, GRADIENT_WINOGRAD_NONFUSED = 5 }; /* of both gradients */

/* X(result, name, arguments); a tensor, a filter, a convolution are read only. */
#define DF_DNN_FUNCTIONS(X)                                                                        \
  X(size_t, cudnnGetVersion, (void))                                                               \
  X(const char *, cudnnGetErrorString, (int))                                                      \
  X(int, cudnnCreate, (handle *))                                                                  \
  X(int, cudnnDestroy, (handle))                                                                   \
  X(int, cudnnSetStream, (handle, cudaStream_t))                                                   \
  X(int, cudnnCreateTensorDescriptor, (tensor *))                                                  \
  X(int, cudnnDestroyTensorDescriptor, (tensor))                                                   \
  X(int, cudnnSetTensorNdDescriptor,                                                               \
    (tensor, int type, int rank, const int *sizes, const int *strides))                            \
  X(int, cudnnCreateFilterDescriptor, (filter *))                                                  \
  X(int, cudnnDestroyFilterDescriptor, (filter))                                                   \
  X(int, cudnnSetFilterNdDescriptor, (filter, int type, int format, int rank, const int *sizes))   \
  X(int, cudnnCreateConvolutionDescriptor, (convolution *))                                        \
  X(int, cudnnDestroyConvolutionDescriptor, (convolution))                                         \
  X(int, cudnnSetConvolutionNdDescriptor,                                                          \
    (convolution, int axes, const int *pads, const int *strides, const int *dilations, int mode,   \
     int type))                                                                                    \
  X(int, cudnnSetConvolutionGroupCount, (convolution, int))                                        \
  X(int, cudnnSetConvolutionMathType, (convolution, int))                                          \
  X(int, cudnnGetConvolutionForwardAlgorithm_v7,                                                   \
    (handle, tensor x, filter w, convolution, tensor y, int wanted, int *found, candidate *))      \
  X(int, cudnnGetConvolutionBackwardDataAlgorithm_v7,                                              \
    (handle, filter w, tensor dy, convolution, tensor dx, int wanted, int *found, candidate *))    \
  X(int, cudnnGetConvolutionBackwardFilterAlgorithm_v7,                                            \
    (handle, tensor x, tensor dy, convolution, filter dw, int wanted, int *found, candidate *))    \
  X(int, cudnnGetConvolutionForwardWorkspaceSize,                                                  \
    (handle, tensor x, filter w, convolution, tensor y, int algo, size_t *))                       \
  X(int, cudnnGetConvolutionBackwardDataWorkspaceSize,                                             \
    (handle, filter w, tensor dy, convolution, tensor dx, int algo, size_t *))                     \
  X(int, cudnnGetConvolutionBackwardFilterWorkspaceSize,                                           \
    (handle, tensor x, tensor dy, convolution, filter dw, int algo, size_t *))                     \
  X(int, cudnnConvolutionForward,                                                                  \
    (handle, const void *alpha, tensor, const void *x, filter, const void *w, convolution,         \
     int algo, void *workspace, size_t bytes, const void *beta, tensor, void *y))                  \
  X(int, cudnnCreateActivationDescriptor, (activation *))                                          \
  X(int, cudnnDestroyActivationDescriptor, (activation))                                           \
  X(int, cudnnSetActivationDescriptor, (activation, int mode, int nans, double coefficient))       \
  X(int, cudnnConvolutionBiasActivationForward,                                                    \
    (handle, const void *alpha, tensor, const void *x, filter, const void *w, convolution,         \
     int algo, void *workspace, size_t bytes, const void *beta, tensor, const void *z, tensor,     \
     const void *bias, activation, tensor, void *y))                                               \
  X(int, cudnnConvolutionBackwardData,                                                             \
    (handle, const void *alpha, filter, const void *w, tensor, const void *dy, convolution,        \
     int algo, void *workspace, size_t bytes, const void *beta, tensor, void *dx))                 \
  X(int, cudnnConvolutionBackwardFilter,                                                           \
    (handle, const void *alpha, tensor, const void *x, tensor, const void *dy, convolution,        \
     int algo, void *workspace, size_t bytes, const void *beta, filter, void *dw))

} // namespace df_dnn

#endif
