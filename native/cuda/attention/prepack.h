/* attention/prepack.h: operands of attention as the kernels of tensor cores read them.
 *
 * Before those run, q, k, v and dy are rounded to their number format once and laid tile by tile:
 * 64 rows of a matrix are contiguous, a row as many words as the largest head takes, zeros behind
 * its end and behind the last row. So what passes over tiles copies them without a look at strides
 * or edges, half of the bytes for bfloat16, and rounds nothing. q has the scale of scores in it.
 * The same pass finds what closes tiles (attention/mask.h) and what gradients need of each query.
 *
 * It reads every operand once and writes a half of it (bfloat16) or all of it. */
#ifndef DF_CUDA_ATTENTION_PREPACK_H
#define DF_CUDA_ATTENTION_PREPACK_H
#include "attention/mask.h"

#ifndef DF_ATTENTION_NOTED
#define DF_ATTENTION_NOTED 128 /* tiles that a block looks up together */
#endif

/* The matrices of an operand, each once however many entries of the batch read it. */
struct df_attention_source {
  df_attention_matrix x;
  df_walk<2> walk; /* over them: before x, and before y where x is dy */
  int64_t matrices;
  int32_t rows, tiles; /* of a matrix */
  float scale;
  float *to, *most; /* |most|: the largest magnitude of each tile */
};

/* What the kernels of tensor cores get. */
struct df_attention_prepacked {
  df_attention p; /* |at| and strides of q, k, v and dy in words of their format; scale is 1 */
  df_attention_summary known; /* |most| and |least| are numbered by tile of the operand */
  float2 *queries;  /* of gradients: logsum and delta per row of dy's tiles; infinity behind rows */
  int32_t tile_log; /* the words of a tile are 2^tile_log */
  float scale;      /* of scores, for what q is not a factor of */
  uint32_t run, batch; /* entries whose tiles are worked on beside each other, and all */

  /* The number of the first tile of an entry's matrix. */
  __device__ __forceinline__ int64_t tile_of(const df_attention_matrix &matrix, int operand) const {
    return (matrix.at - p.matrices[operand].at) >> tile_log;
  }

  /* Which of |blocks| tiles of which entry block |index| has: those of |run| entries beside each
   * other, the first tile of each first. */
  __device__ __forceinline__ uint32_t entry_of(uint32_t index, uint32_t blocks,
                                               int32_t *tile) const {
    const uint32_t of_run = run * blocks, number = index / of_run;
    const uint32_t rest = index - number * of_run, first = number * run;
    const uint32_t entries = run < batch - first ? run : batch - first, at = rest / entries;
    *tile = static_cast<int32_t>(at);
    return first + rest - at * entries;
  }
};

/* The operands of a node and what they are prepacked for. */
struct df_attention_prepacking {
  const df_tensor *operands[DF_ATTENTION_OPERANDS];
  const int64_t *lead; /* shape of the batch */
  int32_t n_lead, precision;
  const float *logsum; /* null in forward */
};

/* Bytes of workspace. */
int64_t df_attention_prepacked_bytes(const df_operand *q, const df_operand *kt, const df_operand *v,
                                     int64_t batch, bool gradients, int32_t precision);

/* Prepacks |from|, of which |p| was made, in |*workspace|, and advances that behind it. */
df_status df_attention_prepack(const df_call *call, const df_attention &p,
                               const df_attention_prepacking &from, char **workspace,
                               df_attention_prepacked *out);

#endif
