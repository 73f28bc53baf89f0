/* quantized/tile_loops.h: the tiles of quantized/tile.h, written once.
 *
 * Who includes this defines before it
 *   DF_BYTE_TILES       the name of the table
 *   DF_BYTE_TOGETHER    rows whose sums fit in registers beside the operands
 *   unsigned_operand    a vector of unsigned bytes as the products read them, made by
 *                       widen_unsigned; likewise signed_operand and widen_signed
 *   add_products        sums with the products of an operand of each kind added
 * and, where products of two steps may be added before they become 32 bits,
 *   add_pairs           sums with the products of two operands of each kind added */
#include "quantized/tile.h"

#define TILE_INLINE static inline __attribute__((always_inline))

enum {
  ANCHORS = (DF_BYTE_ROWS + 2) / 3,
  AHEAD = 8192 /* bytes of columns: about the latency of the third cache, in which weights lie */
};

TILE_INLINE df_ivec load_line(const uint8_t *from) {
  df_ivec value;
  memcpy(&value, from, sizeof value);
  return value;
}

TILE_INLINE df_ivec splat_step(const uint8_t *from) {
  int32_t value;
  memcpy(&value, from, sizeof value);
  return value - (df_ivec){0};
}

/* Sums of a tile, and where its operands go on. Rows are addressed from every third of them, so
 * that few pointers move. */
typedef struct running {
  df_ivec sum[DF_BYTE_ROWS][DF_BYTE_VECTORS];
  const uint8_t *anchor[ANCHORS], *b;
  int64_t a_row, a_step, b_step;
} running;

/* Here and below |rows|, |vectors| and |unsigned_columns| are constants at every use: |sum| is
 * registers. */
TILE_INLINE void move_on(int rows, int vectors, running *r, int64_t steps) {
#pragma GCC unroll 16
  for (int i = 0; i < rows; i += 3)
    r->anchor[i / 3] += steps * r->a_step;
  for (int64_t p = 0; p < steps; p++, r->b += r->b_step)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++)
      __builtin_prefetch(r->b + AHEAD + j * DF_BYTE_LEAST_LINE);
}

TILE_INLINE df_ivec splat_row(const running *r, int i) {
  return splat_step(r->anchor[i / 3] + i % 3 * r->a_row);
}

TILE_INLINE void add_step(int rows, int vectors, int unsigned_columns, running *r) {
  unsigned_operand right_unsigned[DF_BYTE_VECTORS];
  signed_operand right_signed[DF_BYTE_VECTORS];
#pragma GCC unroll 2
  for (int j = 0; j < vectors; j++) {
    const df_ivec line = load_line(r->b + j * DF_BYTE_LEAST_LINE);
    if (unsigned_columns)
      right_unsigned[j] = widen_unsigned(line);
    else
      right_signed[j] = widen_signed(line);
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    const df_ivec left = splat_row(r, i);
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++)
      r->sum[i][j] = unsigned_columns
                         ? add_products(r->sum[i][j], right_unsigned[j], widen_signed(left))
                         : add_products(r->sum[i][j], widen_unsigned(left), right_signed[j]);
  }
  move_on(rows, vectors, r, 1);
}

#ifdef add_pairs
/* Makes a pointer one that the compiler knows nothing of, where it would keep in registers what
 * lies there, or products of it, and sums in memory instead. */
TILE_INLINE void forget(const uint8_t **pointer) { __asm__("" : "+r"(*pointer)); }

/* Two steps; what is signed is an operand in memory, or is spread from it. */
TILE_INLINE void add_two_steps(int rows, int vectors, int unsigned_columns, running *r) {
  running next = *r;
#pragma GCC unroll 16
  for (int i = 0; i < rows; i += 3)
    next.anchor[i / 3] += r->a_step;
  next.b += r->b_step;
  if (unsigned_columns) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++) {
      const df_ivec first = load_line(r->b + j * DF_BYTE_LEAST_LINE);
      const df_ivec second = load_line(next.b + j * DF_BYTE_LEAST_LINE);
#pragma GCC unroll 16
      for (int i = 0; i < rows; i += 3) {
        forget(&r->anchor[i / 3]);
        forget(&next.anchor[i / 3]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows; i++)
        r->sum[i][j] = add_pairs(r->sum[i][j], first, splat_row(r, i), second, splat_row(&next, i));
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      const df_ivec first = splat_row(r, i), second = splat_row(&next, i);
      forget(&r->b);
      forget(&next.b);
#pragma GCC unroll 2
      for (int j = 0; j < vectors; j++)
        r->sum[i][j] = add_pairs(r->sum[i][j], first, load_line(r->b + j * DF_BYTE_LEAST_LINE),
                                 second, load_line(next.b + j * DF_BYTE_LEAST_LINE));
    }
  }
  move_on(rows, vectors, r, 2);
}
#endif

/* At a step of a tile. */
TILE_INLINE void go_to(int rows, running *r, const df_byte_tile_of *tile, const uint8_t *a,
                       int64_t step) {
#pragma GCC unroll 16
  for (int i = 0; i < rows; i += 3)
    r->anchor[i / 3] = a + i * r->a_row + step * r->a_step;
  r->b = tile->b + step * r->b_step;
}

TILE_INLINE void sum_rows(int rows, int vectors, int unsigned_columns, const df_byte_tile_of *tile,
                          const uint8_t *a, int32_t *sums) {
  running r = {.a_row = tile->a_row, .a_step = tile->a_step, .b_step = tile->b_step};
  int64_t p = 0;
  go_to(rows, &r, tile, a, 0);
#ifdef add_pairs
  const uint8_t *crowded = tile->crowded;
  const int64_t pairs = crowded ? tile->steps / 2 : 0;
  for (; p < pairs; p++)
    if (crowded[p])
      move_on(rows, vectors, &r, 2);
    else
      add_two_steps(rows, vectors, unsigned_columns, &r);
  for (p = 0; p < pairs; p++)
    if (crowded[p]) {
      go_to(rows, &r, tile, a, 2 * p);
      add_step(rows, vectors, unsigned_columns, &r);
      add_step(rows, vectors, unsigned_columns, &r);
    }
  p = 2 * pairs;
  go_to(rows, &r, tile, a, p);
#endif
  for (; p < tile->steps; p++)
    add_step(rows, vectors, unsigned_columns, &r);
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; j++)
      memcpy(sums + i * DF_BYTE_COLUMNS + j * DF_LANES, &r.sum[i][j], sizeof(df_ivec));
}

TILE_INLINE void sum_tile(int rows, int vectors, int unsigned_columns,
                          const df_byte_tile_of *tile) {
  const int first = rows > DF_BYTE_TOGETHER ? DF_BYTE_TOGETHER : rows;
  sum_rows(first, vectors, unsigned_columns, tile, tile->a, tile->sums);
  if (rows > first)
    sum_rows(rows - first, vectors, unsigned_columns, tile, tile->a + first * tile->a_row,
             tile->sums + first * DF_BYTE_COLUMNS);
}

#define TILE(rows, vectors, side)                                                                  \
  static void tile_##rows##_##vectors##_##side(const df_byte_tile_of *tile) {                      \
    sum_tile(rows, vectors, side, tile);                                                           \
  }
#define TILES(rows) TILE(rows, 1, 0) TILE(rows, 2, 0) TILE(rows, 1, 1) TILE(rows, 2, 1)
#define UNSIGNED_ROWS(rows) {tile_##rows##_1_0, tile_##rows##_2_0},
#define UNSIGNED_COLUMNS(rows) {tile_##rows##_1_1, tile_##rows##_2_1},

#if DF_BYTE_ROWS == 14
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif DF_BYTE_ROWS == 6
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define FOR_ROWS(X) X(1) X(2) X(3) X(4)
#endif

FOR_ROWS(TILES)

const df_byte_tiles DF_BYTE_TILES = {{FOR_ROWS(UNSIGNED_ROWS)}, {FOR_ROWS(UNSIGNED_COLUMNS)}};
