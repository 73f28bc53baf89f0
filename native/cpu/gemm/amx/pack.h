/* gemm/amx/pack.h: floats as sums of bfloat16 terms, in the order in which AMX tiles hold
 * them.
 *
 * AMX multiplies bfloat16 and adds float32. A float x is split, by rounding to nearest even,
 *
 *   h = bf16(x)    m = bf16(x - h)    l = x - h - m      |x - h| <= 2^-8 |x|, |x - h - m| <= 2^-16
 * |x|
 *
 * where l has what is left of the 24 bits and is exact. A product of two such sums keeps the terms
 *
 *   1 term    h h'                                       relative error of a product at most 2^-7
 *   2 terms   h h' + h m' + m h'                         3 * 2^-16
 *   3 terms   h h' + h m' + m h' + h l' + l h' + m m'    2^-23
 *
 * (Henry, Tang, Heinecke: Leveraging the bfloat16 artificial intelligence datatype for
 * higher-precision computations, ARITH 2019.) Products of terms are exact in float32. Rounding of
 * sums adds at most 2^-24 of the sum of absolute products for each of the additions on the path of
 * a term: an instruction adds 32 steps of k in two chains of 16, joins them, and adds that to the
 * result, so for 3 terms there are 18 + 6 k / 32 where float32 has k. With the split, the error is
 * at most 2^-24 (20 + 6 ceil(k / 32)) sum |a| |b|.
 *
 * AMX takes numbers below 2^-126 for zeros, among operands, terms and results. So elements are
 * read with an error of up to 2^-126, and products likewise. This is nothing beside the other
 * errors while the largest magnitudes are ordinary: who multiplies asks df_amx_ordinary for each
 * panel, and computes in float32 where one is not. */
#ifndef DF_CPU_GEMM_AMX_PACK_H
#define DF_CPU_GEMM_AMX_PACK_H

#include "cpu.h"

enum {
  DF_AMX_TILE = 16,        /* lanes of a tile: rows of a or columns of b */
  DF_AMX_PANEL = 32,       /* lanes of a panel: two tiles */
  DF_AMX_STEPS = 32,       /* of k in a tile */
  DF_AMX_WORDS = 512,      /* of a tile */
  DF_AMX_LEAST = 79 << 23, /* bits of 2^-48 */
  DF_AMX_MOST = 187 << 23  /* bits of 2^60 */
};

/* The order within a tile: of a, 32 steps of a lane lie together; of b, 2 steps, then the lanes. */
typedef enum df_amx_form { DF_AMX_A, DF_AMX_B } df_amx_form;

/* Element (lane, step) lies at data[lane * lane_row + step * step_row]. */
typedef struct df_amx_source {
  const float *data;
  int64_t lane_row, step_row;
  int64_t lanes; /* at most DF_AMX_PANEL */
  int64_t steps;
} df_amx_source;

/* Words of a panel of two tiles. */
static inline int64_t df_amx_words(int64_t steps, int terms) {
  return df_divide_up(steps, DF_AMX_STEPS) * 2 * terms * DF_AMX_WORDS;
}

/* out[block of steps][tile][term][word] with zeros for what is missing; a panel of up to 16 lanes
 * has space for two tiles too, and only the first is written. Returns the bits of the largest
 * magnitude, those of what is not finite being larger than all others. */
uint32_t DF_NAME(df_amx_pack)(uint16_t *out, const df_amx_source *source, int terms,
                              df_amx_form form);

/* The same for what is not ordinary, one by one: terms whose sum is the number to as many bits as
 * terms have, also where it is tiny, huge, infinite or not a number. For who adds them up again. */
void DF_NAME(df_amx_pack_odd)(uint16_t *out, const df_amx_source *source, int terms,
                              df_amx_form form);

/* A bfloat16. */
static inline float df_amx_float(uint16_t word) {
  const uint32_t bits = (uint32_t)word << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Whether products of panels with this largest magnitude can neither overflow where those of
 * float32 would not nor lose what counts: it is zero or from 2^-48 to 2^60. */
static inline int df_amx_ordinary(uint32_t largest) {
  return largest == 0 || (largest >= DF_AMX_LEAST && largest <= DF_AMX_MOST);
}

#endif
