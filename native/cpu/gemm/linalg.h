/* gemm/linalg.h: the matrix product of two operands of a node, for the plain op and the patterns
 * around it. */
#ifndef DF_CPU_GEMM_LINALG_H
#define DF_CPU_GEMM_LINALG_H

#include "gemm/gemm.h"

/* The workspace of a product of inputs 0 and 1. */
df_status DF_NAME(df_matmul_prepare)(const df_node *node, df_prepared *out, df_error *error);

/* Output 0 = input 0 times input 1, with a bias per column (null for none), and |vec_activate|. */
df_status DF_NAME(df_matmul_run)(const df_call *call, const float *bias, float high);

/* Null when inputs 0 and 1 can be multiplied, else why not. */
const char *DF_NAME(df_matmul_accepts)(const df_node *node);

#endif
