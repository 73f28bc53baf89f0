/* quantized/blocks_thin.h: products of a few rows with a weight that is quantized in blocks. */
#ifndef DF_CPU_QUANTIZED_BLOCKS_THIN_H
#define DF_CPU_QUANTIZED_BLOCKS_THIN_H

#include "gemm/blocks.h"
#include "gemm/product.h"

/* Whether |m| rows are few. */
int DF_NAME(df_blocks_thin_takes)(int64_t m);

/* Bytes of workspace for |m| rows of |row| elements, padding included. */
int64_t DF_NAME(df_blocks_thin_bytes)(int64_t m, int64_t row);

/* The product, where the rows of gemm->blocks are its columns. */
void DF_NAME(df_blocks_thin_run)(const df_call *call, const df_gemm *gemm, float *workspace);

#endif
