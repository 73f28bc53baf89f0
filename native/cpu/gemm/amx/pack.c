/* gemm/amx/pack.c: see gemm/amx/pack.h.
 *
 * What lies together decides: two vectors of 16 floats are rounded by one instruction to 32 words.
 * Where steps lie together that is a row of a tile of a; where lanes do, the words of two steps are
 * interleaved, a row of a tile of b. The other order is the same square of pairs transposed. Per 32
 * floats: 2 loads, 4 operations for the largest magnitude, and for each term a store, 2 to 4
 * operations and 4 for the rest. */
#include "gemm/amx/pack.h"
#include "gemm/amx/pack_row.h"

#define PACK_INLINE static inline __attribute__((always_inline))

PACK_INLINE __mmask16 first_of(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* One tile of all terms. |lanes| and |steps| exist; together: the steps of a lane do. */
PACK_INLINE __m512i pack_tile(uint16_t *out, const float *from, int64_t row, int64_t lanes,
                              int64_t steps, int together, int terms, int transposed,
                              __m512i largest) {
  const int64_t rows = together ? lanes : df_divide_up(steps, 2);
  const __mmask16 low_mask = first_of(together ? steps : lanes);
  const __mmask16 high_mask = together ? first_of(steps - 16) : low_mask;
  df_vec square[3][DF_AMX_TILE];
#pragma GCC unroll 4
  for (int64_t i = 0; i < DF_AMX_TILE; i++) {
    __m512 low = _mm512_setzero_ps(), high = low;
    if (i < rows) {
      const float *at = from + (together ? i : 2 * i) * row;
      low = _mm512_maskz_loadu_ps(low_mask, at);
      if (together)
        high = _mm512_maskz_loadu_ps(high_mask, at + 16);
      else if (2 * i + 1 < steps)
        high = _mm512_maskz_loadu_ps(high_mask, at + row);
    }
    largest = df_amx_larger(df_amx_larger(largest, low), high);
    __m512i words[3];
    df_amx_split(words, low, high, !together, terms);
#pragma GCC unroll 3
    for (int term = 0; term < terms; term++)
      if (transposed)
        square[term][i] = (df_vec)words[term];
      else
        _mm512_store_si512(out + term * DF_AMX_WORDS + i * 32, words[term]);
  }
  if (transposed)
#pragma GCC unroll 3
    for (int term = 0; term < terms; term++) {
      vec_transpose(square[term]);
#pragma GCC unroll 16
      for (int i = 0; i < DF_AMX_TILE; i++)
        _mm512_store_si512(out + term * DF_AMX_WORDS + i * 32, (__m512i)square[term][i]);
    }
  return largest;
}

/* A tile of elements that lie anywhere, the steps of a lane together. */
static void gather_tile(float *to, const float *from, const df_amx_source *s, int64_t lanes,
                        int64_t steps) {
  const __m512i offset = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (s->step_row > INT32_MAX / DF_AMX_STEPS || s->step_row < -(INT32_MAX / DF_AMX_STEPS)) {
    for (int64_t lane = 0; lane < lanes; lane++)
      for (int64_t step = 0; step < steps; step++)
        to[lane * DF_AMX_STEPS + step] = from[lane * s->lane_row + step * s->step_row];
    return;
  }
  const __m512i at = _mm512_mullo_epi32(offset, _mm512_set1_epi32((int)s->step_row));
  for (int64_t lane = 0; lane < lanes; lane++)
    for (int64_t step = 0; step < steps; step += 16)
      _mm512_storeu_ps(to + lane * DF_AMX_STEPS + step,
                       _mm512_mask_i32gather_ps(_mm512_setzero_ps(), first_of(steps - step), at,
                                                from + lane * s->lane_row + step * s->step_row,
                                                sizeof(float)));
}

PACK_INLINE uint32_t pack_panel(uint16_t *out, const df_amx_source *s, int terms, int together,
                                int transposed, int gathered) {
  __m512i largest = _mm512_setzero_si512();
  float gather[DF_AMX_TILE * DF_AMX_STEPS];
  for (int64_t step = 0; step < s->steps; step += DF_AMX_STEPS)
    for (int64_t lane = 0; lane < DF_AMX_PANEL; lane += DF_AMX_TILE, out += terms * DF_AMX_WORDS) {
      const int64_t lanes = df_min(DF_AMX_TILE, s->lanes - lane);
      const int64_t steps = df_min(DF_AMX_STEPS, s->steps - step);
      const float *from = s->data + lane * s->lane_row + step * s->step_row;
      int64_t row = together ? s->lane_row : s->step_row;
      if (lanes <= 0)
        continue;
      if (gathered) {
        gather_tile(gather, from, s, lanes, steps);
        from = gather;
        row = DF_AMX_STEPS;
      }
      if (lanes == DF_AMX_TILE && steps == DF_AMX_STEPS)
        largest = pack_tile(out, from, row, DF_AMX_TILE, DF_AMX_STEPS, together, terms, transposed,
                            largest);
      else
        largest = pack_tile(out, from, row, lanes, steps, together, terms, transposed, largest);
    }
  return _mm512_reduce_max_epu32(largest);
}

#define PANEL(terms, name, together, transposed, gathered)                                         \
  static uint32_t name##_##terms(uint16_t *out, const df_amx_source *s) {                          \
    return pack_panel(out, s, terms, together, transposed, gathered);                              \
  }
#define PANELS(terms)                                                                              \
  PANEL(terms, steps, 1, 0, 0)                                                                     \
  PANEL(terms, steps_transposed, 1, 1, 0)                                                          \
  PANEL(terms, lanes, 0, 0, 0)                                                                     \
  PANEL(terms, lanes_transposed, 0, 1, 0)                                                          \
  PANEL(terms, gathered, 1, 0, 1)                                                                  \
  PANEL(terms, gathered_transposed, 1, 1, 1)
PANELS(1)
PANELS(2)
PANELS(3)

typedef uint32_t (*packer)(uint16_t *out, const df_amx_source *source);
#define ROW(terms)                                                                                 \
  {                                                                                                \
    {steps_##terms, steps_transposed_##terms}, {lanes_transposed_##terms, lanes_##terms}, {        \
      gathered_##terms, gathered_transposed_##terms                                                \
    }                                                                                              \
  }
static const packer packers[3][3][2] = {ROW(1), ROW(2), ROW(3)};

uint32_t DF_NAME(df_amx_pack)(uint16_t *out, const df_amx_source *source, int terms,
                              df_amx_form form) {
  const int order = source->step_row == 1 || source->steps == 1   ? 0
                    : source->lane_row == 1 || source->lanes == 1 ? 1
                                                                  : 2;
  return packers[terms - 1][order][form](out, source);
}

/* ---- What is not ordinary ------------------------------------------------------------------- */

/* |x| rounded to bfloat16; |split|: towards zero. */
static uint16_t round_word(float x, int split) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x)
    return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((split ? bits : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* |x| as terms, split where rounding would make it infinite. */
static void split_odd(uint16_t *out, int64_t apart, float x, int terms) {
  const float most = 0x1.fep127f;
  const int split = x > most || x < -most;
  for (int term = 0; term < terms; term++) {
    out[term * apart] = round_word(x, split);
    const float kept = df_amx_float(out[term * apart]);
    x = kept - kept == 0.0f ? x - kept : 0.0f; /* nothing is left of what is not finite */
  }
}

void DF_NAME(df_amx_pack_odd)(uint16_t *out, const df_amx_source *s, int terms, df_amx_form form) {
  memset(out, 0, (size_t)df_amx_words(s->steps, terms) * sizeof *out);
  for (int64_t lane = 0; lane < s->lanes; lane++)
    for (int64_t step = 0; step < s->steps; step++) {
      const int64_t i = lane % DF_AMX_TILE, p = step % DF_AMX_STEPS;
      const int64_t tile = step / DF_AMX_STEPS * 2 + lane / DF_AMX_TILE;
      const int64_t offset =
          form == DF_AMX_A ? i * DF_AMX_STEPS + p : p / 2 * DF_AMX_STEPS + 2 * i + p % 2;
      split_odd(out + tile * terms * DF_AMX_WORDS + offset, DF_AMX_WORDS,
                s->data[lane * s->lane_row + step * s->step_row], terms);
    }
}
