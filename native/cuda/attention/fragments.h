/* attention/fragments.h: tiles in shared memory in the number formats of tensor cores, and products
 * of them, for attention/tensor.cu and attention/tensor_grad.cu; the instruction is gemm/mma.h's.
 *
 * A matrix lies by rows, for sums along its columns: the words of a row side by side; or by
 * columns, for sums along its rows: a word has the elements of one column in as many neighbouring
 * rows as the format has numbers per word. Where that is one, both are the same. The words behind
 * each row let the threads of a warp read different banks.
 *
 * A block has four warps, a warp TALL times 16 complete rows of a result: what are results of one
 * product are, rounded, words of the next one in the same thread. */
#ifndef DF_CUDA_ATTENTION_FRAGMENTS_H
#define DF_CUDA_ATTENTION_FRAGMENTS_H
#include "attention/operands.h"
#include "gemm/mma.h"

enum {
  DF_FRAGMENT_WARPS = 4,
  DF_FRAGMENT_THREADS = DF_FRAGMENT_WARPS * DF_WARP,
  DF_FRAGMENT_ROWS = 16,
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

/* ROWS rows of |x| from |first| on, zeros behind the last of |rows| and behind each row up to HEAD,
 * by rows and by columns; null for one that is not wanted. All threads of the block take part, each
 * with patches of two rows and four columns. */
template <typename F, int ROWS, int HEAD>
static __device__ __forceinline__ void df_fragment_load(uint32_t *by_rows, uint32_t *by_columns,
                                                        const df_attention_matrix &x, int32_t first,
                                                        int32_t rows) {
  typedef df_fragment_tile<F, ROWS, HEAD> tile;
  constexpr int DOWN = ROWS / 2, ACROSS = HEAD / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const float *from = x.at + first * x.row;
  const int32_t left = rows - first;
  const bool down = x.column != 1; /* threads side by side read rows that do so */
#pragma unroll
  for (int patch = 0; patch < DOWN * ACROSS / DF_FRAGMENT_THREADS; patch++) {
    const int index = thread + patch * DF_FRAGMENT_THREADS;
    const int row = (down ? index % DOWN : index / ACROSS) * 2;
    const int column = (down ? index / DOWN : index % ACROSS) * 4;
    float v[2][4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float *at = from + (row + r) * x.row;
      if (x.fours && row + r < left && column < x.width) {
        const float4 four = *reinterpret_cast<const float4 *>(at + column);
        v[r][0] = four.x;
        v[r][1] = four.y;
        v[r][2] = four.z;
        v[r][3] = four.w;
      } else if (!x.fours && row + r < left) {
#pragma unroll
        for (int f = 0; f < 4; f++)
          if (column + f < x.width)
            v[r][f] = at[(column + f) * x.column];
      }
    }
    if constexpr (F::PER_WORD == 1) {
#pragma unroll
      for (int r = 0; r < 2; r++)
        *reinterpret_cast<uint4 *>(by_rows + (row + r) * tile::ROW_PITCH + column) =
            make_uint4(F::word(v[r][0]), F::word(v[r][1]), F::word(v[r][2]), F::word(v[r][3]));
    } else {
#pragma unroll
      for (int r = 0; r < 2 && by_rows; r++)
        *reinterpret_cast<uint2 *>(by_rows + (row + r) * tile::ROW_PITCH + column / 2) =
            make_uint2(F::word(v[r][0], v[r][1]), F::word(v[r][2], v[r][3]));
      if (by_columns)
        *reinterpret_cast<uint4 *>(by_columns + row / 2 * tile::COLUMN_PITCH + column) =
            make_uint4(F::word(v[0][0], v[1][0]), F::word(v[0][1], v[1][1]),
                       F::word(v[0][2], v[1][2]), F::word(v[0][3], v[1][3]));
    }
  }
}

/* sums[i][j] += the product of rows [16 i, 16 i + 16) of a and rows [8 j, 8 j + 8) of b, both by
 * rows of |words| words; a is the first row of this warp. */
template <typename F, int PITCH, int TALL, int COLUMNS>
static __device__ __forceinline__ void
df_fragment_rows(float (&sums)[TALL][COLUMNS][4], const uint32_t *a, const uint32_t *b, int words) {
  const int from = df_fragment_group() * PITCH + df_fragment_in_group();
  a += from;
  b += from;
#pragma unroll 2
  for (int k = 0; k < words; k += DF_FRAGMENT_WORDS) {
    uint32_t left[TALL][4];
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
      for (int w = 0; w < 4; w++)
        left[i][w] = a[(i * DF_FRAGMENT_ROWS + w % 2 * 8) * PITCH + k + w / 2 * 4];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const uint32_t *right = b + j * DF_FRAGMENT_COLUMNS * PITCH + k;
#pragma unroll
      for (int i = 0; i < TALL; i++)
        F::multiply(sums[i][j], left[i], right[0], right[4]);
    }
  }
}

/* sums[i][j] += weights times columns [8 j, 8 j + 8) of b by columns: |weights| are results of a
 * product, 8 DEPTH of each row. */
template <typename F, int PITCH, int TALL, int DEPTH, int COLUMNS>
static __device__ __forceinline__ void df_fragment_columns(float (&sums)[TALL][COLUMNS][4],
                                                           const float (&weights)[TALL][DEPTH][4],
                                                           const uint32_t *b) {
  constexpr bool SAME = F::PER_WORD == 1;
  /* Where the words of a are numbers 2 t and 2 t + 1 of eight, so must be those of b. */
  b += df_fragment_in_group() * (SAME ? 2 : 1) * PITCH + df_fragment_group();
#pragma unroll
  for (int k = 0; k < DEPTH; k += F::PER_WORD) {
    uint32_t left[TALL][4];
#pragma unroll
    for (int i = 0; i < TALL; i++) {
      const float (&w)[4] = weights[i][k];
      if constexpr (SAME) {
        left[i][0] = F::word(w[0]);
        left[i][1] = F::word(w[2]);
        left[i][2] = F::word(w[1]);
        left[i][3] = F::word(w[3]);
      } else {
        const float (&more)[4] = weights[i][k + 1];
        left[i][0] = F::word(w[0], w[1]);
        left[i][1] = F::word(w[2], w[3]);
        left[i][2] = F::word(more[0], more[1]);
        left[i][3] = F::word(more[2], more[3]);
      }
    }
    const uint32_t *row = b + k / F::PER_WORD * DF_FRAGMENT_WORDS * PITCH;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const uint32_t *right = row + j * DF_FRAGMENT_COLUMNS;
#pragma unroll
      for (int i = 0; i < TALL; i++)
        F::multiply(sums[i][j], left[i], right[0], right[(SAME ? 1 : 4) * PITCH]);
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
