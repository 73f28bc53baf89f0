/* pack_amx.c: see pack_amx.h.
 *
 * What lies together decides: two vectors of 16 floats are rounded by one instruction to 32 words.
 * Where steps lie together that is a row of a tile of a; where lanes do, the words of two steps are
 * interleaved, a row of a tile of b. The other order is the same square of pairs turned. Per 32
 * floats: 2 loads, 4 operations for the largest magnitude, and for each part a store, 2 to 4
 * operations and 4 for the rest. */
#include "pack_row_amx.h"

#define PACK_INLINE static inline __attribute__((always_inline))

PACK_INLINE __mmask16 first_of(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* One tile of all parts. |lanes| and |steps| exist; together: the steps of a lane do. */
PACK_INLINE __m512i pack_tile(uint16_t *out, const float *from, int64_t row, int64_t lanes,
                              int64_t steps, int together, int parts, int turned, __m512i largest) {
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
    df_amx_split(words, low, high, !together, parts);
#pragma GCC unroll 3
    for (int part = 0; part < parts; part++)
      if (turned)
        square[part][i] = (df_vec)words[part];
      else
        _mm512_store_si512(out + part * DF_AMX_WORDS + i * 32, words[part]);
  }
  if (turned)
#pragma GCC unroll 3
    for (int part = 0; part < parts; part++) {
      vec_transpose(square[part]);
#pragma GCC unroll 16
      for (int i = 0; i < DF_AMX_TILE; i++)
        _mm512_store_si512(out + part * DF_AMX_WORDS + i * 32, (__m512i)square[part][i]);
    }
  return largest;
}

/* A tile of elements that lie anywhere, the steps of a lane together. */
static void gather_tile(float *to, const float *from, const df_amx_source *s, int64_t lanes,
                        int64_t steps) {
  for (int64_t lane = 0; lane < lanes; lane++)
    for (int64_t step = 0; step < steps; step++)
      to[lane * DF_AMX_STEPS + step] = from[lane * s->lane_row + step * s->step_row];
}

PACK_INLINE uint32_t pack_panel(uint16_t *out, const df_amx_source *s, int parts, int together,
                                int turned, int gathered) {
  __m512i largest = _mm512_setzero_si512();
  float gather[DF_AMX_TILE * DF_AMX_STEPS];
  for (int64_t step = 0; step < s->steps; step += DF_AMX_STEPS)
    for (int64_t lane = 0; lane < DF_AMX_PANEL; lane += DF_AMX_TILE, out += parts * DF_AMX_WORDS) {
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
        largest =
            pack_tile(out, from, row, DF_AMX_TILE, DF_AMX_STEPS, together, parts, turned, largest);
      else
        largest = pack_tile(out, from, row, lanes, steps, together, parts, turned, largest);
    }
  return _mm512_reduce_max_epu32(largest);
}

#define PANEL(parts, name, together, turned, gathered)                                             \
  static uint32_t name##_##parts(uint16_t *out, const df_amx_source *s) {                          \
    return pack_panel(out, s, parts, together, turned, gathered);                                  \
  }
#define PANELS(parts)                                                                              \
  PANEL(parts, steps, 1, 0, 0)                                                                     \
  PANEL(parts, steps_turned, 1, 1, 0)                                                              \
  PANEL(parts, lanes, 0, 0, 0)                                                                     \
  PANEL(parts, lanes_turned, 0, 1, 0)                                                              \
  PANEL(parts, gathered, 1, 0, 1)                                                                  \
  PANEL(parts, gathered_turned, 1, 1, 1)
PANELS(1)
PANELS(2)
PANELS(3)

typedef uint32_t (*packer)(uint16_t *out, const df_amx_source *source);
#define ROW(parts)                                                                                 \
  {                                                                                                \
    {steps_##parts, steps_turned_##parts}, {lanes_turned_##parts, lanes_##parts}, {                \
      gathered_##parts, gathered_turned_##parts                                                    \
    }                                                                                              \
  }
static const packer packers[3][3][2] = {ROW(1), ROW(2), ROW(3)};

uint32_t DF_NAME(df_amx_pack)(uint16_t *out, const df_amx_source *source, int parts,
                              df_amx_form form) {
  const int way = source->step_row == 1 || source->steps == 1   ? 0
                  : source->lane_row == 1 || source->lanes == 1 ? 1
                                                                : 2;
  return packers[parts - 1][way][form](out, source);
}

/* ---- What is not ordinary -------------------------------------------------------------------- */

/* |x| as bfloat16 can have it without becoming zero or infinite. */
static float held(float x) {
  const float most = 0x1.fep127f, least = 0x1p-126f, size = __builtin_fabsf(x);
  if (x == 0.0f || !(size < __builtin_inff()))
    return x;
  return __builtin_copysignf(size > most ? most : size < least ? least : size, x);
}

void DF_NAME(df_amx_pack_odd)(uint16_t *out, const df_amx_source *source, df_amx_form form) {
  float tile[DF_AMX_PANEL * DF_AMX_STEPS];
  for (int64_t step = 0; step < source->steps; step += DF_AMX_STEPS) {
    const int64_t steps = df_min(DF_AMX_STEPS, source->steps - step);
    const float *from = source->data + step * source->step_row;
    gather_tile(tile, from, source, source->lanes, steps);
    for (int64_t lane = 0; lane < source->lanes; lane++)
      for (int64_t i = 0; i < steps; i++)
        tile[lane * DF_AMX_STEPS + i] = held(tile[lane * DF_AMX_STEPS + i]);
    const df_amx_source some = {tile, DF_AMX_STEPS, 1, source->lanes, steps};
    (void)packers[0][0][form](out, &some);
    out += 2 * DF_AMX_WORDS;
  }
}
