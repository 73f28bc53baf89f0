/* gemm/linalg.h: a node's matrix product as a df_gemm, for our own kernel and for the vendor's
 * library.
 */
#ifndef DF_CUDA_GEMM_LINALG_H
#define DF_CUDA_GEMM_LINALG_H
#include "gemm/gemm.h"

/* The product of inputs 0 and 1, not yet planned; that of a node has no addresses. */
df_gemm df_matmul_of_node(const df_node *node);
df_gemm df_matmul_of_call(const df_call *call);

/* A product of bfloat16 as one of floats: the bytes that its factors, and a result of bfloat16,
 * take as floats; and that product, by our own kernel, with the end of |out| and factors at
 * |floats|. */
int64_t df_matmul_float_node(const df_node *node, df_gemm *out);
df_status df_matmul_run_as_floats(const df_call *call, df_gemm *out, float *floats);

/* Null when inputs 0 and 1 (and the bias, input 2) can be multiplied, else why not. */
const char *df_matmul_accepts(const df_node *node);
const char *df_matmul_bias_accepts(const df_node *node);

#endif
