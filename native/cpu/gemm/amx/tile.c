/* gemm/amx/tile.c: see gemm/amx/tile.h. Registers 0 to 3 are sums, 4 and 5 tiles of a, 6 and 7 of
 * b. */
#include "gemm/amx/tile.h"
#include "gemm/amx/pack_row.h"

#define TILE_INLINE static inline __attribute__((always_inline))

typedef struct configuration {
  uint8_t palette, start_row;
  uint8_t reserved[14];
  uint16_t bytes[16]; /* of a row of each register */
  uint8_t rows[16];
} configuration;

void DF_NAME(df_amx_open)(void) {
  configuration c = {.palette = 1};
  for (int i = 0; i < 8; i++) {
    c.bytes[i] = 64;
    c.rows[i] = 16;
  }
  __asm__ volatile("" : : "r"(&c) : "memory"); /* all of it is read */
  _tile_loadconfig(&c);
}

void DF_NAME(df_amx_close)(void) { _tile_release(); }

/* Term |term| of the tiles of one block; |passes|: it is not wanted in the first cache. */
TILE_INLINE void load_a(const uint16_t *from, const df_amx_factor *a, int term, int two_down,
                        int passes) {
  from += term * a->term;
  if (passes) {
    _tile_stream_loadd(4, from, a->row * 2);
    if (two_down)
      _tile_stream_loadd(5, from + a->tile, a->row * 2);
  } else {
    _tile_loadd(4, from, a->row * 2);
    if (two_down)
      _tile_loadd(5, from + a->tile, a->row * 2);
  }
}

TILE_INLINE void load_b(const uint16_t *from, const df_amx_factor *b, int term, int two_across,
                        int passes) {
  from += term * b->term;
  if (passes) {
    _tile_stream_loadd(6, from, b->row * 2);
    if (two_across)
      _tile_stream_loadd(7, from + b->tile, b->row * 2);
  } else {
    _tile_loadd(6, from, b->row * 2);
    if (two_across)
      _tile_loadd(7, from + b->tile, b->row * 2);
  }
}

TILE_INLINE void add_products(int two_down, int two_across) {
  _tile_dpbf16ps(0, 4, 6);
  if (two_across)
    _tile_dpbf16ps(1, 4, 7);
  if (two_down)
    _tile_dpbf16ps(2, 5, 6);
  if (two_down && two_across)
    _tile_dpbf16ps(3, 5, 7);
}

/* The products of one block: each term of the factor that passes is loaded once, those of the other
 * up and down. */
TILE_INLINE void add_block(const uint16_t *from_a, const df_amx_factor *a, const uint16_t *from_b,
                           const df_amx_factor *b, int terms, int two_down, int two_across,
                           int a_passes) {
#pragma GCC unroll 3
  for (int pass = 0; pass < terms; pass++) {
    const int kept = terms - pass;
    if (a_passes)
      load_a(from_a, a, pass, two_down, 1);
    else
      load_b(from_b, b, pass, two_across, 1);
#pragma GCC unroll 3
    for (int i = 0; i < kept; i++) {
      const int term = pass % 2 ? i : kept - 1 - i;
      if (pass % 2 == 0 || i > 0) { /* else it is there */
        if (a_passes)
          load_b(from_b, b, term, two_across, 0);
        else
          load_a(from_a, a, term, two_down, 0);
      }
      add_products(two_down, two_across);
    }
  }
}

/* Rows of |vectors| vectors, the last of |last| lanes. */
TILE_INLINE void end_rows(float *c, int64_t c_row, const float *sums, int64_t rows, int vectors,
                          int64_t last, const df_tile_epilogue *epilogue, int plain) {
  df_vec bias[2] = {vec_zero(), vec_zero()};
  if (!plain && epilogue->column_bias) {
    bias[0] = vec_load_partial(epilogue->column_bias, vectors > 1 ? DF_LANES : last);
    if (vectors > 1)
      bias[1] = vec_load_partial(epilogue->column_bias + DF_LANES, last);
  }
  for (int64_t i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++) {
      const int64_t at = i * c_row + j * DF_LANES, count = j < vectors - 1 ? DF_LANES : last;
      df_vec sum = vec_load(sums + i * DF_AMX_PANEL + j * DF_LANES);
      if (epilogue->accumulate)
        sum += vec_load_partial(c + at, count);
      if (!plain) {
        if (epilogue->add)
          sum += vec_load_partial(epilogue->add + at, count);
        if (epilogue->row_bias)
          sum += vec_splat(epilogue->row_bias[i]);
        if (epilogue->column_bias)
          sum += bias[j];
        sum = vec_activate(sum, epilogue->high);
      }
      vec_store_partial(c + at, sum, count);
    }
}

void DF_NAME(df_amx_epilogue)(float *c, int64_t c_row, const float *sums, int64_t rows,
                              int64_t columns, const df_tile_epilogue *epilogue) {
  const int plain =
      !epilogue->add && !epilogue->row_bias && !epilogue->column_bias && !epilogue->high;
  if (columns == DF_AMX_PANEL && plain)
    end_rows(c, c_row, sums, rows, 2, DF_LANES, epilogue, 1);
  else if (columns == DF_AMX_PANEL)
    end_rows(c, c_row, sums, rows, 2, DF_LANES, epilogue, 0);
  else if (columns > DF_LANES)
    end_rows(c, c_row, sums, rows, 2, columns - DF_LANES, epilogue, 0);
  else
    end_rows(c, c_row, sums, rows, 1, columns, epilogue, 0);
}

/* The next rows of tiles of a panel that is packed meanwhile. */
TILE_INLINE void pack_rows(df_amx_later *later, int terms) {
  const int64_t end = df_min(later->rows, later->done + later->count);
  __m512i largest = _mm512_load_si512(later->largest);
  for (int64_t at = later->done; at < end; at++) {
    const int64_t block = at / 32, i = at / 2 % 16, tile = at % 2;
    const float *low =
        later->from + (block * DF_AMX_STEPS + 2 * i) * later->row + tile * DF_AMX_TILE;
    const __m512 first = _mm512_loadu_ps(low), second = _mm512_loadu_ps(low + later->row);
    __builtin_prefetch(low + DF_AMX_PANEL, 0, 2); /* of the panel behind */
    __builtin_prefetch(low + later->row + DF_AMX_PANEL, 0, 2);
    largest = df_amx_larger(df_amx_larger(largest, first), second);
    __m512i words[3];
    df_amx_split(words, first, second, 1, terms);
    uint16_t *out = later->out + (block * 2 + tile) * terms * DF_AMX_WORDS + i * 32;
#pragma GCC unroll 3
    for (int term = 0; term < terms; term++)
      _mm512_store_si512(out + term * DF_AMX_WORDS, words[term]);
  }
  _mm512_store_si512(later->largest, largest);
  later->done = end;
}

TILE_INLINE void multiply(float *sums, const df_amx_factor *a, const df_amx_factor *b,
                          int64_t blocks, df_amx_later *later, int terms, int two_down,
                          int two_across, int a_passes) {
  const df_amx_factor left = *a, right = *b;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < blocks; s++) {
    if (a_passes && later)
      pack_rows(later, terms);
    add_block(left.data + (left.offsets ? left.offsets[s] : s * left.block), &left,
              right.data + (right.offsets ? right.offsets[s] : s * right.block), &right, terms,
              two_down, two_across, a_passes);
  }
  _tile_stored(0, sums, DF_AMX_PANEL * sizeof(float));
  if (two_across)
    _tile_stored(1, sums + DF_AMX_TILE, DF_AMX_PANEL * sizeof(float));
  if (two_down)
    _tile_stored(2, sums + DF_AMX_TILE * DF_AMX_PANEL, DF_AMX_PANEL * sizeof(float));
  if (two_down && two_across)
    _tile_stored(3, sums + DF_AMX_TILE * DF_AMX_PANEL + DF_AMX_TILE, DF_AMX_PANEL * sizeof(float));
}

typedef void (*multiplier)(float *sums, const df_amx_factor *a, const df_amx_factor *b,
                           int64_t blocks, df_amx_later *later);

#define MULTIPLY(terms, two_down, two_across, passes)                                              \
  static void multiply_##terms##_##two_down##_##two_across##_##passes(                             \
      float *sums, const df_amx_factor *a, const df_amx_factor *b, int64_t blocks,                 \
      df_amx_later *later) {                                                                       \
    multiply(sums, a, b, blocks, later, terms, two_down, two_across, passes);                      \
  }
#define SIZES(terms, passes)                                                                       \
  MULTIPLY(terms, 0, 0, passes)                                                                    \
  MULTIPLY(terms, 0, 1, passes)                                                                    \
  MULTIPLY(terms, 1, 0, passes)                                                                    \
  MULTIPLY(terms, 1, 1, passes)
SIZES(1, 0)
SIZES(1, 1)
SIZES(2, 0)
SIZES(2, 1)
SIZES(3, 0)
SIZES(3, 1)

#define ENTRY(terms, passes)                                                                       \
  {                                                                                                \
    {multiply_##terms##_0_0_##passes, multiply_##terms##_0_1_##passes}, {                          \
      multiply_##terms##_1_0_##passes, multiply_##terms##_1_1_##passes                             \
    }                                                                                              \
  }
static const multiplier multipliers[3][2][2][2] = {
    {ENTRY(1, 0), ENTRY(1, 1)}, {ENTRY(2, 0), ENTRY(2, 1)}, {ENTRY(3, 0), ENTRY(3, 1)}};

void DF_NAME(df_amx_multiply)(float *sums, const df_amx_factor *a, const df_amx_factor *b,
                              int64_t blocks, int terms, int64_t rows, int64_t columns,
                              int a_passes, df_amx_later *later) {
  multipliers[terms - 1][a_passes != 0][rows > DF_AMX_TILE][columns > DF_AMX_TILE](sums, a, b,
                                                                                   blocks, later);
}
