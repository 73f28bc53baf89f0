/* simd/squares.h: squares of bytes, transposed in registers. */
#ifndef DF_CPU_SIMD_SQUARES_H
#define DF_CPU_SIMD_SQUARES_H

#include <stdint.h>
#include <string.h>

enum { DF_SQUARE = 16 };

typedef uint8_t df_square_row __attribute__((vector_size(DF_SQUARE)));

static inline __attribute__((always_inline)) df_square_row df_zip_bytes(df_square_row a,
                                                                        df_square_row b, int half) {
#define DF_ZIP_INDEX(i) (i), (i) + 16, (i) + 1, (i) + 17, (i) + 2, (i) + 18, (i) + 3, (i) + 19
#if defined(__clang__) || __GNUC__ >= 12
#define DF_ZIP_BYTES(a, b, i) __builtin_shufflevector(a, b, DF_ZIP_INDEX(i), DF_ZIP_INDEX((i) + 4))
#else
#define DF_ZIP_BYTES(a, b, i)                                                                      \
  __builtin_shuffle(a, b, (df_square_row){DF_ZIP_INDEX(i), DF_ZIP_INDEX((i) + 4)})
#endif
  return half ? DF_ZIP_BYTES(a, b, 8) : DF_ZIP_BYTES(a, b, 0);
}

static inline __attribute__((always_inline)) df_square_row df_load_square_row(const uint8_t *from) {
  df_square_row value;
  memcpy(&value, from, sizeof value);
  return value;
}

/* Four rounds that each put row i + 8 between the elements of row i. */
static inline __attribute__((always_inline)) void df_transpose_bytes(df_square_row row[DF_SQUARE]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; round++) {
    df_square_row next[DF_SQUARE];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      next[2 * i] = df_zip_bytes(row[i], row[i + 8], 0);
      next[2 * i + 1] = df_zip_bytes(row[i], row[i + 8], 1);
    }
#pragma GCC unroll 16
    for (int i = 0; i < DF_SQUARE; i++)
      row[i] = next[i];
  }
}

#endif
