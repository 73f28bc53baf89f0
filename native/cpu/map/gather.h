/* map/gather.h: strided elements to where they lie one after another: rows, and strips of rows that
 * lie across. */
#ifndef DF_CPU_MAP_GATHER_H
#define DF_CPU_MAP_GATHER_H
#include "cpu.h"
#include "simd/squares.h"

#include <assert.h>
#include <string.h>

/* What is moved here may have any type of its size. */
typedef uint8_t df_item_1 __attribute__((may_alias));
typedef uint16_t df_item_2 __attribute__((may_alias));
typedef uint32_t df_item_4 __attribute__((may_alias));
typedef uint64_t df_item_8 __attribute__((may_alias));

enum { DF_COPY_TILE = 16 /* a square of 4-byte elements: 16 cache lines on both sides */ };

/* to[0..n) = from[0], from[stride], ... */
static inline void df_gather_row(char *to, const char *from, int64_t stride, int64_t n,
                                 int64_t item) {
  if (stride == 1) { /* short rows of a larger tensor, as the heads of attention are */
    memcpy(to, from, (size_t)(n * item));
    return;
  }
#define DF_GATHER_TYPE(T)                                                                          \
  {                                                                                                \
    T *t = (T *)(void *)to;                                                                        \
    const T *f = (const T *)(const void *)from;                                                    \
    if (stride == 0) {                                                                             \
      const T value = *f;                                                                          \
      for (int64_t i = 0; i < n; i++)                                                              \
        t[i] = value;                                                                              \
    } else {                                                                                       \
      for (int64_t i = 0; i < n; i++)                                                              \
        t[i] = f[i * stride];                                                                      \
    }                                                                                              \
    break;                                                                                         \
  }
  switch (item) {
  case 1:
    DF_GATHER_TYPE(df_item_1)
  case 2:
    DF_GATHER_TYPE(df_item_2)
  case 4:
    DF_GATHER_TYPE(df_item_4)
  case 8:
    DF_GATHER_TYPE(df_item_8)
  default:
    DF_ASSUME(item > 0);
    for (int64_t i = 0; i < n; i++)
      memcpy(to + i * item, from + i * stride * item, (size_t)item);
  }
#undef DF_GATHER_TYPE
}

typedef df_item_1 df_square_1[DF_COPY_TILE][DF_COPY_TILE];
typedef df_item_2 df_square_2[DF_COPY_TILE][DF_COPY_TILE];
typedef df_item_4 df_square_4[DF_COPY_TILE][DF_COPY_TILE];
typedef df_item_8 df_square_8[DF_COPY_TILE][DF_COPY_TILE];

static_assert((int)DF_COPY_TILE == (int)DF_SQUARE, "a tile of bytes is a square");

static inline void df_square_out_1(df_item_1 *to, int64_t to_step, df_square_1 square) {
  df_square_row row[DF_SQUARE];
  memcpy(row, square, sizeof row);
  df_transpose_bytes(row);
  for (int i = 0; i < DF_SQUARE; i++)
    memcpy(to + i * to_step, &row[i], sizeof row[i]);
}

typedef uint16_t df_eight __attribute__((vector_size(16)));
typedef uint32_t df_four __attribute__((vector_size(16)));
typedef uint64_t df_two __attribute__((vector_size(16)));
#if defined(__clang__) || __GNUC__ >= 12
#define DF_EIGHT_OF(a, b, i)                                                                       \
  __builtin_shufflevector(a, b, i, i + 8, i + 1, i + 9, i + 2, i + 10, i + 3, i + 11)
#define DF_FOUR_OF(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#define DF_TWO_OF(a, b, i, j) __builtin_shufflevector(a, b, i, j)
#else
typedef int16_t df_eight_index __attribute__((vector_size(16)));
typedef int32_t df_four_index __attribute__((vector_size(16)));
typedef int64_t df_two_index __attribute__((vector_size(16)));
#define DF_EIGHT_OF(a, b, i)                                                                       \
  __builtin_shuffle(a, b, (df_eight_index){i, i + 8, i + 1, i + 9, i + 2, i + 10, i + 3, i + 11})
#define DF_FOUR_OF(a, b, i, j, k, l) __builtin_shuffle(a, b, (df_four_index){i, j, k, l})
#define DF_TWO_OF(a, b, i, j) __builtin_shuffle(a, b, (df_two_index){i, j})
#endif
#define DF_ZIP_LOW(a, b) DF_FOUR_OF(a, b, 0, 4, 1, 5)
#define DF_ZIP_HIGH(a, b) DF_FOUR_OF(a, b, 2, 6, 3, 7)

/* By eights, in three rounds that each put row i + 4 between the elements of row i. */
static inline void df_square_out_2(df_item_2 *to, int64_t to_step, df_square_2 square) {
  for (int row = 0; row < DF_COPY_TILE; row += 8)
    for (int column = 0; column < DF_COPY_TILE; column += 8) {
      df_eight lines[8], next[8];
      for (int i = 0; i < 8; i++)
        memcpy(&lines[i], &square[column + i][row], sizeof lines[i]);
#pragma GCC unroll 3
      for (int round = 0; round < 3; round++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
          next[2 * i] = DF_EIGHT_OF(lines[i], lines[i + 4], 0);
          next[2 * i + 1] = DF_EIGHT_OF(lines[i], lines[i + 4], 4);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
          lines[i] = next[i];
      }
      for (int i = 0; i < 8; i++)
        memcpy(to + (row + i) * to_step + column, &lines[i], sizeof lines[i]);
    }
}

static inline void df_square_out_8(df_item_8 *to, int64_t to_step, df_square_8 square) {
  for (int row = 0; row < DF_COPY_TILE; row += 2)
    for (int column = 0; column < DF_COPY_TILE; column += 2) {
      df_two a, b;
      memcpy(&a, &square[column][row], sizeof a);
      memcpy(&b, &square[column + 1][row], sizeof b);
      const df_two lines[2] = {DF_TWO_OF(a, b, 0, 2), DF_TWO_OF(a, b, 1, 3)};
      for (int i = 0; i < 2; i++)
        memcpy(to + (row + i) * to_step + column, &lines[i], sizeof lines[i]);
    }
}

/* By fours: wider vectors would have to exchange their halves, which costs more than they spare. */
static inline void df_square_out_4(df_item_4 *to, int64_t to_step, df_square_4 square) {
  for (int row = 0; row < DF_COPY_TILE; row += 4)
    for (int column = 0; column < DF_COPY_TILE; column += 4) {
      df_four from[4];
      for (int i = 0; i < 4; i++)
        memcpy(&from[i], &square[column + i][row], sizeof from[i]);
      const df_four a = DF_ZIP_LOW(from[0], from[2]), b = DF_ZIP_LOW(from[1], from[3]);
      const df_four c = DF_ZIP_HIGH(from[0], from[2]), d = DF_ZIP_HIGH(from[1], from[3]);
      const df_four lines[4] = {DF_ZIP_LOW(a, b), DF_ZIP_HIGH(a, b), DF_ZIP_LOW(c, d),
                                DF_ZIP_HIGH(c, d)};
      for (int i = 0; i < 4; i++)
        memcpy(to + (row + i) * to_step + column, &lines[i], sizeof lines[i]);
    }
}

/* A strip of |rows| <= DF_COPY_TILE target rows of |n| elements: to[r][i] = from[i][r]. Full
 * squares go through a buffer, so that both sides are read and written in whole lines. */
#define DF_COPY_STRIP(name, T)                                                                     \
  {                                                                                                \
    T *t = (T *)(void *)to;                                                                        \
    const T *f = (const T *)(const void *)from;                                                    \
    int64_t i = 0;                                                                                 \
    if (rows == DF_COPY_TILE)                                                                      \
      for (; i + DF_COPY_TILE <= n; i += DF_COPY_TILE) {                                           \
        _Alignas(64) df_square_##name square;                                                      \
        for (int c = 0; c < DF_COPY_TILE; c++)                                                     \
          memcpy(square[c], f + (i + c) * from_step, sizeof square[c]);                            \
        df_square_out_##name(t + i, to_step, square);                                              \
      }                                                                                            \
    for (; i < n; i++)                                                                             \
      for (int64_t r = 0; r < rows; r++)                                                           \
        t[r * to_step + i] = f[i * from_step + r];                                                 \
    break;                                                                                         \
  }

/* |item| is 1, 2, 4 or 8. */
static inline void df_copy_strip(char *to, int64_t to_step, const char *from, int64_t from_step,
                                 int64_t rows, int64_t n, int64_t item) {
  switch (item) {
  case 1:
    DF_COPY_STRIP(1, df_item_1)
  case 2:
    DF_COPY_STRIP(2, df_item_2)
  case 4:
    DF_COPY_STRIP(4, df_item_4)
  default:
    DF_COPY_STRIP(8, df_item_8)
  }
}

#endif
