/* gemm/gemm.h: products of float32 matrices for every kernel that needs one.
 *
 *   c[s][i][j] = end(sum over p of a[s][i][p] b[s][p][j])   s: a batch, whose factors may be shared
 *
 * 2 m n k operations on 4 (m k + k n + m n) bytes per product. Where there are few sums and k is
 * long, k is split; the partial sums are kept apart and added in their order.
 */
#ifndef DF_CUDA_GEMM_GEMM_H
#define DF_CUDA_GEMM_GEMM_H
#include "map/map.h"

/* What is done to a sum before it is stored: relu(sum + row[i] + column[j] + add[like c]). */
struct df_gemm_end {
  const float *row_bias, *column_bias, *add; /* null for none; |add| may be c */
  int relu;

  __device__ __forceinline__ float operator()(float sum, int64_t i, int64_t j, int64_t at) const {
    if (row_bias)
      sum += row_bias[i];
    if (column_bias)
      sum += column_bias[j];
    if (add)
      sum += add[at];
    return relu && sum < 0.0f ? 0.0f : sum;
  }
};

/* Strides count floats and may be zero or negative. |batch| says where the factors of product s
 * begin; the results lie c_batch apart. */
struct df_gemm {
  float *c;
  const float *a, *b;
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col, c_row, c_col;
  int64_t products, c_batch;
  df_walk<2> batch;
  df_gemm_end end;
  /* Chosen by df_gemm_plan from the sizes alone. */
  int32_t tile;
  int32_t splits;
  int64_t split_k; /* k of each but the last */
};

/* Tile and splits for |products| products of |m| x |n| sums over |k|. */
struct df_gemm_tiling {
  int32_t tile, splits;
  int64_t split_k;
};
df_gemm_tiling df_gemm_tiling_of(int64_t m, int64_t n, int64_t k, int64_t products);

/* One product of contiguous matrices; the caller changes what is different, then plans. */
df_gemm df_gemm_of(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k);

/* Fills what is chosen; may exchange a and b, so that the result is written transposed. */
void df_gemm_plan(df_gemm *gemm);

/* Bytes for the partial sums; 0 when there is one split. */
int64_t df_gemm_workspace(const df_gemm *gemm);

/* Launches the product; |workspace| is as large as df_gemm_workspace says. */
df_status df_gemm_run(const df_call *call, const df_gemm *gemm, void *workspace);

/* The sums without the end: split p of the sums of product s is at
 * partials[(p * products + s) * m * n + i * n + j], also when there is one split. */
df_status df_gemm_run_partials(const df_call *call, const df_gemm *gemm, float *partials);

/* out[i] = sum over p of partials[p * count + i], in their order. */
df_status df_gemm_join(const df_call *call, float *out, const float *partials, int32_t splits,
                       int64_t count);

#endif
