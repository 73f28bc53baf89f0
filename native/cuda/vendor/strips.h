/* vendor/strips.h: products of which one matrix has rows that are no multiple of 16 bytes.
 *
 * The library reaches the tensor cores there at a fraction of their rate (72 of 300 TFLOP/s were
 * measured on an H100 in TF32 with rows of odd length). Such a matrix goes through the workspace
 * strip by strip, with padded rows; what its rows have beyond a multiple of 16 bytes is a small
 * product of its own. It pays where a staged element, which is read and written once more, takes
 * block in many operations.
 */
#ifndef DF_CUDA_VENDOR_STRIPS_H
#define DF_CUDA_VENDOR_STRIPS_H
#include "gemm/gemm.h"

enum df_gemm_axis { DF_M, DF_N, DF_K };
enum df_gemm_matrix { DF_A, DF_B, DF_C };

struct df_strips {
  int64_t count;          /* of strips; 0: the product is done in one */
  int64_t size;           /* rows of a strip but the last */
  int64_t even;           /* elements of a row that are a multiple of 16 bytes */
  int64_t pitch;          /* elements from row to row of a staged strip */
  df_gemm_matrix staged;  /* the matrix */
  df_gemm_axis rows, row; /* the axis from row to row of it, and the one along a row */
};

/* Strips for a product without batch, or none; those over k are added up in c. */
df_strips df_strips_of(const df_gemm &g);
/* Bytes of one staged strip. */
int64_t df_strips_bytes(const df_strips &s);

/* The block [begin, begin + size) of |axis|. */
df_gemm df_gemm_block(df_gemm g, df_gemm_axis axis, int64_t begin, int64_t size);
/* Strip |i|, with the staged matrix at |stage|. */
df_gemm df_strip_of(const df_gemm &g, const df_strips &s, int64_t i, float *stage);
/* What the rows have beyond their even block; it has no elements when there is nothing. */
df_gemm df_strips_rest(const df_gemm &g, const df_strips &s);
/* Whether the product of strip |i|, or of the rest (i = count), is added to what c has. */
bool df_strip_adds(const df_strips &s, int64_t i);

/* Copies a factor's strip to |stage| before its product, or a result's from there after it. */
df_status df_strip_load(const df_call *call, const df_gemm &g, const df_strips &s, int64_t i,
                        float *stage);
df_status df_strip_store(const df_call *call, const df_gemm &g, const df_strips &s, int64_t i,
                         const float *stage);

#endif
