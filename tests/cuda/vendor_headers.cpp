/* vendor_headers.cpp: what native/cuda/vendor/cublaslt_api.h and cudnn_api.h declare, beside the
 * vendor's own headers. It compiles when they agree. */
#include "vendor/cublaslt_api.h"
#include "vendor/cudnn_api.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <type_traits>

#define SAME(ours, theirs)                                                                         \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #ours)
#define SAME_PLACE(ours, member, theirs, their_member)                                             \
  SAME(offsetof(ours, member), offsetof(theirs, their_member))

/* Functions of as many arguments, each of the same size and a pointer in both or in none. */
template <typename A, typename B> struct alike {
  static constexpr bool value =
      sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
};
template <typename F, typename G> struct same_form {
  static constexpr bool value = false;
};
template <typename R, typename S, typename... A, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct same_form<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = alike<R, S>::value && (alike<A, B>::value && ...);
};
#define CHECK(result, name, arguments)                                                             \
  static_assert(same_form<result(*) arguments, decltype(&::name)>::value, #name);

namespace df_lt {
DF_LT_FUNCTIONS(CHECK)
SAME(VERSION, CUBLAS_VER_MAJOR);
SAME(sizeof(algorithm), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(description), sizeof(cublasLtMatmulDescOpaque_t));
SAME(sizeof(layout), sizeof(cublasLtMatrixLayoutOpaque_t));
SAME(sizeof(preference), sizeof(cublasLtMatmulPreferenceOpaque_t));
SAME(sizeof(heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
SAME_PLACE(heuristic, algo, cublasLtMatmulHeuristicResult_t, algo);
SAME_PLACE(heuristic, workspace, cublasLtMatmulHeuristicResult_t, workspaceSize);
SAME_PLACE(heuristic, status, cublasLtMatmulHeuristicResult_t, state);
SAME_PLACE(heuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount);
SAME(SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(REAL_32F, CUDA_R_32F);
SAME(REAL_16BF, CUDA_R_16BF);
SAME(COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(COMPUTE_32F_FAST_16BF, CUBLAS_COMPUTE_32F_FAST_16BF);
SAME(COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(OP_N, CUBLAS_OP_N);
SAME(OP_T, CUBLAS_OP_T);
SAME(EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU);
SAME(EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS);
SAME(DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
SAME(LAYOUT_STRIDED_BATCH_OFFSET, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
SAME(PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
} // namespace df_lt

namespace df_dnn {
DF_DNN_FUNCTIONS(CHECK)
SAME(VERSION, CUDNN_MAJOR);
#define SAME_CANDIDATE(theirs)                                                                     \
  SAME(sizeof(candidate), sizeof(theirs));                                                         \
  SAME_PLACE(candidate, algo, theirs, algo);                                                       \
  SAME_PLACE(candidate, status, theirs, status);                                                   \
  SAME_PLACE(candidate, time, theirs, time);                                                       \
  SAME_PLACE(candidate, memory, theirs, memory);                                                   \
  SAME_PLACE(candidate, determinism, theirs, determinism);                                         \
  SAME_PLACE(candidate, math, theirs, mathType)
SAME_CANDIDATE(cudnnConvolutionFwdAlgoPerf_t);
SAME_CANDIDATE(cudnnConvolutionBwdDataAlgoPerf_t);
SAME_CANDIDATE(cudnnConvolutionBwdFilterAlgoPerf_t);
SAME(SUCCESS, CUDNN_STATUS_SUCCESS);
SAME(NOT_INITIALIZED, CUDNN_STATUS_NOT_INITIALIZED);
SAME(BAD_PARAM, CUDNN_STATUS_BAD_PARAM);
SAME(NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED);
SAME(DATA_FLOAT, CUDNN_DATA_FLOAT);
SAME(TENSOR_NCHW, CUDNN_TENSOR_NCHW);
SAME(TENSOR_NHWC, CUDNN_TENSOR_NHWC);
SAME(ACTIVATION_RELU, CUDNN_ACTIVATION_RELU);
SAME(ACTIVATION_IDENTITY, CUDNN_ACTIVATION_IDENTITY);
SAME(PROPAGATE_NAN, CUDNN_PROPAGATE_NAN);
SAME(FORWARD_PRECOMPUTED_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
SAME(CROSS_CORRELATION, CUDNN_CROSS_CORRELATION);
SAME(DEFAULT_MATH, CUDNN_DEFAULT_MATH);
SAME(TENSOR_OP_MATH, CUDNN_TENSOR_OP_MATH);
SAME(TENSOR_OP_MATH_ALLOW_CONVERSION, CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
SAME(FMA_MATH, CUDNN_FMA_MATH);
SAME(NON_DETERMINISTIC, CUDNN_NON_DETERMINISTIC);
SAME(DETERMINISTIC, CUDNN_DETERMINISTIC);
} // namespace df_dnn
