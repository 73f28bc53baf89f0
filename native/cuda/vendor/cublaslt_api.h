/* vendor/cublaslt_api.h: what we use of cuBLASLt 13, declared by ourselves so that nothing of it is
 * needed to build. Names of functions, numbers and sizes are those of its header. */
#ifndef DF_CUDA_VENDOR_CUBLASLT_API_H
#define DF_CUDA_VENDOR_CUBLASLT_API_H
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

namespace df_lt {

enum { VERSION = 13 }; /* major */

typedef struct context *handle;
struct algorithm {
  uint64_t data[8];
};
struct description { /* of a product */
  uint64_t data[32];
};
struct layout { /* of a matrix */
  uint64_t data[14];
};
struct preference {
  uint64_t data[12];
};
struct heuristic {
  algorithm algo;
  size_t workspace;
  int32_t status;
  float waves;
  int32_t reserved[4];
};

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { REAL_32F = 0, REAL_16BF = 14 }; /* cudaDataType */
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_16BF = 75, COMPUTE_32F_FAST_TF32 = 77 };
enum { OP_N = 0, OP_T = 1 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_RELU_BIAS = 6 };
enum { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8 };
enum { LAYOUT_BATCH_COUNT = 5, LAYOUT_STRIDED_BATCH_OFFSET = 6 };
enum {
  PREF_MAX_WORKSPACE_BYTES = 1,
  PREF_REDUCTION_SCHEME_MASK = 3,
  PREF_MIN_ALIGNMENT_A_BYTES = 5,
  PREF_MIN_ALIGNMENT_B_BYTES = 6,
  PREF_MIN_ALIGNMENT_C_BYTES = 7,
  PREF_MIN_ALIGNMENT_D_BYTES = 8
};
enum { REDUCTION_COMPUTE_TYPE = 2 }; /* partial sums through the workspace */

/* X(result, name, arguments); matrices are column after column. */
#define DF_LT_FUNCTIONS(X)                                                                         \
  X(size_t, cublasLtGetVersion, (void))                                                            \
  X(const char *, cublasLtGetStatusString, (int))                                                  \
  X(int, cublasLtCreate, (handle *))                                                               \
  X(int, cublasLtDestroy, (handle))                                                                \
  X(int, cublasLtMatmulDescInit_internal, (description *, size_t, int compute, int scale))         \
  X(int, cublasLtMatmulDescSetAttribute, (description *, int, const void *, size_t))               \
  X(int, cublasLtMatrixLayoutInit_internal,                                                        \
    (layout *, size_t, int type, uint64_t rows, uint64_t columns, int64_t ld))                     \
  X(int, cublasLtMatrixLayoutSetAttribute, (layout *, int, const void *, size_t))                  \
  X(int, cublasLtMatmulPreferenceInit_internal, (preference *, size_t))                            \
  X(int, cublasLtMatmulPreferenceSetAttribute, (preference *, int, const void *, size_t))          \
  X(int, cublasLtMatmulAlgoGetHeuristic,                                                           \
    (handle, description *, layout *, layout *, layout *, layout *, preference *, int wanted,      \
     heuristic *, int *found))                                                                     \
  X(int, cublasLtMatmul,                                                                           \
    (handle, description *, const void *alpha, const void *a, layout *, const void *b, layout *,   \
     const void *beta, const void *c, layout *, void *d, layout *, const algorithm *, void *,      \
     size_t, cudaStream_t))

} // namespace df_lt

#endif
