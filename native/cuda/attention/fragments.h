/* attention/fragments.h: tiles in shared memory in the number formats of tensor cores, and products
 * of them, for attention/tensor.cu and attention/tensor_grad.cu; the instruction is gemm/mma.h's.
 *
 * A tile lies by rows, as attention/prepack.h has it, with four words behind each row, so that the
 * threads of a warp read different banks. Its rows are summed along, or its columns: of bfloat16
 * both are read by ldmatrix, 16 bytes a thread, which can transpose; of TF32 rows alone.
 *
 * A block has four warps, a warp 16 complete rows of a result: what are results of one product are,
 * rounded, words of the next one in the same thread. */
#ifndef DF_CUDA_ATTENTION_FRAGMENTS_H
#define DF_CUDA_ATTENTION_FRAGMENTS_H
#include "attention/operands.h"
#include "gemm/async.h"
#include "gemm/mma.h"

enum {
  DF_FRAGMENT_WARPS = 4,
  DF_FRAGMENT_THREADS = DF_FRAGMENT_WARPS * DF_WARP,
  DF_FRAGMENT_ROWS = 16,
  DF_FRAGMENT_TILE_ROWS = DF_FRAGMENT_ROWS * DF_FRAGMENT_WARPS, /* of a block */
  DF_FRAGMENT_COLUMNS = 8,
  DF_FRAGMENT_WORDS = 8 /* along a sum */
};

/* g and t of the thread; see gemm/mma.h. */
static __device__ __forceinline__ int df_fragment_lane() {
  return static_cast<int>(threadIdx.x) % DF_WARP;
}
static __device__ __forceinline__ int df_fragment_group() { return df_fragment_lane() / 4; }
static __device__ __forceinline__ int df_fragment_in_group() { return df_fragment_lane() % 4; }

/* A tile of ROWS x HEAD numbers of the format F. */
template <typename F_, int ROWS_, int HEAD> struct df_fragment_tile {
  typedef F_ F;
  static constexpr int ROWS = ROWS_, WIDTH = HEAD / F::PER_WORD; /* words */
  static constexpr int PITCH = WIDTH + 4, WORDS = ROWS * PITCH, STEPS = WIDTH / DF_FRAGMENT_WORDS;

  /* Begins to copy what is contiguous at |from|; df_async_wait and a barrier end it. */
  static __device__ __forceinline__ void load(uint32_t *to, const float *from) {
    constexpr int FOURS = WIDTH / 4, STEP = DF_FRAGMENT_THREADS / FOURS;
    static_assert(ROWS % STEP == 0, "complete passes");
    const int thread = static_cast<int>(threadIdx.x);
    float *at = reinterpret_cast<float *>(to) + thread / FOURS * PITCH + thread % FOURS * 4;
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP)
      df_async_four(at + k * PITCH, from + (k * FOURS + thread) * 4, true);
  }
};

/* Four matrices of 8 rows of 16 bytes: lane l has the address of row l % 8 of matrix l / 8, and
 * gets of each the word (g, t) or, transposed, the two 16-bit elements (2 t, g) and (2 t + 1, g).
 */
template <bool TRANSPOSED>
static __device__ __forceinline__ void df_fragment_read(uint32_t (&to)[4], const uint32_t *row) {
#ifdef __CUDACC__
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
#else
  standin_ldmatrix(to, row, TRANSPOSED);
#endif
}

/* 16 rows of a tile as what is left in products along its rows: in registers, or read each time. */
template <typename T, bool KEPT> struct df_fragment_left {
  const uint32_t *at;
  uint32_t kept[KEPT ? T::STEPS : 1][4];

  explicit __device__ __forceinline__ df_fragment_left(const uint32_t *rows)
      : at(rows + df_fragment_lane() % 16 * T::PITCH + df_fragment_lane() / 16 * 4), kept{} {}

  /* When the rows are there, before the first product. */
  __device__ __forceinline__ void keep() {
    if constexpr (KEPT) {
#pragma unroll
      for (int k = 0; k < T::STEPS; k++)
        df_fragment_read<false>(kept[k], at + k * DF_FRAGMENT_WORDS);
    }
  }
};

/* sums[j] += the product of 16 rows of a and rows [8 j, 8 j + 8) of |b|, along their rows. */
template <typename T, bool KEPT, int COLUMNS>
static __device__ __forceinline__ void
df_fragment_rows(float (&sums)[COLUMNS][4], const df_fragment_left<T, KEPT> &a, const uint32_t *b) {
  static_assert(COLUMNS % 2 == 0, "pairs of columns are read together");
  const int lane = df_fragment_lane();
  b += (lane / 16 * 8 + lane % 8) * T::PITCH + lane / 8 % 2 * 4;
#pragma unroll
  for (int k = 0; k < T::STEPS; k++) {
    uint32_t left[4];
    if constexpr (KEPT) {
#pragma unroll
      for (int w = 0; w < 4; w++)
        left[w] = a.kept[k][w];
    } else {
      df_fragment_read<false>(left, a.at + k * DF_FRAGMENT_WORDS);
    }
    uint32_t right[COLUMNS / 2][4];
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2)
      df_fragment_read<false>(right[j / 2],
                              b + j * DF_FRAGMENT_COLUMNS * T::PITCH + k * DF_FRAGMENT_WORDS);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
      T::F::multiply(sums[j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
  }
}

/* sums[j] += weights times columns [8 j, 8 j + 8) of |b|, along its columns: |weights| are results
 * of a product, 8 DEPTH of each row. */
template <typename T, int DEPTH, int COLUMNS>
static __device__ __forceinline__ void df_fragment_columns(float (&sums)[COLUMNS][4],
                                                           const float (&weights)[DEPTH][4],
                                                           const uint32_t *b) {
  typedef typename T::F F;
  const int lane = df_fragment_lane();
  if constexpr (F::PER_WORD == 1) {
    /* Where the words of a are numbers 2 t and 2 t + 1 of eight, so must be those of b. */
    b += df_fragment_in_group() * 2 * T::PITCH + df_fragment_group();
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
      const float (&w)[4] = weights[k];
      const uint32_t left[4] = {F::word(w[0]), F::word(w[2]), F::word(w[1]), F::word(w[3])};
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const uint32_t *right = b + k * DF_FRAGMENT_WORDS * T::PITCH + j * DF_FRAGMENT_COLUMNS;
        F::multiply(sums[j], left, right[0], right[T::PITCH]);
      }
    }
  } else {
    b += lane % 16 * T::PITCH + lane / 16 * 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 2) {
      const float (&w)[4] = weights[k];
      const float (&more)[4] = weights[k + 1];
      const uint32_t left[4] = {F::word(w[0], w[1]), F::word(w[2], w[3]), F::word(more[0], more[1]),
                                F::word(more[2], more[3])};
      constexpr int TOGETHER = COLUMNS < 8 ? COLUMNS : 8;
#pragma unroll
      for (int first = 0; first < COLUMNS; first += TOGETHER) {
        uint32_t right[TOGETHER / 2][4];
#pragma unroll
        for (int j = 0; j < TOGETHER; j += 2)
          df_fragment_read<true>(right[j / 2],
                                 b + k * DF_FRAGMENT_COLUMNS * T::PITCH + (first + j) * 4);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
          F::multiply(sums[first + j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

/* Adds to results of a product what a mask has: rows |row| and |row| + 8 of this thread, columns
 * |column| + 8 j, of a matrix of |rows| x |columns|; nothing behind its edges. */
template <int COLUMNS>
static __device__ __forceinline__ void
df_fragment_add(float (&sums)[COLUMNS][4], const df_attention_matrix &mask, bool pairs, int32_t row,
                int32_t rows, int32_t column, int32_t columns) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row + half * 8 >= rows)
      continue;
    const float *from = mask.at + (row + half * 8) * mask.row + column * mask.column;
    if (pairs) {
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
        if (column + j * DF_FRAGMENT_COLUMNS < columns) {
          const float2 two = *reinterpret_cast<const float2 *>(from + j * DF_FRAGMENT_COLUMNS);
          sums[j][half * 2] += two.x;
          sums[j][half * 2 + 1] += two.y;
        }
      continue;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
      for (int f = 0; f < 2; f++)
        if (column + j * DF_FRAGMENT_COLUMNS + f < columns)
          sums[j][half * 2 + f] += from[f * mask.column];
      from += DF_FRAGMENT_COLUMNS * mask.column;
    }
  }
}

/* One value per row joined over the four threads that have it. */
template <typename F> static __device__ __forceinline__ float df_fragment_join(float x, F f) {
  x = f(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return f(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

#endif
