/* attention/fragments.h: tiles in shared memory in the number formats of tensor cores, and products
 * of them, for attention/tensor.cu and attention/tensor_grad.cu; the instruction is gemm/mma.h's.
 *
 * A matrix lies by rows, for sums along its columns: the words of a row side by side; or by
 * columns, for sums along its rows: a word has the elements of one column in as many neighbouring
 * rows as the format has numbers per word. Where that is one, both are the same. The words behind
 * each row let the threads of a warp read different banks.
 *
 * A block has four warps, a warp 16 complete rows of a result: what are results of one product are,
 * rounded, words of the next one in the same thread. 32 rows would read b half as often, but need
 * registers that let half as many warps run, and these kernels wait for latencies. */
#ifndef DF_CUDA_ATTENTION_FRAGMENTS_H
#define DF_CUDA_ATTENTION_FRAGMENTS_H
#include "attention/operands.h"
#include "gemm/mma.h"

enum {
  DF_FRAGMENT_WARPS = 4,
  DF_FRAGMENT_THREADS = DF_FRAGMENT_WARPS * DF_WARP,
  DF_FRAGMENT_ROWS = 16,
  DF_FRAGMENT_TILE_ROWS = DF_FRAGMENT_ROWS * DF_FRAGMENT_WARPS, /* of a block */
  DF_FRAGMENT_COLUMNS = 8,
  DF_FRAGMENT_WORDS = 8 /* along a sum */
};

/* A tile of ROWS x HEAD numbers of the format F. */
template <typename F, int ROWS, int HEAD> struct df_fragment_tile {
  static constexpr bool SAME = F::PER_WORD == 1; /* by rows and by columns */
  static constexpr int ROW_PITCH = HEAD / F::PER_WORD + 4;
  static constexpr int COLUMN_PITCH = SAME ? ROW_PITCH : HEAD + 8;
  static constexpr int ROW_WORDS = ROWS * ROW_PITCH;
  static constexpr int COLUMN_WORDS =
      SAME ? 0 : ROWS / F::PER_WORD * COLUMN_PITCH; /* in addition */
};

/* g and t of the thread; see gemm/mma.h. */
static __device__ __forceinline__ int df_fragment_group() {
  return static_cast<int>(threadIdx.x) % DF_WARP / 4;
}
static __device__ __forceinline__ int df_fragment_in_group() {
  return static_cast<int>(threadIdx.x) % 4;
}

/* What a thread loads of a tile: patches of two rows and four columns. Between fetching and putting
 * them into shared memory there may be work that doesn't wait for memory. */
template <typename F, int ROWS, int HEAD> struct df_fragment_share {
  static constexpr int DOWN = ROWS / 2, ACROSS = HEAD / 4;
  static constexpr int PATCHES = DOWN * ACROSS / DF_FRAGMENT_THREADS;
  static constexpr int STEP = DF_FRAGMENT_THREADS / ACROSS * 2; /* rows between two patches */
  typedef df_fragment_tile<F, ROWS, HEAD> tile;
  float v[PATCHES][2][4];

  /* Whether threads side by side read rows that lie so. */
  static __device__ __forceinline__ bool is_down(const df_attention_matrix &x) {
    return x.column != 1;
  }
  static __device__ __forceinline__ void position(bool down, int patch, int *row, int *column) {
    const int index = static_cast<int>(threadIdx.x) + patch * DF_FRAGMENT_THREADS;
    *row = (down ? index % DOWN : index / ACROSS) * 2;
    *column = (down ? index / DOWN : index % ACROSS) * 4;
  }

  /* Rows of |x| from |first| on, zeros behind the last of |rows| and behind each row up to HEAD. */
  __device__ __forceinline__ void fetch(const df_attention_matrix &x, int32_t first, int32_t rows) {
    const float *from = x.at + first * x.row;
    const int32_t left = rows - first;
    if (x.fours) { /* no branch for each, so that no load waits for another */
      int row, column;
      position(false, 0, &row, &column);
      const int32_t valid = column < x.width ? left : 0;
      from += row * x.row + column;
#pragma unroll
      for (int patch = 0; patch < PATCHES; patch++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const bool there = row + patch * STEP + r < valid;
          const float *at = there ? from + r * x.row : x.at;
          const float4 four = *reinterpret_cast<const float4 *>(at);
          v[patch][r][0] = there ? four.x : 0.0f;
          v[patch][r][1] = there ? four.y : 0.0f;
          v[patch][r][2] = there ? four.z : 0.0f;
          v[patch][r][3] = there ? four.w : 0.0f;
        }
        from += STEP * x.row;
      }
      return;
    }
    const bool down = is_down(x);
#pragma unroll
    for (int patch = 0; patch < PATCHES; patch++) {
      int row, column;
      position(down, patch, &row, &column);
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int f = 0; f < 4; f++)
          v[patch][r][f] = row + r < left && column + f < x.width
                               ? from[(row + r) * x.row + (column + f) * x.column]
                               : 0.0f;
    }
  }

  /* By rows and by columns; null for one that is not wanted. Both may be the same. */
  __device__ __forceinline__ void put(uint32_t *by_rows, uint32_t *by_columns,
                                      const df_attention_matrix &x) const {
    const bool down = is_down(x);
#pragma unroll
    for (int patch = 0; patch < PATCHES; patch++) {
      int row, column;
      position(down, patch, &row, &column);
      const float (&own)[2][4] = v[patch];
      if constexpr (tile::SAME) {
        uint32_t *to = (by_rows ? by_rows : by_columns) + row * tile::ROW_PITCH + column;
#pragma unroll
        for (int r = 0; r < 2; r++)
          *reinterpret_cast<uint4 *>(to + r * tile::ROW_PITCH) = make_uint4(
              F::word(own[r][0]), F::word(own[r][1]), F::word(own[r][2]), F::word(own[r][3]));
      } else {
#pragma unroll
        for (int r = 0; r < 2 && by_rows; r++)
          *reinterpret_cast<uint2 *>(by_rows + (row + r) * tile::ROW_PITCH + column / 2) =
              make_uint2(F::word(own[r][0], own[r][1]), F::word(own[r][2], own[r][3]));
        if (by_columns)
          *reinterpret_cast<uint4 *>(by_columns + row / 2 * tile::COLUMN_PITCH + column) =
              make_uint4(F::word(own[0][0], own[1][0]), F::word(own[0][1], own[1][1]),
                         F::word(own[0][2], own[1][2]), F::word(own[0][3], own[1][3]));
      }
    }
  }
};

/* Rows [first, first + ROWS) of |x| into shared memory, by rows and by columns. All threads of the
 * block take part. */
template <typename F, int ROWS, int HEAD>
static __device__ __forceinline__ void df_fragment_load(uint32_t *by_rows, uint32_t *by_columns,
                                                        const df_attention_matrix &x, int32_t first,
                                                        int32_t rows) {
  df_fragment_share<F, ROWS, HEAD> share;
  share.fetch(x, first, rows);
  share.put(by_rows, by_columns, x);
}

/* sums[j] += the product of 16 rows of a and rows [8 j, 8 j + 8) of b, both by rows of |words|
 * words; a is the first row of this warp. */
template <typename F, int PITCH, int COLUMNS>
static __device__ __forceinline__ void
df_fragment_rows(float (&sums)[COLUMNS][4], const uint32_t *a, const uint32_t *b, int words) {
  const int from = df_fragment_group() * PITCH + df_fragment_in_group();
  a += from;
  b += from;
#pragma unroll 2
  for (int k = 0; k < words; k += DF_FRAGMENT_WORDS) {
    uint32_t left[4];
#pragma unroll
    for (int w = 0; w < 4; w++)
      left[w] = a[w % 2 * 8 * PITCH + k + w / 2 * 4];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const uint32_t *right = b + j * DF_FRAGMENT_COLUMNS * PITCH + k;
      F::multiply(sums[j], left, right[0], right[4]);
    }
  }
}

/* sums[j] += weights times columns [8 j, 8 j + 8) of b by columns: |weights| are results of a
 * product, 8 DEPTH of each row. */
template <typename F, int PITCH, int DEPTH, int COLUMNS>
static __device__ __forceinline__ void df_fragment_columns(float (&sums)[COLUMNS][4],
                                                           const float (&weights)[DEPTH][4],
                                                           const uint32_t *b) {
  constexpr bool SAME = F::PER_WORD == 1;
  /* Where the words of a are numbers 2 t and 2 t + 1 of eight, so must be those of b. */
  b += df_fragment_in_group() * (SAME ? 2 : 1) * PITCH + df_fragment_group();
#pragma unroll
  for (int k = 0; k < DEPTH; k += F::PER_WORD) {
    const float (&w)[4] = weights[k];
    uint32_t left[4];
    if constexpr (SAME) {
      left[0] = F::word(w[0]);
      left[1] = F::word(w[2]);
      left[2] = F::word(w[1]);
      left[3] = F::word(w[3]);
    } else {
      const float (&more)[4] = weights[k + 1];
      left[0] = F::word(w[0], w[1]);
      left[1] = F::word(w[2], w[3]);
      left[2] = F::word(more[0], more[1]);
      left[3] = F::word(more[2], more[3]);
    }
    const uint32_t *row = b + k / F::PER_WORD * DF_FRAGMENT_WORDS * PITCH;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const uint32_t *right = row + j * DF_FRAGMENT_COLUMNS;
      F::multiply(sums[j], left, right[0], right[(SAME ? 1 : 4) * PITCH]);
    }
  }
}

/* One value per row joined over the four threads that have it. */
template <typename F> static __device__ __forceinline__ float df_fragment_join(float x, F f) {
  x = f(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return f(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Words of a row of |size| numbers, up to complete instructions. */
template <typename F> static __device__ __forceinline__ int df_fragment_words(int size) {
  return (size + DF_FRAGMENT_WORDS * F::PER_WORD - 1) / (DF_FRAGMENT_WORDS * F::PER_WORD) *
         DF_FRAGMENT_WORDS;
}

#endif
